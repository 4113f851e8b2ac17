"""The page Evidence: its first figure, a choice, an item into the lenses and back, also on a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect


@pytest.mark.parametrize("width", [1440, 390])
def test_evidence_is_looked_at_and_an_item_opens_in_the_lenses(visit_fresh, width):
    page = visit_fresh("?p=evidence", viewport={"width": width, "height": 900}, color_scheme="dark")
    page.wait_for_selector("#kv-evidence-budget [data-drawn]")
    expect(page.locator("#kv-evidence-words")).to_contain_text("CriticalKV is ahead")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#kv-evidence-pick-measure").select_option("kl")
    expect(page.locator("#kv-evidence-budget h3")).to_contain_text("KL")
    page.locator("#kv-quality").fill("30")
    expect(page.locator("#kv-choose-answer")).to_contain_text("CriticalKV at 5%")
    page.wait_for_selector("#kv-evidence-items [data-drawn]")
    page.locator("#kv-evidence-items .kv-plot-box").focus()
    page.keyboard.press("Home")
    expect(page.locator("#kv-evidence-items .kv-readout")).to_contain_text("a click")
    page.keyboard.press("Enter")
    page.locator("#kv-evidence-back").click()
    expect(page.locator("#kv-evidence-words")).to_be_visible()


def test_a_link_to_a_sweep_shows_that_sweep_and_no_other(visit_fresh):
    page = visit_fresh("?p=evidence&s=stored-small", viewport={"width": 390, "height": 900})
    page.wait_for_selector("#kv-evidence-budget [data-drawn]")
    expect(page.locator("#kv-evidence-sweep")).to_have_value("stored-small")
    expect(page.locator("#kv-evidence-words")).to_contain_text("12 items")
    expect(page.locator("#kv-evidence-budget")).to_contain_text("n = 9 items")  # of the same sweep
    claims = page.locator("#kv-evidence-claims")
    expect(claims.locator("summary")).to_contain_text("claims:")
    expect(claims.locator("table")).to_be_hidden()  # long: it begins closed on a phone
    claims.locator("summary").click()
    expect(claims.locator("table")).to_be_visible()
