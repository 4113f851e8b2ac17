"""Identities of removal, and an exact search over all subsets for short rows."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from kvviz.methods import get_method, removal
from kvviz.methods.layer import LayerView
from methods.fixtures import T1_P, T1_V, FakeTrace, given, score, without


def row(seed, n, d=3, spread=2.0):
    draw = np.random.default_rng(seed)
    p = np.exp(spread * draw.normal(size=n))
    return p / p.sum(), draw.normal(size=(n, d))


def change(p, v, evicted):
    return without(p, v, evicted) - p @ v


def test_worked_example_single_removals():
    p, v = np.array(T1_P), np.array(T1_V, float)
    # o = (.75, 0); without token 0: (.5, -.25 ...) / .5, and so on
    wanted = [(-0.25, 0), (0.25, -1 / 3), (-0.178571, 0), (0.107143, 0.285714)]
    for j in range(4):
        assert change(p, v, [j]) == pytest.approx(wanted[j], abs=1e-6)


def test_worked_example_pairs():
    p, v = np.array(T1_P), np.array(T1_V, float)
    norms = [np.linalg.norm(change(p, v, pair)) for pair in combinations(range(4), 2)]
    assert norms == pytest.approx([1.030776, 0.75, 0.671855, 0.403113, 0.45, 0.343592], abs=1e-6)
    # The two smallest single errors are those of tokens 2 and 0, whose joint removal costs .75; the
    # best pair is {2, 3}, which plain attention picks here.
    single = score("caote", given(T1_P, T1_V)).values[0]
    assert sorted(single.argsort()[:2].tolist()) == [0, 2]


def test_cross_terms_are_as_large_as_the_diagonal():
    p, v = np.array(T1_P), np.array(T1_V, float)
    e = p[:, None] * (p @ v - v)
    wanted = [
        [0.0156, -0.0234, 0.0195, -0.0117],
        [-0.0234, 0.0977, -0.0293, -0.0449],
        [0.0195, -0.0293, 0.0244, -0.0146],
        [-0.0117, -0.0449, -0.0146, 0.0713],
    ]
    assert np.allclose(e @ e.T, wanted, atol=6e-5)


@hypothesis_given(st.integers(0, 100_000), st.integers(2, 14))
@settings(max_examples=100, deadline=None)
def test_change_of_a_set(seed, n):
    p, v = row(seed, n)
    evicted = np.flatnonzero(np.random.default_rng(seed).random(n) < 0.5)[: n - 1]
    rest = np.setdiff1d(np.arange(n), evicted)
    o, mass = p @ v, p[evicted].sum()
    e = p[:, None] * (o - v)
    assert np.allclose(e.sum(0), 0, atol=1e-12)
    assert np.allclose(change(p, v, evicted), e[evicted].sum(0) / (1 - mass), rtol=1e-9, atol=1e-9)
    if len(evicted) > 0:
        both = (1 - mass) * change(p, v, evicted) + mass * change(p, v, rest)
        assert np.allclose(both, 0, atol=1e-9)


@hypothesis_given(st.integers(0, 100_000), st.integers(2, 14), st.floats(0, 6))
@settings(max_examples=60, deadline=None)
def test_single_scores_equal_leaving_out(seed, n, spread):
    p, v = row(seed, n, spread=spread)
    p32 = torch.tensor(p, dtype=torch.float32)
    p, v = p32.double().numpy() / p32.double().sum().item(), v.astype(np.float32).astype(float)
    layer = given(p32.tolist(), v.tolist())
    wanted = np.array([np.linalg.norm(change(p, v, [j])) for j in range(n)])
    caote = score("caote", layer, window=1).values[0].numpy()
    drop = score("dropkv", layer, window=1, epsilon=0.0, pool_kind="none").values[0].numpy()
    assert np.allclose(caote, wanted, rtol=1e-3, atol=1e-5)
    assert np.allclose(drop, wanted**2, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_direct_and_expanded_forms_agree_where_both_can(offset):
    p, v = row(3, 40, spread=0.5)
    v = v + offset
    rows = removal.rows_of(torch.tensor(p).float()[None], torch.tensor(v).float())
    o = p @ v
    wanted = (p / (1 - p)) ** 2 * (np.square(v).sum(1) - 2 * v @ o + o @ o)  # float64
    assert np.allclose(removal.squared_removals(rows, 0.0), wanted, rtol=1e-3)


def test_a_sink_column_takes_part():
    # The sink holds half of the mass and has no value: o = sum p v over the others as they are.
    p, v = np.array([0.3, 0.1, 0.1]), np.array([[1.0, 2], [3, -1], [0, 5]])
    full_p, full_v = np.append(p, 0.5), np.vstack([v, np.zeros(2)])
    rows = removal.rows_of(
        torch.tensor(p).float()[None], torch.tensor(v).float(), torch.tensor([0.5])
    )
    wanted = [np.linalg.norm(change(full_p, full_v, [j])) for j in range(3)]
    assert removal.removals(rows).tolist() == pytest.approx(wanted, rel=1e-5)


# ---- exact search ------------------------------------------------------------------------------

SCORES = {  # for one head, one query, no pooling: what is left of each idea
    "attention": ("snapkv", {}),
    "vatp": ("vatp", {"sinks": 0}),
    "caote": ("caote", {"window": 1}),
    "dropkv": ("dropkv", {"epsilon": 0.0}),
    "laprox": ("laprox", {}),
    "criticalkv": ("criticalkv", {}),
    "obcache": ("obcache", {"variant": "value"}),
}


def layer_of(p, v):
    """One query whose logits are log p, so that methods that read logits can be asked too."""
    keys = torch.tensor(np.log(p), dtype=torch.float32)[None, :, None].repeat(1, 1, v.shape[1])
    queries = torch.full((1, 1, v.shape[1]), v.shape[1] ** -0.5)
    values = torch.tensor(v, dtype=torch.float32)[None]
    attention = torch.tensor(p, dtype=torch.float32)[None, None]
    trace = FakeTrace(queries, keys, values, torch.eye(v.shape[1])[None], {}, attention)
    return LayerView(trace, 0, len(p), {})


def kept_by(name, p, v, budget):
    method_id, changes = SCORES[name]
    method = get_method(method_id)
    options = {"window": 1, "pool_kind": "none", **changes}
    scores = method.score(layer_of(p, v), method.resolve(options))
    order = scores.values[0].argsort(descending=True, stable=True).tolist()
    if scores.second is None:
        return order[:budget]
    first = order[: budget // 2]
    later = [j for j in scores.second[0].argsort(descending=True, stable=True).tolist() if j not in first]
    return first + later[: budget - len(first)]


def error(p, v, kept):
    return np.linalg.norm(change(p, v, [j for j in range(len(p)) if j not in kept]))


def ratios(name, n, budget, seeds):
    """Each draw's error over the smallest error of all subsets of that size."""
    out = []
    for seed in seeds:
        p, v = row(seed, n)
        best = min(error(p, v, kept) for kept in combinations(range(n), budget))
        out.append(error(p, v, kept_by(name, p, v, budget)) / best)
    return np.array(out)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(("n", "budget"), [(6, 3), (10, 4), (14, 7)])
def test_ratio_to_the_optimum(name, n, budget):
    found = ratios(name, n, budget, range(4))
    assert np.isfinite(found).all()
    assert (found >= 1 - 1e-9).all()


@pytest.mark.parametrize("name", ["caote", "dropkv"])
@pytest.mark.parametrize("n", [2, 5, 9, 14])
def test_dropping_one_token_is_optimal(name, n):
    assert ratios(name, n, n - 1, range(10)) == pytest.approx(np.ones(10))


def test_no_single_score_is_optimal_for_sets():
    # The counter-example of the worked rows: two single smallest errors, jointly more than twice the best.
    p, v = np.array(T1_P), np.array(T1_V, float)
    kept = kept_by("dropkv", p, v, 2)
    assert sorted(kept) == [1, 3]
    assert error(p, v, kept) / error(p, v, [0, 1]) == pytest.approx(0.75 / 0.343592, rel=1e-4)
