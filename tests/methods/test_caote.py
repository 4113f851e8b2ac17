import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from kvviz.errors import InputError
from methods.fixtures import (
    T1_P,
    T1_V,
    Exact,
    given,
    merged,
    pooled,
    random_layer,
    score,
    values_of,
    without,
)


def alphas(x, options):
    base = options["base"]
    if base == "h2o":
        rows = x.p(x.n).sum(1)
    elif base == "tova":
        last = x.p(1)[:, 0]
        rows = np.tile(last.mean(0), (len(last), 1))
    else:
        rows = x.p(options["window"]).mean(1)
    rows = rows[:, list(x.visible)]
    return rows / rows.sum(-1, keepdims=True)


def reference(x, options):
    """The length of the output's change, by leaving the token out."""
    alpha, rows = alphas(x, options), []
    for kv in range(x.hkv):
        v = x.v[kv, list(x.visible)]
        heads = [
            [np.linalg.norm(without(alpha[h], v, [j - x.first]) - alpha[h] @ v) for j in x.context]
            for h in x.heads(kv)
        ]
        rows.append(merged([pooled(head, options) for head in heads], options["group"]))
    return rows


def test_worked_example():
    # o = (.75, 0); .5 / .5 * |(.75, 0) - (1, 0)| = .25; .25 / .75 * |(.75, -1)| = .416667;
    # .125 / .875 * 1.25 = .178571; .125 / .875 * |(.75, 2)| = .305143
    values = values_of("caote", given(T1_P, T1_V))
    assert values == pytest.approx([0.25, 0.416667, 0.178571, 0.305143], abs=1e-6)


def test_fast_takes_the_mean_of_the_values():
    # mean of the values (.75, -.25)
    distances = [np.hypot(0.25, 0.25), np.hypot(0.75, 1.25), np.hypot(1.25, 0.25), np.hypot(0.75, 1.75)]
    ratios = [1, 1 / 3, 1 / 7, 1 / 7]
    values = values_of("caote", given(T1_P, T1_V), fast=True)
    assert values == pytest.approx([r * d for r, d in zip(ratios, distances)], rel=1e-6)


@pytest.mark.parametrize("base", ["snapkv", "tova", "h2o"])
@pytest.mark.parametrize("group", [1, 3])
def test_every_base_agrees_with_leaving_out(base, group):
    layer = random_layer(group, seed=7)
    options = {"base": base, "window": 5, "pool": 1, "pool_kind": "none", "group": "mean"}
    wanted = np.array(reference(Exact(layer), options))
    values = score("caote", layer, base=base, window=5).values
    assert np.allclose(values, wanted, rtol=1e-4)


def test_each_query_with_its_own_error():
    layer = random_layer(3, seed=2)
    x = Exact(layer)
    p = x.p(5)
    wanted = [
        [
            np.mean(
                [
                    np.linalg.norm(without(p[h, i], x.v[kv], [j]) - p[h, i] @ x.v[kv])
                    for h in x.heads(kv)
                    for i in range(5)
                ]
            )
            for j in x.context
        ]
        for kv in range(x.hkv)
    ]
    assert np.allclose(score("caote", layer, base="queries", window=5).values, wanted, rtol=1e-4)


@hypothesis_given(st.integers(0, 10_000), st.integers(2, 20))
@settings(max_examples=30, deadline=None)
def test_square_is_dropkv_of_one_query(seed, n):
    layer = random_layer(1, seed, n=n, window=1)
    caote = score("caote", layer, window=1).values
    drop = score("dropkv", layer, window=1, epsilon=0.0, pool_kind="none").values
    assert torch.allclose(caote**2, drop, rtol=1e-4)


def test_attention_sink_near_one():
    # 1 - p = 1e-7 in all: the change is that to the mean of the others, about 1, not noise.
    rest = 1e-7
    p = [1 - rest, 0.75 * rest, 0.25 * rest]
    v = [[1000, 0], [1, 0], [0, 1]]
    # p / (1 - p) (o - v_0) = p (mean of the others - v_0) = (.75 - 1000, .25)
    values = values_of("caote", given(p, v))
    assert values[0] == pytest.approx(np.hypot(999.25, 0.25), rel=1e-6)


def test_only_key_that_counts():
    values = score("caote", given([1.0, 0.0, 0.0], [[1, 0], [0, 1], [2, 2]])).values[0]
    assert torch.isfinite(values).all()
    assert values[0] > values[1] == values[2] == 0


def test_unknown_base():
    with pytest.raises(InputError, match="snapkv, tova, h2o"):
        score("caote", random_layer(), base="vatp")
    with pytest.raises(InputError, match="fast"):
        score("caote", random_layer(), base="queries", fast=True)


@pytest.mark.parametrize("gap", [20, 45, 60, 80])
def test_a_sink_far_above_all_others_keeps_its_distance(gap):
    rest = float(np.exp(-gap))
    values = values_of("caote", given([1 - rest, 0.75 * rest, 0.25 * rest], [[0.1, 0], [0.3, 0], [0, 1]]))
    assert values[0] == pytest.approx(np.hypot(0.75 * 0.3 - 0.1, 0.25), rel=1e-5)
    drop = values_of(
        "dropkv", given([1 - rest, 0.75 * rest, 0.25 * rest], [[0.1, 0], [0.3, 0], [0, 1]]),
        epsilon=0.0, pool_kind="none",
    )  # fmt: skip
    assert drop[0] == pytest.approx(values[0] ** 2, rel=1e-5)
