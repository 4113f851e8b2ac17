"""Kept sets as bits against plain masks, and the one lookup that finds them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.results.kept import KeptSet, bins, everything, over_heads, pool_max, pool_sum


@st.composite
def masks(draw):
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40)))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    mask = rng.random(shape) < draw(st.sampled_from((0.0, 0.1, 0.5, 1.0)))
    return mask, mask & (rng.random(shape) < 0.3)


@settings(max_examples=80, deadline=None)
@given(masks(), st.data())
def test_every_reader_agrees_with_the_plain_masks(made, data):
    mask, protected = made
    kept = KeptSet.pack(mask, protected, 7)
    layers, heads, n = mask.shape
    assert kept.shape == mask.shape and kept.entries == 7
    for got, wanted in ((kept.mask(), mask), (kept.protected(), protected)):
        assert got.dtype == bool and np.array_equal(got, wanted)
    for layer in range(layers):
        assert np.array_equal(kept.layer(layer), mask[layer])
        assert np.array_equal(kept.layer_protected(layer), protected[layer])
    start = data.draw(st.integers(0, n))
    end = data.draw(st.integers(start, n))
    assert np.array_equal(kept.span(start, end), mask[:, :, start:end])
    assert np.array_equal(kept.span_protected(start, end), protected[:, :, start:end])
    for token in range(n):
        assert np.array_equal(kept.token(token), mask[:, :, token])
    assert np.array_equal(kept.counts(), mask.sum(-1))
    assert np.array_equal(kept.protected_tokens(), protected.any((0, 1)))
    assert kept.nbytes <= 2 * layers * heads * (n // 8 + 1)


@settings(max_examples=40, deadline=None)
@given(masks(), st.integers(0, 2**31))
def test_overlap_is_shared_over_either(made, seed):
    one = made[0]
    other = np.random.default_rng(seed).random(one.shape) < 0.4
    kept = [KeptSet.pack(m, m, 1) for m in (one, other)]
    either = (one | other).sum()
    assert kept[0].overlap(kept[1]) == pytest.approx((one & other).sum() / either if either else 1.0)


def test_protected_entries_may_be_given_for_all_heads_at_once():
    mask = np.ones((2, 3, 11), bool)
    protected = np.arange(11) > 7
    kept = KeptSet.pack(mask, protected, 11)
    assert np.array_equal(kept.protected(), np.broadcast_to(protected, mask.shape))


def test_everything_is_what_windows_still_reach():
    c = synthetic_comparison(n=60, windows=(None, 10, 60, 61, 200, None))
    kept = everything(c.model, c.n)
    assert kept.counts()[:, 0].tolist() == [60, 9, 59, 60, 60, 60]
    assert kept.layer(1)[0].nonzero()[0].tolist() == list(range(51, 60))
    assert np.array_equal(c.at("full", 1.0).kept.mask(), kept.mask())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**31))
def test_pooled_columns_are_sums_and_maxima_of_their_tokens(n, columns, seed):
    values = np.random.default_rng(seed).integers(0, 200, (3, n)).astype(np.uint8)
    b = bins(n, columns=columns)
    assert len(b.starts) <= columns and int(b.widths.sum()) == n
    for column in range(len(b.starts)):
        first, last = b.span(column)
        part = values[:, first : last + 1]
        assert np.array_equal(pool_sum(values, b)[:, column], part.sum(-1))
        assert np.array_equal(pool_max(values, b)[:, column], part.max(-1))
    assert np.array_equal(over_heads(values[None] > 100)[0], (values > 100).sum(0))


# -- the lookup ---------------------------------------------------------------------------------------


def test_decoded_budgets_and_stops_are_found_the_same_way():
    c = synthetic_comparison(methods=("snapkv", "criticalkv"), budgets=(0.2, 30))
    decoded, stop = c.at("criticalkv", 0.2), c.at("criticalkv", 0.15)
    assert decoded.answer is c.variant("criticalkv", 0.2) and stop.answer is None
    assert decoded.error is decoded.answer.output_error and stop.error.shape == decoded.error.shape
    assert decoded.first_scores is not None and stop.first_scores is None
    assert decoded.stage.shape == decoded.kept.shape and stop.stage is None
    assert np.array_equal(np.stack(stop.scores), c.scores["criticalkv"], equal_nan=True)
    assert c.at("criticalkv", 0.1).answer.budget == 30  # a stop that was decoded, under another name
    assert c.at("criticalkv", 0.123) is None and c.at("nobody", 0.2) is None
    with pytest.raises(InputError, match="not stored at 12%; nearest are 10% and 15%"):
        c.need("snapkv", 0.12)


@pytest.mark.parametrize("n", [300, 1009])
def test_a_budget_is_found_again_however_it_is_written(n):
    c = synthetic_comparison(n=n, L=1, methods=("snapkv",), budgets=(102, 1 / 3, 1, 1.0, 7))
    for same in (102, np.int64(102), "102 tokens", 102 / n, Budget(entries=102)):
        assert c.variant("snapkv", same).budget == 102, same
    for same in (1 / 3, np.float64(1 / 3), Budget(share=1 / 3)):
        assert c.variant("snapkv", same).budget == 1 / 3
    assert c.variant("snapkv", 7).entries == 7
    one, whole = c.variant("snapkv", 1), c.variant("snapkv", 1.0)
    assert (one.entries, whole.entries) == (1, n)
    assert c.variant("snapkv", "100%") is whole and c.variant("snapkv", np.float32(1)) is whole
    assert c.variant("snapkv", n).budget == 1.0


def test_equal_shares_keep_the_budget_that_was_asked_for():
    c = synthetic_comparison(n=300, L=1, methods=("snapkv",), budgets=(30, 0.1))
    assert c.variant("snapkv", 30).budget == 30 and isinstance(c.variant("snapkv", 30).budget, int)
    assert isinstance(c.variant("snapkv", 0.1).budget, float)


def test_a_kept_set_made_by_hand_says_so():
    v = synthetic_comparison().variants[0]
    assert v.made == ""
    for name, made in (("snapkv+edit1", "edit1"), ("snapkv:window=16+edit12", "edit12"),
                       ("snapkv+control0", "control0")):  # fmt: skip
        assert dataclasses.replace(v, method=name).made == made


# -- merging ------------------------------------------------------------------------------------------


def test_merging_adds_what_is_new_and_finished():
    first = synthetic_comparison(methods=("snapkv",), budgets=(0.5, 0.2))
    more = synthetic_comparison(methods=("snapkv", "dropkv"), budgets=(0.2, 0.1))
    first.settings["methods"], more.settings["methods"] = {"snapkv": {"own": {"window": 1}}}, {"dropkv": {}}
    more.variant("dropkv", 0.1).finished = "cancelled"
    both = first.merged(more)
    assert [(v.method, v.budget) for v in both.variants] == [
        ("snapkv", 0.5), ("snapkv", 0.2), ("snapkv", 0.1), ("dropkv", 0.2)
    ]  # fmt: skip
    assert both.variants[1] is first.variants[1]
    assert both.at("dropkv", 0.3).kept is more.at("dropkv", 0.3).kept
    assert both.at("snapkv", 0.3).kept is first.at("snapkv", 0.3).kept
    assert set(both.scores) == {"snapkv", "dropkv"}
    assert both.settings["methods"] == {"snapkv": {"own": {"window": 1}}, "dropkv": {}}
    assert len(first.variants) == 2 and first.settings["methods"] == {"snapkv": {"own": {"window": 1}}}


def test_merging_leaves_out_stops_that_are_other_ones():
    first = synthetic_comparison(methods=("snapkv",))
    more = synthetic_comparison(methods=("dropkv",), stops=(0.15, 0.25))
    both = first.merged(more)
    assert both.stops == first.stops and both.at("dropkv", 0.15) is None
    assert both.at("dropkv", 0.2) is not None


def test_bytes_are_those_of_the_arrays_held():
    c = synthetic_comparison(n=200, methods=("snapkv",), budgets=(0.5,))
    held = c.nbytes
    assert held >= c.scores["snapkv"].nbytes + sum(a.nbytes for a in c.lenses.values())
    assert dataclasses.replace(c, lenses={}).nbytes == held - sum(a.nbytes for a in c.lenses.values())
    again = dataclasses.replace(c.variants[0], method="again")
    shared = dataclasses.replace(c, variants=[*c.variants, again])
    assert shared.nbytes == held  # the same arrays again weigh nothing


def test_entries_are_counted_once():
    """A page that opens asks for the counts of every method and budget many times over."""
    c = synthetic_comparison(n=64, L=2)
    kept = c.at("snapkv", 0.5).kept
    counts = kept.counts()
    assert counts is kept.counts() and not counts.flags.writeable
    assert np.array_equal(counts, kept.mask().sum(-1))
