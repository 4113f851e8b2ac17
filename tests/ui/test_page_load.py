"""Twenty visitors at one server, over the loopback: nobody sees another's run, everyone knows their place,
light controls answer at once, and memory stays what it was."""

import gc
import threading
import time
from types import SimpleNamespace

import httpx
import psutil
import pytest
from fake_engine import FakeEngine
from gradio_client import Client
from synthetic import synthetic_comparison
from tiny import make_model

from kvviz.settings import settings
from kvviz.types import Event
from kvviz.ui import app, lent
from kvviz.ui.desk import Desk
from kvviz.ui.engine import Engine
from kvviz.ui.runs import RunStore

VISITORS = 20


class Echo(FakeEngine):
    """Answers each visitor with the text they sent."""

    def stream(self, ask, cancel, progress, into=None):
        self.asked.append(ask)
        result = synthetic_comparison(n=40, L=2, budgets=tuple(ask.budgets), methods=("snapkv",))
        for step in range(self.steps):
            if cancel.is_set():
                self.ended.append(True)
                return
            time.sleep(self.pause)
            yield Event("decode", f"Step {step}", step, self.steps, None, {"full@1.0": ask.document})
        result.full.text = ask.document
        yield Event("done", "Done", 1, 1, 0.0, result=result)


@pytest.fixture(scope="module")
def served():
    engine, store = Echo(steps=10, pause=0.02), RunStore(max_runs=64)
    demo = app.build_app(engine, store)
    options = app.guarded({**app.launch_options(), "server_name": "127.0.0.1", "server_port": None})
    _, url, _ = demo.launch(**{**options, "prevent_thread_lock": True, "quiet": True})
    yield engine, url
    demo.close()


def asked(client, url):
    """How the page's scripts ask for a view."""
    config = httpx.get(f"{url}config").json()
    part = next(c for c in config["components"] if "ask" in str(c.get("props", {}).get("server_fns")))

    def ask(body):
        sent = {"data": body, "component_id": part["id"], "fn_name": "ask", "session_hash": "x"}
        return client.post(f"{url}gradio_api/component_server", json=sent, timeout=20).json()

    return ask


@pytest.mark.slow
def test_twenty_visitors_get_their_own_answers_and_light_controls_answer_at_once(served, monkeypatch):
    engine, url = served
    # One address may hold two places; twenty visitors have twenty addresses.
    seats = iter(range(10**6))
    monkeypatch.setattr("kvviz.ui.api.address", lambda request: f"visitor {next(seats)}")
    clients = [Client(url, verbose=False) for _ in range(VISITORS)]
    jobs = [
        client.submit(f"I am visitor {number}.", "Who?", ["snapkv"], ["50%"], api_name="/compare")
        for number, client in enumerate(clients)
    ]
    took = []
    with httpx.Client() as client:
        ask = asked(client, url)
        ask({"view": "meta", "run": "stored-1-lighthouse-ledger"})  # read from disk once
        while not all(job.done() for job in jobs):
            began = time.perf_counter()
            reply = ask({"view": "cards", "run": "stored-1-lighthouse-ledger", "sel": {}, "args": {}})
            took.append(time.perf_counter() - began)
            assert "cards" in reply
            time.sleep(0.1)
    waits = [[str(o.get("status", "")) for o in job.outputs() if "status" in o] for job in jobs]
    for number, job in enumerate(jobs):
        last = job.outputs()[-1]
        assert last["comparison"]["full"]["text"] == f"I am visitor {number}.", last.get("error")
    places = [int(said.split()[0]) for told in waits for said in told if "before yours" in said]
    assert max(places) >= VISITORS // 2 and min(places) == 1
    assert len(took) > 5 and max(took) < 1.0, took
    assert len(engine.asked) == VISITORS


@pytest.mark.slow
def test_memory_is_flat_after_two_hundred_runs():
    engine = Echo(steps=1, pause=0.0)
    desk = Desk(engine, RunStore(max_runs=8), settings({}))

    def run(number):
        visitor = SimpleNamespace(session_hash=f"s{number}", cookies={}, client=None)
        event = SimpleNamespace(_data={"document": f"text {number}", "question": "q?", "methods": ["snapkv"],
                                       "budgets": "50%"})  # fmt: skip
        assert '"state": "done"' in list(desk.run(event, visitor))[-1]

    for number in range(40):
        run(number)
    gc.collect()
    before, threads = psutil.Process().memory_info().rss, threading.active_count()
    for number in range(40, 240):
        run(number)
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    assert grown < 24 * 2**20, f"{grown / 2**20:.0f} MiB more"
    assert threading.active_count() <= threads + 1
    assert len(desk.store._runs) <= 8 and not desk.visitors._work and not desk.line._waiting


@pytest.mark.slow
def test_memory_is_flat_over_real_runs(monkeypatch):
    """The real engine with a tiny model. What is kept for the next question has a bound of its own, which the
    first runs fill here: without it each run would keep 1.5 MiB."""
    monkeypatch.setenv("KVVIZ_REUSE_BYTES", "8000000")
    monkeypatch.setitem(lent.MODELS, ("tiny", "auto"), make_model("llama"))
    desk = Desk(Engine(), RunStore(max_runs=4), settings({}))
    said = "The keeper wrote the code 58213 in the ledger. " * 20

    def run(number):
        visitor = SimpleNamespace(session_hash=f"s{number}", cookies={}, client=None)
        asked = {"document": f"Text {number}. {said}", "question": "q?", "model": "tiny",
                 "methods": ["snapkv"], "budgets": "50%", "max_new_tokens": 3}  # fmt: skip
        event = SimpleNamespace(_data=asked)
        assert '"state": "done"' in list(desk.run(event, visitor))[-1]

    for number in range(15):
        run(number)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(15, 45):
        run(number)
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    assert grown < 16 * 2**20, f"{grown / 2**20:.0f} MiB more"


def test_stop_frees_the_place_within_a_step():
    engine = Echo(steps=500, pause=0.02)
    desk = Desk(engine, RunStore(), settings({}))
    visitors = [SimpleNamespace(session_hash=f"s{n}", cookies={}, client=None) for n in (1, 2)]
    event = SimpleNamespace(
        _data={"document": "text", "question": "q?", "methods": ["snapkv"], "budgets": "50%"}
    )
    first, second = (desk.run(event, visitor) for visitor in visitors)
    while '"stage": "decode"' not in next(first):
        pass
    assert "1 run before yours" in next(second)
    began = time.perf_counter()
    desk.stop(visitors[0])
    assert '"state": "stopped"' in list(first)[-1]
    for told in second:
        if '"stage": "decode"' in told:
            break
    assert time.perf_counter() - began < 1.0
    second.close()
    assert not desk.line._waiting
