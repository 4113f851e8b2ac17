"""Handlers of the fields: statuses as JSON, limits, opening files."""

import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.settings import settings
from kvviz.ui.desk import Desk
from kvviz.ui.fields import NAMES

GOOD = {"document": "text", "question": "q?", "methods": ["snapkv", "dropkv"], "budgets": ["50%"],
        "model": "smollm2-135m", "dtype": "auto", "protocol": "question-aware",
        "max_new_tokens": 8, "window": None, "seed": 0}  # fmt: skip
WHO = SimpleNamespace(session_hash="one", cookies={})


@pytest.fixture
def desk(store):
    return Desk(FakeEngine(), store, settings({}))


def _run(desk, **change):
    values = [{**GOOD, **change}.get(name) for name in NAMES]
    return [json.loads(s) for s in desk.run(WHO, *values)]


def test_a_run_is_kept_and_named(desk):
    last = _run(desk)[-1]
    assert last["state"] == "done"
    assert desk.store.get(last["run"]).comparison.methods == ["snapkv", "dropkv"]
    assert "result" not in last


def test_decoding_more_adds_to_the_run(desk):
    run = desk.store.get(_run(desk)[-1]["run"])
    event = SimpleNamespace(_data={"run": run.id, "budget": 0.15})
    last = [json.loads(s) for s in desk.decode_more(event, WHO)][-1]
    assert last["run"] == run.id
    assert [round(run.comparison.share(b), 3) for b in run.comparison.budgets] == [0.5, 0.15]


@pytest.mark.parametrize("data", [None, {}, {"run": "x", "budget": 0.1}, {"budget": "a"}])
def test_decoding_more_of_nothing_is_refused(desk, data):
    statuses = [json.loads(s) for s in desk.decode_more(SimpleNamespace(_data=data), WHO)]
    assert [s["state"] for s in statuses] == ["failed"]


def test_too_many_answers(store):
    desk = Desk(FakeEngine(), store, settings({"KVVIZ_MAX_VARIANTS": "1"}))
    last = _run(desk)[-1]
    assert last["state"] == "failed" and "at most 1 are decoded" in last["message"]


def test_public_servers_take_catalogue_models_only(store):
    desk = Desk(FakeEngine(), store, settings({"KVVIZ_PUBLIC": "1"}))
    assert "list" in _run(desk, model="/etc/passwd")[-1]["message"]


def test_opening_files(desk, tmp_path):
    opened = json.loads(desk.open_saved(str(tmp_path / "example.zip"), WHO))
    assert desk.store.get(opened["run"]).origin == "file"
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"PK\x03\x04 nothing")
    assert json.loads(desk.open_saved(str(bad), WHO))["state"] == "failed"


def test_reading_documents(desk, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("naïve <b>".encode())
    text, status = desk.read_document(str(path))
    assert text == "naïve <b>" and json.loads(status)["state"] == "idle"
    path.write_bytes(bytes(range(256)) * 4)
    _, status = desk.read_document(str(path))
    assert json.loads(status)["message"]


def test_an_estimate_scales_the_last_run(desk, comparison):
    def seconds(document, budgets="50", model="smollm2-135m", new_tokens=8):
        status = desk.estimate(document, ["snapkv"], ["dropkv"], budgets, model, new_tokens)
        return json.loads(status)["seconds"]

    comparison.seconds = {"prefill": 2.0, "read": 0.0, "score": 1.0, "decode": 4.0}
    desk.estimates.learn("smollm2-135m", comparison)
    short = seconds("x" * 100)
    assert 0 < short < seconds("x" * 400)
    assert short < seconds("x" * 100, new_tokens=16)
    assert seconds("x" * 100, model="smollm2-1.7b") == pytest.approx(short * 1700 / 135)
    assert seconds("x", budgets="junk") is None and seconds(" ") is None
    assert seconds("x" * 10**7) is None  # it would be refused
    assert seconds("x" * 100, model="another/one") is None


def test_a_fresh_server_estimates_from_its_stored_example(store, comparison, tmp_path):
    comparison.seconds = {"prefill": 2.0, "decode": 4.0}
    comparison.model = dataclasses.replace(comparison.model, id="smollm2-135m")
    comparison.save(tmp_path / "example.zip")
    desk = Desk(FakeEngine(), store, settings({}))
    status = desk.estimate("x" * 100, ["snapkv"], [], "50", "smollm2-135m", 8)
    assert json.loads(status)["seconds"] > 0


def test_a_stored_run_is_never_changed_by_a_visitor(desk):
    event = SimpleNamespace(_data={"run": "stored-example", "budget": 0.15})
    before = len(desk.store.get("stored-example").comparison.variants)
    last = [json.loads(s) for s in desk.decode_more(event, WHO)][-1]
    assert last["run"] != "stored-example"
    assert len(desk.store.get("stored-example").comparison.variants) == before
    assert len(desk.store.get(last["run"]).comparison.variants) > before


OTHER = SimpleNamespace(session_hash="two", cookies={})


@pytest.mark.parametrize("field", ["document", "question", "system", "expected"])
def test_a_text_too_long_to_be_looked_at_is_refused_before_the_line(store, field):
    desk = Desk(FakeEngine(), store, settings({"KVVIZ_PUBLIC": "1"}))
    desk.line = None  # entering would fail
    last = _run(desk, **{field: "x" * 200_000})[-1]
    assert last["state"] == "failed" and "200,000 characters" in last["message"]


def test_a_reader_of_a_shared_run_gets_a_copy(desk):
    run = desk.store.get(_run(desk)[-1]["run"])
    before = len(run.comparison.variants)
    event = SimpleNamespace(_data={"run": run.id, "budget": 0.15})
    last = [json.loads(s) for s in desk.decode_more(event, OTHER)][-1]
    copy = desk.store.get(last["run"])
    assert copy.id != run.id and len(run.comparison.variants) == before
    assert copy.owner == "two" and len(copy.comparison.variants) > before


def test_the_owner_is_known_again_after_a_reload(desk):
    page = SimpleNamespace(session_hash="one", cookies={"kvviz-visitor": "browser"})
    again = SimpleNamespace(session_hash="new", cookies={"kvviz-visitor": "browser"})
    values = [GOOD.get(name) for name in NAMES]
    run = desk.store.get([json.loads(s) for s in desk.run(page, *values)][-1]["run"])
    event = SimpleNamespace(_data={"run": run.id, "budget": 0.15})
    assert [json.loads(s) for s in desk.decode_more(event, again)][-1]["run"] == run.id


def test_stop_stops_all_work_of_a_page(store):
    desk = Desk(FakeEngine(steps=500, pause=0.01), store, settings({}))
    values = [GOOD.get(name) for name in NAMES]
    first, second = desk.run(WHO, *values), desk.run(WHO, *values)
    next(first), next(second)
    desk.stop(WHO)
    assert json.loads([*first][-1])["state"] == json.loads([*second][-1])["state"] == "stopped"


def test_a_page_holds_at_most_two_places_in_the_line(store):
    desk = Desk(FakeEngine(steps=500, pause=0.01), store, settings({}))
    values = [GOOD.get(name) for name in NAMES]
    runs = [desk.run(WHO, *values) for _ in range(3)]
    states = [json.loads(next(run))["state"] for run in runs]
    assert states == ["running", "running", "failed"]
    assert json.loads(next(desk.run(OTHER, *values)))["state"] == "running"
    for run in runs:
        run.close()


def test_a_run_stopped_before_an_answer_is_not_kept(store):
    class Early(FakeEngine):
        def stream(self, ask, cancel, progress, into=None):
            cancel.set()
            *_, last = super().stream(ask, threading.Event(), progress)
            yield dataclasses.replace(last, result=dataclasses.replace(last.result, variants=[]))

    desk = Desk(Early(steps=1), store, settings({}))
    last = _run(desk)[-1]
    assert last["state"] == "stopped" and last["message"] == "Stopped. No answer was finished yet."
    assert "run" not in last


def test_decoding_more_reads_the_very_tokens_of_the_run(desk, monkeypatch):
    given = []
    stream = desk.engine.stream
    monkeypatch.setattr(desk.engine, "stream", lambda *a: given.append(a[3:]) or stream(*a))
    run = desk.store.get(_run(desk)[-1]["run"])
    before = run.comparison
    list(desk.decode_more(SimpleNamespace(_data={"run": run.id, "budget": 0.15}), WHO))
    assert given == [(None,), (before,)]
