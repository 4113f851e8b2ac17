import numpy as np
import pytest
import torch

from methods.fixtures import random_layer, score


def reference(x, options):
    # One generator a layer; drawn for all visible rows, then cut to the context.
    generator = torch.Generator().manual_seed(options["seed"] * 100_003 + x.view.index)
    drawn = torch.rand(x.hkv, len(x.visible), generator=generator)
    return drawn[:, : len(x.context)].numpy()


def test_same_seed_same_scores_and_heads_differ():
    layer = random_layer()
    first, again = score("random", layer, seed=3).values, score("random", layer, seed=3).values
    other = score("random", layer, seed=4).values
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


def test_layers_differ_under_one_seed():
    layer = random_layer()
    before = score("random", layer).values
    layer.index = 1
    assert not torch.equal(before, score("random", layer).values)


def test_pattern_does_not_move_with_the_context():
    layer = random_layer()
    short, layer.context = score("random", layer).values, layer.n
    assert torch.equal(score("random", layer).values[:, : short.shape[1]], short)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_spread_over_the_unit_interval(seed):
    values = score("random", random_layer(n=2000, window=1), seed=seed).values.numpy()
    assert np.all((values >= 0) & (values < 1))
    assert abs(values.mean() - 0.5) < 0.05  # 4,000 draws: five standard errors are 0.023
