"""One example through the whole path in a real browser, with the embedded model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from playwright.sync_api import expect


@pytest.mark.slow
def test_an_example_runs_through_to_answers_and_plots(visit_fresh, serve, monkeypatch):
    from kvviz.ui import runs
    from kvviz.ui.engine import Engine

    monkeypatch.setattr(runs, "STORED", runs.STORED)
    with tempfile.TemporaryDirectory() as folder:
        url, close = serve(Engine(), Path(folder))
        try:
            page = visit_fresh(url=url)
            expect(page.locator("#kv-finding")).to_contain_text("Nothing to show yet")
            page.locator(".kv-example").first.click()
            document = page.locator("#kv-document-field textarea")
            expect(document).not_to_have_value("")
            document.fill(document.input_value()[:1500])
            page.locator("#kv-run-button").click()
            expect(page.locator("#kv-run")).to_contain_text("of 5")
            expect(page.locator("#kv-source")).to_contain_text("Your run", timeout=150_000)
            expect(page.locator(".kv-card")).to_have_count(3)
            for panel in ("kv-kept-a", "kv-versus"):
                page.wait_for_selector(f"#{panel} .kv-plot-box[data-drawn]", state="attached")
            page.locator("#kv-tab-why").click()
            page.wait_for_selector("#kv-why .kv-plot-box[data-drawn]", state="attached")
            finds_and_stops(page)
        finally:
            close()


def finds_and_stops(page):
    """What was put back until the stop stays."""
    page.locator("#kv-tab-cause").click()
    job = page.locator("#kv-sheet-cause .kv-job")
    page.locator("#kv-find-cause").click()
    expect(job).to_contain_text("Putting back", timeout=120_000)
    page.locator("#kv-live button").click()
    expect(job).to_contain_text("Stopped. What was found until then is shown.", timeout=120_000)
    expect(page.locator("#kv-find-cause")).to_have_text("Go on")
    expect(page.locator("#kv-cause-words")).to_contain_text("less likely: so much could come back")
