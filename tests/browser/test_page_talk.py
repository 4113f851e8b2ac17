"""Prompt control and further questions on the page."""

import base64
import re
import tempfile
from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_page import fill_form
from tiny_pdf import pdf


def test_the_prompt_can_be_changed_in_the_form(visit, served):
    page, (_, engine) = visit(), served
    fill_form(page)
    page.locator("#kv-prompt summary").click()
    page.locator("#kv-cue-field input").fill("The code is")
    page.locator("#kv-template-field input").uncheck()
    expect(page.locator("#kv-thinking-field input")).not_to_be_checked()
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    asked = engine.asked[-1]
    assert (asked.framing.cue, asked.framing.template) == ("The code is", False)


def test_a_further_question_is_asked_by_keyboard_and_answered_side_by_side(visit_fresh):
    page = visit_fresh()
    fill_form(page, document="A text about a lighthouse.", question="What?")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    field = page.locator("#kv-more-question")
    field.focus()
    page.keyboard.type("Who wrote <b>it</b>?")
    page.keyboard.press("Tab")
    page.keyboard.type("Full")
    page.keyboard.press("Enter")
    turn = page.locator(".kv-turn").first
    expect(turn).to_contain_text("Who wrote <b>it</b>?")
    expect(turn.locator(".kv-turn-cards").first.locator(".kv-turn-card")).to_have_count(4)
    expect(turn.locator(".kv-right")).to_have_count(1)
    expect(field).to_have_value("")
    field.fill("slow one")
    field.press("Control+Enter")
    page.locator("#kv-more-stop").click()
    expect(page.locator("#kv-talk .kv-job")).to_contain_text("not answered")
    expect(page.locator(".kv-turn")).to_have_count(1)
    field.fill("And where?")
    page.locator("#kv-more-builds").uncheck()
    page.locator("#kv-more-ask").click()
    expect(page.locator(".kv-turn")).to_have_count(2)
    expect(page.locator(".kv-turn").nth(1)).to_contain_text("of the document alone")


def test_several_questions_of_the_form_are_answered_by_the_same_caches(visit_fresh, served):
    page = visit_fresh()
    fill_form(page, document="A text about a lighthouse.", question="What?")
    page.locator("#kv-questions summary").click()
    page.locator("#kv-questions-field textarea").fill("Who wrote <b>it</b>?\n\nAnd where?\nWhen?\nWhy?")
    page.locator("#kv-expecteds-field textarea").fill("Full\n\nnowhere")
    expect(page.locator("#kv-questions")).to_contain_text("up to 20 can be asked, 4 are here")
    expect(page.locator("#kv-questions")).to_contain_text("cut for the question above")
    page.locator("#kv-protocol-field input[value=question-agnostic]").check()
    expect(page.get_by_text("cut for the question above")).to_be_hidden()
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    assert served[1].asked[-1].questions == (
        ("Who wrote <b>it</b>?", "Full"), ("And where?", "nowhere"), ("When?", None), ("Why?", None)
    )  # fmt: skip
    table = page.locator(".kv-question-table")
    expect(table.locator("thead th")).to_have_count(7)  # its name, how many are right, five questions
    expect(table.locator("tbody tr").first).to_contain_text("2 of 3 right")  # its own question too
    turns = page.locator(".kv-turn")
    expect(turns).to_have_count(4)
    expect(turns.first.locator(".kv-turn-card").first).to_be_hidden()  # many stand folded but for the last
    expect(turns.last.locator(".kv-turn-card").first).to_be_visible()
    turns.first.locator("summary").first.click()
    expect(turns.first.locator(".kv-right")).to_have_count(1)
    turns.first.locator(".kv-answer").first.evaluate("node => node.scrollIntoView({block: 'start'})")
    at_hand = """document.elementFromPoint(innerWidth / 2, 8).closest('.kv-question').textContent"""
    assert "Who wrote <b>it</b>?" in page.evaluate(at_hand)  # the question whose answers are on the screen
    page.locator("#kv-tab-kept").evaluate("node => node.scrollIntoView({block: 'start'})")
    assert page.evaluate(at_hand).startswith("Question What is the code?")
    page.locator("#kv-change").click()
    expect(page.locator("#kv-questions-field textarea")).to_have_value(
        "Who wrote <b>it</b>?\nAnd where?\nWhen?\nWhy?"
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_the_question_stays_on_the_screen(visit_fresh, width):
    page = visit_fresh(viewport={"width": width, "height": 800})
    line = page.locator("#kv-question")
    for place in ("#kv-document", "#kv-tab-kept", ".kv-panel >> nth=-1"):
        page.locator(place).evaluate("node => node.scrollIntoView({block: 'start'})")
        expect(line).to_be_in_viewport(ratio=1)
        top = line.evaluate("""node => { const r = node.getBoundingClientRect();
          return node.contains(document.elementFromPoint(r.left + 20, r.top + 10)); }""")
        assert top, place  # nothing lies over it
    box = line.bounding_box()
    assert box["height"] <= 40
    line.evaluate("node => { node.querySelector('b').textContent = 'word '.repeat(200); }")
    assert line.bounding_box()["height"] == box["height"]
    text = line.locator("> span")
    assert text.bounding_box()["height"] <= 40
    line.focus()
    assert text.bounding_box()["height"] > 80  # in full, over the page, which does not move
    assert line.bounding_box()["height"] == box["height"]


DROP = """async data => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), files = new DataTransfer();
  files.items.add(new File([bytes], 'lease.pdf', {type: 'application/pdf'}));
  document.querySelector('#kv-document-field').dispatchEvent(
    new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));
}"""
PAGES = [
    "The lease of the boat house begins on 1 May 2031. The tenant is Mara Lindqvist.",
    "The rent is 640 crowns a month, to be paid on the first day of the month.",
    "The notice period is seven weeks. The keys are kept by the harbour master.",
]


@pytest.mark.slow
def test_a_pdf_is_dropped_and_three_questions_are_asked_of_four_caches(visit_fresh, serve, monkeypatch):
    from kvviz.ui import runs
    from kvviz.ui.engine import Engine

    monkeypatch.setattr(runs, "STORED", runs.STORED)
    with tempfile.TemporaryDirectory() as folder:
        url, close = serve(Engine(), Path(folder))
        try:
            page = visit_fresh(url=url)
            expect(page.locator("#kv-document-field textarea")).to_be_visible()
            page.evaluate(DROP, base64.b64encode(pdf(*PAGES)).decode())
            expect(page.locator("#kv-read-note")).to_contain_text("PDF")
            page.locator("#kv-question-field input").fill("Who is the tenant?")
            page.locator("#kv-protocol-field input[value=question-agnostic]").check()
            page.locator("#kv-budgets-field input").fill("50%")
            page.locator("#kv-more summary").first.click()
            page.locator("#kv-new-tokens-field input").fill("12")
            page.locator("#kv-run-button").click()
            expect(page.locator("#kv-source")).to_contain_text("Your run", timeout=150_000)
            expect(page.locator(".kv-page")).to_have_count(3)
            expect(page.locator(".kv-page").last).to_have_attribute("data-page", "page 3")
            page.locator("#kv-grain").select_option("section")
            page.locator("#kv-held summary").click()
            expect(page.locator(".kv-held .kv-where").first).to_have_text(re.compile("^page [123]$"))
            asked = (("What is the rent?", "640"), ("When is it paid?", ""), ("Who has the keys?", "harbour"))
            for number, (question, expected) in enumerate(asked, 1):
                page.locator("#kv-more-question").fill(question)
                page.locator("#kv-more-expected").fill(expected)
                page.locator("#kv-more-question").press("Enter")
                expect(page.locator(".kv-turn")).to_have_count(number, timeout=60_000)
                turn = page.locator(".kv-turn").nth(number - 1)
                expect(turn).to_contain_text(question)
                expect(turn.locator(".kv-turn-cards").first.locator(".kv-turn-card")).to_have_count(4)
                expect(turn.locator(".kv-turn-card .kv-meta").nth(1)).to_contain_text("KL")
                expect(turn.locator(".kv-verdict")).to_have_count(5 if expected else 0)
        finally:
            close()
