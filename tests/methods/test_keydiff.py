import numpy as np
import pytest
import torch

from methods.fixtures import given, random_layer, score, values_of

KEYS = [[3, 4], [1, 0], [0, 2], [-6, 8]]


def reference(x, options):
    rows = []
    for kv in range(x.hkv):
        units = [x.k[kv, j] / np.linalg.norm(x.k[kv, j]) for j in x.visible]
        anchor = sum(units) / len(units)
        anchor = anchor / np.linalg.norm(anchor)
        rows.append([-units[j - x.first] @ anchor for j in x.context])
    return rows


def test_worked_example():
    # unit keys (.6, .8), (1, 0), (0, 1), (-.6, .8); their mean (.25, .65) is the anchor
    values = values_of("keydiff", given([0.25] * 4, np.eye(4, 2), keys=KEYS))
    assert values == pytest.approx([-0.962064, -0.358979, -0.933346, -0.531289], abs=1e-6)


def test_length_of_a_key_does_not_matter():
    layer = random_layer()
    before = score("keydiff", layer).values
    layer.keys = layer.keys * torch.linspace(0.1, 9, layer.n)[None, :, None]
    assert torch.allclose(score("keydiff", layer).values, before, atol=1e-6)
