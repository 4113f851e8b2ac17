"""What the page says of a sweep: facts, sentences, and the numbers of A against B. Words and tables only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InputError
from kvviz.results import words as text
from kvviz.results.comparison import FULL
from kvviz.results.scoreboard import MEASURES, Line, estimated, on_both, paired, scoreboard, telling
from kvviz.results.statistics import ALPHA, Estimate
from kvviz.results.sweeps import Sweep
from kvviz.types import QUESTION_AGNOSTIC

if TYPE_CHECKING:
    import pandas as pd

TOLD_APART = 6  # items that tell, from which on shares of right answers come first
SLICES = {  # what items can be sorted by -> in words
    "task": "task",
    "length": "length",
    "depth": "depth of what is hidden",
    "full": "full cache right or wrong",
}
LENGTH_STEPS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
DEPTH_STEPS = (0.2, 0.4, 0.6, 0.8)
DASH = "–"


@dataclass(frozen=True)
class Pick:
    """What is looked at in a sweep: always one model and protocol.

    measure  an id of `MEASURES`; b is None where the table has one method only.
    budget   as the table names it.
    by       an id of SLICES.
    """

    model: str
    protocol: str
    measure: str
    a: str
    b: str | None
    budget: str
    by: str = "task"

    @property
    def other(self) -> str:
        """B, or a sentence that there is none."""
        if self.b is None:
            raise InputError("This table holds one method only: there is nothing to hold it against.")
        return self.b


def methods(sweep: Sweep) -> dict[str, str]:
    """{method: label} in the table's order; equal labels are told apart by the method's name."""
    rows = sweep.table[sweep.table.method != FULL].drop_duplicates("method")
    twice = set(rows.label[rows.label.duplicated(keep=False)])
    return {m: m if name in twice else name for m, name in zip(rows.method, rows.label)}


def budgets(rows: pd.DataFrame) -> dict[str, float]:
    """{name: share kept} of the methods' budgets, largest first."""
    shares = rows[rows.method != FULL].groupby("budget_name", sort=False).share.mean()
    named = {str(name): float(share) for name, share in shares.items()}
    return dict(sorted(named.items(), key=lambda pair: -pair[1]))


def usual(sweep: Sweep, part: tuple[str, str] | None = None) -> Pick:
    """Where the page opens: the first part, right answers where enough items tell, a budget near 20 %."""
    return choices(sweep, part or sweep.parts[0]).usual


@dataclass(frozen=True)
class Choices:
    """What can be chosen of one model and protocol, and where the page opens."""

    methods: list[str]
    budgets: dict[str, float]
    measures: list[str]
    usual: Pick


def choices(sweep: Sweep, part: tuple[str, str]) -> Choices:
    """Looked up once for each part. InputError where it has no method beside the full cache."""
    if part not in sweep.choices:
        sweep.choices[part] = _choices(sweep, *part)
    return sweep.choices[part]


def _choices(sweep: Sweep, model: str, protocol: str) -> Choices:
    rows = sweep.of(model, protocol)
    here = set(rows.method)
    known = [m for m in methods(sweep) if m in here]
    if not known:
        raise InputError("This table has no method beside the full cache.")
    shares = budgets(rows)
    near = min(shares.items(), key=lambda pair: abs(math.log(max(pair[1], 1e-9) / 0.2)))[0]
    items = telling(rows[rows.method != FULL], "right")["item"].nunique()
    has_kl = rows.kl[rows.method != FULL].notna().any()
    measure = "right" if items >= TOLD_APART or not has_kl else "kl"
    first = Pick(model, protocol, measure, known[0], known[1] if len(known) > 1 else None, near)
    return Choices(known, shares, measures(rows), first)


def measures(rows: pd.DataFrame) -> list[str]:
    """The measures that the rows hold."""
    found = rows[rows.method != FULL]
    return [name for name in MEASURES if found[name].notna().any()]


def protocol_words(protocol: str) -> str:
    """In the words of the form."""
    later, known = "the question comes later", "the question is known while compressing"
    return later if protocol == QUESTION_AGNOSTIC else known


def number(measure: str, value: float | None) -> str:
    """A value of a measure as the page writes it."""
    if value is None or not math.isfinite(value):
        return DASH
    if measure == "right":
        return text.share(value)
    if measure == "kl":
        return text.kl_number(value)
    return text.relative_error(value) if measure == "output_error" else f"{value:.2f}"


def difference(measure: str, value: float) -> str:
    """A difference with its sign: "+12 points", "-0.21"."""
    sign = "−" if value < 0 else "+"
    if measure in ("right", "output_error"):
        return f"{sign}{abs(100 * value):.0f} points"
    return f"{sign}{number(measure, abs(value))}"


def interval(measure: str, e: Estimate) -> str:
    """ "(95 % interval 61% to 84%, n = 24)"; says where there is none."""
    if not e.n:
        return "(no item)"
    between = "no interval: fewer than six documents" if math.isnan(e.low) else (
        f"95 % interval {number(measure, e.low)} to {number(measure, e.high)}"
    )  # fmt: skip
    return f"({between}, n = {text.count(e.n)})"


def facts(rows: pd.DataFrame) -> dict[str, Any]:
    """How much there is, and what is set apart."""
    full = rows[rows.method == FULL].drop_duplicates("item")
    return {
        "items": int(rows["item"].nunique()),
        "documents": int(rows.document.nunique()),
        "methods": int(rows[rows.method != FULL].method.nunique()),
        "full_right": int(full.right.eq(True).sum()),
        "full_wrong": int(full.right.eq(False).sum()),
        "knew": int((full.knew != "").sum()),
        "failed": int((rows.reason != "").sum()),
        "empty": int(rows["empty"].eq(1).sum()),
    }


def facts_words(sweep: Sweep, pick: Pick) -> list[str]:
    """n everywhere: what the numbers are of, and what does not count."""
    f = facts(sweep.of(pick.model, pick.protocol))
    said = [
        f"{text.count(f['items'])} items in {text.count(f['documents'])} documents, {pick.model}, "
        f"{protocol_words(pick.protocol)}."
    ]
    if f["full_right"] or f["full_wrong"]:
        judged = f["full_right"] + f["full_wrong"]
        said.append(
            f"The full cache answers {text.count(f['full_right'])} of {text.count(judged)} rightly; the "
            "others are set apart and are nobody's loss."
        )
    if f["knew"]:
        said.append(
            f"{_items(f['knew'])} did not need the document (it knew): no part of right answers and scores."
        )
    if f["empty"]:
        said.append(f"{text.count(f['empty'])} answers are empty; they count as wrong.")
    if f["failed"]:
        said.append(f"{text.count(f['failed'])} rows have no answer, with the reason in the table.")
    others = [p for m, p in sweep.parts if m == pick.model and p != pick.protocol]
    if others:
        said.append(f"Where {protocol_words(others[0])}, numbers stand on their own: choose it above.")
    return said


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{text.count(count)} items"


def lead(sweep: Sweep, pick: Pick) -> str:
    """Who is ahead at the budget, or that nobody can tell."""
    names, what = methods(sweep), MEASURES[pick.measure][0]
    if pick.b is None:
        return f"At {pick.budget} kept, {names[pick.a]}: {what} {_value(sweep, pick, pick.a)}."
    found = paired(here(sweep, pick), pick.a, pick.b, pick.measure)
    d, a, b = found.difference, names[pick.a], names[pick.b]
    if not d.n:
        return f"At {pick.budget} kept, no item tells {a} from {b}."
    said = found.verdict(a, b, better=MEASURES[pick.measure][1])
    means = pairs(sweep, pick)
    values = [number(pick.measure, float(v.mean())) for v in (means.a, means.b)]
    if said.startswith("too few"):
        said = f"{text.count(d.n)} items are too few to tell {a} from {b}"
    return f"At {pick.budget} kept, {said}: {what} {values[0]} (A) against {values[1]} (B)."


def values_words(sweep: Sweep, pick: Pick) -> str:
    """A and B with n and interval, each by itself."""
    names = methods(sweep)
    return "; ".join(f"{names[m]} {_value(sweep, pick, m)}" for m in (pick.a, pick.b) if m) + "."


def _value(sweep: Sweep, pick: Pick, method: str) -> str:
    e = line_of(sweep, pick, method)
    return f"{number(pick.measure, e.value)} {interval(pick.measure, e)}"


def line_of(sweep: Sweep, pick: Pick, method: str) -> Estimate:
    """The estimate of one method at the budget."""
    rows = sweep.of(pick.model, pick.protocol)
    here = rows[(rows.method == method) & (rows.budget_name == pick.budget)]
    return estimated(telling(here, pick.measure), pick.measure)


def here(sweep: Sweep, pick: Pick) -> pd.DataFrame:
    """The rows of the pick's budget and of the full cache."""
    rows = sweep.of(pick.model, pick.protocol)
    return rows[(rows.budget_name == pick.budget) | (rows.method == FULL)]


def verdict(sweep: Sweep, pick: Pick) -> str:
    """Who is ahead on the same items, or that there are too few to tell; with p, and how far to trust it."""
    names = methods(sweep)
    found = paired(here(sweep, pick), pick.a, pick.other, pick.measure)
    d = found.difference
    if not d.n:
        return "No item was answered by both: nothing to compare."
    words, better = MEASURES[pick.measure]
    said = found.verdict(names[pick.a], names[pick.other], better=better)
    between = "" if math.isnan(d.low) else (
        f", 95 % interval {difference(pick.measure, d.low)} to {difference(pick.measure, d.high)}"
    )  # fmt: skip
    test = "McNemar's exact test" if pick.measure == "right" else "bootstrap by document"
    return (
        f"On the same {_items(d.n)}, B minus A is {difference(pick.measure, d.value)}{between}: {said} "
        f"(p {_p(found.p)}, {test})."
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


def how_many(sweep: Sweep, pick: Pick) -> str:
    """What choosing pair after pair does to p."""
    rows = sweep.of(pick.model, pick.protocol)
    known, sizes = rows[rows.method != FULL].method.nunique(), len(budgets(rows))
    pairs = known * (known - 1) // 2 * sizes
    if pairs < 2:
        return ""
    return (
        f"p is of this one comparison. Of the {text.count(pairs)} that can be chosen here, about "
        f"{max(1, round(pairs * ALPHA))} would look like a difference by chance alone: decide which one you "
        "want to know before you look."
    )


@dataclass(frozen=True)
class Pairs:
    """A and B on the same items: one entry an item, in the table's order."""

    items: list[str]
    documents: list[str]
    a: np.ndarray
    b: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        """B minus A."""
        return self.b - self.a


def pairs(sweep: Sweep, pick: Pick) -> Pairs:
    """The values of A and B. InputError where no item was answered by both."""
    left, right = on_both(here(sweep, pick), pick.a, pick.other, pick.measure)
    if left.empty:
        raise InputError(
            "No item tells A from B here: it must be answered by both, and for right answers and scores the "
            "full cache must answer it rightly from its document."
        )
    a, b = (side[pick.measure].astype(float).to_numpy() for side in (left, right))
    return Pairs(list(map(str, left.index)), list(left.document), a, b)


def sliced(rows: pd.DataFrame, by: str) -> list[tuple[str, pd.DataFrame]]:
    """(name, rows) of every slice, in order; one where the table does not say."""
    if by == "full":
        groups = {True: "full cache right", False: "full cache wrong"}
        found = [(name, rows[rows.full_right.eq(right)]) for right, name in groups.items()]
        return [(name, part) for name, part in found if len(part)]
    if by == "task":
        return [(str(name), part) for name, part in rows.groupby("task", sort=True)]
    if by == "depth":
        return _stepped(rows, rows.depth, DEPTH_STEPS, text.share)
    return _stepped(rows, rows.length.fillna(rows.n), LENGTH_STEPS, text.count, " tokens")


def _stepped(rows, values, steps, words, unit: str = "") -> list[tuple[str, pd.DataFrame]]:
    """Slices by value where there are few, else by steps."""
    known = sorted(set(values.dropna()))
    if len(known) <= TOLD_APART:
        return [(words(v) + unit, rows[values == v]) for v in known]
    edges = [-math.inf, *steps, math.inf]
    found = []
    for low, high in zip(edges, edges[1:]):
        part = rows[(values > low) & (values <= high)]
        if len(part):
            name = f"over {words(low)}" if high == math.inf else f"up to {words(high)}"
            found.append((name + unit, part))
    return found


def apart(sweep: Sweep, pick: Pick) -> list[dict[str, Any]]:
    """Items that say nothing about a method: what the full cache gets wrong, and what it knew."""
    rows = sweep.of(pick.model, pick.protocol)
    full = rows[rows.method == FULL].drop_duplicates("item")
    at = rows[rows.budget_name == pick.budget]
    right = {m: set(at[(at.method == m) & at.right.eq(True)]["item"]) for m in (pick.a, pick.b) if m}
    found = []
    for row in full[full.right.eq(False) | (full.knew != "")].itertuples():
        given = sweep.items.get(str(row.item), {})
        also = [m for m, items in right.items() if row.item in items]
        found.append({
            "item": str(row.item), "task": row.task,
            "why": "the full cache is wrong" if row.verdict == "wrong" else f"it knew: right {row.knew}",
            "expected": (given.get("answers") or [""])[0][:200],
            "answer": row.answer, "right_all_the_same": also,
        })  # fmt: skip
    return found


def lines(sweep: Sweep, pick: Pick) -> list[Line]:
    """The scoreboard's lines of the pick's part and measure."""
    rows = sweep.of(pick.model, pick.protocol)
    return [line for line in scoreboard(rows, pick.measure) if line.estimate.n]
