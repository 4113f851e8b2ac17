import torch

from kvviz.engine.budgets import Candidates, allocate
from kvviz.methods import get_method
from methods import test_defensivekv
from methods.fixtures import random_layer, score

reference = test_defensivekv.reference


def test_scores_are_defensivekvs():
    layer = random_layer(3)
    assert torch.equal(
        score("layer_defensivekv", layer).values, score("defensivekv", layer).values
    )


def test_scores_meet_over_all_layers_as_they_are():
    options = get_method("layer_defensivekv").resolve()
    assert (options["allocation"], options["normalise"]) == ("global", False)
    layers = [Candidates(torch.tensor(s), None, 2) for s in ([[4.0, 3, 2, 1]], [[40.0, 10, 10, 10]])]
    # the four best of all: 40, 10, 10, 10
    assert [c.tolist() for c in allocate("global", layers, options)] == [[0], [4]]
