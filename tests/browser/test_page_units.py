"""The text by word, sentence and paragraph, and what only B still holds: by keyboard, wide and narrow."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from test_page import drawn, selection


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_the_text_and_its_maps_by_sentence(visit_fresh, width, theme):
    page = visit_fresh(f"?__theme={theme}&r=stored-c-lighthouse-ledger&a=snapkv&b=dropkv&k=0.1",
                       viewport={"width": width, "height": 900})  # fmt: skip
    drawn(page, "kv-kept-a")
    page.locator("#kv-grain").focus()
    page.keyboard.press("s")  # a native list: its first letter chooses
    expect(page.locator("#kv-kept-a .kv-chip")).to_contain_text("by sentence")
    expect(page.locator("#kv-versus .kv-chip")).to_contain_text("by sentence")
    assert selection(page)["grain"] == "sentence" and "g=sentence" in page.url
    page.locator("#kv-doc-text").focus()
    page.keyboard.press("ArrowRight")
    first = selection(page)["tok"]
    page.keyboard.press("ArrowRight")
    second = selection(page)["tok"]
    assert first[1] == second[0] and second[1] - second[0] > 5
    expect(page.locator(".kv-doc .kv-readout")).to_contain_text("entries of this sentence")
    page.locator("#kv-held summary").focus()
    page.keyboard.press("Enter")
    row = page.locator("#kv-held tbody tr", has_text="The code of the Marlow lighthouse door is 58213.")
    row.locator("button").focus()
    page.keyboard.press("Enter")
    start, end = selection(page)["tok"]
    assert start < 124 and end > 128  # the sentence holds the code
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
