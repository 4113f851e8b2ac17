import pytest
import torch

from kvviz.engine.budgets import allocate
from kvviz.engine.counts import Candidates
from kvviz.methods import get_method
from methods import test_snapkv

reference = test_snapkv.reference


def budgets(layers, context, budget, beta=20, heads=1):
    rows = [Candidates(torch.zeros(heads, context), None, budget) for _ in range(layers)]
    return [counts.tolist() for counts in allocate("pyramid", rows, {"beta": beta, "pyramid_of": "context"})]


def test_defaults_are_the_public_codes():
    options = get_method("pyramidkv").resolve()
    assert (options["window"], options["pool"], options["pool_kind"]) == (64, 5, "avg")
    assert (options["allocation"], options["beta"]) == ("pyramid", 20)


def test_worked_examples():
    # n = 1000, 200 context entries on average, W = 8 apart. Last layer 200 / 20 = 10, first layer
    # 2 * 200 - 10 = 390, steps of 380 / 3: 390, 263.33, 136.67, 10
    assert budgets(4, 992, 200) == [[390], [263], [137], [10]]
    # 500 on average: 975, 658.33, 341.67, 25
    assert budgets(4, 992, 500) == [[975], [658], [342], [25]]


def test_line_turns_where_the_first_layer_is_too_short():
    # 400 context entries on average of 500: 2 * 400 - 20 = 780 does not fit, so first 500, last 300.
    # thirds between: 500, 433.33, 366.67, 300
    assert budgets(4, 500, 400) == [[500], [433], [367], [300]]


@pytest.mark.parametrize("budget", [1, 2, 7, 50, 99, 100])
@pytest.mark.parametrize("heads", [1, 3])
def test_falls_with_depth_and_keeps_the_total(budget, heads):
    counts = budgets(6, 100, budget, heads=heads)
    totals = [sum(c) for c in counts]
    assert sum(totals) == 6 * heads * budget
    assert totals == sorted(totals, reverse=True)
