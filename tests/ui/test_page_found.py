"""The cache found by search is chosen as A or B like any method, at its own size."""

import pytest

from kvviz.figures.sweep_table import sweep_table
from kvviz.results.causes import FOUND, FOUND_LABEL
from kvviz.results.finding import finding
from kvviz.ui.chosen import checked
from kvviz.ui.export_views import Exports
from kvviz.ui.views import answer


def _ask(store, view, sel, **args):
    body = {"view": view, "run": "stored-example", "sel": sel, "args": args}
    return answer(store, Exports(), body)


@pytest.mark.parametrize("side", ["a", "b"])
def test_it_is_offered_and_drawn(store, side):
    c = store.get("stored-example").comparison
    sel = {"a": "snapkv", "b": "dropkv", "budget": 0.1, side: FOUND}
    assert getattr(checked(sel, c), side) == FOUND
    meta = _ask(store, "meta", sel)
    assert [m["label"] for m in meta["methods"]][-1] == FOUND_LABEL
    for view in ("kept", "versus", "heads", "document", "finding", "cards", "sweep", "per_layer"):
        reply = _ask(store, view, sel, side=side)
        assert "error" not in reply, (view, reply)


def test_its_card_says_its_size_and_how_far_the_search_went(store):
    c = store.get("stored-example").comparison
    card = _ask(store, "cards", {"a": FOUND, "b": "snapkv", "budget": 0.1})["cards"][1]
    assert "".join(piece for piece, _ in card["words"]) == c.full.text
    assert card["decoded_at"] == c.would_do.budget != 0.1
    assert "found by search" in card["notice"] and "A smaller one may exist" in card["notice"]


def test_the_budget_is_not_said_of_it(store):
    c = store.get("stored-example").comparison
    words = {_ask(store, "meta", {})["budget_words"][FOUND][i] for i in (0, -1)}
    assert len(words) == 1
    assert finding(c, FOUND, None, 0.1)[0].startswith("A cache of ")


def test_its_point_has_the_role_of_the_side_it_is_chosen_for(store):
    c = store.get("stored-example").comparison
    roles = {s.method: s.role for s in sweep_table(c, "kl", "snapkv", FOUND, 0.1).series}
    assert roles["snapkv"] == "a" and roles[FOUND] == "b"


def test_there_is_nothing_to_put_back_into_it(store):
    assert "found by search" in _ask(store, "cause", {"a": FOUND, "budget": 0.1})["error"]
