"""What was read once is not read again, and whoever waits knows how long the line is."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from fake_engine import FakeEngine
from tiny import make_model

from kvviz.errors import Cancelled, KvvizError
from kvviz.settings import settings
from kvviz.ui import asks
from kvviz.ui import engine as engines
from kvviz.ui.desk import Desk
from kvviz.ui.line import Line, words
from kvviz.ui.traces import Traces

TEXT = "The keeper wrote the code 58213 in the ledger. " * 4
GOOD = {"document": TEXT, "question": "What code?", "methods": ["snapkv"],
        "budgets": ["50%"], "model": "tiny", "max_new_tokens": 3}  # fmt: skip


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(engines.MODELS, ("tiny", "auto"), make_model("llama"))
    return engines.Engine()


def stages(engine, **change):
    """(stages of a run, its result)."""
    events = list(engine.stream(asks.request(**{**GOOD, **change}), threading.Event(), print))
    assert all(event.scored is None for event in events)
    return [event.stage for event in events], events[-1].result


def test_another_budget_and_another_method_read_nothing(engine):
    first, result = stages(engine)
    assert first[0] == "prefill" and len(engine.traces) == 1
    again, more = stages(engine, budgets=["20%"])
    assert "prefill" not in again and more.full.token_ids == result.full.token_ids
    assert "prefill" not in stages(engine, methods=["keydiff", "criticalkv"])[0]


def test_a_method_that_needs_more_reads_again(engine):
    stages(engine)
    assert stages(engine, methods=["h2o"])[0][0] == "prefill"
    assert "prefill" not in stages(engine, methods=["h2o", "snapkv"])[0]


def test_a_second_question_reads_again_only_where_it_is_known_while_compressing(engine):
    later = {"protocol": "question-agnostic"}
    stages(engine, **later)
    assert "prefill" not in stages(engine, **later, question="Who wrote it?")[0]
    stages(engine)
    assert stages(engine, question="Who wrote it?")[0][0] == "prefill"


def test_another_model_reads_again(engine, monkeypatch):
    stages(engine)
    monkeypatch.setitem(engines.MODELS, ("other", "auto"), make_model("llama", seed=1))
    assert stages(engine, model="other")[0][0] == "prefill"


def test_traces_stay_within_their_bound(engine):
    _, _ = stages(engine)
    (scored, size) = next(iter(engine.traces._held.values()))
    assert size == scored.bytes > scored.trace.bytes
    small = Traces(size - 1)
    small.keep(scored)
    assert len(small) == 0
    two = Traces(2 * size)
    two.keep(scored)
    two.keep(scored)
    assert len(two) == 1
    two.forget(scored.trace.model)
    assert len(two) == 0


def test_memory_is_given_back_when_traces_go(monkeypatch):
    """Many distinct texts: what is held stays within its bound, and what goes is returned to the system
    then and there."""
    traces, model, given = Traces(250), object(), []
    monkeypatch.setattr("kvviz.ui.traces.give_back", lambda: given.append(len(traces)))
    for number in range(6):
        prompt = SimpleNamespace(input_ids=torch.tensor([number, 1, 2]), n_compressible=3)
        traces.keep(SimpleNamespace(trace=SimpleNamespace(prompt=prompt, model=model), bytes=100))
        assert given == [2] * max(0, number - 1), "once for every trace that went"
        assert sum(held for _, held in traces._held.values()) <= 250
    traces.forget(model)
    assert given == [2] * 4 + [0]


@pytest.fixture
def desk(engine, store):
    return Desk(engine, store, settings({}))


WHO = SimpleNamespace(session_hash="one", cookies={})


def told(statuses):
    return [json.loads(status) for status in statuses]


def run(desk):
    last = told(desk.run(SimpleNamespace(_data=GOOD), WHO))[-1]
    assert last["state"] == "done", last
    return desk.store.get(last["run"])


def test_more_of_a_run_lands_in_that_run(desk):
    mine = run(desk)
    last = told(desk.decode_more(SimpleNamespace(_data={"run": mine.id, "method": "keydiff"}), WHO))[-1]
    c = mine.comparison
    assert last["run"] == mine.id and c.methods == ["snapkv", "keydiff"]
    assert {p.method for p in c.at_stops} == {"snapkv", "keydiff"} == set(c.settings["methods"])
    statuses = told(desk.decode_more(SimpleNamespace(_data={"run": mine.id, "budget": 0.2}), WHO))
    assert not any(s.get("stage") == "prefill" for s in statuses)
    assert {v.key for v in mine.comparison.variants} == {
        "snapkv@0.5", "keydiff@0.5", "snapkv@0.2", "keydiff@0.2",
    }  # fmt: skip


def test_an_edit_lands_in_the_run_with_its_lines(desk):
    from kvviz.exports import python_lines

    mine = run(desk)
    data = {"run": mine.id, "sel": {"a": "snapkv", "budget": 0.5}}
    data["edits"] = [{"kind": "pin", "tok": [30, 33]}]
    statuses = told(desk.try_again(SimpleNamespace(_data=data), WHO))
    assert statuses[-1]["state"] == "done" and statuses[-1]["run"] == mine.id, statuses[-1]
    assert not any(s.get("stage") == "prefill" for s in statuses)
    c = mine.comparison
    assert c.methods == ["snapkv", "snapkv+edit1"] and c.variants[-1].kl is not None
    rows = c.story.experiment.rows
    controls = [f"Random control {i}" for i in range(3)]
    assert [r["name"] for r in rows] == ["Before", "After the edit", *controls]
    assert all(r["error"] for r in rows)
    assert "Edit('pin', 30, 33, None, None)" in python_lines(c)
    more = told(desk.decode_more(SimpleNamespace(_data={"run": mine.id, "budget": 0.2}), WHO))[-1]
    assert more["state"] == "done" and "snapkv+edit1" in mine.comparison.methods


def test_the_line_moves_in_order():
    line, never = Line(2), threading.Event()
    one, two, three = line.enter("a"), line.enter("b"), line.enter("c")
    assert list(line.wait(one, never)) == []
    assert next(line.wait(three, never)) == 2
    with pytest.raises(KvvizError, match="Too many"):
        line.enter("d")
    line.leave(one)
    assert list(line.wait(two, never)) == [] and next(line.wait(three, never)) == 1
    line.leave(two)
    line.leave(two)
    assert list(line.wait(three, never)) == []
    assert words(1) == "1 run before yours" and words(3) == "3 runs before yours"


def test_whoever_stops_waiting_gives_the_place_up(store):
    desk = Desk(FakeEngine(), store, settings({}))
    ticket = desk.line.enter("another")
    waiting = desk.run(SimpleNamespace(_data=GOOD), WHO)
    assert json.loads(next(waiting))["message"] == "1 run before yours"
    desk.stop(WHO)
    assert [json.loads(s)["state"] for s in waiting] == ["stopped"]
    desk.line.leave(ticket)
    with pytest.raises(Cancelled):
        blocked, stopped = Line(1), threading.Event()
        stopped.set()
        blocked.enter("a")
        list(blocked.wait(blocked.enter("b"), stopped))
