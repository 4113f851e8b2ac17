import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz.engine.budgets import allocate
from kvviz.engine.counts import Candidates
from kvviz.methods import get_method
from methods import test_snapkv

reference = test_snapkv.reference


def share(scores, budget, **options):
    rows = [Candidates(torch.as_tensor(scores, dtype=torch.float32), None, budget)]
    return allocate("across_heads", rows, {**get_method("adakv").resolve(), **options})[0].tolist()


def test_worked_example_interpolation():
    # 16 of the 20 best are in head 0, 4 in head 1; (1 - .2) * [16, 4] + .2 * 10 = [14.8, 5.2]
    scores = [[100.0 + j for j in range(16)] + [0.0] * 4, [50.0 + j for j in range(4)] + [1.0] * 16]
    assert share(scores, 10, safeguard=0.0) == [16, 4]
    assert share(scores, 10, rule="interpolate") == [15, 5]


def test_floor_of_a_short_budget_is_zero():
    # floor(.2 * 3) = 0: head 1 may end up with nothing
    assert share([[9, 8, 7, 6, 5, 4], [1, 1, 1, 1, 1, 1]], 3) == [6, 0]
    # floor(.4 * 3) = 1 keeps one
    assert share([[9, 8, 7, 6, 5, 4], [1, 1, 1, 1, 1, 1]], 3, safeguard=0.4) == [5, 1]


@given(
    st.integers(0, 10_000),
    st.sampled_from([1, 3, 4, 7, 8]),
    st.integers(1, 40),
    st.floats(0, 1),
    st.sampled_from(["floor", "interpolate"]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_totals_floors_and_ends(seed, heads, context, alpha, rule, data):
    budget = data.draw(st.integers(0, context))
    scores = torch.rand(heads, context, generator=torch.Generator().manual_seed(seed))
    counts = share(scores, budget, safeguard=alpha, rule=rule)
    assert sum(counts) == heads * budget
    assert all(0 <= c <= context for c in counts)
    if rule == "floor":
        assert min(counts) >= int(alpha * budget)
    assert share(scores, budget, safeguard=1.0, rule=rule) == [budget] * heads  # uniform
    flat = scores.flatten().topk(heads * budget).indices // context
    assert share(scores, budget, safeguard=0.0, rule=rule) == [
        int((flat == h).sum()) for h in range(heads)
    ]


@pytest.mark.parametrize("rule", ["floor", "interpolate"])
def test_better_head_never_gets_less(rule):
    scores = torch.rand(1, 30, generator=torch.Generator().manual_seed(1))
    counts = share(torch.cat([2 * scores, scores]), 9, rule=rule)
    assert counts[0] >= counts[1]
