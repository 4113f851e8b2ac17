"""From a sweep's table to numbers with n and a 95 % interval, one model and protocol at a time.

Items that the full cache gets wrong say nothing about a method: they are counted apart, never as its loss.
So are items that the model answers without their document. KL and output error count every item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InputError
from kvviz.results.comparison import FULL
from kvviz.results.statistics import FEWEST, Estimate, Paired, bootstrap_mean, mcnemar, paired_means, wilson

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {  # column of the table -> (words, what is better)
    "right": ("share of answers still right", "higher"),
    "score": ("mean score", "higher"),
    "kl": ("mean KL, nats a step", "lower"),
    "output_error": ("output error, median head", "lower"),
}
KEYS = ["model", "protocol", "item"]


@dataclass(frozen=True)
class Line:
    """One method at one budget: the estimate, and the items that are not in it, by reason."""

    model: str
    protocol: str
    method: str
    budget_name: str
    share: float
    measure: str
    estimate: Estimate
    full_failed: int
    knew: int
    empty: int
    without_answer: int


def with_full(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `right` (True, False, None), and the full cache's `full_right`, `full_score` beside."""
    t = table.assign(right=table.verdict.map({"right": True, "wrong": False}).astype(object))
    full = t[t.method == FULL].drop_duplicates(KEYS)[[*KEYS, "right", "score"]]
    names = {"right": "full_right", "score": "full_score"}
    return t.merge(full.rename(columns=names), on=KEYS, how="left")


def telling(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The rows that say something about a method: for verdicts and scores, those of items that the full
    cache answers rightly (without a verdict: with any score) and that need their document."""
    usable = rows[rows[measure].notna()]
    if measure in ("right", "score"):
        served = usable.full_right.eq(True) | (usable.full_right.isna() & usable.full_score.gt(0))
        usable = usable[served & ~usable.knew.fillna("").astype(bool)]
    return usable


def estimated(used: pd.DataFrame, measure: str) -> Estimate:
    """Of rows that tell: a share with Wilson's interval, a mean with the bootstrap's by document."""
    if measure == "right":
        return wilson(int(used.right.eq(True).sum()), len(used))
    values = used[measure].astype(float)
    found = bootstrap_mean(values.tolist(), list(used.document))
    documents = used.document.nunique()
    if measure == "score" and documents >= FEWEST and found.value in (0, 1):
        # Resampling what is all 0 or all 1 knows no doubt: Wilson's interval, a document counted once.
        told = wilson(documents * int(found.value), documents)
        return Estimate(found.value, told.low, told.high, found.n)
    return found


def scoreboard(table: pd.DataFrame, measure: str) -> list[Line]:
    """A line a model, protocol, method and budget, largest budgets first."""
    if measure not in MEASURES:
        raise InputError(f"There is no measure {measure!r}. Choose from: {', '.join(MEASURES)}.")
    t = table if "full_right" in table else with_full(table)
    lines = []
    groups = t[t.method != FULL].groupby(["model", "protocol", "method", "budget_name"], sort=False)
    for key, rows in groups:
        model, protocol, method, budget = map(str, key)
        estimate = estimated(telling(rows, measure), measure)
        missed = rows.full_right.eq(False) | (rows.full_right.isna() & rows.full_score.eq(0))
        lines.append(
            Line(
                model, protocol, method, budget, float(rows.share.mean()), measure, estimate,
                full_failed=int(missed.sum()),
                knew=int(rows.knew.fillna("").astype(bool).sum()),
                empty=int(rows["empty"].fillna(False).astype(bool).sum()),
                without_answer=int(rows.reason.fillna("").astype(bool).sum()),
            )  # fmt: skip
        )
    return sorted(lines, key=lambda line: (line.model, line.protocol, -np.nan_to_num(line.share)))


def on_both(table: pd.DataFrame, a: str, b: str, measure: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of A and of B on the items that both answered, in the same order; the table holds one model,
    protocol and budget."""
    t = table if "full_right" in table else with_full(table)
    left, right = (telling(t[t.method == name], measure).set_index("item") for name in (a, b))
    both = left.index.intersection(right.index)
    return left.loc[both], right.loc[both]


def paired(table: pd.DataFrame, a: str, b: str, measure: str) -> Paired:
    """B minus A on the items that both answered; the table holds one model, protocol and budget."""
    left, right = on_both(table, a, b, measure)
    if measure == "right":
        return mcnemar(left.right.astype(bool).tolist(), right.right.astype(bool).tolist())
    one, other = (side[measure].astype(float).tolist() for side in (left, right))
    return paired_means(one, other, clusters=list(left.document))


def parts(table: pd.DataFrame) -> list[tuple[str, str, Any]]:
    """(model, protocol, rows) one by one: what is never put together."""
    groups = table.groupby(["model", "protocol"], sort=False)
    return [(str(model), str(protocol), rows) for (model, protocol), rows in groups]
