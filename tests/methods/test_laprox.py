import numpy as np
import pytest
import torch

from kvviz.engine.budgets import allocate
from kvviz.engine.counts import Candidates
from methods.fixtures import F_P, F_V, given, merged, pooled, random_layer, score, values_of

W_O = [[[1, 0], [0, 1]], [[3, 0], [0, 4]]]


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        heads = []
        for h in x.heads(kv):
            norms = x.projected(h, 2)
            row = [np.sqrt((p[h, :, j] ** 2).sum()) * norms[j] for j in x.context]
            heads.append(pooled(row, options))
        rows.append(merged(heads, options["group"]))
    return rows


def layer_f():
    return given(F_P, F_V, w_o=W_O, context=4)


def test_worked_example():
    # column norms of head 0: sqrt(.4^2 + .3^2) = .5, .223607, .141421, .141421; head 1: .141421, .141421,
    # .5, .223607. ||v W_O||: head 0 [1, 1, 2, 2], head 1 [3, 4, 6, 8].
    # products [.5, .223607, .282843, .282843] and [.424264, .565685, 3, 1.788854]
    values = values_of("laprox", layer_f(), pool_kind="none")
    assert values == pytest.approx([0.462132, 0.394646, 1.641421, 1.035849], abs=1e-5)
    # average of 3: (0 + .462132 + .394646) / 3, ...
    assert values_of("laprox", layer_f(), pool=3) == pytest.approx(
        [0.285593, 0.832733, 1.023972, 0.892423], abs=1e-5
    )
    # divided by the layer's sum 3.534048
    assert [v / sum(values) for v in values] == pytest.approx(
        [0.130766, 0.111670, 0.464459, 0.293105], abs=1e-5
    )


def layers(scale=1.0):
    first = torch.tensor([[4.0, 3, 2, 1], [1, 1, 1, 1]])
    second = torch.tensor([[40.0, 10, 10, 10], [5, 10, 5, 10]])
    return [Candidates(s, None, 2) for s in (first, scale * second)]


def test_worked_allocation():
    # K = 8. Divided by 14 and by 100: .4, .285714, .214286, .142857, then four of the five .1 of layer 1
    totals = [int(c.sum()) for c in allocate("global", layers(), {"normalise": True})]
    assert totals == [3, 5]
    # as they are: 40, five 10s and the two 5s, all in layer 1
    totals = [int(c.sum()) for c in allocate("global", layers(), {"normalise": False})]
    assert totals == [0, 8]


@pytest.mark.parametrize("scale", [0.125, 2.0, 64.0])  # powers of two: no rounding moves a tie
def test_scale_of_one_layer_does_not_matter_when_normalised(scale):
    before = allocate("global", layers(), {"normalise": True})
    after = allocate("global", layers(scale), {"normalise": True})
    assert [c.tolist() for c in before] == [c.tolist() for c in after]


def test_scaling_the_projection_scales_the_score():
    layer, same = random_layer(3), random_layer(3)
    same.trace.model.layer(0).w_o = 8 * same.w_o
    assert torch.allclose(
        8 * score("laprox", layer).values, score("laprox", same).values, rtol=1e-5
    )


def test_one_layer_and_head_is_a_plain_ranking():
    scores = torch.rand(1, 20, generator=torch.Generator().manual_seed(0))
    assert allocate("global", [Candidates(scores, None, 6)], {"normalise": True})[0].tolist() == [6]


def test_norms_by_gram_matrix_survive_small_weights():
    layer, small = random_layer(3), random_layer(3)
    small.trace.model.layer(0).w_o = 1e-6 * small.w_o
    ratio = score("laprox", small).values / score("laprox", layer).values
    assert torch.allclose(ratio, torch.tensor(1e-6), rtol=1e-3)
