"""The search for few entries, against all subsets."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz.engine.search import Search, is_minimal, joined, singles, smallest
from kvviz.engine.steps import Steps


def search_of(works, weights=None, most=10_000):
    def gains(sets):
        return [0.0 if weights is None else float(weights[s].sum()) for s in sets]

    return Search(lambda sets: [works(frozenset(s.tolist())) for s in sets], gains, most)


def run(generator):
    """What a generator returns."""
    steps = Steps(generator)
    list(steps)
    return steps.result


def pairs(entries):
    return [entries[i : i + 2] for i in range(0, len(entries), 2)]


def every_subset(n):
    return [frozenset(c) for size in range(n + 1) for c in combinations(range(n), size)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_oracle_gives_a_minimal_set_that_works(data):
    """Also where more entries do not help: the oracle is any table over all subsets of 7 entries."""
    subsets = every_subset(7)
    table = dict(zip(subsets, data.draw(st.lists(st.booleans(), min_size=128, max_size=128))))
    table[frozenset()] = False
    table[frozenset(range(7))] = True
    search = search_of(table.__getitem__)
    assert run(smallest(search, np.arange(7), [pairs]))
    found = frozenset(search.best.tolist())
    assert table[found]
    assert is_minimal(search, search.best) == [not table[found - {e}] for e in sorted(found)]
    assert all(is_minimal(search, search.best)) or len(found) == 1


@pytest.mark.parametrize("needed", [{3}, {0, 9}, {1, 4, 7}, set(range(10))])
def test_where_more_never_harms_the_smallest_of_all_is_found(needed):
    search = search_of(lambda s: needed <= s)
    assert run(smallest(search, np.arange(10), [pairs]))
    assert set(search.best.tolist()) == needed


def test_ranks_by_gain_and_takes_the_shortest_run():
    weights = np.array([0, 5, 1, 9, 0, 2], float)
    search = search_of(lambda s: weights[list(s)].sum() >= 13, weights)
    assert run(smallest(search, np.arange(6), []))
    assert search.best.tolist() == [1, 3]


def test_out_of_trials_keeps_the_best_so_far():
    search = search_of(lambda s: {1, 40, 63} <= s, most=12)
    assert not run(smallest(search, np.arange(64), []))
    assert {1, 40, 63} <= set(search.best.tolist())
    assert search.asked <= 12


def test_nothing_works():
    search = search_of(lambda s: False)
    assert run(smallest(search, np.arange(5), []))
    assert search.best is None


def test_the_fewest_leading_entries_of_an_order():
    search = search_of(lambda s: {7, 2} <= s)
    assert search.shortest(np.array([5, 7, 9, 0, 2, 1])).tolist() == [0, 2, 5, 7, 9]
    assert search.shortest(np.array([5, 7])) is None
    search = search_of(lambda s: len(s) >= 700)
    found = search.shortest(np.arange(5000))
    assert 700 <= len(found) <= 714 and search.asked < 50


def test_as_many_as_can_are_spared_together():
    """Any entry alone can be spared, not all of them."""
    search = search_of(lambda s: len(s) >= 5)
    assert len(joined(run(search.pruned(singles(np.arange(40)))))) == 5
    assert search.asked < 120


def test_no_set_is_asked_twice():
    asked = []
    search = search_of(lambda s: asked.append(s) or {2, 3} <= s)
    run(smallest(search, np.arange(9), [pairs]))
    is_minimal(search, search.best)
    assert len(asked) == len(set(asked))


def test_many_parts_are_ordered_by_their_weights_without_a_trial():
    weights = np.zeros(1000)
    weights[[3, 700, 999]] = 3, 2, 1
    works = lambda sets: [{3, 700} <= set(s.tolist()) for s in sets]  # noqa: E731
    search = Search(works, pytest.fail, hint=lambda: weights)
    assert [int(part[0]) for part in search.ranked(singles(np.arange(1000)))[:3]] == [3, 700, 999]
    assert search.asked == 0
    assert run(smallest(search, np.arange(1000), [])) and search.best.tolist() == [3, 700]
    assert search.asked < 60


def test_a_gain_that_is_known_is_not_tried_again():
    tried = []

    def gains(sets):
        tried.extend(s.tolist() for s in sets)
        return [0.5] * len(sets)

    parts = pairs(np.arange(6))
    search = Search(lambda sets: [True] * len(sets), gains, gained={parts[2].tobytes(): 1.0})
    assert [part.tolist() for part in search.ranked(parts)] == [[4, 5], [0, 1], [2, 3]]
    assert search.ranked(parts) and tried == [[0, 1], [2, 3]] and search.asked == 2


def test_joined_is_sorted_and_free_of_doubles():
    assert joined([np.array([4, 2]), np.array([2, 9])]).tolist() == [2, 4, 9]
    assert joined([]).tolist() == []
    assert [s.tolist() for s in singles(np.array([3, 5]))] == [[3], [5]]


def test_many_parts_whose_gains_are_known_are_ordered_by_them():
    parts = pairs(np.arange(400))
    known = {part.tobytes(): float(part[0] == 200) for part in parts}
    search = Search(lambda sets: [True] * len(sets), pytest.fail, hint=pytest.fail, gained=known)
    assert search.ranked(parts)[0].tolist() == [200, 201] and search.asked == 0
