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
