"""Scores are an explicit value: made once, of one artefact, stopped between layers and methods."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from test_selection import HKV, LAYERS, D, made_trace

import kvviz.methods
from kvviz.engine.scoring import Scored, Wanted, score
from kvviz.engine.selection import select_from
from kvviz.errors import Cancelled, InputError
from kvviz.methods import get_method
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.spec import Method


def counting(monkeypatch, method="snapkv"):
    """Counts how often a method scores a layer."""
    spec, calls = get_method(method), []
    counted = Method(**{**vars(spec), "score": lambda v, o: calls.append(v.index) or spec.score(v, o)})
    monkeypatch.setattr(kvviz.methods, "METHODS", (*kvviz.methods.METHODS, counted))
    return calls


def test_budgets_that_share_a_context_are_scored_once(monkeypatch):
    calls = counting(monkeypatch)
    scored = Scored(made_trace(3, 200))
    for budget in (0.9, 0.5, 64, 0.9):  # the whole window is protected at each
        select_from(scored, "snapkv", budget)
    assert calls == [0, 1, 2]
    select_from(scored, "snapkv", 10)  # fewer tokens are protected: the context ends later
    select_from(scored, "snapkv", 64, window=16)
    assert calls == 3 * [0, 1, 2]


def test_what_was_scored_for_a_run_is_not_scored_by_select(monkeypatch):
    calls = counting(monkeypatch)
    trace, spec = made_trace(3, 60), get_method("snapkv")
    scored = score(trace, [Wanted.at(trace, spec, spec.resolve(), b) for b in (12, 40)])
    done = list(calls)
    select_from(scored, "snapkv", 12)
    select_from(scored, "snapkv", 40)
    assert calls == done == [0, 0, 1, 1, 2, 2]


def test_scores_weigh_what_their_storages_do():
    trace = made_trace(3, 60)
    scored = Scored(trace)
    before = scored.bytes
    assert before >= sum(t.numel() * 4 for t in (*trace.keys, *trace.values, *trace.queries))
    select_from(scored, "snapkv", 20)
    grown = scored.bytes
    assert grown >= before + LAYERS * HKV * 60 * 4
    select_from(scored, "snapkv", 20)
    assert scored.bytes == grown


def test_scores_belong_to_the_calibrated_file_they_were_made_with():
    trace = made_trace(3, 60)
    scored = Scored(trace)
    filters = torch.randn(LAYERS, HKV, D, generator=torch.Generator().manual_seed(0))
    masks = []
    for sign in (1, -1, 1):
        with lend(Artefact("qfilters", {"filters": sign * filters}, {})):
            masks.append(torch.stack(select_from(scored, "qfilters", 20).mask))
    assert not torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_a_trace_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        made_trace(3, 60).n = 5


def test_a_stop_is_heard_at_every_layer_of_one_method():
    """With the widest pooling that is allowed: one layer of it is the longest that a stop waits."""
    trace, calls = made_trace(3, 60), []
    method = get_method("snapkv")
    with pytest.raises(InputError, match="1 to 1,?023"):
        method.resolve({"pool": 1025})
    want = Wanted.at(trace, method, method.resolve({"pool": 1023}), 12)

    def stop_at_the_second():
        calls.append(len(calls))
        if len(calls) == 2:
            raise Cancelled("Stopped.")

    scored = Scored(trace)
    with pytest.raises(Cancelled):
        list(scored.add([want], stop_at_the_second))
    assert len(scored._held[scored._key(want)].layers) == 1


def test_a_stop_is_heard_between_two_methods_of_one_layer():
    """What was scored by then stays, and is not scored again."""
    trace, calls = made_trace(3, 60), []
    wanted = [Wanted.at(trace, get_method(id), get_method(id).resolve(), 12) for id in ("snapkv", "knorm")]
    scored = Scored(trace)

    def stop_at_the_second():
        calls.append(len(calls))
        if len(calls) == 2:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        next(scored.add(wanted, stop_at_the_second))
    first, second = (scored._held[scored._key(want)].layers for want in wanted)
    assert (len(first), len(second)) == (1, 0)
    kept = first[0]
    assert list(scored.add(wanted)) == [1, 2, 3]
    assert first[0] is kept and len(first) == len(second) == LAYERS
