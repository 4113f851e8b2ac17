
import torch

from kvviz.engine.budgets import allocate
from kvviz.engine.counts import Candidates
from kvviz.engine.selection import LayerAccount, _context_counts
from kvviz.methods import get_method
from kvviz.methods.spec import Scores
from methods import test_defensivekv
from methods.fixtures import random_layer, score

reference = test_defensivekv.reference


def test_scores_are_defensivekvs():
    layer = random_layer(3)
    assert torch.equal(
        score("layer_defensivekv", layer).values, score("defensivekv", layer).values
    )


def test_stage_one_counts_as_the_best_of_its_layer():
    # layer 0 has a stage-1 token of low score, worth 4 then; layer 1 is above all but that of layer 2
    values = [[[1.0, 4, 2]], [[5.0, 3, 3]], [[9.0, 8, 7]]]
    firsts = [[[True, False, False]], [[False] * 3], [[False] * 3]]
    scores = [
        Scores(torch.tensor(v), first=torch.tensor(f), turn=torch.tensor([[0, 1, 2]]), lifted=True)
        for v, f in zip(values, firsts)
    ]
    rows = [LayerAccount(5, 4, 2, 0)] * 3
    options = get_method("layer_defensivekv").resolve()
    counts = _context_counts(5, rows, scores, options)
    # six places: 9, 8, 7, 5 and the two 4s of layer 0, of which one is lifted
    assert [c.tolist() for c in counts] == [[2], [1], [3]]


def test_scores_meet_over_all_layers_as_they_are():
    options = get_method("layer_defensivekv").resolve()
    assert (options["allocation"], options["normalise"]) == ("global", False)
    layers = [Candidates(torch.tensor(s), None, 2) for s in ([[4.0, 3, 2, 1]], [[40.0, 10, 10, 10]])]
    # the four best of all: 40, 10, 10, 10
    assert [c.tolist() for c in allocate("global", layers, options)] == [[0], [4]]
