import math

import numpy as np
import pytest
import torch

from kvviz.engine.budgets import allocate
from kvviz.engine.counts import Candidates
from kvviz.methods import get_method
from methods.fixtures import F_P, F_V, Exact, given, merged, pooled, random_layer, score, values_of


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        largest = max(np.abs(x.v[kv, j]).sum() for j in x.context)
        heads = [pooled([p[h, :, j].mean() for j in x.context], options) for h in x.heads(kv)]
        rows.append(merged(heads, options["group"]) * largest)
    return rows


def reference_weight(x, options):
    flat = np.concatenate(reference(x, options))
    q = flat / flat.sum()
    return -sum(a * math.log(a) for a in q if a > 0) / math.log(len(q))


def test_worked_example():
    # head means [.35, .15, .1, .1], [.1, .1, .35, .15]; maximum [.35, .15, .35, .15]; the largest
    # ||v||_1 of the context is 2
    scores = score("lava", given(F_P, F_V, context=4), pool_kind="none")
    assert scores.values[0].tolist() == pytest.approx([0.7, 0.3, 0.7, 0.3])
    # shares .35, .15, .35, .15: entropy 1.303998, divided by log 4
    assert scores.weight == pytest.approx(0.940645, abs=1e-6)


def test_values_outside_the_context_do_not_count():
    values = [*F_V[:4], [50, 50], [0, 0]]
    assert values_of("lava", given(F_P, values, context=4), pool_kind="none")[0] == pytest.approx(0.7)


@pytest.mark.parametrize("group", [1, 3, 7])
def test_weight_agrees_with_its_definition(group):
    layer = random_layer(group, n=23)
    options = {"window": 5, "pool": 7, "pool_kind": "max", "group": "max"}
    wanted = reference_weight(Exact(layer), options)
    assert score("lava", layer, window=5).weight == pytest.approx(wanted, rel=1e-5)


def test_weight_lies_between_one_peak_and_flat():
    one = given([[0.9999999, 0, 0, 0, 1e-7]], [[1, 0]] * 5, context=4)
    flat = given([[0.2] * 5], [[1, 0]] * 5, context=4)
    assert score("lava", one, pool_kind="none").weight == pytest.approx(0, abs=1e-5)
    assert score("lava", flat, pool_kind="none").weight == pytest.approx(1)


def test_heads_get_a_blend_of_their_best_and_the_even_split():
    # 8 places in a layer whose best lie 7 to 1: .8 * 7 + .2 * 4 = 6.4, .8 * 1 + .2 * 4 = 1.6
    options = get_method("lava").resolve()
    scores = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3.5, 0, 0], [3.2, 1, 1, 1, 1, 1, 1, 1, 1]])
    (counts,) = allocate("entropy_heads", [Candidates(scores, None, 4, 1.0)], options)
    assert counts.tolist() == [6, 2]
