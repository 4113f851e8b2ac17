import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from kvviz.methods.defensivekv import defend
from methods.fixtures import F_P, F_V, Exact, given, pooled, random_layer, score, values_of


def shares(x):
    nu = np.array([np.mean([x.projected(h, 1) for h in x.heads(kv)], 0) for kv in range(x.hkv)])
    return (nu / nu.sum(0))[:, list(x.context)]


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        worst = np.zeros(len(x.context))
        for h in x.heads(kv):
            for row in p[h][:, list(x.context)]:
                smooth = pooled(row, options)
                if options["pool_kind"] != "none" and smooth.sum() > 0:
                    smooth = smooth * row.sum() / smooth.sum()
                worst = np.maximum(worst, smooth)
        rows.append(np.maximum(worst, worst.mean()))
    return np.array(rows) * shares(x)


def test_worked_example():
    # highest over both heads and both rows: [.4, .2, .4, .2]; their mean .3 lifts the .2; one KV head
    # has all of nu, so its share is 1
    values = values_of("defensivekv", given(F_P, F_V, context=4), pool_kind="none")
    assert values == pytest.approx([0.4, 0.3, 0.4, 0.3])


def test_pooled_rows_keep_their_mass():
    # One row [.6, 0, 0, 0 | .4]: average of 3 gives [.2, .2, 0, 0], sum .4, rescaled to .6 in all
    layer = given([0.6, 0, 0, 0, 0.4], [[1, 0]] * 5, context=4)
    # then lifted to the mean .6 / 4
    values = values_of("defensivekv", layer, pool=3)
    assert values == pytest.approx([0.3, 0.3, 0.15, 0.15])


def first_reference(x, options):
    """Stage 1 of the public code, written out: tokens before the one that crosses the threshold."""
    p, context = x.p(options["window"]), list(x.context)
    mean = np.array([np.mean(p[list(x.heads(kv))], (0, 1)) for kv in range(x.hkv)])[:, context]
    beta = mean[:, -options["window"] :].sum(-1).mean()
    rows = []
    for row in mean / mean.sum(-1, keepdims=True):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        sums = np.cumsum(row[order])
        crossing = [i for i, total in enumerate(sums) if total >= options["coverage"] - beta]
        rows.append([j in order[: crossing[0] if crossing else 0] for j in range(len(row))])
    return rows


@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("coverage", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("method", ["defensivekv", "layer_defensivekv"])
def test_stage_one_is_the_public_codes(method, group, coverage):
    for seed in range(6):
        layer = random_layer(group, seed=seed, n=40, window=5)
        scores = score(method, layer, window=5, coverage=coverage)
        wanted = first_reference(Exact(layer), {"window": 5, "coverage": coverage})
        assert scores.first.tolist() == wanted


def test_the_token_that_crosses_the_threshold_stays_behind():
    # context [.5, .2, .1, .1] of .9 in all is [.556, .222, .111, .111]; beta, its last column, .1:
    # .85 - .1 = .75 is reached by the second token, .65 - .1 = .55 by the first
    layer = given([0.5, 0.2, 0.1, 0.1, 0.1], [[1, 0]] * 5, context=4)
    one = score("defensivekv", layer, coverage=0.85, window=1)
    assert one.first.tolist() == [[True, False, False, False]]
    assert not score("defensivekv", layer, coverage=0.65, window=1).first.any()


def test_stage_one_may_cover_all_attention():
    # mean attention [.5, .2, .1, .1 | .1]: with the window .1, .6, .8, .9: three tokens reach .9
    layer = given([0.5, 0.2, 0.1, 0.1, 0.1], [[1, 0]] * 5, context=4)
    every = {"covers": "all"}
    assert score("defensivekv", layer, coverage=0.85, **every).first.tolist() == [[True, True, True, False]]
    assert score("defensivekv", layer, coverage=0.75, **every).first.tolist() == [[True, True, False, False]]
    # a window that covers all by itself leaves no one to go first
    layer = given([0.02, 0.02, 0.02, 0.02, 0.92], [[1, 0]] * 5, context=4)
    assert not score("defensivekv", layer, **every).first.any()


def test_order_within_stage_one_follows_the_mean_attention():
    layer = given([0.1, 0.2, 0.5, 0.1, 0.1], [[1, 0]] * 5, context=4)
    scores = score("defensivekv", layer, covers="all")
    assert scores.turn.tolist() == [[2, 1, 0, 3]]
    # with room for two entries a head only tokens 2 and 1 may go first
    assert scores.goes_first(2).tolist() == [[False, True, True, False]]


@hypothesis_given(st.integers(0, 10_000), st.sampled_from([1, 3, 4]))
@settings(max_examples=25, deadline=None)
def test_the_worst_query_is_never_below_the_average_one(seed, group):
    layer = random_layer(group, seed)
    layer._memo["value_norms", 1] = torch.ones(2 * group, layer.n)  # equal shares: .5 for both heads
    worst = 2 * score("defensivekv", layer, window=5, pool_kind="none").values
    snap = score("snapkv", layer, window=5, pool_kind="none").values
    assert (worst >= snap - 1e-6).all()


@hypothesis_given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_lifting_changes_no_order_above_the_mean(row):
    worst = torch.tensor([row])
    lifted = defend(worst)
    above = worst > worst.mean()
    assert torch.equal(lifted[above], worst[above])
    assert (lifted >= worst.mean()).all()


def test_shares_add_up_over_heads():
    layer = random_layer(3, hkv=4)
    assert np.allclose(shares(Exact(layer)).sum(0), 1)
