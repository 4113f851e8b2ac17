import numpy as np
import pytest
import torch

from methods.fixtures import given, random_layer, score, values_of

REPEAT = [[[0.2, 0.5], [0.1, 0.3]], [[0.4, 0.1], [0.05, 0.6]]]  # [head][repeat query][token]


def reference(x, options):
    name = "repeat_plus" if options["plus"] else "repeat"
    highest = x.extra(name).double().numpy()
    rows = []
    for kv in range(x.hkv):
        heads = [
            highest[h] * (x.projected(h, 2) if options["plus"] else 1.0) for h in x.heads(kv)
        ]
        rows.append(np.max(heads, 0)[list(x.context)])
    return rows


def test_worked_example():
    # max over the two queries: [.2, .5] and [.4, .6]; max over the two heads: [.4, .6]
    highest = torch.tensor(REPEAT).amax(1)
    layer = given([[[0.5, 0.5]]] * 2, [[1, 0], [0, 1]], extras={"repeat": highest})
    assert values_of("kvzip", layer) == pytest.approx([0.4, 0.6])
    # never below the attention of any single repeat query
    assert (torch.tensor(REPEAT) <= torch.tensor(values_of("kvzip", layer)) + 1e-6).all()


def test_plus_multiplies_by_the_projected_value():
    # hidden norms 2 and 1 of the repeat queries divide the rows; ||v W_O|| is [1, 3] for both heads
    rows = torch.tensor(REPEAT) / torch.tensor([2.0, 1.0])[:, None]
    extras = {"repeat": torch.tensor(REPEAT).amax(1), "repeat_plus": rows.amax(1)}
    layer = given([[[0.5, 0.5]]] * 2, [[1, 0], [0, 1]], w_o=[[1, 0], [0, 3]], extras=extras)
    # head 0: max(.1, .1), max(.25, .3); head 1: max(.2, .05), max(.05, .6); then [.2, .6 * 3]
    assert values_of("kvzip", layer, plus=True) == pytest.approx([0.2, 1.8])


def test_plus_agrees_with_its_definition():
    from methods.fixtures import Exact

    layer = random_layer(3, seed=2)
    wanted = reference(Exact(layer), {"plus": True})
    assert np.allclose(score("kvzip", layer, plus=True).values, wanted, rtol=1e-4)
