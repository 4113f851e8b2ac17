"""What a browser sends as a selection is forced into the range of the run."""

import math

import pytest

from kvviz.ui.chosen import checked, steps


def test_a_good_selection_is_kept(comparison):
    raw = {"a": "dropkv", "b": "snapkv", "budget": 0.2, "tok": [5, 9], "layer": 3, "head": 1}
    got = checked(raw, comparison)
    assert (got.a, got.b, got.budget, got.tok, got.layer, got.head) == (
        "dropkv", "snapkv", 0.2, (5, 9), 3, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [None, [], "x", {"a": "<script>", "b": {}, "budget": "nan", "tok": "1-2", "layer": -1,
                     "head": 1e99}, {"tok": [9, 5], "layer": 99, "head": "x", "budget": math.inf},
     {"tok": [0, 10**9], "budget": [1]}, {"tok": [1, 2, 3], "layer": None}],
)  # fmt: skip
def test_anything_else_falls_back_to_the_whole(comparison, raw):
    got = checked(raw, comparison)
    assert got.a in comparison.methods and got.b is None
    assert got.tok is None and got.layer is None and got.head is None
    assert got.budget in steps(comparison)


def test_b_is_never_a(comparison):
    assert checked({"a": "snapkv", "b": "snapkv"}, comparison).b is None


def test_a_budget_snaps_to_the_nearest_step(comparison):
    assert comparison.share(checked({"budget": 0.19}, comparison).budget) == 0.2


def test_steps_are_stops_and_decoded_budgets(comparison):
    shares = [comparison.share(s) for s in steps(comparison)]
    assert shares == sorted(set(shares)) and {0.5, 0.05, 1.0, 0.01} <= set(shares)
