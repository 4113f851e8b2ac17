"""Budgets: exact arithmetic, the papers' worked examples, exact totals, agreed ties."""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz.engine.budgets import ALLOCATORS, allocate, by_layer, entries_of, flat_entropy
from kvviz.engine.counts import Candidates, best_counts, layer_budgets, round_to_total
from kvviz.engine.ranking import rank
from kvviz.errors import InputError
from kvviz.identity import BUDGET_WORDS
from kvviz.methods import METHODS, get_method

OPTIONS = {row.name: row.default for a in ALLOCATORS.values() for row in a.rows}


def layer(scores, budget, first=None, weight=None) -> Candidates:
    scores = torch.tensor(scores, dtype=torch.float32)
    return Candidates(scores, None if first is None else torch.tensor(first), budget, weight)


def shared(name, layers, **options) -> list[list[int]]:
    return [c.tolist() for c in allocate(name, layers, {**OPTIONS, **options})]


# -- entries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "n", "entries"),
    [
        (0.29, 100, 29),  # int(0.29 * 100) is 28
        (0.1, 10, 1),  # kvpress: int(10 * (1 - 0.9)) is 0
        (0.2, 100, 20),  # int(100 * (1 - 0.8)) is 19
        (0.1, 1000, 100),  # int(1000 * (1 - 0.9)) is 99
        (0.57, 100, 57),
        (1.0, 7, 7),
        (0.5, 7, 3),
        (0.001, 50, 1),  # never nothing
        (1e-9, 300, 1),
        (1, 50, 1),
        (64, 50, 50),  # a number above n means n
        (10**9, 50, 50),
        (np.float64(0.29), 100, 29),
    ],
)
def test_entries_are_exact(budget, n, entries):
    assert entries_of(budget, n) == entries


@given(hundredths=st.integers(1, 10000), n=st.integers(1, 200_000))
@settings(max_examples=200, deadline=None)
def test_entries_of_a_decimal_share_are_its_floor(hundredths, n):
    share = hundredths / 10000
    assert entries_of(share, n) == max(1, int(Decimal(str(share)) * n))


@pytest.mark.parametrize("budget", [0, 0.0, -1, -0.5, 1.5, math.nan, math.inf, True, "half", None])
def test_a_budget_that_cannot_be_used_is_one_sentence(budget):
    with pytest.raises(InputError) as error:
        entries_of(budget, 100)
    assert str(error.value).startswith(f"{BUDGET_WORDS}, not ")


# -- rounding -----------------------------------------------------------------------------------------


@given(
    data=st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(0, 400)),
        min_size=1,
        max_size=12,
    ),
    total=st.integers(0, 3000),
)
@settings(max_examples=300, deadline=None)
def test_rounding_meets_the_total_and_the_caps(data, total):
    shares, caps = [s for s, _ in data], [c for _, c in data]
    whole = round_to_total(shares, total, caps)
    assert sum(whole) == min(total, sum(caps))
    assert all(0 <= w <= c for w, c in zip(whole, caps))
    assert whole == round_to_total(shares, total, caps)


@given(shares=st.lists(st.integers(1, 1000), min_size=1, max_size=9), total=st.integers(0, 2000))
@settings(max_examples=200, deadline=None)
def test_rounding_without_caps_is_largest_remainder(shares, total):
    weight = sum(shares)
    whole = [s * total // weight for s in shares]
    rest = [s * total % weight for s in shares]
    order = sorted(range(len(shares)), key=lambda i: (-rest[i], i))
    for i in order[: total - sum(whole)]:
        whole[i] += 1
    got = round_to_total(shares, total, [total] * len(shares))
    assert sum(got) == total
    # Remainders that are equal on paper may differ in the last bit of a float: compare where they do not.
    if len(set(rest)) == len(rest):
        assert got == whole


def test_what_a_capped_share_cannot_take_goes_to_the_others_in_proportion():
    assert round_to_total([60, 20, 20], 100, [40, 100, 100]) == [40, 30, 30]
    assert round_to_total([90, 5, 3, 2], 100, [40, 30, 100, 100]) == [40, 30, 18, 12]
    assert round_to_total([1, 1, 1], 2, [5, 5, 5]) == [1, 1, 0]
    assert round_to_total([0, 0], 5, [3, 3]) == [3, 2]
    assert round_to_total([0, 7], 5, [3, 3]) == [2, 3]


# -- ranks --------------------------------------------------------------------------------------------


@given(
    scores=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4),
    marks=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_rank_is_score_then_position_with_first_entries_before_all(scores, marks):
    first = torch.tensor([marks] * len(scores))
    for given_first in (None, first):
        places = rank(torch.tensor(scores, dtype=torch.float32), given_first)
        for head, row in enumerate(scores):
            key = [(-(given_first is not None and marks[p]), -s, p) for p, s in enumerate(row)]
            assert places[head].tolist() == [sorted(key).index(k) for k in key]


# -- worked examples ----------------------------------------------------------------------------------

LAPROX = ([[4, 3, 2, 1], [1, 1, 1, 1]], [[40, 10, 10, 10], [5, 10, 5, 10]])


def test_laprox_totals_normalised_and_not():
    layers = [layer(scores, 2) for scores in LAPROX]  # K = 2 layers x 2 heads x 2
    # Layer sums 14 and 100: .4, .286, .214, .143, then five tied at .1 in layer 1 of which four fit.
    assert [sum(heads) for heads in shared("global", layers, normalise=True)] == [3, 5]
    assert [sum(heads) for heads in shared("global", layers, normalise=False)] == [0, 8]


def test_scaling_one_layer_leaves_the_normalised_ranking_unchanged():
    scores = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(0))
    plain = [Candidates(s, None, 10) for s in scores]
    scaled = [Candidates(scores[0] * 1024, None, 10), plain[1]]
    assert shared("global", plain, normalise=True) == shared("global", scaled, normalise=True)
    assert shared("global", plain, normalise=False) != shared("global", scaled, normalise=False)


def test_adakv_interpolates_as_the_authors_do():
    # 16 of the 20 best entries lie in head 0: .8 * [16, 4] + .2 * 10 = [14.8, 5.2] -> [15, 5].
    scores = torch.zeros(2, 30)
    scores[0, :16] = 2 + torch.rand(16, generator=torch.Generator().manual_seed(0))
    scores[1, :4] = 2
    c = Candidates(scores, None, 10)
    assert best_counts([c], 20)[0].tolist() == [16, 4]
    assert shared("across_heads", [c], rule="interpolate", safeguard=0.2) == [[15, 5]]
    assert shared("across_heads", [c], rule="interpolate", safeguard=0.0) == [[16, 4]]
    assert shared("across_heads", [c], rule="interpolate", safeguard=1.0) == [[10, 10]]


def test_adakv_floor_keeps_each_heads_own_best():
    # Head 1 would get nothing; with safeguard .2 of 10 it keeps its own two best.
    scores = torch.stack([torch.arange(100.0, 70, -1), torch.arange(30.0, 0, -1)])
    c = Candidates(scores, None, 10)
    assert shared("across_heads", [c], safeguard=0.0) == [[20, 0]]
    assert shared("across_heads", [c], safeguard=0.2) == [[18, 2]]
    assert shared("across_heads", [c], safeguard=1.0) == [[10, 10]]
    assert shared("across_heads", [Candidates(scores, None, 3)], safeguard=0.2) == [[6, 0]]  # floor(.6) = 0


def test_safeguard_is_exact_arithmetic():
    scores = torch.stack([torch.full((100,), 9.0), torch.zeros(100)])
    # 0.29 * 100 is 29, not 28
    assert shared("across_heads", [Candidates(scores, None, 50)], safeguard=0.58) == [[71, 29]]


def test_pyramid_falls_linearly_and_keeps_the_mean():
    layers = [Candidates(torch.rand(2, 1000), None, 200) for _ in range(4)]
    # beta 20: last layer 10, first 390; both heads of a layer: 780, 526 2/3, 273 1/3, 20.
    assert shared("pyramid", layers, beta=20) == [[390, 390], [264, 263], [137, 136], [10, 10]]
    sums = [sum(heads) for heads in shared("pyramid", layers, beta=20)]
    assert sums == sorted(sums, reverse=True)
    assert sum(sums) == 4 * 2 * 200
    assert shared("pyramid", layers, beta=1) == [[200, 200]] * 4


def test_pyramid_turns_about_its_middle_where_the_first_layer_is_full():
    layers = [Candidates(torch.rand(2, 1000), None, 600) for _ in range(5)]
    per_head = [heads[0] for heads in shared("pyramid", layers, beta=20)]
    assert per_head == [1000, 800, 600, 400, 200]
    assert shared("pyramid", [Candidates(torch.rand(2, 9), None, 4)]) == [[4, 4]]  # a single layer


def test_calibrated_gives_a_floor_then_shares_then_repairs():
    e = [0.5, 0.3, 0.15, 0.05]
    layers = [Candidates(torch.rand(2, 256), None, 64) for _ in range(4)]
    # 256 - 4 x 32 = 128 to share: 32 + 64, 32 + 38, 32 + 19, 32 + 6 is 255; the one missing goes to layer 0
    assert shared("calibrated", layers, layer_weights=e) == [[97] * 2, [70] * 2, [51] * 2, [38] * 2]
    assert layer_budgets(e, 4 * 64, [32] * 4, [192] * 4) == [97, 70, 51, 38]
    # 8 rows kept by rule count in: of the 64 only 56 are chosen by score
    inside = [Candidates(torch.rand(1, 256), None, 56, protected=8) for _ in range(4)]
    assert shared("calibrated", inside, layer_weights=e) == [[89], [62], [43], [30]]
    # the method's own claims stand in for the option
    claims = [Candidates(torch.rand(1, 256), None, 64, weight=w) for w in e]
    assert shared("calibrated", claims) == [[97], [70], [51], [38]]


def test_calibrated_is_capped_at_three_times_the_mean():
    layers = [Candidates(torch.rand(1, 900), None, 256) for _ in range(4)]
    # 128 + .9 (1024 - 128) = 838 is cut to 768; 77 + 59 + 50 leave 70 for three layers: 24, 23, 23
    wanted = [[768], [101], [82], [73]]
    assert shared("calibrated", layers, layer_weights=[0.9, 0.05, 0.03, 0.02]) == wanted
    # the order of the layers does not matter
    turned = shared("calibrated", layers, layer_weights=[0.02, 0.9, 0.03, 0.05])
    assert turned == [wanted[3], wanted[0], wanted[2], wanted[1]]
    small = [Candidates(torch.rand(1, 100), None, 64) for _ in range(4)]
    assert shared("calibrated", small, layer_weights=[0.9, 0.1, 0.0, 0.0]) == [[100], [61], [48], [47]]
    tiny = [Candidates(torch.rand(1, 100), None, 20) for _ in range(4)]  # the floor shrinks to the budget
    assert shared("calibrated", tiny, layer_weights=[0.9, 0.1, 0.0, 0.0]) == [[20]] * 4


@given(
    b=st.integers(1, 400),
    n=st.integers(1, 900),
    weights=st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_calibrated_stays_between_floor_and_cap(b, n, weights):
    b = min(b, n)
    out = layer_budgets(
        weights, len(weights) * b, [min(32, b)] * len(weights), [min(n, 3 * b)] * len(weights)
    )
    assert sum(out) == len(weights) * b
    assert all(min(32, b) <= x <= min(n, 3 * b) for x in out)


def test_whole_heads_come_as_near_as_they_can_from_below():
    gates = [[0.9, 0.1], [0.4, 0.2]]
    layers = [Candidates(torch.tensor(g)[:, None].expand(2, 10), None, 5) for g in gates]
    assert shared("whole_heads", layers) == [[10, 0], [10, 0]]
    layers = [Candidates(torch.tensor(g)[:, None].expand(2, 10), None, 4) for g in gates]
    assert shared("whole_heads", layers) == [[10, 0], [0, 0]]  # 16 to give: one head, not two
    layers = [Candidates(torch.tensor(g)[:, None].expand(2, 10), None, 10) for g in gates]
    assert shared("whole_heads", layers) == [[10, 10]] * 2
    assert shared("whole_heads", [Candidates(torch.rand(2, 0), None, 0)]) == [[0, 0]]


def test_calibrated_needs_a_weight_a_layer():
    layers = [Candidates(torch.rand(1, 9), None, 3)] * 2
    for weights in (None, [1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(InputError, match="one number for each of the 2 layers"):
            shared("calibrated", layers, layer_weights=weights)


def test_entropy_goes_by_the_stated_claims_and_else_by_the_scores():
    layers = [layer([[1.0] * 40], 10, weight=3.0), layer([[1.0] * 40], 10, weight=1.0)]
    assert shared("entropy", layers) == [[15], [5]]
    peak = torch.zeros(1, 40)
    peak[0, 3] = 1
    flat = torch.ones(1, 40)
    assert flat_entropy(flat) == pytest.approx(1.0)
    assert flat_entropy(peak) == 0.0
    half = torch.tensor([[1.0, 1.0, 0.0, 0.0]])  # log 2 / log 4
    assert flat_entropy(half) == pytest.approx(0.5)
    assert shared("entropy", [Candidates(flat, None, 10), Candidates(peak, None, 10)]) == [[20], [0]]


def test_what_does_not_divide_goes_to_the_lower_heads():
    layers = [layer([[1.0] * 9] * 4, 3, weight=10.0), layer([[1.0] * 9] * 4, 3, weight=14.0)]
    assert shared("entropy", layers) == [[3, 3, 2, 2], [4, 4, 3, 3]]


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("snapkv", {"allocation": "best"}, "SnapKV: allocation is one of uniform, pyramid, "),
        ("adakv", {"rule": "blend"}, "AdaKV: rule is one of floor, interpolate, not 'blend'."),
        ("pyramidkv", {"beta": 0.5}, "PyramidKV: beta is a number from 1 to 1,000, not 0.5."),
        ("adakv", {"beta": 5}, "AdaKV: beta belongs to the allocation pyramid, and "),
        ("snapkv", {"allocation": "calibrated"}, "SnapKV: the allocation calibrated needs layer_weights: "),
        ("snapkv", {"allocation": "whole_heads"}, "SnapKV: the allocation whole_heads ranks heads by a "),
    ],
)
def test_what_an_allocation_cannot_do_is_a_sentence(method, options, sentence):
    with pytest.raises(InputError) as error:
        get_method(method).resolve(options)
    assert str(error.value).startswith(sentence)


def test_an_allocation_says_which_methods_it_can_serve():
    assert "calibrated" not in [a.id for a in get_method("snapkv").allocators()]
    assert "calibrated" in [a.id for a in get_method("cake").allocators()]
    whole = [m.id for m in METHODS if ALLOCATORS["whole_heads"] in m.allocators()]
    assert whole == ["duoattention"]
    weighed = get_method("snapkv").resolve({"allocation": "calibrated", "layer_weights": "0.5 0.3"})
    assert weighed["layer_weights"] == [0.5, 0.3]
    two_layers, three = SimpleNamespace(n_layers=2), SimpleNamespace(n_layers=3)
    assert get_method("snapkv").available(two_layers, weighed) == ""
    assert "each of the 3 layers" in get_method("snapkv").available(three, weighed)


# -- totals and ties, from the definition -------------------------------------------------------------


def brute_counts(layers, total, divide):
    """Sort every entry by (first, score, position, head, layer) and count the winners of each head."""
    entries = []
    for index, (c, d) in enumerate(zip(layers, divide)):
        scores = c.scores / d  # in float32, as scores are
        for h in range(c.heads):
            for p in range(c.context):
                marked = c.first is not None and bool(c.first[h, p])
                entries.append((not marked, -float(scores[h, p]), p, h, index))
    counts = [[0] * c.heads for c in layers]
    for *_, h, index in sorted(entries)[:total]:
        counts[index][h] += 1
    return counts


@st.composite
def competing(draw):
    heads = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    seed = draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for size in sizes:
        scores = torch.randint(0, 4, (heads, size), generator=generator).float()  # many ties
        first = torch.rand(heads, size, generator=generator) < 0.2 if seed % 2 else None
        layers.append(Candidates(scores, first, draw(st.integers(0, size))))
    return layers


@given(layers=competing())
@settings(max_examples=150, deadline=None)
def test_global_ranking_is_the_sorted_order(layers):
    total = sum(c.heads * c.budget for c in layers)
    assert shared("global", layers, normalise=False) == brute_counts(layers, total, [1.0] * len(layers))
    sums = [max(float(c.scores.sum()), 1e-30) for c in layers]
    assert shared("global", layers, normalise=True) == brute_counts(layers, total, sums)


@given(layers=competing())
@settings(max_examples=100, deadline=None)
def test_heads_without_safeguard_compete_in_the_sorted_order(layers):
    wanted = [brute_counts([c], c.heads * c.budget, [1.0])[0] for c in layers]
    assert shared("across_heads", layers, safeguard=0.0) == wanted


@given(
    layers=competing(),
    name=st.sampled_from(sorted(a.id for a in ALLOCATORS.values() if a.exact)),
    safeguard=st.sampled_from([0, 0.2, 0.5, 1]),
)
@settings(max_examples=250, deadline=None)
def test_every_allocation_is_exact_and_capped(layers, name, safeguard):
    weights = [1.0 + i for i in range(len(layers))]
    counts = shared(name, layers, safeguard=safeguard, layer_weights=weights)
    assert sum(map(sum, counts)) == sum(c.heads * c.budget for c in layers)
    for c, heads in zip(layers, counts):
        assert all(0 <= k <= c.context for k in heads)
        if name in ("uniform", "across_heads"):
            assert sum(heads) == c.heads * c.budget
        if name == "across_heads":
            assert min(heads) >= math.floor(safeguard * c.budget)


def test_by_layer_is_capped_by_what_a_layer_holds():
    layers = [layer([[1.0] * 4], 3), layer([[1.0] * 30], 9)]
    assert by_layer(layers, [1.0, 1.0]) == [4, 8]


def test_a_floor_of_the_whole_budget_counts_what_is_kept_by_rule():
    scores = torch.tensor([list(range(100, 60, -1)), [0.5] * 40])
    c = Candidates(scores.float(), None, 10, protected=20)
    # .2 of 30 is 6, all of it within the 20 of the window; .8 of 30 is 24: 4 more
    assert shared("across_heads", [c], safeguard=0.2, safeguard_of="budget") == [[20, 0]]
    assert shared("across_heads", [c], safeguard=0.8, safeguard_of="budget") == [[16, 4]]
    assert shared("across_heads", [c], safeguard=0.2) == [[18, 2]]


def kvpress_pyramid(n, b, window, layers, beta=20):
    """Entries a layer as that library counts them, window inside, before rounding."""
    low, high = b / beta, 2 * b - b / beta
    if high >= n - window:
        high, low = n - window, 2 * b - (n - window)
    if not n >= high >= low >= window:
        return [b] * layers
    return [high - i * (high - low) / (layers - 1) for i in range(layers)]


SIZES = [(1000, 200, 8), (1000, 500, 8), (1000, 200, 64), (400, 300, 64)]


@pytest.mark.parametrize(("n", "b", "window"), SIZES)
def test_a_pyramid_of_the_whole_budget_is_kvpress(n, b, window):
    rows = [Candidates(torch.rand(2, n - window), None, b - window, protected=window) for _ in range(4)]
    found = [sum(heads) / 2 + window for heads in shared("pyramid", rows, pyramid_of="budget")]
    wanted = kvpress_pyramid(n, b, window, 4)
    assert np.allclose(found, wanted, atol=1)
    assert sum(found) == 4 * b
