"""A lost connection, a reload, an address that does not fit the run."""

from __future__ import annotations

from playwright.sync_api import expect
from test_page import drawn, fill_form, selection


def test_a_lost_connection_is_announced_and_nothing_is_lost(visit_fresh, served):
    page = visit_fresh()
    drawn(page, "kv-kept-a")
    fill_form(page, document="typed by hand", question="Which?")
    page.get_by_role("checkbox", name="AdaKV", exact=True).check()
    asked = len(served[1].asked)
    finding = page.locator("#kv-finding").inner_text()
    page.context.set_offline(True)
    slider = page.locator("#kv-budget")
    slider.focus()
    slider.press("Home")
    expect(page.locator(".kv-banner")).to_contain_text("Connection lost.")
    expect(page.locator(".kv-card")).to_have_count(3)
    assert page.locator("#kv-finding").inner_text() == finding
    assert page.get_by_text("could not be drawn").count() == 0
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-run")).to_contain_text("does not answer, so nothing was started")
    page.context.set_offline(False)
    # Whatever is asked next finds the server again: the button may be gone already.
    page.locator(".kv-banner button").evaluate_all("all => all.forEach(button => button.click())")
    expect(page.locator(".kv-banner")).to_be_hidden()
    expect(page.locator(".kv-card-a")).to_contain_text("Not decoded at 1%")
    assert len(served[1].asked) == asked
    page.reload()
    page.wait_for_selector("#kv-app[data-ready]")
    page.locator("#kv-form-button").click()
    expect(page.locator("#kv-document-field textarea")).to_have_value("typed by hand")
    expect(page.locator("#kv-question-field input")).to_have_value("Which?")
    expect(page.get_by_role("checkbox", name="AdaKV", exact=True)).to_be_checked()


def test_an_address_that_does_not_fit_falls_back_and_says_so(visit_fresh):
    page = visit_fresh("?l=99&h=9&k=0.123&a=unknown&b=nope&v=__proto__&m=5-6,5-6,5-6&t=1-99999")
    drawn(page, "kv-kept-a")
    told = page.locator(".kv-status:not([hidden])")
    said = ("no method “unknown”", "no method “nope”", "no layer 99", "no KV head 9", "12.3% kept", "outside")
    for words in said:
        expect(told).to_contain_text(words)
    got = selection(page)
    assert (got["a"], got["b"]) == ("streaming_llm", "snapkv")  # the run's own opening
    assert (got["layer"], got["head"], got["tok"]) == (None, None, None) and got["marks"] == [[5, 6]]
    expect(page.locator("#kv-tab-kept")).to_have_attribute("aria-selected", "true")
    page = visit_fresh("?a=dropkv&b=dropkv&k=0.5")
    expect(page.locator(".kv-status:not([hidden])")).to_contain_text("A and B are the same method")
    expect(page.locator(".kv-card")).to_have_count(3)
    assert selection(page)["b"] not in ("dropkv", None)
