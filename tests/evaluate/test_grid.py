"""Needle grids in words and tables, from made-up rows."""

import pandas as pd
import pytest

from kvviz.evaluate.grid import as_markdown, grid_rows, in_words
from kvviz.evaluate.items import Item
from kvviz.results.study import COLUMNS


def made(places, finished="stop token", found=lambda place, method: True):
    """A grid: [(asked, reached, tokens of the text)], SnapKV with 10 tokens a head, 15.5 and 16 percent."""
    rows = []
    for place, (depth, reached, tokens) in enumerate(places):
        for method, budget, share in (("full", "100%", 1.0), ("snapkv", "10 tokens", 10 / tokens),
                                      ("snapkv", "16%", 0.16), ("snapkv", "15.5%", 0.155)):  # fmt: skip
            hit = found(place, method)
            rows.append({
                "text": 0, "depth": depth, "reached": reached, "method": method, "budget": budget,
                "share": share, "finished": "stop token" if hit else finished, "hit": hit, "mean_kl": 0.5,
                "error": 0.25, "improved": float("nan"),
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_budgets_in_tokens_are_one_column_whatever_the_length_of_the_text():
    header, _, row = as_markdown(made([(0.1, 0.1, 998), (0.5, 0.5, 1002)])).splitlines()[2:]
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names[:4] == ["method", "hits 16%", "hits 15.5%", "hits 10 tokens"] and len(names) == 13
    assert row.startswith("| `snapkv` | 2 | 2 | 2 |")


def test_the_place_that_was_reached_is_said_beside_the_one_asked_for():
    said = in_words(made([(0.1, 0.255, 100), (0.9, 0.83, 100)]))
    assert "The needle stood at 26% to 83% of the text, asked for at 10% to 90%." in said


@pytest.mark.parametrize(("finished", "word"), [("length", True), ("stop token", False)])
def test_a_miss_of_the_full_cache_at_the_length_limit_is_no_loss_of_what_was_read(finished, word):
    said = in_words(made([(0.1, 0.1, 100)] * 5, finished, lambda place, method: place < 4))
    assert said.startswith("Full cache: 4 of 5 found. Hits are of 5 places.")
    assert ("One of its misses was cut off at the longest answer" in said) == word


def test_few_places_rank_no_methods():
    assert "Too few to rank methods." in in_words(made([(0.1, 0.1, 100)] * 10))
    assert "Too few" not in in_words(made([(0.1, 0.1, 100)] * 20))


def test_rows_hold_the_budget_as_it_was_asked_for_and_the_place_that_was_reached():
    items = [Item("a", "needle", "", "", ("x",),
                  meta={"text": 0, "seed": 1, "needle": 2, "reached": 0.26})]  # fmt: skip
    row = dict.fromkeys(COLUMNS, "") | {
        "item": "a", "method": "snapkv", "budget": 10.0, "budget_name": "10 tokens", "share": 0.01,
        "depth": 0.1, "verdict": "wrong", "finished_by": "length",
    }  # fmt: skip
    found = grid_rows(pd.DataFrame([row]), items).iloc[0]
    assert (found.budget, found.share, found.depth, found.reached) == ("10 tokens", 0.01, 0.1, 0.26)
    assert not found.hit and found.finished == "length"
