"""Text with a script in it, wherever it may come from, is shown and never run."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

import pytest
from playwright.sync_api import expect
from synthetic import synthetic_comparison, with_findings
from test_page import HOSTILE, drawn


def inert(page):
    assert page.evaluate("window.hacked") is None
    assert page.locator("#kv-page-block img, #kv-page-block script, #kv-page-block s").count() == 0


@pytest.fixture
def hostile_run(tmp_path):
    """A saved run whose every text is hostile, in a file of such a name."""
    c = with_findings(synthetic_comparison(n=160, L=4, full_text=HOSTILE))
    starts = [o for o in c.prompt.offsets if o]
    text = (HOSTILE * 40)[: starts[-1][1]]
    tokens = [text[o[0] : o[1]] if o else HOSTILE for o in c.prompt.offsets]
    c.prompt = dataclasses.replace(
        c.prompt, document=text, tokens=tokens, question=HOSTILE, system=HOSTILE, notes=(HOSTILE,)
    )
    c.model = dataclasses.replace(c.model, id=HOSTILE)
    c.expected = HOSTILE
    for variant in [c.full, *c.variants]:
        variant.text, variant.label = HOSTILE, HOSTILE
        variant.tokens = [HOSTILE] * len(variant.tokens)
    place = tmp_path / "a folder # <b>"
    place.mkdir()
    return c.save(place / "<img src=x onerror=window.hacked=1>.zip")


def test_a_hostile_run_is_inert_in_page_hover_axes_and_report(visit_fresh, hostile_run, tmp_path, visits):
    page = visit_fresh()
    page.locator("#kv-form-button").click()
    with page.expect_file_chooser() as chooser:
        page.locator("#kv-open-saved").click()
    chooser.value.set_files(str(hostile_run))
    expect(page.locator("#kv-source")).to_contain_text("Opened file")
    drawn(page, "kv-kept-a")
    expect(page.locator("#kv-doc-text")).to_contain_text("<script>window.hacked=1</script>")
    box = page.locator("#kv-kept-a .kv-plot").bounding_box()
    for share in (0.2, 0.5, 0.8):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        page.wait_for_timeout(60)
    for tab in ("why", "cause", "effect", "sweep", "steps", "kept"):
        if page.locator(f"#kv-tab-{tab}").is_visible():
            page.locator(f"#kv-tab-{tab}").click()
            page.wait_for_timeout(300)
    page.locator("#kv-doc-text .kv-t").first.hover()
    page.locator("#kv-doc-text .kv-t").first.click()
    page.locator("#kv-all-button").click()
    inert(page)
    page.locator("#kv-export summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").click()
    assert "<" not in download.value.suggested_filename
    place = tmp_path / "x y#1"
    place.mkdir()
    report = place / "report.html"
    download.value.save_as(report)
    context = visits.browser.new_context(offline=True)
    visits.own.append(context)
    reader, errors = context.new_page(), []
    reader.on("pageerror", lambda e: errors.append(str(e)))
    reader.goto(report.as_uri())
    reader.wait_for_selector(".main-svg")
    assert reader.evaluate("window.hacked") is None and not errors
    assert reader.locator("body img, body s").count() == 0
    expect(reader.locator("body")).to_contain_text("<script>window.hacked=1</script>")


def test_hostile_addresses_and_file_names_are_inert(visit_fresh, tmp_path):
    given = dict.fromkeys(("r", "a", "b", "k", "v", "t", "l", "h", "m", "zz"), HOSTILE)
    page = visit_fresh("?" + urllib.parse.urlencode(given) + "#" + urllib.parse.quote(HOSTILE))
    expect(page.locator("#kv-source")).to_contain_text("Stored example")
    page = visit_fresh("?a=" + urllib.parse.quote(HOSTILE) + "&b=__proto__&v=constructor")
    expect(page.locator(".kv-status:not([hidden])")).to_contain_text("<img src=x")
    page.locator("#kv-form-button").click()
    path = tmp_path / "<img src=x onerror=window.hacked=1>.txt"
    path.write_text(HOSTILE)
    page.locator("#kv-document-field input[type=file]").set_input_files(str(path))
    expect(page.locator("#kv-read-note")).to_contain_text("<img src=x onerror=window.hacked=1>.txt")
    expect(page.locator("#kv-document-field textarea")).to_have_value(HOSTILE)
    inert(page)
    expect(page.locator("#kv-copy")).to_have_attribute("title", re.compile("sees its whole text"))
