"""What a visitor keeps over a reload and over a restart of the server, and Run pressed many times."""

import socket
import tempfile
import time
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from playwright.sync_api import expect
from synthetic import synthetic_comparison

from kvviz.ui import app, runs


@pytest.fixture
def server(chromium_path):
    """start() serves the page at one address, again after stop()."""
    old = runs.STORED
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        synthetic_comparison(n=160, L=4).save(Path(folder) / "a-stored-run.zip")
        runs.STORED = Path(folder)
        running = []

        class Server:
            url = f"http://127.0.0.1:{port}/"
            engine = FakeEngine(steps=6, pause=0.05)

            def start(self):
                demo = app.build_app(engine=self.engine)
                options = {**app.launch_options(), "server_name": "127.0.0.1", "server_port": port}
                demo.launch(prevent_thread_lock=True, quiet=True, **app.guarded(options))
                running.append(demo)

            def stop(self):
                running.pop().close()

        one = Server()
        one.start()
        yield one
        while running:
            one.stop()
    runs.STORED = old


def test_a_reload_finds_the_run_and_a_restart_keeps_the_text(visits, server):
    context = visits.browser.new_context(viewport={"width": 1280, "height": 900})
    visits.own.append(context)
    page = context.new_page()
    page.set_default_timeout(45_000)
    page.goto(server.url)
    page.wait_for_selector("#kv-app[data-ready]")
    page.locator("#kv-form-button").click()
    text, question = page.locator("#kv-document-field textarea"), page.locator("#kv-question-field input")
    text.fill("The keeper wrote 58213.")
    question.fill("Which code?")
    for _ in range(10):  # as fast as it goes
        page.evaluate("document.getElementById('kv-run-button').click()")
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    time.sleep(0.6)
    assert len(server.engine.asked) == 1  # one job for one intent

    page.reload()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    page.locator("#kv-form-button").click()
    expect(text).to_have_value("The keeper wrote 58213.")

    text.fill("Another text, typed before the restart.")
    time.sleep(0.3)
    server.stop()
    time.sleep(1.0)
    server.start()
    expect(text).to_have_value("Another text, typed before the restart.")
    page.goto(server.url)
    expect(page.locator("#kv-source")).to_contain_text("Stored example")
    page.locator("#kv-form-button").click()
    expect(text).to_have_value("Another text, typed before the restart.")
    expect(question).to_have_value("Which code?")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
