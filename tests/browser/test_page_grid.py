"""The needle grid in Chromium: it fills in, a cell is run and opened, and it fits a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect


@pytest.mark.parametrize("width", [1440, 390])
def test_a_grid_is_filled_and_a_cell_opens_in_the_lenses(visit_fresh, width):
    page = visit_fresh("", viewport={"width": width, "height": 900})
    page.locator("#kv-form-button").click()
    question = page.locator("#kv-question-field input")
    question.fill("My own question?")
    page.locator("#kv-page-evidence").click()
    page.locator("#kv-grid-button").click()
    expect(page.locator("#kv-grid-estimate")).to_contain_text("6 texts")
    page.locator("#kv-grid-depths").fill("0.5")
    expect(page.locator("#kv-grid-estimate")).to_contain_text("write 50%")
    page.locator("#kv-grid-depths").fill("10, 50, 90")
    page.locator("#kv-grid-run").click()
    expect(page.locator("#kv-grid-status")).to_contain_text("6 of 6 texts are measured")
    expect(page.locator("#kv-evidence-needles .kv-chip")).to_contain_text("6 texts")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#kv-evidence-needles .kv-plot-box").focus()
    page.keyboard.press("Home")
    expect(page.locator("#kv-evidence-needles .kv-readout")).to_contain_text("reached 11%")
    for _ in range(3):  # the first column, down to the second method's second budget
        page.keyboard.press("ArrowDown")
    asked = page.locator("#kv-evidence-needles .kv-readout").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator(".kv-status").first).to_contain_text("item-0")
    expect(page.locator(".kv-status").first).to_contain_text(", run as the sweep ran it.")
    method, share = asked.split("%")[0].split(", ")  # "CriticalKV, 50%, 500 tokens, depth 10% ..."
    told = page.locator(".kv-is-a select").first
    assert told.locator("option:checked").inner_text() == method, (asked, page.url)
    assert f"k={float(share) / 100:g}" in page.url
    assert question.input_value() == "My own question?"
