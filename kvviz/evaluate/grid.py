"""Needle grids: every method at every budget, the needle at several places of a text.

One comparison a place; all methods and budgets share its prefill and are decoded together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

import kvviz
from kvviz.evaluate.needles import DEPTHS, needle_cases
from kvviz.models import Model
from kvviz.results.comparison import Comparison
from kvviz.results.verdict import contains_expected
from kvviz.types import QUESTION_AWARE


def needle_grid(
    model: Model,
    methods: Sequence[str],
    budgets: Sequence[float | int],
    tokens: int = 1000,
    depths: Sequence[float] = DEPTHS,
    texts: Sequence[int] = (0,),
    seed: int = 0,
    protocol: str = QUESTION_AWARE,
    controlled: bool = True,
    max_new_tokens: int = 24,
    say: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> pd.DataFrame:
    """One row a (text, depth, method, budget); the full cache is there at budget 1.

    hit        the answer contains the needle's code.
    mean_kl    nats a token against the full cache (first step left out where it is shared).
    error      mean over query heads, in layers where something was evicted, of the relative L2 output error.
    improved   share of those heads whose error is below that of the method's attention-only base at the same
               budget by more than 1%; NaN where the base is not among `methods`.
    """
    rows = []
    for case in needle_cases(tokens, tuple(depths), model.tokenizer, tuple(texts), seed):
        prompt = kvviz.build_prompt(model, case.document, case.question, protocol=protocol)
        c = kvviz.compare(
            model, prompt, methods, budgets, max_new_tokens, expected=case.expected, controlled=controlled,
            cancel=cancel,
        )  # fmt: skip
        if cancel is not None and cancel.is_set():
            break  # a place counts whole or not at all
        rows += _rows(c, case)
        if say:
            say(f"text {case.text}, place {case.depth:.0%}: full cache says {c.full.text!r}")
    return pd.DataFrame(rows)


def _rows(c: Comparison, case) -> list[dict[str, Any]]:
    return [
        {
            "text": case.text,
            "depth": case.depth,
            "method": row["method"],
            "label": row["label"],
            "budget": row["share"],
            "hit": contains_expected(row["text"], case.expected),
            "mean_kl": _or_nan(row["mean_kl"]),
            "error": _or_nan(row["mean_output_error"]),
            "improved": _or_nan(row["heads_improved"]),
        }
        for row in c.rows()
    ]


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def summary(grid: pd.DataFrame) -> pd.DataFrame:
    """Means over texts and places: one row a method, columns (measure, budget); hits are counts."""
    kept = grid[grid.method != "full"]
    table = kept.pivot_table(
        index="method",
        columns="budget",
        values=["hit", "mean_kl", "error", "improved"],
        aggfunc={"hit": "sum", "mean_kl": "mean", "error": "mean", "improved": "mean"},
        sort=False,
    )
    return table.reindex(list(dict.fromkeys(kept.method)))


def as_markdown(grid: pd.DataFrame) -> str:
    """The summary as a markdown table: hits, KL, output error and share of heads improved at each budget."""
    table = summary(grid)
    budgets = sorted(grid[grid.method != "full"].budget.unique(), reverse=True)
    full = grid[grid.method == "full"]
    places = len(full)
    lines = [
        f"Full cache: {int(full.hit.sum())} of {places} found. Hits are of {places} places.",
        "",
        "| method | " + " | ".join(f"hits {b:.0%}" for b in budgets)
        + " | " + " | ".join(f"KL {b:.0%}" for b in budgets)
        + " | " + " | ".join(f"error {b:.0%}" for b in budgets)
        + " | " + " | ".join(f"heads improved {b:.0%}" for b in budgets) + " |",
        "|---" * (1 + 4 * len(budgets)) + "|",
    ]  # fmt: skip
    for method, row in table.iterrows():
        cells = [f"`{method}`"]
        cells += [f"{int(row['hit', b])}" for b in budgets]
        cells += [f"{row['mean_kl', b]:.2f}" for b in budgets]
        cells += [f"{row['error', b]:.0%}" for b in budgets]
        cells += [_share(row.get(("improved", b))) for b in budgets]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(x: float | None) -> str:
    return "–" if x is None or x != x else f"{x:.0%}"
