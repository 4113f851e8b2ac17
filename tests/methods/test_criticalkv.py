import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from methods import test_snapkv
from methods.fixtures import T1_P, T1_V, T1_W_O, given, random_layer, score, without


def nu_of(x, kv):
    return np.mean([x.projected(h, 1) for h in x.heads(kv)], axis=0)[list(x.context)]


def reference(x, options):
    return test_snapkv.reference(x, options)


def reference_second(x, options):
    base = reference(x, options)
    return [(base[kv] + options["epsilon"]) * nu_of(x, kv) for kv in range(x.hkv)]


def theta(p, nu, kept):
    """The bound on the L1 change of the output for a boolean mask of kept tokens."""
    a, sigma = p * nu, p[kept].sum()
    return a.sum() - (2 - 1 / sigma) * a[kept].sum()


def l1_change(p, v, w_o, kept):
    return np.abs((without(p, v, np.flatnonzero(~kept)) - p @ v) @ w_o).sum()


def test_worked_example():
    # ||v W_O||_1 = [1, 3, 2, 6]; (p + 1e-4) nu = .5001, .2501 * 3, .1251 * 2, .1251 * 6
    scores = score("criticalkv", given(T1_P, T1_V, w_o=T1_W_O), pool_kind="none")
    assert scores.values[0].tolist() == pytest.approx(T1_P)
    assert scores.second[0].tolist() == pytest.approx([0.5001, 0.7503, 0.2502, 0.7506], abs=1e-6)
    # b = 2, one token by stage 1: token 0 by p; then the best of the others by the product: token 3
    first = scores.values[0].argmax()
    rest = scores.second[0].clone()
    rest[first] = -1
    assert (int(first), int(rest.argmax())) == (0, 3)


def test_bound_of_the_worked_example():
    p, v, w_o = np.array(T1_P), np.array(T1_V, float), np.array(T1_W_O, float)
    nu = np.abs(v @ w_o).sum(1)  # A = [.5, .75, .25, .75], sum 2.25
    # keep {0, 1}: sigma .75, 2.25 - (2 - 1 / .75) * 1.25 = 1.416667
    kept = np.array([True, True, False, False])
    assert theta(p, nu, kept) == pytest.approx(1.416667, abs=1e-6)
    assert l1_change(p, v, w_o, kept) == pytest.approx(1.083333, abs=1e-6)
    # keep {0, 3}: sigma .625, 2.25 - (2 - 1.6) * 1.25 = 1.75. The method's own choice is the worse one
    kept = np.array([True, False, False, True])
    assert theta(p, nu, kept) == pytest.approx(1.75)
    assert l1_change(p, v, w_o, kept) == pytest.approx(1.25)


def test_group_mean_is_taken_after_the_norm():
    # norms of the two query heads [1, 2] and [3, 0] -> [2, 1]
    layer = given([[[0.5, 0.5]]] * 2, [[1, 0], [0, 2]], w_o=[[[1, 0], [0, 1]], [[3, 0], [0, 0]]])
    second = score("criticalkv", layer, pool_kind="none", epsilon=0.0).second[0]
    assert second.tolist() == pytest.approx([0.5 * 2, 0.5 * 1])


@hypothesis_given(st.integers(0, 100_000), st.integers(2, 12))
@settings(max_examples=200, deadline=None)
def test_bound_holds_for_every_mask(seed, n):
    draw = np.random.default_rng(seed)
    p = np.exp(draw.normal(size=n) * draw.uniform(0, 4))
    p /= p.sum()
    v, w_o = draw.normal(size=(n, 3)), draw.normal(size=(3, 4))
    kept = draw.random(n) < draw.random()
    if kept.any():
        bound = theta(p, np.abs(v @ w_o).sum(1), kept)
        assert l1_change(p, v, w_o, kept) <= bound + 1e-9 * (1 + abs(bound))


def test_projection_of_zero_ties_everything_in_stage_two():
    layer = given(T1_P, T1_V, w_o=[[0, 0], [0, 0]])
    assert score("criticalkv", layer, pool_kind="none").second[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
def test_second_stage_agrees_with_its_definition(group):
    from methods.fixtures import Exact

    layer = random_layer(group)
    options = {"window": 5, "pool": 7, "pool_kind": "avg", "group": "mean", "epsilon": 1e-4}
    wanted = reference_second(Exact(layer), options)
    second = score("criticalkv", layer, **options).second
    assert np.allclose(second, wanted, rtol=1e-4)
    assert torch.equal(score("critical_adakv", layer, **options).second, second)
