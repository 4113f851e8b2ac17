import math

import numpy as np
import pytest
import torch

from kvviz.methods.expected_attention import mean_rotation
from methods.fixtures import T1_V, given, random_layer, score, values_of

KEYS = [[0.3, 0.4], [0.1, 0], [0, 0.2], [-0.6, 0.8]]


def reference(x, options):
    stats = x.extra("query_stats")
    mean, cov = stats["mean"].double().numpy(), stats["cov"].double().numpy()
    positions = torch.arange(x.n, x.n + options["n_future"])
    cos, sin = (t.double().numpy() for t in x.view.model.rotary(x.view.index, positions))
    size, d = cos.shape[1], x.k.shape[-1]
    rotation = np.zeros((d, d))
    for c, s in zip(cos, sin):
        one = np.eye(d)
        for i in range(size):  # output channel i of x * cos + rotate_half(x) * sin
            one[i, i] = c[i]
            other, sign = (i + size // 2, -1) if i < size // 2 else (i - size // 2, 1)
            one[i, other] = sign * s[i]
        rotation += one / len(cos)
    rows = []
    for kv in range(x.hkv):
        heads = []
        for h in x.heads(kv):
            mu, sigma = rotation @ mean[h], rotation @ cov[h] @ rotation.T
            z = {}
            for j in x.visible:
                if j < options["sinks"]:
                    continue
                k = x.k[kv, j]
                z[j] = x.scaling * mu @ k + x.scaling**2 * (k @ sigma @ k) / 2
            top = max(z.values())
            total = sum(math.exp(v - top) for v in z.values())
            heads.append([math.exp(z[j] - top) / total if j in z else 0.0 for j in x.context])
        norms = [np.linalg.norm(x.v[kv, j]) for j in x.context]
        rows.append((np.mean(heads, 0) + options["epsilon"]) * norms)
    return rows


def example(**options):
    stats = {"mean": torch.tensor([[1.0, 0.0]]), "cov": torch.tensor([[[0.5, 0.0], [0.0, 0.25]]])}
    layer = given([0.25] * 4, T1_V, keys=KEYS, extras={"query_stats": stats})
    return values_of("expected_attention", layer, sinks=0, **options)


def test_worked_example():
    # mu = (1, 0), Sigma = diag(.5, .25), no rotation. z of key (.3, .4):
    # .3 / sqrt 2 + (.5 * .09 + .25 * .16) / (2 * 2) = .212132 + .02125 = .233382;
    # of the others .071961, .0025, -.339264; softmax [.311643, .265188, .247393, .175776]
    assert example(value_norm=False) == pytest.approx(
        [0.311643, 0.265188, 0.247393, 0.175776], abs=1e-6
    )
    # times ||v||: 1, 1, 2, 2
    assert example() == pytest.approx([0.311643, 0.265188, 0.494785, 0.351553], abs=1e-6)


def test_epsilon_joins_before_the_norm():
    plain, more = np.array(example()), np.array(example(epsilon=0.01))
    assert (more - plain) == pytest.approx(0.01 * np.array([1, 1, 2, 2]), rel=1e-4)


def test_mean_rotation_shrinks_fast_channels():
    layer = random_layer(d=4)
    rotation = mean_rotation(layer, 512, 4)
    # Channels (0, 2) turn by 1 radian a position: over 512 positions the mean is nearly nothing.
    assert torch.linalg.norm(rotation[0]) < 0.01
    assert torch.linalg.norm(rotation[1]) < 0.1
    assert torch.allclose(mean_rotation(layer, 1, 4) @ mean_rotation(layer, 1, 4).T, torch.eye(4), atol=1e-6)


def test_sinks_take_no_part_in_the_softmax():
    layer = random_layer()
    before = score("expected_attention", layer).values
    layer.keys = layer.keys.clone()
    layer.keys[:, :4] *= 100
    after = score("expected_attention", layer).values
    assert torch.allclose(before[:, 4:], after[:, 4:])
