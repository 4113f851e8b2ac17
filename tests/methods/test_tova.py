import pytest
import torch

from methods.fixtures import F_P, F_V, given, random_layer, score, values_of


def reference(x, options):
    last = x.p(1)[:, 0]
    return [[last[:, j].mean() for j in x.context] for _ in range(x.hkv)]


def test_worked_example():
    # mean of the last rows [.3, .1, .1, .1, .2, .2] and [.1, .1, .3, .1, .2, .2]; token 5 is kept by rule
    values = values_of("tova", given(F_P, F_V, context=5))
    assert values == pytest.approx([0.2, 0.1, 0.2, 0.1, 0.2])


def test_all_heads_share_one_ranking():
    values = score("tova", random_layer(3, hkv=4)).values
    assert torch.equal(values, values[:1].expand(4, -1))
