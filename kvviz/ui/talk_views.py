"""Further questions as the page shows them: turns side by side at the chosen budget."""

from __future__ import annotations

from typing import Any

from kvviz.results import words as text
from kvviz.results.answers import VERDICTS, differing_words
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.times import turn_seconds
from kvviz.results.turns import Turn, mean_kl, words
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
        "words": words(c),
        "seconds": turn_seconds(c),
        "asked_at": [text.budget_name(c, b) for b in c.budgets],
    }


def _turn(c: Comparison, turn: Turn, chosen: Chosen) -> dict[str, Any]:
    decoded = c.variant(chosen.a, chosen.budget)
    budget = chosen.budget if decoded is None else decoded.budget
    sides = {"a": chosen.a, "b": chosen.b}
    names = [*filter(None, sides.values()), *(m for m in c.methods if m not in sides.values())]
    answers = [(m, c.variant(m, budget)) for m in names]
    found: list[tuple[str, Variant | None]] = [("full", turn.full)]
    found += [(m, turn.answer(v.key)) for m, v in answers if v is not None]
    roles = {"full": "full", **{m: side for side, m in sides.items() if m}}
    cards = [_card(c, turn, roles.get(m, ""), v) for m, v in found if v is not None]
    return {
        "question": turn.question, "expected": turn.expected, "fresh": turn.fresh, "cards": cards,
        "at": text.budget_name(c, budget),
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
