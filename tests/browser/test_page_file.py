"""The page of a run away from any server: as an exported file, and in a frame of a notebook."""

from __future__ import annotations

from dataclasses import replace

from playwright.sync_api import expect
from synthetic import synthetic_comparison, with_turn
from test_page import drawn

from kvviz.cli import main
from kvviz.results.story import Opening, Step

CAPTION = "<img src=x onerror=window.boom=1>"


def test_an_exported_run_plays_its_story_and_a_frame_shows_it_without_a_network(visit_fresh, tmp_path):
    c = synthetic_comparison(n=120, L=4, methods=("snapkv", "dropkv", "streaming_llm", "adakv"))
    views = [Opening("snapkv", "dropkv", 0.1), Opening("dropkv", "snapkv", 0.2)]
    steps = (Step("One.", "kept", views[0]), Step(CAPTION, "answers", views[1]),
             Step("Three.", "effect", views[0]), Step("Four.", "budget", views[1]))  # fmt: skip
    c = with_turn(with_turn(c, "Who wrote it?", "Full"), CAPTION, fresh=True)
    c = replace(c, story=replace(c.story, steps=steps))
    c.save(tmp_path / "run.zip")
    assert main(["export", str(tmp_path / "run.zip"), "--html", str(tmp_path / "page.html")]) == 0
    notebook = f"<!doctype html><meta charset=utf-8>{c.show(a='snapkv', height=700)._repr_html_()}"
    (tmp_path / "notebook.html").write_text(notebook, encoding="utf-8")

    page = visit_fresh(url=(tmp_path / "page.html").as_uri(), offline=True)
    drawn(page, "kv-kept-a")
    asked = page.locator(".kv-turn")
    of_a = asked.nth(0).locator(".kv-turn-cards").first.locator(".kv-card-a")
    expect(asked).to_have_count(2)
    expect(asked.nth(0)).to_contain_text("Who wrote it?")
    expect(of_a).to_contain_text("SnapKV to Who")
    expect(asked.nth(0).locator(".kv-right")).to_have_count(1)
    expect(asked.nth(1)).to_contain_text(CAPTION)
    asked.nth(1).locator("summary").click()
    expect(asked.nth(1).locator(".kv-turn-card").last).to_be_visible()
    expect(page.locator("#kv-more-question")).to_be_hidden()  # nobody is there to answer
    page.locator("#kv-play-story").click()
    for number, step in enumerate(steps, 1):
        expect(page.locator(".kv-speech-count")).to_have_text(f"{number} / 4")
        expect(page.locator(".kv-speech-words")).to_have_text(step.words)
        page.keyboard.press("ArrowRight")
    expect(page.locator("#kv-stage")).to_be_hidden()
    expect(of_a).to_contain_text("DropKV to Who")

    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.locator("#kv-app[data-ready]")).to_be_visible()
    expect(frame.locator("#kv-kept-a .main-svg").first).to_be_visible()
    expect(frame.locator("#kv-app")).not_to_contain_text("could not")
    assert not page.evaluate("window.boom")
