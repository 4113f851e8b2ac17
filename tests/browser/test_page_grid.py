"""The needle grid in Chromium: it fills in, opens a text in the form, and fits a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect


@pytest.mark.parametrize("width", [1440, 390])
def test_a_grid_is_filled_and_a_cell_opens_its_text(visit_fresh, width):
    page = visit_fresh("?p=evidence", viewport={"width": width, "height": 900})
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
    page.keyboard.press("Enter")
    expect(page.locator(".kv-status").first).to_contain_text("item-0")
