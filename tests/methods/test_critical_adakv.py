import torch

from kvviz.methods import get_method
from methods import test_criticalkv
from methods.fixtures import random_layer, score

reference = test_criticalkv.reference
reference_second = test_criticalkv.reference_second


def test_head_budgets_are_adakvs():
    # Same base scores, same allocation, same safeguard: so the comparison is with its own base.
    mine, base = get_method("critical_adakv"), get_method("adakv")
    layer = random_layer(3)
    assert torch.equal(score("critical_adakv", layer).values, score("adakv", layer).values)
    assert mine.allocation == base.allocation
    assert mine.resolve()["safeguard"] == base.resolve()["safeguard"]
    assert mine.compare_with == "adakv"
