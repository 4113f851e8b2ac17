"""Handlers of Cause and the fork: what is found joins the run, Stop keeps what is done, junk is refused."""

import json
import threading
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.settings import settings
from kvviz.ui.cause_desk import PART, CauseDesk
from kvviz.ui.cause_views import cause_view
from kvviz.ui.chosen import checked
from kvviz.ui.desk import Desk

WHO = SimpleNamespace(session_hash="one", cookies={})
A = {"a": "dropkv", "b": "snapkv", "budget": 0.2}


class Waits(FakeEngine):
    """Goes on only when its first step was told: a page that is slow hears of the newest step alone."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.told = threading.Event()

    def find_cause(self, *args):
        for event in super().find_cause(*args):
            yield event
            assert self.told.wait(60)


@pytest.fixture
def desk(store):
    return CauseDesk(Desk(FakeEngine(steps=3, pause=0.0), store, settings({})))


def statuses(handler, **data):
    return [json.loads(s) for s in handler(SimpleNamespace(_data={"run": "stored-example", **data}), WHO)]


def test_what_is_found_joins_the_run_and_how_long_it_takes_is_told(store):
    engine = Waits(steps=3, pause=0.0)
    desk, told = CauseDesk(Desk(engine, store, settings({}))), []
    for status in desk.find(SimpleNamespace(_data={"run": "stored-example", "sel": A}), WHO):
        told.append(json.loads(status))
        if "head by head" in told[-1]["message"]:
            engine.told.set()
    assert told[-1]["state"] == "done" and told[-1]["experiment"]
    assert any(s.get("seconds_left") == 30.0 and "head by head" in s["message"] for s in told)
    found = desk.desk.store.get(told[-1]["run"]).comparison
    assert found.causes["dropkv@0.2"].rescue is not None
    assert "snapkv@0.1" in found.causes  # what was known stays


def test_stop_keeps_what_was_found_until_then(desk):
    event = SimpleNamespace(_data={"run": "stored-example", "sel": A})
    told = []
    for status in desk.find(event, WHO):
        told.append(json.loads(status))
        if told[-1]["state"] == "running":
            desk.desk.stop(WHO)
    assert (told[-1]["state"], told[-1]["message"]) == ("stopped", PART)
    run = desk.desk.store.get(told[-1]["run"])
    half = run.comparison.causes["dropkv@0.2"]
    assert cause_view(run, checked(A, run.comparison), {})["stopped"]  # the page offers to go on
    assert half.stopped and half.put_back and not half.taken_out


@pytest.mark.parametrize(
    "data",
    [
        {"run": "nobody", "sel": A},
        {"sel": {"a": "dropkv", "budget": 0.3}},  # a stop of the slider
        {"sel": {"a": "<b>", "budget": []}, "run": None},
    ],
)
def test_what_was_not_decoded_has_no_cause_to_find(desk, data):
    assert [s["state"] for s in statuses(desk.find, **data)] == ["failed"]


SNAP = {"a": "snapkv", "b": "dropkv", "budget": 0.1}  # its fork is stored


@pytest.mark.parametrize(("side", "key"), [("a", "snapkv@0.1"), ("full", "full")])
def test_a_branch_is_shown_with_the_fork(desk, side, key):
    told = statuses(desk.branch, sel=SNAP, side=side, step=1, index=1)
    assert told[-1]["state"] == "done"
    (row,) = desk.desk.store.get(told[-1]["run"]).comparison.settings["branches"]
    assert (row["key"], row["step"], row["token"]) == (key, 1, " other <b>")


@pytest.mark.parametrize(
    "data",
    [
        {"side": "b", "step": 1, "index": 1},  # no fork of B is stored
        {"side": "a", "step": 99, "index": 1},
        {"side": "a", "step": 1, "index": 7},
        {"side": "a", "step": "1", "index": None},
        {"side": ["a"], "step": -1, "index": 0},
        {},
    ],
)
def test_a_token_that_was_not_likely_cannot_be_gone_on_from(desk, data):
    (status,) = statuses(desk.branch, sel=SNAP, **data)
    assert status["state"] == "failed"
