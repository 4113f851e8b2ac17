"""The numbers behind the printed plots of a sweep: one plain table a plot, with n and 95 % intervals.

Models and protocols are never put into one plot. The columns are those of the CSV beside each picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.results.comparison import FULL
from kvviz.results.scoreboard import MEASURES, paired, parts, scoreboard, telling, with_full
from kvviz.results.statistics import holm, holm_words, wilson

if TYPE_CHECKING:
    import pandas as pd

    from kvviz.results.statistics import Estimate

USUAL_BASE = "snapkv"
MOST_DEPTHS = 11  # rows of a needle grid
_MEASURED = {
    "kl": "Run the sweep with --measures kl.",
    "output_error": "Run the sweep with --measures output_error.",
}
_ANSWERED = "Verdicts and scores need items with right answers that the full cache answers from its document."

_PLACED = "Its items do not say at which depth of which length something is hidden; those of kvviz niah do."


@dataclass(frozen=True)
class Plot:
    """One plot: of one model and protocol.

    rows     one row a point, cell or bar.
    measure  an id of `MEASURES`.
    words    what else must be said under it.
    """

    kind: str
    model: str
    protocol: str
    measure: str
    rows: pd.DataFrame
    words: str

    @property
    def what(self) -> str:
        """The measure in words."""
        return MEASURES[self.measure][0]


def check_kind(kind: str) -> None:
    """InputError where there is no such plot."""
    if kind not in KINDS:
        raise InputError(f"There is no plot {kind!r}. Choose from: {', '.join(KINDS)}.")


def plots(
    table: pd.DataFrame,
    kind: str,
    methods: Sequence[str] = (),
    budgets: Sequence[Any] = (),
    measure: str = "",
    base: str = "",
) -> list[Plot]:
    """A plot a model and protocol of a sweep's table. InputError where it holds nothing of the kind.

    methods  only these, in this order; none: all of the table, in its order.
    budgets  only these; none: all. Pairs are corrected for the comparisons that are shown.
    measure  an id of `MEASURES`; "": the kind's usual one.
    base     which method the others are held against (pairs); "": snapkv, or else the first.
    """
    check_kind(kind)
    make, usual = KINDS[kind]
    measure = measure or usual
    if measure not in MEASURES:
        raise InputError(f"There is no measure {measure!r}. Choose from: {', '.join(MEASURES)}.")
    known = [m for m in table.method.unique() if m != FULL]
    for method in (*methods, *filter(None, [base])):
        if method not in known:
            raise InputError(f"The table has no {method}. It has: {', '.join(known)}.")
    if not known:
        raise InputError("The table has no method but the full cache.")
    chosen = list(dict.fromkeys(methods)) or known
    if base and base not in chosen:
        chosen.insert(0, base)
    base = base or (USUAL_BASE if USUAL_BASE in chosen else chosen[0])
    shown = table[table.method.isin([FULL, *chosen])]
    if budgets:
        names = [str(Budget.parse(budget)) for budget in budgets]
        shown = shown[shown.budget_name.isin(names) | (shown.method == FULL)]
    made = []
    for model, protocol, rows in parts(shown):
        found, words = make(rows, chosen, measure, base)
        if len(found):
            made.append(Plot(kind, model, protocol, measure, found, words))
    if not made:
        placed = kind != "needle-grid" or (shown.depth.notna() & shown.length.notna()).any()
        why = _MEASURED.get(measure, _ANSWERED) if placed else _PLACED
        raise InputError(f"The table has nothing to plot as {kind}. {why}")
    return made


def _lines(rows: pd.DataFrame, methods: list[str], measure: str, base: str) -> tuple[pd.DataFrame, str]:
    """A row a method and budget, budgets falling."""
    import pandas as pd

    lines = [line for line in scoreboard(rows, measure) if line.estimate.n]
    lines.sort(key=lambda line: (methods.index(line.method), -line.share))
    found = pd.DataFrame(
        {
            "method": line.method, "budget": line.budget_name, "share": line.share,
            **_estimate(line.estimate),
            "full_cache_wrong": line.full_failed, "knew": line.knew, "empty": line.empty,
            "without_answer": line.without_answer,
        }
        for line in lines
    )  # fmt: skip
    return found, _of_what(rows, measure, [line.estimate.n for line in lines])


def _grid(rows: pd.DataFrame, methods: list[str], measure: str, base: str) -> tuple[pd.DataFrame, str]:
    """A row a method, budget, length and depth: share of needles found, and of the full cache its own. Many
    depths, as of tasks that draw them at random, are put together in fifths of the text."""
    import numpy as np
    import pandas as pd

    measured = rows[rows.depth.notna() & rows.length.notna()]
    depths = sorted(measured.depth.unique())
    names = {depth: f"{100 * depth:.3g}%" for depth in depths}
    if fifths := len(depths) > MOST_DEPTHS:
        fifth = np.minimum(measured.depth // 0.2, 4)
        measured = measured.assign(depth=(0.2 * fifth + 0.1).round(1))
        names = {round(0.2 * i + 0.1, 1): f"{20 * i} to {20 * i + 20}%" for i in range(5)}
    t = with_full(measured)
    needs = t[~t.knew.fillna("").astype(bool) & t.right.notna()]
    order = [FULL, *methods]
    cells = []
    for (method, budget, _, _), part in needs.groupby(
        ["method", "budget_name", "length", "depth"], sort=False
    ):
        length, depth = int(part.length.iloc[0]), float(part.depth.iloc[0])
        used = part if method == FULL else telling(part, "right")
        found = wilson(int(used.right.eq(True).sum()), len(used))
        cells.append({"method": method, "budget": budget, "share": float(part.share.mean()),
                      "length": length, "depth": depth, "depths": names[depth],
                      **_estimate(found)})  # fmt: skip
    cells.sort(key=lambda c: (order.index(c["method"]), -c["share"], c["length"], c["depth"]))
    words = "Share of needles found, of those that the full cache finds; for the full cache, of all."
    if fifths:
        words += f" The {len(depths)} depths are put together in fifths of the text."
    return pd.DataFrame(cells), words


def _pairs(rows: pd.DataFrame, methods: list[str], measure: str, base: str) -> tuple[pd.DataFrame, str]:
    """A row a budget and method: its difference from the base on the same items, with Holm's correction over
    all rows."""
    import pandas as pd

    shares = rows[rows.method != FULL].groupby("budget_name").share.mean().sort_values(ascending=False)
    better = MEASURES[measure][1]
    found = []
    for budget, share in shares.items():
        here = rows[(rows.budget_name == budget) | (rows.method == FULL)]
        for method in methods:
            if method == base:
                continue
            pair = paired(here, base, method, measure)
            if pair.difference.n:
                found.append((budget, float(share), method, pair))
    raised = holm([pair.p for *_, pair in found])
    made = [
        {
            "method": method, "base": base, "budget": budget, "share": share, **_estimate(pair.difference),
            "p": pair.p, "p_holm": p, "verdict": pair.verdict(base, method, p, better),
        }
        for (budget, share, method, pair), p in zip(found, raised)
    ]  # fmt: skip
    what = MEASURES[measure][0]
    words = f"{what[0].upper()}{what[1:]}, minus {base} on the same items; {better} is better."
    return pd.DataFrame(made), f"{words} {holm_words(len(made))}"


def _estimate(e: Estimate) -> dict[str, Any]:
    return {"value": e.value, "low": e.low, "high": e.high, "n": e.n}


def _of_what(rows: pd.DataFrame, measure: str, counted: list[int]) -> str:
    items, documents = rows["item"].nunique(), rows.document.nunique()
    said = f"{items} items, {documents} documents; 95 % intervals"
    if measure in ("right", "score"):
        fewest, most = min(counted, default=0), max(counted, default=0)
        count = most if fewest == most else f"{fewest} to {most}"
        said += f" over {count}: those that the full cache gets wrong, or that need no document, are left out"
    return said + "."


Make = Callable[["pd.DataFrame", list[str], str, str], tuple["pd.DataFrame", str]]
KINDS: dict[str, tuple[Make, str]] = {  # kind -> (its rows, its usual measure)
    "kl-budget": (_lines, "kl"),
    "score-budget": (_lines, "score"),
    "needle-grid": (_grid, "right"),
    "pairs": (_pairs, "kl"),
}
