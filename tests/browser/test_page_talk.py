"""Prompt control and further questions on the page."""

from playwright.sync_api import expect
from test_page import fill_form


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
    expect(turn.locator(".kv-turn-cards").first.locator(".kv-turn-card")).to_have_count(3)
    expect(turn.locator(".kv-right")).to_have_count(1)
    expect(field).to_have_value("")
    turn.locator("summary").click()
    expect(turn.locator("details .kv-turn-card").first).to_be_visible()
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
