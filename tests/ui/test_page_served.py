"""The page as it is served: the guard is in front, and a client that goes takes its runs with it."""

import threading
import time

import httpx
import pytest
from fake_engine import FakeEngine

from kvviz.ui import app


@pytest.fixture(scope="module")
def served():
    engine = FakeEngine(steps=2000, pause=0.01)
    demo = app.build_app(engine)
    options = app.guarded({**app.launch_options(), "server_name": "127.0.0.1", "server_port": None})
    _, url, _ = demo.launch(**{**options, "prevent_thread_lock": True, "quiet": True})
    yield engine, url
    demo.close()


def test_the_guard_is_in_front(served):
    _, url = served
    page = httpx.get(url)
    assert page.status_code == 200 and "kvviz-visitor" in page.headers["set-cookie"]
    assert "content-security-policy" in page.headers
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403


def test_the_servers_inner_routes_are_not_listed(served):
    _, url = served
    assert httpx.get(f"{url}openapi.json").status_code == 404
    assert httpx.get(f"{url}gradio_api/info").status_code == 200, "what may be called is"


def test_a_call_ends_when_its_client_goes(served):
    from gradio_client import Client

    engine, url = served
    client = Client(url, verbose=False)
    job = client.submit("text", "q?", ["snapkv"], ["50%"], api_name="/compare")
    end = time.monotonic() + 10
    while not engine.asked and time.monotonic() < end:
        time.sleep(0.05)
    assert engine.asked and not engine.ended
    job.cancel()
    threading.Thread(target=client.close, daemon=True).start()
    end = time.monotonic() + 10
    while not engine.ended and time.monotonic() < end:
        time.sleep(0.05)
    assert engine.ended == [True]
