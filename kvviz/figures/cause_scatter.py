"""Put back against taken out: is what returns the answer also what the whole cache cannot do without?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.agreement import spearman
from kvviz.results.causes import PUT_BACK, TAKEN_OUT, Effect
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDE = (
    "Each dot is a {unit}. Right: the whole cache cannot do without it. High: putting it back returns the "
    "answer. Right and low: needed, yet not lost or not enough alone."
)
UNITS = {"head": "KV head", "passage": "passage"}
NAMED = 3  # dots that carry their name


@dataclass(frozen=True)
class CauseScatterTable(Table):
    """One row a unit that was tried in both directions, nats."""

    near: ClassVar[str | None] = None

    label: str
    budget_name: str
    unit: str
    units: list[Effect]
    words: list[str]
    names: list[str]
    put_back: np.ndarray
    taken_out: np.ndarray

    def columns(self):
        """See `Table.columns`."""
        return {self.unit: self.names, "nats returned": self.put_back, "nats lost": self.taken_out}

    @property
    def correlation_words(self) -> str:
        """ "rank correlation 0.41, n = 90"."""
        n = len(self.units)
        rho = spearman(self.put_back, self.taken_out) if n > 2 else float("nan")
        shown = f"{rho:.2f}" if np.isfinite(rho) else text.MISSING
        return f"rank correlation {shown}, n = {text.count(n)}"


def cause_scatter_table(c: Comparison, method: str, k: float | int, unit: str) -> CauseScatterTable:
    """Both effects of every head or passage."""
    found = said.need_causes(c, method, k)
    other = {e.place: e for e in found.of(TAKEN_OUT, unit)}
    pairs = [(e, other[e.place]) for e in found.of(PUT_BACK, unit) if e.place in other]
    if not pairs:
        raise InputError(f"No {UNITS[unit]} was both put back and taken out here.")
    words = [
        f"{said.unit_words(c, back)}: {said.effect_words(back, PUT_BACK)} when put back, "
        f"{said.effect_words(out, TAKEN_OUT)} when taken out"
        for back, out in pairs
    ]
    return CauseScatterTable(
        text.label(c, method),
        text.budget_name(k),
        unit,
        [back for back, _ in pairs],
        words,
        [said.unit_words(c, back) for back, _ in pairs],
        np.array([back.effect for back, _ in pairs]),
        np.array([out.effect for _, out in pairs]),
    )


def cause_scatter_figure(table: CauseScatterTable) -> go.Figure:
    """One dot a unit; the strongest few are named."""
    x, y = table.taken_out, table.put_back
    rank = np.argsort(-np.maximum(x / max(x.max(), 1e-9), y / max(y.max(), 1e-9)), kind="stable")
    named = {int(i) for i in rank[:NAMED] if max(x[i], y[i]) >= said.LEAST}
    left = float(x.min() + x.max()) / 2
    dots = {
        "type": "scatter",
        "mode": "markers+text",
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "customdata": [[*_place(e), words] for e, words in zip(table.units, table.words)],
        "text": [text.visible(_short(e), 24) if i in named else "" for i, e in enumerate(table.units)],
        "textposition": ["middle left" if v > left else "middle right" for v in x],
        "textfont": {"size": 11, "color": role("text")},
        "hoverinfo": "none",
        "name": UNITS[table.unit],
        "marker": {"size": 8, "color": role("amount-10"), "line": {"width": 1, "color": role("page")}},
    }
    lines: list[dict[str, Any]] = [
        {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0, "y1": 0},
        {"type": "line", "y0": 0, "y1": 1, "yref": "paper", "x0": 0, "x1": 0},
    ]
    line = {"color": role("muted"), "width": 1, "dash": "dot"}
    return build(
        [dots],
        title=f"Put back against taken out · {table.label}, {table.budget_name}",
        guide=GUIDE.format(unit=UNITS[table.unit]),
        summary=f"{text.count(len(x))} {UNITS[table.unit]}s: {table.correlation_words}.",
        height=400,
        shapes=[{**one, "line": line} for one in lines],
        xaxis=axis("nats lost when taken out of the whole cache", range=_room(x)),
        yaxis=axis("nats returned when put back", range=_room(y)),
    )


def _place(e: Effect) -> list[int]:
    """[layer, head] of a head, [start, end] of a passage: what a click chooses."""
    return list(e.cell) if e.passage is None else [e.passage.start, e.passage.end]


def _short(e: Effect) -> str:
    return f"{e.layer}/{e.head}" if e.passage is None else text.shortened(e.passage.text, 22)


def _room(values: np.ndarray) -> list[float]:
    low, high = min(0.0, float(values.min())), max(0.1, float(values.max()))
    return [low - 0.08 * (high - low), high + 0.08 * (high - low)]
