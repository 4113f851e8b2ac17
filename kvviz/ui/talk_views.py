"""Further questions as the page shows them: turns side by side at the chosen budget."""

from __future__ import annotations

from typing import Any

from kvviz.results import words as text
from kvviz.results.answers import VERDICTS, differing_words
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.times import turn_seconds
from kvviz.results.turns import Turn, mean_kl, rows, words
from kvviz.results.verdict import judge
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run
from kvviz.ui.views import view


@view("turns")
def turns(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Every further question with the answers at this budget: the full cache, A, B, then the others."""
    c = run.comparison
    return {
        "turns": [_turn(c, turn, chosen) for turn in c.turns],
        "table": _table(c, chosen),
        "words": words(c),
        "seconds": turn_seconds(c),
        "asked_at": [text.budget_name(b) for b in c.budgets],
    }


def _table(c: Comparison, chosen: Chosen) -> dict[str, Any] | None:
    """Verdict and KL of each cache at this budget on every question, the run's own first; None where one
    further question alone says as much."""
    if len(c.turns) < 2:
        return None
    found = {(row["method"], row["budget"], row["number"]): row for row in rows(c)}
    caches = [v for v in [c.full, *(c.variant(m, _budget(c, chosen)) for m in c.methods)] if v is not None]
    numbers = range(1 + len(c.turns))
    return {
        "questions": [c.prompt.question, *(turn.question for turn in c.turns)],
        "rows": [
            _row(v is c.full, v.label if v is c.full else text.label(c, v.method),
                 [found.get((v.method, v.budget, number)) for number in numbers])
            for v in caches
        ],
    }  # fmt: skip


def _row(full: bool, label: str, answers: list[dict[str, Any] | None]) -> dict[str, Any]:
    """What one cache answered; None for a question that was asked before the cache was made."""
    verdicts = [one["verdict"] for one in answers if one and one["verdict"] in ("right", "wrong")]
    cells = [
        one and {"text": one["text"], "verdict": one["verdict"],
                 "kl": "" if full else text.kl_number(one["mean_kl"])}
        for one in answers
    ]  # fmt: skip
    right = f"{verdicts.count('right')} of {len(verdicts)} right" if verdicts else ""
    return {"label": label, "cells": cells, "right": right}


def _budget(c: Comparison, chosen: Chosen) -> float | int:
    """The budget whose answers are shown: the nearest at which A was decoded."""
    decoded = c.variant(chosen.a, chosen.budget)
    return chosen.budget if decoded is None else decoded.budget


def _turn(c: Comparison, turn: Turn, chosen: Chosen) -> dict[str, Any]:
    budget = _budget(c, chosen)
    sides = {"a": chosen.a, "b": chosen.b}
    names = [*filter(None, sides.values()), *(m for m in c.methods if m not in sides.values())]
    answers = [(m, c.variant(m, budget)) for m in names]
    found: list[tuple[str, Variant | None]] = [("full", turn.full)]
    found += [(m, turn.answer(v.key)) for m, v in answers if v is not None]
    roles = {"full": "full", **{m: side for side, m in sides.items() if m}}
    cards = [_card(c, turn, roles.get(m, ""), v) for m, v in found if v is not None]
    return {
        "question": turn.question, "expected": turn.expected, "fresh": turn.fresh, "cards": cards,
        "at": text.budget_name(budget),
    }  # fmt: skip


def _card(c: Comparison, turn: Turn, role: str, v: Variant) -> dict[str, Any]:
    judged = judge(v, turn.expected)
    full = v is turn.full
    return {
        "role": role,
        "label": v.label if full else text.label(c, v.method),
        "words": [(v.text, False)] if full else differing_words(v.text, turn.full.text),
        "kl": "" if full else f"KL {text.kl(mean_kl(v))}",
        "verdict": judged,
        "verdict_words": VERDICTS[judged],
    }
