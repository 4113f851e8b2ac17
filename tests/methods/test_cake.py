import math

import numpy as np
import pytest

from kvviz.methods import get_method
from methods.fixtures import F_P, F_V, Exact, given, merged, pooled, random_layer, score, values_of


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        heads = []
        for h in x.heads(kv):
            row = []
            for j in x.context:
                variance = p[h, :, j].var(ddof=1) if p.shape[1] > 1 else 0.0
                row.append(p[h, :, j].mean() + options["gamma"] * variance)
            heads.append(pooled(row, options))
        rows.append(merged(heads, options["group"]))
    return rows


def reference_weight(x, options):
    p = x.p(options["window"])[..., list(x.context)]
    entropy = -sum(a * math.log(a + 1e-10) for a in p.flatten())
    variance = sum(p[h, :, j].var(ddof=1) for h in range(len(p)) for j in range(p.shape[2]))
    return entropy ** (1 / options["tau1"]) * variance ** (1 / options["tau2"])


def layer_f():
    return given(F_P, F_V, context=4)


def test_worked_example():
    # variances of two rows, (a - b)^2 / 2: head 0 [.005, .005, 0, 0], head 1 [0, 0, .005, .005]
    # head 0: [.35, .15, .1, .1] + 200 * variance = [1.35, 1.15, .1, .1]; head 1 [.1, .1, 1.35, 1.15]
    values = values_of("cake", layer_f(), pool_kind="none")
    assert values == pytest.approx([0.725, 0.625, 0.725, 0.625], abs=1e-5)
    # average of 5: (.725 + .625 + .725) / 5 at the left edge, (.625 + .725 + .625) / 5 at the right
    # one, all four / 5 inside
    assert values_of("cake", layer_f()) == pytest.approx([0.415, 0.54, 0.54, 0.395], abs=1e-5)


def test_preference_of_the_layer():
    # H = 4.401777 over both heads, rows and the four context columns; V = 4 * .005 = .02
    assert score("cake", layer_f()).weight == pytest.approx(0.088036, abs=1e-6)
    tuned = score("cake", layer_f(), preset="llama31-8b-1024").weight
    assert tuned == pytest.approx(4.401777 ** (1 / 1.6) * 0.02 ** (1 / 0.4), rel=1e-4)


@pytest.mark.parametrize("group", [1, 3, 7])
def test_weight_agrees_with_its_definition(group):
    layer = random_layer(group, n=23)
    options = get_method("cake").resolve({"window": 5})
    wanted = reference_weight(Exact(layer), options)
    assert score("cake", layer, window=5).weight == pytest.approx(wanted, rel=1e-4)


def test_one_query_has_no_variance():
    scores = score("cake", random_layer(window=1), window=1)
    assert np.isfinite(scores.values.numpy()).all()
    assert scores.weight > 0
