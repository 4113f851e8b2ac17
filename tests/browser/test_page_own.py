"""A method in a file outside the repository, on the served page."""

import re
import socket
from pathlib import Path

from playwright.sync_api import expect
from tiny import make_model

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"


def test_a_method_of_a_file_is_compared_on_the_page(browser, tmp_path, monkeypatch):
    from kvviz.methods import own
    from kvviz.ui import app, runs

    file = tmp_path / "sized.py"
    file.write_text(re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S).group(1))
    monkeypatch.setattr(own, "_OWN", {})
    monkeypatch.setattr(runs, "STORED", tmp_path)
    monkeypatch.setenv("KVVIZ_PLUGINS", str(file))
    monkeypatch.setattr("kvviz.load_model", lambda *args, **kwargs: make_model("llama"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = app.launch(port=port, prevent_thread_lock=True, quiet=True)
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{port}")
        own_group = page.locator(".kv-group", has=page.locator("legend", has_text=re.compile("^Own$")))
        expect(own_group).to_contain_text("Sized attention")
        page.locator("#kv-document-field textarea").fill("The code of the door is 58213. " * 6)
        page.locator("#kv-question-field textarea, #kv-question-field input").first.fill("What is the code?")
        own_group.locator("input").check()
        page.locator("#kv-run-button").click()
        expect(page.locator("#kv-source")).to_contain_text("Your run", timeout=90_000)
        expect(page.locator(".kv-card")).to_have_count(3)
        expect(page.locator("#kv-a option", has_text="Sized attention")).to_have_count(1)
    finally:
        page.close()
        served[0].get_blocks().close()
