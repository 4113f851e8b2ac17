"""What a page speaks of is in sight: each step of each tour, a run, an error, the way to the form."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_page import drawn, fill_form

from kvviz.ui import runs

EXAMPLES = Path(__file__).parents[2] / "assets" / "runs"
SIZES = [(1440, 900), (390, 844)]
# The part that a step points at: what stands after its strip, of a map its cells, of a tab its first words.
POINTED = """() => {
  const next = document.querySelector('#kv-tour').nextElementSibling;
  const seen = (next.querySelector('.kv-plot-box') || next).getBoundingClientRect();
  return {top: seen.top, bottom: seen.bottom, left: seen.left, right: seen.right,
    wide: innerWidth, high: innerHeight,
    strip: document.querySelector('#kv-tour').getBoundingClientRect().top};
}"""


@pytest.mark.parametrize("size", SIZES)
def test_every_step_of_every_tour_points_at_something_in_sight(visit, monkeypatch, size):
    monkeypatch.setattr(runs, "STORED", EXAMPLES)
    for example in sorted(EXAMPLES.glob("*.zip")):
        page = visit(f"?r=stored-{example.stem}")
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_role("button", name="Tour", exact=True).click()
        tour, step = page.locator("#kv-tour"), 0
        while True:
            step += 1
            expect(tour).to_contain_text(f"Tour {step} of")
            drawn(page, "kv-kept-a")
            there = page.evaluate(POINTED)
            where = (example.stem, step, there)
            assert there["strip"] >= 0 and there["left"] >= 0 and there["right"] <= there["wide"], where
            assert 0 <= there["top"] and min(there["bottom"], there["top"] + 300) <= there["high"], where
            further = tour.locator(".kv-primary")
            if further.inner_text() == "Use my own text":
                break
            further.click()
        page.get_by_role("button", name="Skip tour").click()
    page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.parametrize("size", SIZES)
def test_a_first_visit_sees_the_name_and_the_way_to_the_own_text(visit_fresh, size):
    page = visit_fresh("?r=stored-c-lighthouse-ledger", viewport={"width": size[0], "height": size[1]})
    expect(page.locator("#kv-tour")).to_contain_text("Tour 1 of")
    drawn(page, "kv-kept-a")
    expect(page.locator("#kv-head h1")).to_be_in_viewport(ratio=1)
    ways = page.get_by_role("button", name="Use my own text").locator("visible=true")
    expect(ways.first).to_be_in_viewport(ratio=1)
    ways.first.click()
    expect(page.locator("#kv-document-text")).to_be_focused()
    expect(page.locator("#kv-form")).to_be_in_viewport()


@pytest.mark.parametrize("size", SIZES)
def test_a_run_and_its_errors_are_in_sight_of_the_button(visit_fresh, size):
    page = visit_fresh(viewport={"width": size[0], "height": size[1]})
    fill_form(page, document="My own words.", question=" ")
    button = page.locator("#kv-run-button")
    button.evaluate("node => node.scrollIntoView({block: 'end'})")
    button.click()
    expect(page.locator("#kv-run .kv-failed")).to_be_in_viewport(ratio=1)
    page.locator("#kv-question-field").locator("input, textarea").fill("slow?")
    button.evaluate("node => node.scrollIntoView({block: 'end'})")
    button.click()
    sight = ("#kv-run .kv-progress", "#kv-stop-button", "#kv-live .kv-question", ".kv-live-card >> nth=0")
    for there in sight:
        expect(page.locator(there)).to_be_in_viewport()
    page.locator("#kv-stop-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Stopped.")


def test_the_full_answer_ends_without_its_control_token(visit):
    page = visit("?r=stored-c-lighthouse-ledger")
    answer = page.locator("#kv-full-tokens")
    expect(answer).to_contain_text("58213.")
    expect(answer).not_to_contain_text("<|")
    expect(answer.locator(".kv-look").last).to_have_attribute("title", "The answer ends here: <|im_end|>")


CUT = """() => [...document.querySelectorAll('.kv-sheet .kv-plot')].filter(one => one.clientWidth)
  .map(one => [one.closest('.kv-panel').id, one.getBoundingClientRect().bottom, innerHeight])
  .filter(([, bottom, high]) => bottom > high)"""


@pytest.mark.parametrize("size", SIZES)
def test_a_stage_shows_whole_figures_and_a_budget_step_the_maps(visit_fresh, size):
    page = visit_fresh("?r=stored-c-lighthouse-ledger", viewport={"width": size[0], "height": size[1]})
    drawn(page, "kv-kept-a")
    page.get_by_role("button", name="Skip tour").click()
    page.locator("#kv-story-button").click()
    tabs = ("kept", "why", "effect", "sweep")
    for tab in (*tabs, "sweep"):
        page.locator(f"#kv-tab-{tab}").click()
        page.locator("#kv-add-step").click()
    page.get_by_label("What step 5 shows").select_option("budget")
    page.locator("#kv-play-story").click()
    for i, tab in enumerate((*tabs, "kept")):
        expect(page.locator(".kv-speech-count")).to_have_text(f"{i + 1} / 5")
        expect(page.locator(f"#kv-sheet-{tab}")).to_be_visible()
        expect(page.locator(f"#kv-sheet-{tab} .kv-plot-box[data-drawn]").first).to_be_visible()
        assert (page.evaluate(CUT), tab) == ([], tab)
        page.keyboard.press("ArrowRight")


def test_passages_stand_below_each_other_on_a_phone(visit_fresh):
    page = visit_fresh("?r=stored-c-lighthouse-ledger", viewport={"width": 390, "height": 844})
    page.locator("#kv-grain").select_option("sentence")
    page.locator("#kv-held summary").click()
    table = page.locator(".kv-held")
    expect(table.locator("td").nth(1)).to_have_attribute("data-label", "heads of A SnapKV")
    assert table.evaluate("node => node.scrollWidth <= node.parentElement.clientWidth")


def test_a_run_by_keyboard_keeps_its_focus(visit_fresh):
    page = visit_fresh()
    fill_form(page, document="My own words.", question="What?")
    page.locator("#kv-run-button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-stop-button")).to_be_focused()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    expect(page.locator("#kv-finding")).to_be_focused()
    other = visit_fresh(page.evaluate("location.search"))  # whoever has its link is told what it is
    expect(other.locator("#kv-source")).to_contain_text("Shared run")
