"""The first seconds of a visit: what the page opens with has come beside its scripts."""

from __future__ import annotations

import base64
import json

import pytest

from kvviz.ui import ahead, assets
from kvviz.ui.replies import first_replies

ASKED = "**/gradio_api/component_server/**"


@pytest.fixture
def watched(browser, served):
    """(a page that is not yet open, the views that it asks for)."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page, asked = context.new_page(), []

    def note(request):
        if "component_server" in request.url:
            asked.append(json.loads(request.post_data)["data"]["view"])

    page.on("request", note)
    yield page, asked
    context.close()


def test_a_first_visit_asks_for_nothing_that_has_come(watched, served):
    page, asked = watched
    page.goto(served[0])
    page.wait_for_selector("#kv-kept-b [data-drawn]")
    page.wait_for_selector("#kv-app[data-ready]")
    told = {one["view"] for one in json.loads(first_replies())}
    assert not told & set(asked), asked
    page.focus("#kv-budget")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('#kv-kept-a [data-drawn]').dataset.drawn > 1")
    assert "kept" in asked  # what changed is asked for


def test_another_selection_of_the_first_run_is_asked_for(watched, served):
    page, asked = watched
    page.goto(served[0] + "?r=stored-a-stored-run&k=0.05")
    page.wait_for_selector("#kv-kept-a [data-drawn]")
    assert "kept" in asked and "meta" not in asked


def test_the_cells_of_a_map_are_there_before_plotly_js(watched, served):
    page, _ = watched
    held = []
    page.route(f"**/{assets.addresses()[1]}", lambda route: held.append(route))
    page.goto(served[0])
    page.wait_for_selector("#kv-kept-a canvas.kv-sketch")
    told = json.loads(first_replies())
    reply = next(one["reply"] for one in told if (one["view"], one["columns"]) == ("kept", 300))
    heat = json.loads(reply["figure"])["data"][0]
    pixels = page.evaluate(
        """() => { const c = document.querySelector('#kv-kept-a canvas');
        return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, 1).data]]; }"""
    )
    rows, columns = map(int, heat["z"]["shape"].split(","))
    assert pixels[:2] == [columns, rows]
    codes = base64.b64decode(heat["z"]["bdata"])[:columns]
    colours = [tuple(pixels[2][4 * i : 4 * i + 4]) for i in range(columns)]
    assert len(set(codes)) > 1 and len(set(zip(codes, colours))) == len(set(codes)) == len(set(colours))
    for route in held:
        route.continue_()
    page.wait_for_selector("#kv-kept-a [data-drawn]")
    assert not page.is_visible("#kv-kept-a canvas.kv-sketch")


ORDER = """
const order = window.order = [], note = what => order.includes(what) || order.push(what);
new MutationObserver(() => {
  if (document.querySelector('.kv-sketch') && !order.includes('cells on their way')) {
    note('cells on their way');
    requestAnimationFrame(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => note('cells painted');
      port2.postMessage(0);
    });
  }
  if (document.querySelector('style[id^="plotly.js-style"]')) note('plotly.js read');
}).observe(document, {subtree: true, childList: true});
"""


def test_plotly_js_is_read_when_the_cells_have_been_painted(watched, served):
    page, _ = watched
    page.add_init_script(ORDER)
    page.goto(served[0])
    page.wait_for_selector("#kv-kept-a [data-drawn]")
    assert page.evaluate("order") == ["cells on their way", "cells painted", "plotly.js read"]


def test_everything_is_fetched_once_and_gradios_files_are_named_early(watched, served):
    page, _ = watched
    asked = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(served[0])))
    page.goto(served[0])
    page.wait_for_selector("#kv-kept-a [data-drawn]")
    fetched = [name.partition("?")[0].lstrip("/") for name in asked]
    files = [name for name in fetched if name.startswith(("assets/", f"{assets.ROUTE}/"))]
    assert len(files) == len(set(files))
    named = {f"assets/{name}" for name in ahead.needed()} | {*assets.addresses()[:2], assets.FIRST}
    assert set(files) == named
