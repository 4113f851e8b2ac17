import pytest
import torch

from kvviz.errors import NeedError
from kvviz.methods import get_method
from methods.fixtures import given, random_layer, score, values_of

ROWS = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.3, 0.5, 0], [0.1, 0.2, 0.3, 0.4]]


def reference(x, options):
    p = x.p(x.n)  # every query of the prompt
    rows = []
    for kv in range(x.hkv):
        sums = [sum(p[h, :, j].sum() for h in x.heads(kv)) / x.g for j in x.context]
        if options["normalised"]:
            sums = [s / (x.n - j) for s, j in zip(sums, x.context)]
        rows.append(sums)
    return rows


def example():
    sums = torch.tensor(ROWS).sum(0)[None]
    return given(ROWS, [[0.0]] * 4, extras={"column_sums": sums})


def test_worked_example():
    # columns: 1 + .5 + .2 + .1, .5 + .3 + .2, .5 + .3, .4
    assert values_of("h2o", example()) == pytest.approx([1.8, 1.0, 0.8, 0.4])
    # divided by the 4, 3, 2, 1 queries that see them
    assert values_of("h2o", example(), normalised=True) == pytest.approx([0.45, 1 / 3, 0.4, 0.4])


def test_half_of_the_budget_is_recent():
    method = get_method("h2o")
    assert [method.protect(None, b, method.resolve()) for b in (1, 2, 9)] == [0, 1, 4]


def test_sum_over_the_window_alone_is_snapkv():
    layer = random_layer(3, window=5)
    layer.trace._extras["column_sums"] = layer.attention(5).sum(1)
    snap = score("snapkv", layer, window=5, pool_kind="none").values
    assert torch.allclose(score("h2o", layer).values, 5 * snap, rtol=1e-5)


def test_a_trace_without_the_sums_is_an_error_that_names_them():
    with pytest.raises(NeedError, match="column_sums"):
        score("h2o", given(ROWS, [[0.0]] * 4))
