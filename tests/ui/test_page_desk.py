"""Handlers of the fields: statuses as JSON, limits, opening files."""

import base64
import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.settings import settings
from kvviz.ui.asks import form_fields
from kvviz.ui.desk import Desk
from kvviz.ui.form import NAMES

GOOD = {"document": "text", "question": "q?", "methods": ["snapkv", "dropkv"], "budgets": ["50%"],
        "model": "smollm2-135m", "dtype": "auto", "protocol": "question-aware",
        "max_new_tokens": 8, "window": None, "seed": 0}  # fmt: skip
WHO = SimpleNamespace(session_hash="one", cookies={})


@pytest.fixture
def desk(store):
    return Desk(FakeEngine(), store, settings({}))


def _run(desk, **change):
    values = {**GOOD, **change}
    return [json.loads(s) for s in desk.run(SimpleNamespace(_data=values), WHO)]


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
    desk = Desk(FakeEngine(), store, settings({"KVVIZ_PUBLIC": "1", "KVVIZ_MODELS": "qwen3-0.6b"}))
    assert "list" in _run(desk, model="smollm2-135m")[-1]["message"]


def test_opening_files(desk, tmp_path, monkeypatch):
    def opened(path):
        return json.loads(desk.open_saved(SimpleNamespace(_data={"path": str(path)}), WHO))

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    assert "did not arrive" in opened(tmp_path / "example.zip")["message"]  # only what was uploaded is read
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    for name in ("a\0b", "x" * 5000, None):
        assert "did not arrive" in opened(name)["message"]
    assert desk.store.get(opened(tmp_path / "example.zip")["run"]).origin == "file"
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"PK\x03\x04 nothing")
    assert opened(bad)["state"] == opened(tmp_path / "none.zip")["state"] == "failed"


def test_reading_documents(desk):
    def read(name, data):
        return desk.answer({"view": "read", "args": {"name": name, "data": base64.b64encode(data).decode()}})

    assert read("text.txt", "naïve <b>".encode())["text"] == "naïve <b>"
    assert read("a.html", "<p>naïve</p>".encode())["text"] == "naïve"
    assert "not text" in read("text.txt", bytes(range(256)) * 4)["error"]
    assert "whole" in desk.answer({"view": "read", "args": {"name": "x", "data": "§"}})["error"]
    assert desk.answer({"view": "kept"}) is None  # a view of a run, which others answer


def _estimate(desk, **change):
    fields = {"document": "x" * 100, "methods": ["snapkv"], "variants": ["dropkv"], "budgets": "50",
              "model": "smollm2-135m", "max_new_tokens": 8, **change}  # fmt: skip
    return desk.answer({"view": "estimate", "args": fields})


def test_an_estimate_scales_the_last_run(desk, comparison):
    comparison.seconds = {"prefill": 2.0, "read": 0.0, "score": 1.0, "decode": 4.0}
    desk.estimates.learn("smollm2-135m", comparison)
    short = _estimate(desk)["seconds"]
    assert 0 < short < _estimate(desk, document="x" * 400)["seconds"]
    assert short < _estimate(desk, max_new_tokens=16)["seconds"]
    other = _estimate(desk, model="smollm2-1.7b")
    assert other["seconds"] == pytest.approx(short * 1711 / 134.5, rel=1e-3) and other["bytes"] is None
    assert _estimate(desk, budgets="junk")["seconds"] is _estimate(desk, document=" ")["seconds"] is None
    long = _estimate(desk, document="x" * 10**7)
    assert long["seconds"] is None and long["tokens"] > long["most"]  # it would be refused
    assert _estimate(desk, model="another/one")["seconds"] is None
    told = _estimate(desk, methods=["snapkv", "tova"], variants=[], budgets="50%, 20%, 128t")
    assert told["answers"] == 6 and told["bytes"] == told["tokens"] * comparison.token_bytes


def test_a_fresh_server_estimates_from_its_stored_example(store, comparison, tmp_path):
    comparison.seconds = {"prefill": 2.0, "decode": 4.0}
    comparison.model = dataclasses.replace(comparison.model, id="smollm2-135m")
    comparison.save(tmp_path / "example.zip")
    told = _estimate(Desk(FakeEngine(), store, settings({})))
    assert told["seconds"] > 0 and told["bytes"] > 0 and told["tokens"] > 0


def test_a_run_fills_the_form_as_it_was_asked_for(desk):
    asked = {**GOOD, "variants": ["snapkv:window=16"], "budgets": ["50%", "12t"], "expected": "58213",
             "temperature": 0.5, "seed": 7}  # fmt: skip
    run = desk.store.get(_run(desk, **asked)[-1]["run"])
    again = form_fields(run.recipe())
    assert set(again) == set(NAMES)
    assert {name: again[name] for name in asked if name not in ("methods", "variants", "budgets")} == {
        name: asked[name] for name in asked if name not in ("methods", "variants", "budgets")
    }


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
    values = GOOD
    run = desk.store.get([json.loads(s) for s in desk.run(SimpleNamespace(_data=values), page)][-1]["run"])
    event = SimpleNamespace(_data={"run": run.id, "budget": 0.15})
    assert [json.loads(s) for s in desk.decode_more(event, again)][-1]["run"] == run.id


def test_stop_stops_all_work_of_a_page(store):
    desk = Desk(FakeEngine(steps=500, pause=0.01), store, settings({}))
    values = GOOD
    first, second = desk.run(SimpleNamespace(_data=values), WHO), desk.run(SimpleNamespace(_data=values), WHO)
    next(first), next(second)
    desk.stop(WHO)
    assert json.loads([*first][-1])["state"] == json.loads([*second][-1])["state"] == "stopped"


def test_a_page_holds_at_most_two_places_in_the_line(store):
    desk = Desk(FakeEngine(steps=500, pause=0.01), store, settings({}))
    values = GOOD
    runs = [desk.run(SimpleNamespace(_data=values), WHO) for _ in range(3)]
    states = [json.loads(next(run))["state"] for run in runs]
    assert states == ["running", "running", "failed"]
    assert json.loads(next(desk.run(SimpleNamespace(_data=values), OTHER)))["state"] == "running"
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


@pytest.mark.parametrize("other", ["weights", "shape", "vocabulary"])
def test_a_run_is_not_added_to_by_another_model(comparison, other):
    """The very tokens of a run mean something to the model that read them only."""
    from kvviz.errors import InputError
    from kvviz.ui.engine import _same

    run = dataclasses.replace(comparison, settings={**comparison.settings, "weights": "made with"})
    words = int(run.prompt.input_ids.max()) + 1
    heads = run.model.n_kv_heads + 1

    def model(weights="made with", info=run.model, vocabulary=words):
        table = SimpleNamespace(num_embeddings=vocabulary)
        hf = SimpleNamespace(get_input_embeddings=lambda: table)
        return SimpleNamespace(info=info, weights_hash=weights, hf=hf)

    assert _same(model(), run).input_ids.tolist() == run.prompt.input_ids.tolist()
    changed = {"weights": {"weights": "other"}, "vocabulary": {"vocabulary": words - 1},
               "shape": {"info": dataclasses.replace(run.model, n_kv_heads=heads)}}  # fmt: skip
    with pytest.raises(InputError, match="was made with another .* Run the document again"):
        _same(model(**changed[other]), run)
