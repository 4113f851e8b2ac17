"""The page of an installed kvviz, from an empty folder: served, with its scripts, on a stored run."""

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def address(installed, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvviz", "serve", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        yield _answering(f"http://127.0.0.1:{port}", server, tmp_path / "log")
    finally:
        server.terminate()
        server.wait(30)


def _answering(url, server, log):
    for _ in range(240):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return url
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def test_the_first_screen_of_an_installed_page(address, visit_fresh):
    from playwright.sync_api import expect

    page = visit_fresh(url=address)
    expect(page.locator("#kv-finding")).to_contain_text("58213")
    page.wait_for_selector("#kv-kept-a .kv-plot-box[data-drawn]", state="attached")
