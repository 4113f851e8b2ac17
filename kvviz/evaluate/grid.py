"""Needle grids: every method at every budget, the needle at several places of a text.

One comparison a place; all methods and budgets share its prefill and are decoded together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

import kvviz
from kvviz.evaluate.needles import DEPTHS, needle_cases
from kvviz.models import Model
from kvviz.results.comparison import Comparison, mean_kl
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
    base: str = "snapkv",
    say: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> pd.DataFrame:
    """One row a (text, depth, method, budget); the full cache is there at budget 1.

    hit        the answer contains the needle's code.
    mean_kl    nats a token against the full cache (first step left out where it is shared).
    error      mean over layers and query heads of the relative L2 output error at answer tokens.
    improved   share of query heads whose error is below that of `base` at the same budget (NaN for base).
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
        rows += _rows(c, case, base)
        if say:
            say(f"text {case.text}, place {case.depth:.0%}: full cache says {c.full.text!r}")
    return pd.DataFrame(rows)


def _rows(c: Comparison, case, base: str) -> list[dict[str, Any]]:
    rows = []
    for v in [c.full, *c.variants]:
        reference = c.variant(base, v.budget)
        improved = float("nan")
        if v.output_error is not None and reference is not None and v.method != base:
            improved = float((v.output_error < reference.output_error).mean())
        rows.append(
            {
                "text": case.text,
                "depth": case.depth,
                "method": v.method,
                "label": v.label,
                "budget": c.share(v.budget),
                "hit": contains_expected(v.text, case.expected),
                "mean_kl": mean_kl(v.kl, c.prompt.protocol),
                "error": float("nan") if v.output_error is None else float(np.mean(v.output_error)),
                "improved": improved,
            }
        )
    return rows


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
    return table.reindex(dict.fromkeys(kept.method))


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
