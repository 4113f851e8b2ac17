"""A measure against the share kept: a line a method, each point with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.figures.sweep import OTHERS
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.evidence import Pick
from kvviz.results.scoreboard import MEASURES, Line
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table

GUIDE = (
    "Left is a smaller cache. A point is the mean over items, its bar the 95 % interval{of}. Bars that "
    "overlap can still hide a difference: A against B is told item by item below."
)
OF_BOTH = " (of A and B; a click on a line makes it B)"
MOST_BARS = 6  # methods; the bars of more cannot be told apart
APART = 0.02  # of the share, between the bars of two methods at one budget


@dataclass(frozen=True)
class EvidenceBudgetTable(Table):
    """One row a method and budget."""

    near: ClassVar[str | None] = None

    pick: Pick
    lines: list[Line]
    names: dict[str, str]
    items: int
    documents: int

    def columns(self):
        """See `Table.columns`."""
        found = self.lines
        return {
            "method": [self.names[x.method] for x in found],
            "budget": [x.budget_name for x in found],
            "share kept": [x.share for x in found],
            MEASURES[self.pick.measure][0]: [x.estimate.value for x in found],
            "interval from": [x.estimate.low for x in found],
            "interval to": [x.estimate.high for x in found],
            "n": [x.estimate.n for x in found],
            "full cache wrong": [x.full_failed for x in found],
            "it knew": [x.knew for x in found],
            "empty answers": [x.empty for x in found],
            "without an answer": [x.without_answer for x in found],
        }


def evidence_budget_table(sweep: Sweep, pick: Pick) -> EvidenceBudgetTable:
    """The scoreboard of one model and protocol."""
    found = said.lines(sweep, pick)
    if not found:
        raise InputError(
            f"No item of this table has a {MEASURES[pick.measure][0]} that counts. Choose another measure."
        )
    known = said.facts(sweep.of(pick.model, pick.protocol))
    names = said.methods(sweep)
    return EvidenceBudgetTable(pick, found, names, known["items"], known["documents"])


def evidence_budget_figure(table: EvidenceBudgetTable) -> go.Figure:
    """A in orange, B in blue, all others grey; a dashed line stands at the budget that is looked at."""
    pick, measure = table.pick, table.pick.measure
    order = [m for m in table.names if m not in (pick.a, pick.b)] + [m for m in (pick.b, pick.a) if m]
    others = iter(OTHERS * len(order))
    traces, many = [], len(order) > MOST_BARS
    for place, method in enumerate(order):
        own = [x for x in table.lines if x.method == method]
        look = ("circle", "solid") if method == pick.a else ("circle", "dot")
        symbol, dash = look if method in (pick.a, pick.b) else next(others)
        if own:
            beside = place - (len(order) - 1) / 2
            if many:
                beside = {pick.a: 0.5, pick.b: -0.5}.get(method, 0)
            bars = not many or method in (pick.a, pick.b)
            traces.append(_line(table, own, symbol, dash, 1 + APART * beside, bars))
    shares = [x.share for x in table.lines]
    low, high = math.log10(min(shares)) - 0.06, math.log10(max(shares)) + 0.06
    at = next((x.share for x in table.lines if x.budget_name == pick.budget), None)
    cursor = [] if at is None else [{
        "type": "line", "name": "budget", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper",
        "line": {"color": role("selection"), "width": 1, "dash": "dash"},
    }]  # fmt: skip
    counts = sorted({x.estimate.n for x in table.lines})
    n = text.count(counts[0]) if len(counts) == 1 else f"{text.count(counts[0])} to {text.count(counts[-1])}"
    words, better = MEASURES[measure]
    ticks = sorted({round(x.share, 3) for x in table.lines})
    return build(
        traces,
        title=f"{words[0].upper()}{words[1:]}, against the share kept · {pick.protocol}",
        guide=GUIDE.format(of=OF_BOTH if many else ""),
        summary=_summary(table),
        chip=f"n = {n} items of {text.count(table.documents)} documents",
        height=440,
        meta={"scale": f"{better} is better"},
        xaxis=axis("share kept (log scale)", type="log", range=[low, high], tickvals=ticks,
                   ticktext=[text.budget_share(t) for t in ticks]),
        yaxis=_up(table),
        shapes=cursor,
    )  # fmt: skip


def _up(table: EvidenceBudgetTable) -> dict[str, Any]:
    words, better = MEASURES[table.pick.measure]
    title = f"{words} ({better} is better)"
    if table.pick.measure == "right":
        return axis(title, range=[-0.04, 1.04], tickformat=".0%")
    tops = [v for x in table.lines for v in (x.estimate.value, x.estimate.high) if math.isfinite(v)]
    top = max(tops, default=1.0) or 1.0
    more = {"tickformat": ".0%"} if table.pick.measure == "output_error" else {}
    return axis(title, range=[-0.04 * top, 1.06 * top], **more)


def _line(
    table: EvidenceBudgetTable, own: list[Line], symbol: str, dash: str, aside: float, bars: bool
) -> dict[str, Any]:
    method, pick = own[0].method, table.pick
    side = {pick.a: "a", pick.b: "b"}.get(method, "muted")
    name = table.names[method]
    measure = pick.measure
    up = [_length(x.estimate.high, x.estimate.value) for x in own]
    down = [_length(x.estimate.value, x.estimate.low) for x in own]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [x.share * aside for x in own],
        "y": [x.estimate.value for x in own],
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "width": 4,
                    "visible": bars, "thickness": 1.6 if side != "muted" else 1, "color": role(side)},
        "customdata": [
            [f"{name} at {x.budget_name} kept: {number(measure, x)}", x.method, x.budget_name] for x in own
        ],
        "name": f"{side.upper()}: {name}" if side != "muted" else name,
        "legendrank": {"a": 1, "b": 2}.get(side, 1000),  # drawn last, named first
        "showlegend": True,
        "hoverinfo": "none",
        "line": {"color": role(side), "width": 2.5 if side != "muted" else 1, "dash": dash},
        "marker": {"color": role(side), "symbol": symbol, "size": 9 if side != "muted" else 7 if bars else 5},
    }  # fmt: skip


def number(measure: str, x: Line) -> str:
    """ "83% (95 % interval 64% to 93%, n = 24)"."""
    return f"{said.number(measure, x.estimate.value)} {said.interval(measure, x.estimate)}"


def _length(more: float, less: float) -> float:
    return more - less if math.isfinite(more - less) else 0.0


def _summary(table: EvidenceBudgetTable) -> str:
    at = [x for x in table.lines if x.budget_name == table.pick.budget]
    parts = [f"{table.names[x.method]} {number(table.pick.measure, x)}" for x in at]
    return f"{MEASURES[table.pick.measure][0]} at {table.pick.budget} kept: {'; '.join(parts)}."
