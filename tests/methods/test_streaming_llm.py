import numpy as np
import torch

from kvviz.methods import get_method
from methods.fixtures import random_layer, score


def reference(x, options):
    return np.tile(np.arange(len(x.context), dtype=float), (x.hkv, 1))


def test_keeps_sinks_and_latest():
    # n = 10, b = 5, 4 sinks: {0, 1, 2, 3} are protected, and so is the latest token, 9.
    method = get_method("streaming_llm")
    options = method.resolve()
    assert (options["sinks"], method.protect(None, 5, options)) == (4, 1)
    # With b = 7 two more go in: the latest of 4 .. 8 by score, which are 7 and 8.
    values = score("streaming_llm", random_layer(hkv=1, n=10, window=1)).values[0]
    assert sorted((values[4:].topk(2).indices + 4).tolist()) == [7, 8]


def test_inputs_do_not_matter():
    assert torch.equal(
        score("streaming_llm", random_layer(seed=1)).values,
        score("streaming_llm", random_layer(seed=2)).values,
    )
