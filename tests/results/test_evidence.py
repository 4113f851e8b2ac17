"""What is said of a sweep: n everywhere, what is set apart, who is ahead or that nobody can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from many import KNEW, WRONG, sweep_rows

from kvviz.errors import InputError
from kvviz.results import evidence as said
from kvviz.results.sweeps import Sweep, tidy


def sweep_of(rows) -> Sweep:
    return Sweep("A made-up sweep", tidy({name: [r[name] for r in rows] for name in rows[0]}))


@pytest.fixture(scope="module")
def sweep():
    return sweep_of(sweep_rows(protocols=("question-aware", "question-agnostic")))


def test_it_opens_on_right_answers_near_a_fifth_kept(sweep):
    pick = said.usual(sweep)
    assert (pick.measure, pick.budget, pick.a, pick.b) == ("right", "20%", "snapkv", "criticalkv")
    assert said.usual(sweep_of(sweep_rows(n=4))).measure == "kl"  # too few items tell


def test_every_number_has_its_n_and_what_is_set_apart_is_said(sweep):
    pick = said.usual(sweep)
    lines = " ".join(said.facts_words(sweep, pick))
    assert "24 items in 12 documents, tiny" in lines
    assert f"{24 - len(WRONG)} of 24 rightly" in lines and f"{len(KNEW)} item did not need" in lines
    assert "Where the question comes later, numbers stand on their own" in lines
    assert said.values_words(sweep, pick).count("n = 21") == 2
    assert {row["item"] for row in said.apart(sweep, pick)} == {"item-0", "item-1", "item-2"}


def test_who_is_ahead_or_that_it_cannot_be_told(sweep):
    pick = said.usual(sweep)
    assert "CriticalKV is ahead" in said.lead(sweep, pick) and "McNemar" in said.verdict(sweep, pick)
    few = sweep_of(sweep_rows(n=8))
    pick = replace(said.usual(few), measure="kl", b="keydiff")
    assert "too few to tell SnapKV from KeyDiff" in said.lead(few, pick)
    assert "too few to tell (p" in said.verdict(few, pick)
    assert "9 that can be chosen here, about 1" in said.how_many(sweep, said.usual(sweep))


def test_one_method_has_nobody_to_be_held_against(sweep):
    alone = sweep_of([r for r in sweep_rows() if r["method"] in ("full", "snapkv")])
    pick = said.usual(alone)
    assert pick.b is None and said.lead(alone, pick).startswith("At 20% kept, SnapKV: share")
    with pytest.raises(InputError, match="one method only"):
        said.pairs(alone, pick)


def test_only_the_full_cache_is_refused():
    with pytest.raises(InputError, match="no method beside the full cache"):
        said.usual(sweep_of([r for r in sweep_rows(n=4) if r["method"] == "full"]))


def test_slices_hold_every_item_once(sweep):
    rows = said.here(sweep, said.usual(sweep))
    for by in said.SLICES:
        parts = said.sliced(rows, by)
        assert sum(len(part) for _, part in parts) == len(rows)
    assert [name for name, _ in said.sliced(rows, "length")] == ["500 tokens", "1,000 tokens"]
    assert [name for name, _ in said.sliced(rows, "depth")] == ["10%", "50%", "90%"]
    many = rows.assign(length=range(100, 100 + 37 * len(rows), 37))
    names = [name for name, _ in said.sliced(many, "length")]
    assert names[0] == "up to 500 tokens" and len(names) <= len(said.LENGTH_STEPS) + 1


def test_a_table_without_verdicts_is_told_by_kl():
    rows = [r | {"verdict": "", "score": None} for r in sweep_rows()]
    sweep = sweep_of(rows)
    pick = said.usual(sweep)
    held = said.measures(sweep.of("tiny", "question-aware"))
    assert pick.measure == "kl" and held == ["kl", "output_error"]
    assert said.apart(sweep, pick)[0]["why"].startswith("it knew")
