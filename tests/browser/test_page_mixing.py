"""Mix by keyboard: sliders, the map that follows, decoding, the method file."""

import pytest
from playwright.sync_api import expect

from kvviz.results.mix import Mix, method_file


@pytest.mark.parametrize("look", [(1440, "light"), (390, "dark")], ids=str)
def test_a_mix_is_made_decoded_and_saved_by_keyboard(visit_fresh, look):
    width, scheme = look
    page = visit_fresh("?v=mix&k=0.1", viewport={"width": width, "height": 900}, color_scheme=scheme)
    score, shares = page.locator("#kv-mix-score"), page.locator("#kv-mix-shares")
    expect(score).to_have_text("Score = attention")
    before = shares.text_content()
    page.get_by_role("slider", name="power of value size").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    expect(score).to_have_text("Score = attention × value size × key norm^-0.25")
    expect(shares).not_to_have_text(before)
    expect(page.locator("#kv-mix-map h3")).to_contain_text("Mix, 10%")
    page.locator("#kv-sheet-mix").get_by_label("Budget").select_option(label="heads of a layer compete")
    expect(score).to_contain_text("across heads")
    page.locator("#kv-mix-python summary").click()
    with page.expect_download() as got:
        page.locator("#kv-mix-save").click()
    text = got.value.path().read_text(encoding="utf-8")
    assert text == method_file(Mix(value=1, key=-0.25, across=True))
    expect(page.locator(".kv-mix-code")).to_have_text(text.rstrip("\n"))
    page.locator("#kv-mix-decode").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-sheet-mix .kv-tools").filter(has_text="already: it is Mix 1")).to_be_visible()
    expect(page.locator("#kv-mix-decode")).to_be_disabled()
    expect(page.locator("#kv-sheet-mix .kv-echo")).to_contain_text("Mix 1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#kv-mix-reset").click()
    expect(score).to_have_text("Score = attention")


def test_a_run_of_before_says_what_it_lacks(visit):
    page = visit("?r=stored-c-lighthouse-ledger&v=mix")
    expect(page.locator("#kv-sheet-mix")).to_contain_text("does not hold value size and key norm")
    expect(page.get_by_role("slider", name="power of value size")).to_be_disabled()
    expect(page.locator("#kv-mix-score")).to_have_text("Score = attention")
