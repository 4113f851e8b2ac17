"""More of the page in a real browser: marks, edits, waiting, settings, calibration, the phone."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from test_page import cell, drawn, fill_form, selection


def test_marks_by_hand_are_followed_and_linked(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    page.locator("#kv-doc-text .kv-t").nth(5).click()
    page.locator("#kv-mark").click()
    expect(page.locator("#kv-marks")).to_contain_text("M2")
    span = selection(page)["tok"]
    assert selection(page)["marks"] == [span]
    expect(page).to_have_url(re.compile(rf"m={span[0]}-{span[1]}(&|$)"))
    page.locator("#kv-clear").click()
    expect(page.locator("#kv-marks")).not_to_contain_text("M2")
    again = visit(f"?m={span[0]}-{span[1]}")
    again.locator("#kv-marks").get_by_role("button", name="M2", exact=True).click()
    assert selection(again)["tok"] == span
    label = again.locator("#kv-kept-a .kv-plot svg").get_by_text(re.compile("M1|M2")).first
    expect(label).to_be_attached()


def test_pinning_and_decoding_again(visit_fresh):
    page = visit_fresh()
    drawn(page, "kv-kept-a")
    page.locator("#kv-a").select_option("snapkv")
    page.locator("#kv-tab-try").click()
    page.locator("#kv-pin").click()
    expect(page.locator(".kv-edits li").first).to_contain_text("Pin")
    page.evaluate("""() => { const line = document.querySelector('#kv-sheet-try .kv-job');
      window.said = [];
      new MutationObserver(() => said.push(line.textContent)).observe(line, {childList: true}); }""")
    page.evaluate("for (let i = 0; i < 5; i += 1) document.getElementById('kv-again').click()")
    expect(page.locator("#kv-try-result")).to_contain_text("random pins")
    expect(page.locator("#kv-try-result tbody tr")).to_have_count(5)
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    assert any(" of " in words for words in page.evaluate("said"))  # progress stands beside the button
    values = page.locator("#kv-b option").evaluate_all("all => all.map(o => o.value)")
    assert [v for v in values if "+edit" in v] == ["snapkv+edit1"]  # five clicks at once were one job


def test_one_more_method_and_one_more_budget(visit):
    page = visit()
    page.locator("#kv-all-button").click()
    page.locator("#kv-add-method").select_option("keydiff")
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    expect(page.locator("#kv-all")).to_contain_text("KeyDiff")
    slider = page.locator("#kv-budget")
    slider.focus()
    slider.press("Home")
    page.locator(".kv-card-a .kv-decode").click()
    expect(page.locator(".kv-card-a .kv-notice")).to_have_count(0)


def test_whoever_waits_sees_the_line(visit_fresh):
    one, two = visit_fresh(), visit_fresh()
    fill_form(one, question="slow?")
    fill_form(two)
    one.locator("#kv-run-button").click()
    expect(one.locator("#kv-live .kv-live-card").first).to_be_visible()
    two.locator("#kv-run-button").click()
    expect(two.locator("#kv-waiting").first).to_contain_text("1 run before yours")
    expect(two.locator("#kv-source")).to_contain_text("Your run")


def test_advanced_settings_reach_the_run(visit_fresh, served):
    page = visit_fresh()
    fill_form(page, question="slow?")
    page.locator("#kv-advanced summary").click()
    page.locator("#kv-controlled-field input").check()
    page.locator("#kv-every-field input").fill("8")
    page.locator("#kv-variants-field input").fill("snapkv:allocation=global")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-live .kv-live-card").first).to_be_visible()
    ask = served[1].asked[-1]
    assert ask.controlled and ask.evict_every == 8 and "snapkv:allocation=global" in ask.methods
    page.locator("#kv-stop-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Stopped.")


def test_a_method_that_is_not_calibrated_says_so(visit_fresh):
    page = visit_fresh()
    fill_form(page)
    page.locator("#kv-more summary").click()
    field = page.locator("#kv-model-field input")
    field.fill("tiny")
    field.press("Tab")
    box = page.locator("#kv-unavailable")
    expect(box).to_contain_text("DropKV was not calibrated for tiny.")
    box.get_by_role("button", name="Calibrate for this model").click()
    box.get_by_role("button", name="Stop calibrating").click()
    expect(box).to_contain_text("Stopped. Started again, it goes on from there.")


def test_agreement_is_folded_and_opens(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    slider = page.locator("#kv-budget")
    slider.focus()
    slider.press("End")  # everything is kept: A and B agree everywhere
    page.wait_for_function("!document.querySelector('#kv-doc-text .kv-only-a, #kv-doc-text .kv-only-b')")
    page.locator("#kv-clear").click()
    page.locator("#kv-fold").check()
    fold = page.locator("#kv-doc-text .kv-folded button").first
    expect(fold).to_contain_text("characters in which A and B agree")
    before = page.locator("#kv-doc-text .kv-folded:not(.kv-inside)").count()
    fold.click()
    expect(page.locator("#kv-doc-text .kv-folded:not(.kv-inside)")).to_have_count(before - 1)
    expect(page.locator("#kv-doc-text .kv-t").first).to_be_visible()


def test_a_phone_shows_one_answer_at_a_time(visit_fresh):
    page = visit_fresh(viewport={"width": 390, "height": 844}, has_touch=True)
    expect(page.locator(".kv-card-a")).to_be_visible()
    expect(page.locator(".kv-card-full")).to_be_hidden()
    page.locator("#kv-chip-full").tap()
    expect(page.locator(".kv-card-full")).to_be_visible()
    expect(page.locator(".kv-card-a")).to_be_hidden()
    drawn(page, "kv-kept-a")
    page.locator("#kv-zoom").get_by_role("button", name="Zoom in").tap()
    expect(page.locator("#kv-range")).to_contain_text("of 300")
    expect(page.locator("#kv-kept-a .kv-strip-bar")).to_be_visible()  # the colours have a scale
    page.locator("#kv-stored").select_option("stored-b-cutting-run")
    page.locator("#kv-tab-steps").click()
    expect(page.locator("#kv-tab-steps")).to_be_in_viewport(ratio=0.99)  # a part of a pixel aside
    drawn(page, "kv-steps")
    expect(page.locator("#kv-steps .kv-strip-bar")).to_be_visible()


def test_steps_are_shown_where_the_run_evicted_while_generating(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    expect(page.locator("#kv-tab-steps")).to_be_hidden()
    page = visit("?r=stored-b-cutting-run")
    page.locator("#kv-tab-steps").click()
    drawn(page, "kv-steps")
    expect(page.locator("#kv-steps")).to_contain_text("What was thrown away while the answer was written")
    cell(page, "kv-steps", 0, 1)
    expect(page.locator("#kv-dropped")).to_contain_text("Dropped by layer 1 then")
    expect(page.locator("#kv-doc-text .kv-crossed").first).to_be_attached()
    page.locator("#kv-steps").get_by_role("button", name="Show as table").click()
    expect(page.locator("#kv-steps tbody tr").first).to_be_visible()


def test_a_run_fills_the_form_and_one_thing_is_changed(visit_fresh, served):
    page = visit_fresh()
    page.locator("#kv-change").click()  # the run that is shown
    question = page.locator("#kv-question-field input")
    expect(question).not_to_have_value("")
    expect(page.locator("#kv-document-field textarea")).to_have_value(re.compile("lighthouse"))
    question.fill("Something else?")
    page.locator("#kv-budgets-field input").fill("40%, 12t")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    ask = served[1].asked[-1]
    assert ask.question == "Something else?" and "lighthouse" in ask.document
    assert ask.budgets == (0.4, 12) and set(ask.methods) == {"snapkv", "dropkv", "streaming_llm"}
    mine = page.locator("#kv-stored option:not([value^=stored-])")
    expect(mine).to_have_count(1)  # the runs of this browser can be opened again
    page.locator("#kv-stored").select_option("stored-a-stored-run")
    expect(page.locator("#kv-source")).to_contain_text("Stored example")
    page.locator("#kv-stored").select_option(mine.get_attribute("value"))
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    page.locator("#kv-change").click()
    expect(question).to_have_value("Something else?")
    expect(page.locator("#kv-budgets-field input")).to_have_value("40%, 12t")


def test_while_a_run_goes_on_the_page_shows_what_was_asked(visit_fresh):
    page = visit_fresh()
    fill_form(page, document="My own words.", question="slow?")
    page.locator(".kv-set").first.click()
    expect(page.get_by_role("checkbox", name="DropKV")).to_be_checked()
    expect(page.get_by_role("checkbox", name="KeyDiff")).not_to_be_checked()
    expect(page.locator("#kv-estimate")).to_contain_text("answers and the full cache's")
    page.locator("#kv-run-button").click()
    live = page.locator("#kv-live")
    expect(live).to_contain_text("My own words.")
    expect(live).to_contain_text("slow?")
    expect(live.locator(".kv-live-card").first).to_be_visible()
    for old in ("#kv-finding", "#kv-cards", "#kv-document"):
        expect(page.locator(old)).to_be_hidden()
    page.locator("#kv-stop-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Stopped.")


def test_a_file_is_read_into_the_form(visit_fresh, tmp_path):
    page = visit_fresh()
    page.locator("#kv-form-button").click()
    path = tmp_path / "notes.html"
    path.write_text("<h1>Ledger</h1><script>x()</script><p>The code is 58213.</p>")
    with page.expect_file_chooser() as chooser:
        page.locator("#kv-upload").click()
    chooser.value.set_files(str(path))
    document = page.locator("#kv-document-field textarea")
    expect(document).to_have_value(re.compile("^# Ledger\\s+The code is 58213.$"))
    expect(page.locator("#kv-read-note")).to_contain_text("notes.html")
    path = tmp_path / "scan.pdf"
    path.write_bytes(b"%PDF-1.7 broken")
    page.locator("#kv-document-field input[type=file]").set_input_files(str(path))
    expect(page.locator("#kv-read-note")).to_contain_text("damaged")
    expect(document).to_have_value(re.compile("58213"))  # what was there stays
