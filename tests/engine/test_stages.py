"""Stages, scores and cut-offs of a selection."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import METHOD_IDS
from test_selection import HKV, LAYERS, made_trace

from kvviz.engine.selection import select, stage_counts


def made_of(p, values, w_o):
    """A trace of one layer and one head with the given attention of its last query."""
    projection = torch.tensor([w_o], dtype=torch.float32)
    layer = SimpleNamespace(w_o=projection, window=None, scaling=1.0, sinks=None)
    model = SimpleNamespace(n_layers=1, n_query_heads=1, n_kv_heads=1, layer=lambda i: layer)
    n = len(p)
    return SimpleNamespace(
        model=model, n=n, contiguous=True, rows=lambda i: n, visible=lambda i, rows: rows,
        keys=[torch.zeros(1, n, 2)], values=[torch.tensor([values], dtype=torch.float32)],
        window_attention=lambda i, w: torch.tensor(p, dtype=torch.float32)[None, None],
    )  # fmt: skip


def test_criticalkv_on_the_worked_example():
    """T1: p = [.5, .25, .125, .125], ||vW||_1 = [1, 3, 2, 6], b = 2, stage 1 takes one."""
    trace = made_of([0.5, 0.25, 0.125, 0.125], [[1, 0], [0, 1], [2, 0], [0, -2]], [[1, 0], [0, 3]])
    plain = {"pool_kind": "none", "protect": 0, "window": 1}
    selection = select(trace, "criticalkv", 2, **plain)
    # stage 1: token 0; stage 2 by (p + 1e-4) nu = [.5001, .7503, .2502, .7506]: token 3
    torch.testing.assert_close(selection.scores[0][0], torch.tensor([0.5001, 0.7503, 0.2502, 0.7506]))
    torch.testing.assert_close(selection.first_scores[0][0], torch.tensor([0.5, 0.25, 0.125, 0.125]))
    assert selection.stage[0, 0].tolist() == [1, 0, 0, 2]
    assert selection.mask[0][0].tolist() == [True, False, False, True]
    assert float(selection.cutoff[0, 0]) == pytest.approx(0.7506)
    assert select(trace, "snapkv", 2, **plain).mask[0][0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(("critical", "base"), [("criticalkv", "snapkv"), ("critical_adakv", "adakv")])
def test_a_whole_first_stage_is_the_base_selection(critical, base):
    trace = made_trace(4, 80)
    for budget in (0.1, 0.3, 25, 1.0):
        ours = select(trace, critical, budget, stage1=1.0)
        theirs = select(trace, base, budget)
        assert all(torch.equal(a, b) for a, b in zip(ours.mask, theirs.mask))
        assert not (ours.stage == 2).any()
    assert not all(
        torch.equal(a, b) for a, b in zip(select(trace, critical, 25).mask, select(trace, base, 25).mask)
    )


@pytest.mark.parametrize("method", ["criticalkv", "critical_adakv"])
@pytest.mark.parametrize("stage1", [0.0, 0.29, 0.5, 1.0])
def test_stages_by_definition(method, stage1):
    trace = made_trace(3, 90)
    selection = select(trace, method, 30, stage1=stage1, protect=4)
    for index in range(LAYERS):
        for h in range(HKV):
            k = int(selection.budgets[index, h]) - 4
            first = selection.first_scores[index][h].nan_to_num(-1e9).tolist()
            second = selection.scores[index][h].nan_to_num(-1e9).tolist()
            k1 = math.floor(round(stage1 * k, 9))
            passed = sorted(range(86), key=lambda p: (-first[p], p))[:k1]
            rest = sorted((p for p in range(86) if p not in passed), key=lambda p: (-second[p], p))
            stage = selection.stage[index, h].tolist()
            assert [p for p, s in enumerate(stage) if s == 1] == sorted(passed)
            assert [p for p, s in enumerate(stage) if s == 2] == sorted(rest[: k - k1])
            assert [p for p, s in enumerate(stage) if s == 3] == [86, 87, 88, 89]
            if k > k1:
                assert float(selection.cutoff[index, h]) == pytest.approx(second[rest[k - k1 - 1]])
            else:
                assert math.isnan(selection.cutoff[index, h])


@given(hundredths=st.integers(0, 100), count=st.integers(0, 4000))
@settings(max_examples=60, deadline=None)
def test_the_first_stage_takes_the_exact_floor(hundredths, count):
    assert stage_counts(torch.tensor([count]), hundredths / 100).tolist() == [hundredths * count // 100]


def test_critical_adakv_has_the_head_budgets_of_its_base():
    trace = made_trace(4, 80)
    for budget in (3, 0.2, 0.6):
        ours, theirs = select(trace, "critical_adakv", budget), select(trace, "adakv", budget)
        assert torch.equal(ours.budgets, theirs.budgets)


def test_entries_marked_first_are_stage_1():
    trace = made_trace(4, 80)
    selection = select(trace, "defensivekv", 30)
    assert (selection.stage == 1).any()
    assert set(selection.stage.unique().tolist()) <= {0, 1, 2, 3}
    for index in range(LAYERS):
        for h in range(HKV):
            stage = selection.stage[index, h]
            second = selection.scores[index][h][stage == 2]
            lost = selection.scores[index][h][stage == 0]
            if len(second) and len(lost):
                assert second.min() >= lost.max()


@pytest.mark.parametrize("method", METHOD_IDS)
def test_scores_are_nan_exactly_where_no_score_decided(method):
    trace = made_trace(3, 50, "gemma3")
    selection = select(trace, method, 12)
    for index in range(LAYERS):
        visible = torch.zeros(HKV, 50, dtype=torch.bool)
        visible[:, 50 - trace.rows(index) :] = True
        wanted = visible & ~selection.protected[index]
        for scores in (selection.scores[index], selection.scores_raw[index]):
            assert scores.dtype == torch.float32
            assert torch.equal(~scores.isnan(), wanted)


def test_the_cutoff_is_the_lowest_score_kept():
    trace = made_trace(3, 60)
    selection = select(trace, "snapkv", 20)
    for index in range(LAYERS):
        chosen = selection.mask[index] & ~selection.protected[index]
        lowest = selection.scores[index].masked_fill(~chosen, float("inf")).amin(-1)
        torch.testing.assert_close(selection.cutoff[index], lowest)
        best_lost = selection.scores[index].masked_fill(selection.mask[index], -1.0).nan_to_num(-1).amax(-1)
        assert (best_lost <= selection.cutoff[index]).all()


def test_a_head_without_chosen_entries_has_no_cutoff():
    assert select(made_trace(3, 60), "snapkv", 4, protect=4).cutoff.isnan().all()


def test_stage_one_may_be_a_share_of_the_whole_budget():
    counts = torch.tensor([36, 100])
    assert stage_counts(counts, 0.5).tolist() == [18, 50]
    assert stage_counts(counts, 0.5, 64).tolist() == [0, 18]  # half of 100 and of 164, 64 of it the window
    trace = made_trace(3, 250)
    stage = select(trace, "criticalkv", 180, preset="kvpress").stage
    assert ((stage == 1).sum(-1) == 90 - 64).all()


def test_a_budget_that_stage_one_fills_is_said():
    trace = made_trace(3, 250)
    note = "Stage 1 alone fills this budget: the scores decided nothing beyond it."
    options = {"window": 4, "coverage": 1.0}
    assert note in select(trace, "defensivekv", 12, **options).notes
    assert note not in select(trace, "defensivekv", 200, **{**options, "coverage": 0.2}).notes
