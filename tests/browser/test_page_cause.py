"""Causes, the fork and what an answer's token looked at, on a stored run that holds them."""

from __future__ import annotations

import json

from playwright.sync_api import expect

RUN = "?r=stored-e-findings&a=snapkv&b=dropkv&k=0.1"


def test_causes_fork_and_attention_are_shown_without_a_model(visit):
    page = visit(RUN + "&v=cause")
    page.wait_for_selector("#kv-cause-map .kv-plot-box[data-drawn]")
    expect(page.locator("#kv-cause-words")).to_contain_text("back into SnapKV's cache")
    page.locator("#kv-way-taken_out").check()
    expect(page.locator("#kv-cause-heads h3")).to_contain_text("taken out of the whole cache")
    page.locator("#kv-sheet-cause .kv-edits .kv-word").first.click()
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
