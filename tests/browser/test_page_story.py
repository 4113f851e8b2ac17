"""Stories: told by keyboard, played on a stage, taken along as link, file or page; the budget that plays."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect
from test_page import drawn, selection

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
EVIL = "Two <img src=x onerror=window.boom=1>"


def add_step(page, words, tab):
    page.locator(f"#kv-tab-{tab}").click()
    page.locator("#kv-add-view").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-step-words")).to_be_focused()
    page.keyboard.type(words)
    page.keyboard.press("Enter")


def steps_of(page):
    return page.locator(".kv-step-text").evaluate_all("all => all.map(one => one.value)")


def play(page, count):
    """The stage walked to its end by keys; what each step said."""
    said = []
    page.locator("#kv-play-story").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#kv-stage")).to_have_css("display", "flex")  # the count beside the sentence
    for key in ("ArrowRight", " ", "PageDown", "ArrowRight")[:count]:
        expect(page.locator(".kv-speech-count")).to_have_text(f"{len(said) + 1} / {count}")
        said.append(page.locator(".kv-speech-words").inner_text())
        page.keyboard.press(key)
    expect(page.locator("#kv-stage")).to_be_hidden()
    expect(page.locator("#kv-play-story")).to_be_focused()
    return said


def test_a_story_is_told_by_keyboard_and_opens_again_without_a_network(visit_fresh, tmp_path):
    page = visit_fresh("?r=stored-a-stored-run&a=snapkv&b=dropkv&k=0.1", accept_downloads=True)
    drawn(page, "kv-kept-a")
    add_step(page, "One.", "kept")
    add_step(page, EVIL, "why")
    add_step(page, "Three.", "effect")
    page.get_by_role("button", name="Move step 3 up").focus()
    page.keyboard.press("Enter")
    assert steps_of(page) == ["One.", "Three.", EVIL]
    page.get_by_role("button", name="Move step 2 down").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Move step 3 up")).to_be_visible()
    page.get_by_label("Sentence of step 1").fill("First.")
    page.get_by_label("What step 1 shows").select_option("answers")
    page.reload()  # the browser keeps the draft
    page.wait_for_selector("#kv-app[data-ready]")
    page.locator("#kv-story-button").click()
    words = ["First.", EVIL, "Three."]
    assert steps_of(page) == words
    assert play(page, 3) == words
    page.locator("#kv-link-story").click()
    page.wait_for_function("location.hash.startsWith('#story=')")
    link = page.url
    with page.expect_download() as saved:
        page.locator("#kv-save-story").click()
    saved.value.save_as(tmp_path / "story.html")
    page.locator("#kv-export summary").click()
    with page.expect_download() as whole:
        page.get_by_role("button", name="Whole run (.zip)").click()
    whole.value.save_as(tmp_path / "run.zip")

    other = visit_fresh(url=link)  # a visitor who has no draft
    expect(other.locator("#kv-story")).to_be_visible()
    assert steps_of(other) == words
    with other.expect_file_chooser() as chooser:
        other.locator("#kv-open-saved").click()
    chooser.value.set_files(str(tmp_path / "run.zip"))
    expect(other.locator("#kv-source")).to_contain_text("Opened file")
    expect(other.locator("#kv-story-button")).to_have_text("Story (3)")
    assert steps_of(other) == words

    alone = visit_fresh(url=(tmp_path / "story.html").as_uri(), offline=True)
    drawn(alone, "kv-kept-a")
    assert play(alone, 3) == words
    assert not alone.evaluate("window.boom") and not other.evaluate("window.boom")
    assert alone.evaluate(f"({CONTRAST})(4.5)") == []
    assert alone.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_long_or_broken_story_in_a_link_is_told_or_left_out(visit):
    page = visit("?r=stored-a-stored-run#story=____")
    expect(page.locator("#kv-story-button")).to_have_text("Story")
    page.evaluate("""localStorage.setItem('kvviz-stories', JSON.stringify([{run: 'stored-a-stored-run',
      steps: Array.from({length: 24}, () => ({words: 'x'.repeat(400), shows: 'kept',
        view: {a: 'snapkv', b: null, budget: 0.1}}))}]))""")
    page = visit("?r=stored-a-stored-run")
    expect(page.locator("#kv-story-button")).to_have_text("Story (24)")
    page.locator("#kv-story-button").click()
    page.locator("#kv-link-story").click()
    expect(page.locator("#kv-story")).to_contain_text("too long for a link")
    page.evaluate("localStorage.removeItem('kvviz-stories')")
    page.locator("#kv-story-button").click()


def test_the_stage_on_a_phone_in_the_dark(visit_fresh):
    page = visit_fresh("?__theme=dark&r=stored-a-stored-run&a=snapkv&b=dropkv&k=0.1",
                       viewport={"width": 390, "height": 844}, has_touch=True)  # fmt: skip
    drawn(page, "kv-kept-a")
    add_step(page, "What A kept, what B kept.", "kept")
    page.locator("#kv-tab-why").click()
    page.locator("#kv-play-story").click()
    expect(page.locator("#kv-kept-a")).to_be_in_viewport()
    for hidden in ("#kv-head", ".kv-bar", ".kv-tabs", "#kv-story", "#kv-zoom"):
        expect(page.locator(hidden).first).to_be_hidden()
    assert page.evaluate(f"({CONTRAST})(4.5)") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.touchscreen.tap(300, 600)  # the last step: a tap ends it
    expect(page.locator("#kv-stage")).to_be_hidden()


def test_the_budget_plays_until_it_is_stopped(visit_fresh):
    page = visit_fresh("?r=stored-a-stored-run&k=0.1", reduced_motion="no-preference")
    drawn(page, "kv-kept-a")
    page.locator("#kv-play").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("Number(document.getElementById('kv-budget').value) < 13")
    page.keyboard.press("Escape")
    at = selection(page)["budget"]
    expect(page.locator("#kv-play")).to_have_attribute("aria-pressed", "false")
    page.wait_for_timeout(1200)
    assert selection(page)["budget"] == at


def test_where_motion_is_not_wanted_play_is_one_stop_a_press(visit):
    page = visit("?r=stored-a-stored-run&k=0.1")
    page.locator("#kv-play").click()
    assert selection(page)["budget"] == 0.07
    page.wait_for_timeout(800)
    assert selection(page)["budget"] == 0.07
