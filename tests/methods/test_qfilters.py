import numpy as np
import pytest
import torch

from kvviz.calibrate.qfilters import filters_of
from kvviz.methods.artefacts import Artefact, lend
from methods.fixtures import GROUPS, Exact, given, random_layer, score, values_of


def lent(filters):
    filters = torch.tensor(np.asarray(filters), dtype=torch.float32)
    return lend(Artefact("qfilters", {"filters": filters[None]}, {}))


def reference(x, options):
    f = x.view.artefact("qfilters")["filters"][x.view.index].double().numpy()
    return [[-float(f[h] @ x.k[h, j]) for j in x.context] for h in range(x.hkv)]


def test_worked_example():
    # f = (.6, .8): -(1.8 + 3.2), -.6, -1.6, -(1.2 + 1.6)
    keys = [[3, 4], [1, 0], [0, 2], [2, 2]]
    with lent([[0.6, 0.8]]):
        values = values_of("qfilters", given([0.25] * 4, keys, keys=keys))
    assert values == pytest.approx([-5, -0.6, -1.6, -2.8])


@pytest.mark.parametrize("group", GROUPS)
def test_agrees_with_its_definition(group):
    layer = random_layer(group, seed=group)
    filters = np.random.default_rng(group).normal(size=(2, 4))
    with lent(filters):
        values = score("qfilters", layer).values
        assert np.allclose(values, reference(Exact(layer), {}), rtol=1e-4, atol=1e-6)
    with lent(-filters):
        assert torch.allclose(score("qfilters", layer).values, -values)


def test_filter_is_the_first_singular_vector_turned_against_the_queries():
    generator = torch.Generator().manual_seed(3)
    for sign in (1, -1):
        queries = torch.randn(50, 6, generator=generator, dtype=torch.float64)
        queries += sign * torch.tensor([0.0, 9, 0, 0, 0, 3])
        f = filters_of(queries.T @ queries, queries.sum(0))
        u = torch.linalg.svd(queries, full_matrices=False).Vh[0]
        assert torch.allclose(f.abs(), u.abs(), atol=1e-8)
        assert float(f @ queries.mean(0)) < 0
        # a key along the queries' direction scores high
        assert float(-f @ (sign * torch.tensor([0.0, 9, 0, 0, 0, 3], dtype=torch.float64))) > 0
