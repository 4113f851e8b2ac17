"""Mix on the page: what it answers, and that decoding keeps the very entries its map shows."""

import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_engine import FakeEngine

from kvviz.engine.mix import mixed
from kvviz.results.mix import Mix, method_file
from kvviz.settings import settings
from kvviz.ui.desk import Desk
from kvviz.ui.export_views import Exports
from kvviz.ui.mix_desk import MixDesk
from kvviz.ui.mix_views import with_preview
from kvviz.ui.runs import RunStore
from kvviz.ui.views import answer

WHO = SimpleNamespace(session_hash="one", cookies={})
SEL = {"a": "snapkv", "b": "dropkv", "budget": 0.1}
MIX = {"attention": 0.5, "value": 1, "across": True}


def ask(store, run="stored-example", view="mix", **args):
    body = {"view": view, "run": run, "sel": SEL, "args": args}
    return json.loads(json.dumps(answer(store, Exports(), body)))


def decode(store, run, mix, budget=0.1):
    desk = MixDesk(Desk(FakeEngine(), store, settings({})))
    event = SimpleNamespace(_data={"run": run, "sel": {**SEL, "budget": budget}, "mix": mix})
    return [json.loads(s) for s in desk.decode(event, WHO)]


def test_a_mix_is_answered_with_its_map_shares_and_file(store):
    reply = ask(store, mix=MIX, columns=100)
    assert json.loads(reply["figure"])["layout"]["title"]["text"].endswith("Mix, 10%")
    assert reply["score"] == "attention^0.5 × value size, across heads"
    assert reply["shares"][1].startswith("M1 held in") and "shared with A SnapKV" in reply["shares"][2]
    assert (reply["name"], reply["decoded"]) == ("mix+mix1", "")
    assert reply["file"] == method_file(Mix.of(MIX))
    assert ask(store, mix=MIX, give="rows")["rows"][0]["kept"] >= 0


@pytest.mark.parametrize("mix", [None, "junk", {"x": 1}, {"value": "1"}, {"pool": 10**9}, {"sinks": 1e400}])
def test_what_is_no_mix_gets_a_sentence(store, mix):
    assert "mix" in ask(store, mix=mix)["error"]
    assert decode(store, "stored-example", mix)[-1]["state"] == "failed"


def test_what_is_decoded_is_what_the_map_showed(store):
    c = store.get("stored-example").comparison
    shown = with_preview(c, Mix.of(MIX), 0.1).need("mix", 0.1).kept.mask()
    last = decode(store, "stored-example", MIX)[-1]
    run = store.get(last["run"])
    assert last["state"] == "done" and run.comparison.methods[-1] == "mix+mix1"
    assert (run.comparison.need("mix+mix1", 0.1).kept.mask() == shown).all()
    assert "mix+mix1" not in run.recipe().methods
    assert ask(store, run.id, mix=MIX)["decoded"] == "Mix 1"
    again = decode(store, run.id, MIX)[-1]
    assert again["state"] == "failed" and "it is Mix 1" in again["message"]
    other = decode(store, run.id, {"key": -1})[-1]
    assert store.get(other["run"]).comparison.methods[-2:] == ["mix+mix1", "mix+mix2"]
    for view in ("meta", "cards", "kept", "versus", "finding", "sweep", "all_answers", "why_card"):
        reply = answer(store, Exports(), {"view": view, "run": other["run"], "args": {"columns": 100},
                                          "sel": {**SEL, "b": "mix+mix2", "tok": [80, 82]}})  # fmt: skip
        assert "error" not in reply, (view, reply)


def test_a_run_without_the_numbers_names_them(store, tmp_path, comparison):
    older = dataclasses.replace(comparison, lenses={"attention": comparison.lenses["attention"]})
    older.save(tmp_path / "older.zip")
    reply = ask(store, "stored-older", "mixes")
    assert reply["lacks"] == (
        "This run does not hold value size and key norm of its entries: run it again to mix that in."
    )
    assert [one["id"] for one in reply["ingredients"] if one["lacks"]] == ["value", "key"]
    assert "does not hold each entry's value size" in ask(store, "stored-older", mix=MIX)["error"]
    assert "figure" in ask(store, "stored-older", mix={"recency": 1})
    assert ask(store, view="mixes")["lacks"] == ""


def test_a_slider_is_followed_within_half_a_second_at_8000_tokens(tmp_path, monkeypatch):
    from synthetic import synthetic_comparison

    c = synthetic_comparison(n=8000, L=12, Hq=6, Hkv=3, methods=("snapkv",), budgets=(0.1,), stops=())
    store = RunStore()
    run = store.add(c, "own", "A run", "one").id
    ask(store, run, mix=MIX)
    taken = []
    for power in (0.25, 1.5, 2):
        started = time.perf_counter()
        assert "figure" in ask(store, run, mix={**MIX, "value": power}, columns=600)
        taken.append(time.perf_counter() - started)
    assert min(taken) < 0.5
    kept = [mixed(c, Mix(value=power), 0.1).mask[0].numpy() for power in (0.25, 2)]
    assert not np.array_equal(*kept)
