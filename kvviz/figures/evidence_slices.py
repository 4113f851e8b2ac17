"""Where does it hold? A and B in each slice of the items, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.evidence import SLICES, Pick
from kvviz.results.scoreboard import MEASURES, estimated, telling
from kvviz.results.statistics import Estimate
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table

GUIDE = (
    "A row is a slice of the items, n beside its name. With many slices one of them stands out by chance: "
    "take it as a question for the next sweep."
)
LIFT = 0.16  # of a row, between A and B
MOST_SLICES = 24


@dataclass(frozen=True)
class EvidenceSlicesTable(Table):
    """One row a slice and method."""

    near: ClassVar[str | None] = None

    pick: Pick
    names: dict[str, str]  # method: label, A before B
    slices: list[str]
    found: list[tuple[str, str, Estimate]]  # slice, method, estimate

    def columns(self):
        """See `Table.columns`."""
        rows = self.found
        return {
            SLICES[self.pick.by]: [name for name, _, _ in rows],
            "method": [self.names[m] for _, m, _ in rows],
            MEASURES[self.pick.measure][0]: [e.value for _, _, e in rows],
            "interval from": [e.low for _, _, e in rows],
            "interval to": [e.high for _, _, e in rows],
            "n": [e.n for _, _, e in rows],
        }


def evidence_slices_table(sweep: Sweep, pick: Pick) -> EvidenceSlicesTable:
    """A and B at one budget, slice by slice."""
    rows = said.here(sweep, pick)
    names = said.methods(sweep)
    chosen = {m: names[m] for m in (pick.a, pick.b) if m}
    found = []
    for name, part in said.sliced(rows, pick.by)[:MOST_SLICES]:
        for method in chosen:
            own = part[part.method == method]
            if name == "full cache wrong" and pick.measure in ("right", "score"):
                used = own[own[pick.measure].notna()]
            else:
                used = telling(own, pick.measure)
            if len(used):
                found.append((name, method, estimated(used, pick.measure)))
    if not found:
        raise InputError(f"No item of this table can be sorted by {SLICES[pick.by]} and counts here.")
    return EvidenceSlicesTable(pick, chosen, list(dict.fromkeys(name for name, _, _ in found)), found)


def evidence_slices_figure(table: EvidenceSlicesTable) -> go.Figure:
    """A row a slice, the first on top, A above B."""
    pick, words = table.pick, MEASURES[table.pick.measure]
    traces = []
    for side, method in (("a", pick.a), ("b", pick.b)):
        own = [(name, e) for name, m, e in table.found if m == method]
        if own and method:
            lift = -LIFT if side == "a" else LIFT
            traces.append(_dots(table, own, side, table.names[method], lift))
    n = {name: max(e.n for other, _, e in table.found if other == name) for name in table.slices}
    values = [v for _, _, e in table.found for v in (e.value, e.high) if math.isfinite(v)]
    top = 1.0 if pick.measure == "right" else max(values, default=1.0) or 1.0
    percent = {"tickformat": ".0%"} if pick.measure in ("right", "output_error") else {}
    return build(
        traces,
        title=f"Where it holds: by {SLICES[pick.by]}, at {pick.budget} kept",
        guide=_guide(table),
        summary=_summary(table),
        chip=f"n = {text.count(sum(n.values()))} items",
        height=max(220, 46 * len(table.slices) + 150),
        xaxis=axis(f"{words[0]} ({words[1]} is better)", range=[-0.04 * top, 1.06 * top], **percent),
        yaxis=axis(
            "", range=[len(table.slices) - 0.5, -0.5], showgrid=False, tickvals=list(range(len(n))),
            ticktext=[f"{text.visible(name, 28)} (n = {text.count(n[name])})" for name in table.slices],
        ),
    )  # fmt: skip


def _guide(table: EvidenceSlicesTable) -> str:
    if table.pick.by == "full" and table.pick.measure in ("right", "score"):
        return "Where the full cache is wrong, nobody lost anything: take right answers there for chance."
    return GUIDE


def _dots(
    table: EvidenceSlicesTable, own: list[tuple[str, Estimate]], side: str, name: str, lift: float
) -> dict[str, Any]:
    up, down = (
        [d if math.isfinite(d) else 0.0 for d in gaps]
        for gaps in ([e.high - e.value for _, e in own], [e.value - e.low for _, e in own])
    )
    measure = table.pick.measure
    return {
        "type": "scatter", "mode": "markers",
        "x": [e.value for _, e in own], "y": [table.slices.index(slice_) + lift for slice_, _ in own],
        "error_x": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "width": 4,
                    "thickness": 1.6, "color": role(side)},
        "customdata": [
            [f"{slice_}: {name} {said.number(measure, e.value)} {said.interval(measure, e)}"]
            for slice_, e in own
        ],
        "name": f"{side.upper()}: {name}", "showlegend": True, "hoverinfo": "none",
        "marker": {"size": 9, "color": role(side), "symbol": f"triangle-{'up' if side == 'a' else 'down'}"},
    }  # fmt: skip


def _summary(table: EvidenceSlicesTable) -> str:
    measure = table.pick.measure
    parts = [f"{s}, {table.names[m]}: {said.number(measure, e.value)}, n = {e.n}" for s, m, e in table.found]
    return "; ".join(parts)
