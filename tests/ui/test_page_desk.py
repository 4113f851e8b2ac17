"""Handlers of the fields: statuses as JSON, limits, opening files."""

import json
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.settings import settings
from kvviz.ui.desk import Desk
from kvviz.ui.fields import NAMES

GOOD = {"document": "text", "question": "q?", "methods": ["snapkv", "dropkv"], "budgets": ["50%"],
        "model": "smollm2-135m", "dtype": "auto", "protocol": "question-aware",
        "max_new_tokens": 8, "window": None, "seed": 0}  # fmt: skip
WHO = SimpleNamespace(session_hash="one")


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
    assert json.loads(desk.estimate("text", ["snapkv"], "50", 8))["seconds"] is None
    comparison.seconds = {"read": 2.0, "score": 1.0, "decode": 4.0}
    desk.reference = comparison
    short = json.loads(desk.estimate("x" * 1000, ["snapkv"], "50", 8))["seconds"]
    long = json.loads(desk.estimate("x" * 4000, ["snapkv"], "50", 8))["seconds"]
    assert 0 < short < long
    assert json.loads(desk.estimate("x", ["snapkv"], "junk", 8))["seconds"] is None


def test_a_stored_run_is_never_changed_by_a_visitor(desk):
    event = SimpleNamespace(_data={"run": "stored-example", "budget": 0.15})
    before = len(desk.store.get("stored-example").comparison.variants)
    last = [json.loads(s) for s in desk.decode_more(event, WHO)][-1]
    assert last["run"] != "stored-example"
    assert len(desk.store.get("stored-example").comparison.variants) == before
    assert len(desk.store.get(last["run"]).comparison.variants) > before
