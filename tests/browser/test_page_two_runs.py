"""A second run beside the first: chosen by keyboard or opened from its file, on a desk and a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_page import drawn, selection

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_two_runs_beside_each_other(visit_fresh, width, theme):
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
    assert page.evaluate(f"({CONTRAST})(4.5)") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_model_with_another_tokenizer_is_opened_beside_from_its_file(visit_fresh, tmp_path):
    from tiny import make_model

    import kvviz

    stored = Path(__file__).parents[2] / "assets" / "runs" / "1-lighthouse-ledger.zip"
    one, model = kvviz.load_comparison(stored), make_model("qwen3")
    prompt = kvviz.build_prompt(model, document=one.prompt.document, question="Another <b>question</b>?")
    two = kvviz.compare(model, prompt, ["snapkv", "keydiff"], [0.5, 0.1], max_new_tokens=2)
    assert two.n > 1.5 * one.n
    page = visit_fresh("?r=stored-c-lighthouse-ledger&a=snapkv&b=dropkv&k=0.1&v=beside")
    with page.expect_file_chooser() as chooser:
        page.locator("#kv-beside-file").click()
    chooser.value.set_files(str(two.save(tmp_path / "other.zip")))
    drawn(page, "kv-beside-text")
    drawn(page, "kv-beside-2b")
    expect(page.locator("#kv-beside-answers")).to_contain_text("Another <b>question</b>?")
    expect(page.locator("#kv-sheet-beside")).to_contain_text("Different model and question; same text")
    expect(page.locator("#kv-sheet-beside")).to_contain_text("Run 2 has no method “dropkv”")
    expect(page.locator("#kv-source")).to_contain_text("Stored example")  # the first run stays
    page.locator("#kv-beside-text .kv-plot-box").focus()
    for key in ["ArrowRight"] * 2 + ["Enter"]:
        page.keyboard.press(key)
    plot = "document.querySelector('#kv-beside-2a .kv-plot')"
    here = selection(page)["tok"]
    there = page.wait_for_function(
        f"(s => s && s.y1 > 2 && [s.x0 + 0.5, s.x1 + 0.5])({plot}._fullLayout.shapes.at(-1))"
    ).json_value()
    texts = [_text(one, here), _text(two, map(int, there))]
    assert texts[0] == texts[1] and texts[0].endswith(".") and texts[0].count(".") == 1


def _text(c, tok):
    """The document's text of these tokens."""
    offsets = [o for o in c.prompt.offsets[slice(*tok)] if o]
    return c.prompt.document[offsets[0][0] : offsets[-1][1]].strip()
