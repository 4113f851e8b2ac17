"""A dot an item: A's value across, B's up; a click opens the item."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.evidence import Pick
from kvviz.results.scoreboard import MEASURES
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table

GUIDE = (
    "Each dot is an item. {side} the dashed line B is nearer to the full cache, on the other side A is. A "
    "click on a dot opens its item in the lenses: the run that the sweep kept, or else a new one."
)
FLOOR = 0.001  # nats: below it all KL is alike
# What became of an item: (words, symbol, colour, outlined).
STATES = {
    "both": ("both right", "circle", "text", False),
    "a": ("only A right", "triangle-up", "a", False),
    "b": ("only B right", "triangle-down", "b", False),
    "none": ("both wrong", "x", "text", False),
    "open": ("no right answer known", "circle-open", "muted", True),
    "full": ("the full cache is wrong: set apart", "diamond-open", "muted", True),
    "knew": ("it knew without the document: set apart", "star-open", "muted", True),
}


@dataclass(frozen=True)
class EvidenceItemsTable(Table):
    """One row an item that A and B both answered."""

    near: ClassVar[str | None] = None

    pick: Pick
    measure: str  # "kl", or another where the table has none
    names: tuple[str, str]
    items: list[str]
    tasks: list[str]
    states: list[str]
    a: np.ndarray
    b: np.ndarray
    answers: list[tuple[str, str]]
    kept: list[bool]

    def columns(self):
        """See `Table.columns`."""
        words = MEASURES[self.measure][0]
        one, other = self.names
        return {
            "item": self.items, "task": self.tasks, "what became of it": [STATES[s][0] for s in self.states],
            f"A: {one}, {words}": self.a, f"B: {other}, {words}": self.b,
            "A's answer": [a for a, _ in self.answers], "B's answer": [b for _, b in self.answers],
            "run kept": self.kept,
        }  # fmt: skip


def evidence_items_table(sweep: Sweep, pick: Pick) -> EvidenceItemsTable:
    """All items with both answers, those that are set apart too."""
    rows = said.here(sweep, pick)
    have = said.measures(rows)
    measure = pick.measure if pick.measure not in ("right", "score") else ("kl" if "kl" in have else "score")
    sides = [rows[(rows.method == m) & rows[measure].notna()].drop_duplicates("item").set_index("item")
             for m in (pick.a, pick.other)]  # fmt: skip
    both = [item for item in sides[0].index if item in sides[1].index]
    if not both:
        raise InputError("No item was answered by both A and B at this budget.")
    a, b = (side.loc[both] for side in sides)
    names = said.methods(sweep)
    states = [_state(*row) for row in zip(a.full_right, a.knew, a.right, b.right)]
    answers = list(zip((text.shortened(v, 80) for v in a.answer), (text.shortened(v, 80) for v in b.answer)))
    kept = [(pick.model, pick.protocol, str(item)) in sweep.runs for item in both]
    return EvidenceItemsTable(
        pick, measure, (names[pick.a], names[pick.other]), list(map(str, both)), list(a.task), states,
        a[measure].to_numpy(float), b[measure].to_numpy(float), answers, kept,
    )  # fmt: skip


def _state(full: Any, knew: str, a: Any, b: Any) -> str:
    if knew:
        return "knew"
    if full is None or full != full:
        return "open"
    if not full:
        return "full"
    return {(True, True): "both", (True, False): "a", (False, True): "b"}.get((a is True, b is True), "none")


def evidence_items_figure(table: EvidenceItemsTable) -> go.Figure:
    """Both axes alike; KL on a log scale with its floor at the edge."""
    log = table.measure == "kl"
    x, y = (np.log10(np.maximum(v, FLOOR)) if log else v for v in (table.a, table.b))
    ends = _ends(np.concatenate([x, y]), log)
    line = {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "name": "equal", "hoverinfo": "skip",
            "line": {"color": role("text"), "width": 1, "dash": "dash"}}  # fmt: skip
    traces = [line]
    for state, (words, symbol, colour, open_) in STATES.items():
        at = [i for i, s in enumerate(table.states) if s == state]
        if at:
            traces.append(_dots(table, at, x, y, f"{words} ({text.count(len(at))})", symbol, colour, open_))
    words, better = MEASURES[table.measure]
    ticks: dict[str, Any] = {}
    if log:
        decades = range(math.ceil(ends[0]), math.floor(ends[1]) + 1)
        ticks = {"tickvals": list(decades), "ticktext": [_decade(d) for d in decades]}
    b_side = table.b < table.a if better == "lower" else table.b > table.a
    return build(
        traces,
        title=f"Item by item: A against B at {table.pick.budget} kept",
        guide=GUIDE.format(side="Below" if better == "lower" else "Above"),
        summary=f"{text.count(len(x))} items; B is {better} in {text.count(int(b_side.sum()))}, A in "
        f"{text.count(int((table.a != table.b).sum() - b_side.sum()))}.",
        chip=f"n = {text.count(len(x))} items",
        height=420,
        meta={"measure": table.measure},
        xaxis=axis(f"{words}, A: {table.names[0]}" + " (log scale)" * log, range=ends, **ticks),
        yaxis=axis(f"{words}, B: {table.names[1]}" + " (log scale)" * log, range=ends, **ticks),
    )


def _decade(d: int) -> str:
    return f"<{FLOOR:g}" if 10.0**d <= FLOOR else f"{10.0**d:g}"


def _ends(values: np.ndarray, log: bool) -> list[float]:
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = math.floor(low), max(high, math.floor(low) + 1)
    room = 0.06 * max(high - low, 0.1)
    return [low - room, high + room]


def _dots(
    table: EvidenceItemsTable, at: list[int], x: np.ndarray, y: np.ndarray, name: str, symbol: str,
    colour: str, open_: bool,
) -> dict[str, Any]:  # fmt: skip
    edge = role(colour) if open_ else role("page")
    return {
        "type": "scatter", "mode": "markers", "x": x[at].tolist(), "y": y[at].tolist(),
        "customdata": [[_words(table, i), table.items[i], table.kept[i]] for i in at],
        "name": name, "showlegend": True, "hoverinfo": "none",
        "marker": {"size": 10, "symbol": symbol, "color": role(colour), "line": {"width": 1, "color": edge}},
    }  # fmt: skip


def _words(table: EvidenceItemsTable, i: int) -> str:
    a, b = (said.number(table.measure, float(v[i])) for v in (table.a, table.b))
    one, other = table.answers[i]
    opens = "opens its kept run" if table.kept[i] else "runs it again"
    return (
        f"{text.shortened(table.items[i], 40)}: {STATES[table.states[i]][0]} · A {a} "
        f"{text.quoted(one, 40)} · B {b} {text.quoted(other, 40)} · a click {opens}"
    )
