"""Causes, the fork and what an answer's token looked at, on a stored run that holds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

ASSETS = Path(__file__).parents[2] / "assets" / "runs"
RUN = "?r=stored-e-findings&a=snapkv&b=dropkv&k=0.1"


def test_causes_fork_and_attention_are_shown_without_a_model(visit):
    page = visit(RUN + "&v=cause")
    expect(page.locator("#kv-cause-words")).to_contain_text("back into SnapKV's cache")
    held = page.locator("#kv-cause-held .kv-plot-box")
    assert held.get_attribute("data-drawn") is None  # it is not in sight
    page.locator("#kv-cause-held").scroll_into_view_if_needed()
    expect(held).to_have_attribute("data-drawn", "1")
    page.locator("#kv-cause-found > summary").click()
    page.wait_for_selector("#kv-cause-map .kv-plot-box[data-drawn]")
    page.locator("#kv-way-taken_out").check()
    expect(page.locator("#kv-cause-heads h3")).to_contain_text("taken out of the whole cache")
    page.locator("#kv-sheet-cause .kv-strongest .kv-word").first.click()
    selected = json.loads(page.locator("#kv-app").get_attribute("data-sel"))
    assert selected["layer"] is not None and selected["head"] is not None
    page.locator("#kv-colour-by").select_option("effect")
    expect(page.locator("#kv-doc-text [class*=kv-gain]").first).to_be_visible()
    page.locator("#kv-fork-button").click()
    expect(page.locator(".kv-fork-column")).to_have_count(2)
    page.locator("#kv-fork").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#kv-fork")).to_contain_text("token 1 of 4")
    page.locator("#kv-full-tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#kv-looked")).to_contain_text("of what this token looked at is gone in SnapKV")
    expect(page.locator("#kv-doc-text .kv-hollow").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.locator("#kv-doc-text .kv-hollow")).to_have_count(0)


def test_words_of_a_light_the_text_up_until_the_answers_part(visit):
    """Here with the fourth token: the full cache says 58213, SnapKV 1947."""
    page = visit(RUN)
    said = page.locator("#kv-looked")
    page.locator("#kv-a-tokens [data-step='3']").first.click()
    expect(said).to_contain_text("Here SnapKV writes another token than the full cache.")
    expect(page.locator("#kv-doc-text .kv-hollow").first).to_be_attached()
    page.locator("#kv-a-tokens").focus()
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text("SnapKV writes the same token. Lit is the full cache")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("The full cache never read them")
    expect(page.locator("#kv-doc-text .kv-hollow")).to_have_count(0)


def test_find_the_cause_tells_how_long_stops_and_goes_on(visit_fresh):
    page = visit_fresh("?r=stored-a-stored-run&a=snapkv&b=dropkv&k=0.1&v=cause")
    job = page.locator("#kv-sheet-cause .kv-job")
    page.locator("#kv-find-cause").click()
    expect(job).to_contain_text("about 30 s left")
    page.locator("#kv-live button").click()
    expect(job).to_contain_text("Stopped. What was found until then is shown.")
    expect(page.locator("#kv-find-cause")).to_have_text("Go on")
    page.locator("#kv-cause-heads").scroll_into_view_if_needed()
    page.wait_for_selector("#kv-cause-heads .kv-plot-box[data-drawn]")
    page.locator("#kv-find-cause").click()
    expect(page.locator("#kv-cause-words")).to_contain_text("back into SnapKV's cache")
    expect(page.locator("#kv-find-cause")).to_have_count(0)


def test_another_token_is_gone_on_from(visit_fresh):
    page = visit_fresh(RUN)
    page.locator("#kv-fork-button").click()
    page.locator(".kv-fork-column").nth(1).locator(".kv-fork-row").nth(1).click()
    page.locator("#kv-branch").click()
    said = "SnapKV, made to say “·other·<b>” at token 0: “It is elsewhere” (wrong)"
    expect(page.locator("#kv-fork .kv-edits")).to_contain_text(said)


@pytest.fixture(scope="module")
def examples(chromium_path, serve):
    from fake_engine import FakeEngine

    from kvviz.ui import runs

    folder = runs.STORED
    url, close = serve(FakeEngine(), ASSETS)
    yield url
    close()
    runs.STORED = folder


def test_every_example_opens_its_causes_and_fork(visit_fresh, examples):
    """Also in the address that a reader is sent; the shared page's run is its own."""
    names = [path.stem for path in sorted(ASSETS.glob("*.zip"))]
    page = visit_fresh(f"?r=stored-{names[0]}&v=cause", url=examples)
    for name in names:
        page.goto(f"{examples}?r=stored-{name}&v=cause")
        expect(page.locator("#kv-cause-words")).to_contain_text("back into SnapKV's cache")
        page.locator("#kv-cause-found > summary").click()
        for panel in ("cause-rescue", "cause-heads", "cause-passages", "cause-held", "cause-map"):
            page.locator(f"#kv-{panel}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#kv-{panel} .kv-plot-box[data-drawn]", state="attached")
        expect(page.locator("#kv-fork-button")).to_be_visible()
