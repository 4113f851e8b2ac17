import numpy as np
import pytest
import torch

from methods.fixtures import given, random_layer, score, values_of

KEYS = [[3, 4], [1, 0], [0, 2], [-6, 8]]


def reference(x, options):
    return [[-np.sqrt((x.k[kv, j] ** 2).sum()) for j in x.context] for kv in range(x.hkv)]


def test_worked_example():
    # norms 5, 1, 2, 10; the two smallest are kept: {1, 2}
    values = values_of("knorm", given([0.25] * 4, np.eye(4, 2), keys=KEYS))
    assert values == pytest.approx([-5, -1, -2, -10])


def test_rotation_changes_nothing():
    layer = random_layer(d=4)
    before = score("knorm", layer).values
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))[0]
    layer.keys = layer.keys @ turn
    assert torch.allclose(score("knorm", layer).values, before, rtol=1e-5)
