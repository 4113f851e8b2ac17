"""Fields to a request, a request to statuses."""

import threading
import time

import pytest
from fake_engine import FakeEngine

from kvviz.errors import InputError
from kvviz.ui import asks, worker

GOOD = {"document": "text", "question": "q?", "methods": ["snapkv"], "budgets": ["50%"]}


@pytest.mark.parametrize(
    "given, shares",
    [("50, 20%; 5", [0.5, 0.2, 0.05]), (["1", "100%"], [1.0, 0.01]), ("7 7", [0.07]),
     (["0.5%", "2.5"], [0.025, 0.005]),
     (["128 tokens", "20 %", "1t"], [0.2, 128, 1]), (["7t, 30"], [0.3, 7])],
)
def test_budgets_are_read_as_percent(given, shares):
    assert [b.value for b in asks.percent_budgets(given)] == shares


@pytest.mark.parametrize("given", ["0", "101", "-3", "nan", "abc", "inf", ["0t"], ["150%"], "1e3"])
def test_budgets_outside_the_range_are_named(given):
    with pytest.raises(InputError, match="A budget is a share above 0 and up to 1"):
        asks.percent_budgets(given)


@pytest.mark.parametrize("given", ["0,2", "0.2", [".2"], ["50", "0,2"]])
def test_a_share_in_the_percent_field_is_told_that_percent_is_meant(given):
    with pytest.raises(InputError, match="Budgets are percent here: write 20% for a share of 0?.2"):
        asks.percent_budgets(given)


def test_a_count_in_the_percent_field_is_told_how_it_is_written():
    with pytest.raises(InputError, match="128 tokens per KV head are written 128t"):
        asks.percent_budgets(["128"])


@pytest.mark.parametrize(
    "change, sentence",
    [({"document": " \n"}, "Paste or upload a document first."),
     ({"question": ""}, "Ask a question about the document."),
     ({"methods": []}, "Choose at least one method."),
     ({"budgets": []}, "Choose at least one budget")],
)  # fmt: skip
def test_missing_fields_are_named(change, sentence):
    with pytest.raises(InputError, match=sentence):
        asks.request(**{**GOOD, **change})


def work(engine, ask):
    return lambda cancel, progress: engine.stream(ask, cancel, progress)


def _states(ask, engine, cancel=None):
    return list(worker.stream(work(engine, ask), cancel or threading.Event()))


def test_a_run_ends_with_its_result():
    statuses = _states(asks.request(**GOOD), FakeEngine())
    assert statuses[-1]["state"] == "done" and statuses[-1]["result"].methods == ["snapkv"]
    assert all(s["state"] == "running" for s in statuses[:-1])
    assert any(s.get("answers") for s in statuses[:-1])


def test_an_error_for_a_person_is_passed_on():
    last = _states(asks.request(**{**GOOD, "question": "fail"}), FakeEngine())[-1]
    assert last == {"state": "failed", "message": "This document has 9,310 tokens; tiny reads 8,192."}


@pytest.mark.parametrize("public", ["0", "1"])
def test_a_log_of_a_public_server_has_places_and_no_text_of_a_visitor(public, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_PUBLIC", public)

    def work(cancel, progress):
        raise RuntimeError("secret of a visitor")

    (status,) = worker.stream(work, threading.Event())
    said = capsys.readouterr().err
    assert status["state"] == "failed" and "secret" not in status["message"]
    assert "in work" in said and "RuntimeError" in said
    assert ("RuntimeError: secret of a visitor" in said) == (public == "0")


def test_a_fault_becomes_one_sentence(capsys):
    last = _states(asks.request(**{**GOOD, "question": "break"}), FakeEngine())[-1]
    assert last["state"] == "failed" and "fault" not in last["message"]
    assert "RuntimeError" in capsys.readouterr().err


def test_stop_ends_the_run_and_keeps_what_is_finished():
    cancel, engine = threading.Event(), FakeEngine(steps=500, pause=0.01)
    last = None
    for status in worker.stream(work(engine, asks.request(**GOOD)), cancel):
        cancel.set()
        last = status
    assert last["state"] == "stopped" and last["message"].startswith("Stopped.")


def test_a_closed_stream_stops_the_work():
    engine = FakeEngine(steps=500, pause=0.01)
    stream = worker.stream(work(engine, asks.request(**GOOD)), threading.Event())
    next(stream)
    stream.close()
    until = time.monotonic() + 5
    while not engine.ended and time.monotonic() < until:
        time.sleep(0.02)
    assert engine.ended == [True]
