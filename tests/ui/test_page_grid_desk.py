"""The needle grid's handler: cells come one by one, Stop keeps them, visitors stay apart, junk is refused."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.results.sweeps import open_sweep, sweep_zip
from kvviz.results.times import Times
from kvviz.settings import settings
from kvviz.ui.asks import form_request
from kvviz.ui.desk import Desk
from kvviz.ui.evidence import Evidence
from kvviz.ui.grid_desk import GridDesk
from kvviz.ui.grids import grid_of
from kvviz.ui.runs import RunStore, stored_runs

WHO = SimpleNamespace(session_hash="one", cookies={})
GOOD = {"lengths": "500, 1000", "depths": "10%, 50 90", "methods": ["snapkv", "criticalkv", "keydiff"],
        "budgets": "50, 20, 5", "needles": [0], "seeds": 1}  # fmt: skip


def desk_of(environ=None):
    store = RunStore()
    evidence = Evidence(store)
    return GridDesk(Desk(FakeEngine(pause=0.001), store, settings(environ or {})), evidence.sweeps), evidence


def statuses(desk, stop_at=None, stop=None, **data):
    told, stop = [], stop or desk.stop
    for status in desk.fill(SimpleNamespace(_data={**GOOD, **data}), WHO):
        told.append(json.loads(status))
        if stop_at is not None and told[-1].get("done", 0) >= stop_at and told[-1]["inner"] == "running":
            stop(WHO)
    return told


def asked(evidence, view, key, **args):
    return evidence.answer({"view": view, "run": key, "sel": None, "args": args})


def test_a_grid_fills_a_sweep_that_can_be_looked_at_saved_and_opened_again(tmp_path):
    desk, evidence = desk_of()
    told = statuses(desk)
    assert told[-1]["inner"] == "done" and told[-1]["message"] == "6 of 6 texts are measured."
    key = told[-1]["grid"]
    meta = asked(evidence, "evidence", key)
    assert meta["grid"] and meta["needles"] and meta["title"] == "Needle grid, 500 and 1,000 tokens"
    rows = asked(evidence, "evidence_needles", key, give="rows")["rows"]
    assert {r["state"] for r in rows} <= {"found", "not found", "mixed", "the full cache misses it too"}
    assert rows[0]["depth reached"] == pytest.approx(rows[0]["depth"] + 0.01)
    reply = asked(evidence, "evidence_item", key, item="item-2")
    ask = form_request(desk.desk.limits, **reply["fields"])
    measured = grid_of(desk.desk.limits, **GOOD).ask
    assert reply["here"] and ask.plain == replace(measured.plain, lenses=True, expected="58213")
    assert (ask.model, ask.protocol, ask.document) == (measured.model, measured.protocol, "A text.")
    saved = tmp_path / "grid.zip"
    saved.write_bytes(sweep_zip(desk.sweeps.get(key)))
    again = open_sweep(saved)
    assert again.table.equals(desk.sweeps.get(key).table)
    assert set(again.items) == {f"item-{i}" for i in range(6)}
    assert "secret" not in json.dumps(again.manifest)


def test_stop_keeps_what_is_measured_and_the_other_places_are_blank():
    desk, evidence = desk_of()
    told = statuses(desk, stop_at=2)
    assert told[-1]["inner"] == "stopped" and "texts are measured and kept" in told[-1]["message"]
    done = told[-1]["done"]
    assert 2 <= done < 6
    figure = json.loads(asked(evidence, "evidence_needles", told[-1]["grid"])["figure"])
    words = figure["data"][0]["customdata"][0]
    assert len(words) == 6 and [w[0] for w in words].count("not measured yet") == 6 - done


def test_the_stop_of_a_run_leaves_the_grid_alone():
    desk, _ = desk_of()
    told = statuses(desk, stop_at=1, stop=desk.desk.stop)
    assert told[-1]["inner"] == "done" and told[-1]["done"] == 6


def test_the_stop_of_a_grid_leaves_a_run_alone():
    desk, _ = desk_of()
    with desk.desk.visitors.working("one") as run, desk.desk.visitors.working("one", "grid") as grid:
        desk.stop(WHO)
        assert grid.is_set() and not run.is_set()


def test_a_grid_is_reached_by_its_id_alone():
    desk, evidence = desk_of()
    mine, theirs = (statuses(desk)[-1]["grid"] for _ in range(2))
    assert mine != theirs and len(mine) >= 16
    assert "no longer kept" in asked(evidence, "evidence", "grid")["error"]


@pytest.mark.parametrize(("change", "said"), [
    ({"lengths": "50"}, "100 tokens or more"),
    ({"lengths": "x"}, "written as 500"),
    ({"lengths": ""}, "at least one"),
    ({"depths": "0.5"}, "write 50%"),
    ({"depths": "nan"}, "lies between"),
    ({"depths": "120%"}, "lies between"),
    ({"needles": []}, "at least one sentence"),
    ({"needles": [7]}, "at least one sentence"),
    ({"seeds": 99}, "from 1 to 10"),
    ({"methods": []}, "at least one method"),
    ({"methods": 7, "limits": None}, "at least one method"),
    ({"protocol": "<b>"}, "no protocol"),
    ({"lengths": "500 600 700 800", "depths": ",".join(map(str, range(20)))}, "up to 60"),
    ({"lengths": "8000", "seeds": 10}, "up to 64,000 are"),
    ({"lengths": "9000"}, "too long"),
])  # fmt: skip
def test_what_cannot_be_run_is_one_sentence_before_and_after_the_button(change, said):
    desk, _ = desk_of({"KVVIZ_PUBLIC": "1"})
    (status,) = statuses(desk, **change)
    told = desk.answer({"view": "grid_estimate", "args": {**GOOD, **change}})
    assert status["inner"] == "failed" and said in status["message"] and told["error"] == status["message"]


def test_the_estimate_counts_texts_answers_and_seconds():
    desk, _ = desk_of()
    told = desk.answer({"view": "grid_estimate", "args": GOOD})
    assert told["texts"] == 6 and told["answers"] == 60 and told["seconds"] > 0


def test_the_estimate_goes_by_the_texts_that_were_measured_here():
    desk, _ = desk_of()
    asked = grid_of(desk.desk.limits, **GOOD)
    desk.desk.estimates.learn_texts(asked.ask, asked.texts, 5.0)
    told = desk.answer({"view": "grid_estimate", "args": GOOD})
    assert told["seconds"] == pytest.approx(5.0)
    twice = desk.answer({"view": "grid_estimate", "args": {**GOOD, "seeds": 2}})
    assert twice["seconds"] == pytest.approx(10.0)
    statuses(desk)
    assert desk.answer({"view": "grid_estimate", "args": GOOD})["seconds"] < 2  # of texts that take no time


def test_a_fresh_server_estimates_by_the_stored_run_that_was_read_fastest():
    desk, _ = desk_of()
    desk.answer({"view": "grid_estimate", "args": GOOD})
    runs = [desk.desk.store.get(name).comparison for name in stored_runs()]
    fastest = min(runs, key=lambda c: c.seconds["prefill"] / c.n)
    assert desk.desk.estimates._known["smollm2-135m"] == Times.of(fastest)
