"""A second run beside the first: chosen by keyboard or opened from its file, on a desk and a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_page import drawn, selection

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_two_runs_beside_each_other(visit_fresh, tmp_path, width, theme):
    from dataclasses import replace

    from synthetic import synthetic_comparison

    page = visit_fresh(f"?__theme={theme}&r=stored-a-stored-run&a=snapkv&b=dropkv&k=0.1",
                       viewport={"width": width, "height": 900})  # fmt: skip
    drawn(page, "kv-kept-a")
    page.locator("#kv-tab-beside").focus()
    page.keyboard.press("Enter")
    page.locator("#kv-beside").focus()
    page.keyboard.press("ArrowDown")
    drawn(page, "kv-beside-text")
    drawn(page, "kv-beside-2b")
    expect(page.locator("#kv-beside-answers section")).to_have_count(2)
    page.locator("#kv-beside-text .kv-plot-box").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#kv-beside-text .kv-readout")).to_contain_text("of run 2")
    page.keyboard.press("Enter")
    chosen = selection(page)["tok"]
    assert chosen[1] > chosen[0]
    rect = "document.querySelector('#kv-beside-2a .kv-plot')._fullLayout.shapes.at(-1).x0"
    page.wait_for_function(f"{rect} === {chosen[0]} - 0.5")  # the same text and tokens in run 2
    if width == 390:
        assert page.evaluate(f"({CONTRAST})(4.5)") == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        return
    other = synthetic_comparison(n=300, L=4, methods=("snapkv", "keydiff"))
    other = replace(other, prompt=replace(other.prompt, question="Another <b>question</b>?"))
    with page.expect_file_chooser() as chooser:
        page.locator("#kv-beside-file").click()
    chooser.value.set_files(str(other.save(tmp_path / "other.zip")))
    expect(page.locator("#kv-beside-answers")).to_contain_text("Another <b>question</b>?")
    expect(page.locator("#kv-sheet-beside")).to_contain_text("Run 2 has no method “dropkv”")
    expect(page.locator("#kv-source")).to_contain_text("Stored example")  # the first run stays
