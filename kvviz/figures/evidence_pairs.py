"""B minus A on the same items: how the differences lie, their mean and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.evidence import Pairs, Pick
from kvviz.results.scoreboard import MEASURES, paired
from kvviz.results.statistics import Paired
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table

GUIDE = (
    "Each bar counts items by B minus A. Orange: A does better there, blue: B does. The line is the mean, "
    "the band its 95 % interval: where the band reaches 0 there are too few items to tell."
)
MOST_BARS = 21


@dataclass(frozen=True)
class EvidencePairsTable(Table):
    """One row an item that A and B both answered."""

    near: ClassVar[str | None] = None

    pick: Pick
    names: tuple[str, str]
    pairs: Pairs
    found: Paired
    words: str

    def columns(self):
        """See `Table.columns`."""
        a, b = self.names
        return {
            "item": self.pairs.items,
            "document": self.pairs.documents,
            f"A: {a}": self.pairs.a,
            f"B: {b}": self.pairs.b,
            "B minus A": self.pairs.difference,
        }


def evidence_pairs_table(sweep: Sweep, pick: Pick) -> EvidencePairsTable:
    """A and B at one budget."""
    names = said.methods(sweep)
    found = paired(said.here(sweep, pick), pick.a, pick.other, pick.measure)
    pairs = said.pairs(sweep, pick)
    return EvidencePairsTable(
        pick, (names[pick.a], names[pick.other]), pairs, found, said.verdict(sweep, pick)
    )


def evidence_pairs_figure(table: EvidencePairsTable) -> go.Figure:
    """Bars of items; those of no difference grey."""
    pick, d = table.pick, table.pairs.difference
    better = MEASURES[pick.measure][1]
    middles, counts, width = bins(d)
    b_better = middles > 0 if better == "higher" else middles < 0
    sides = [("a", f"A better: {table.names[0]}", ~b_better & (middles != 0), ""),
             ("b", f"B better: {table.names[1]}", b_better & (middles != 0), "/"),
             ("muted", "no difference", middles == 0, "")]  # fmt: skip
    traces = [
        _bars(table, middles[at], counts[at], width, colour, name, pattern)
        for colour, name, at, pattern in sides
        if counts[at].sum()
    ]
    e = table.found.difference
    line = {"type": "line", "x0": e.value, "x1": e.value, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"color": role("selection"), "width": 2}}  # fmt: skip
    shapes = [line]
    if math.isfinite(e.low):
        band = {"type": "rect", "x0": e.low, "x1": e.high, "y0": 0, "y1": 1, "yref": "paper",
                "layer": "below", "fillcolor": role("evicted"), "line": {"width": 0}}  # fmt: skip
        shapes.append(band)
    room = max(float(np.abs(middles).max()) + width, 1e-9)
    ticks: dict[str, Any] = {"tickformat": "+.0%"} if pick.measure == "output_error" else {}
    if pick.measure == "right":
        words = ["only A<br>right", "both or<br>neither", "only B<br>right"]
        ticks = {"tickvals": [-1, 0, 1], "ticktext": words, "tickangle": 0}
    return build(
        traces,
        title=f"B minus A, item by item: {MEASURES[pick.measure][0]} at {pick.budget} kept",
        guide=GUIDE,
        summary=table.words,
        chip=f"n = {text.count(e.n)} items of {text.count(len(set(table.pairs.documents)))} documents",
        height=340,
        barmode="overlay",
        bargap=0,
        shapes=shapes,
        xaxis=axis(
            f"B minus A ({better} is better)", range=[-room, room], zeroline=True,
            zerolinecolor=role("muted"), **ticks,
        ),
        yaxis=axis("items", rangemode="tozero"),
    )  # fmt: skip


def bins(d: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """(middles, items, width) of bars around 0: items without a difference have a bar of their own."""
    some = d[d != 0]
    largest = float(np.abs(some).max()) if len(some) else 1.0
    half = min(MOST_BARS // 2, max(1, math.ceil(math.sqrt(len(d)) / 1.3)))
    if len(np.unique(np.abs(some))) <= 1:
        half = 1
    width = largest / half
    steps = np.sign(d) * np.maximum(np.ceil(np.abs(d) / width - 1e-9), 1)
    places = np.arange(-half, half + 1)
    counts = np.array([int((steps == place).sum()) for place in places])
    return np.where(places == 0, 0.0, (places - np.sign(places) * 0.5 * (half > 1)) * width), counts, width


def _bars(
    table: EvidencePairsTable, x: np.ndarray, y: np.ndarray, width: float, colour: str, name: str,
    pattern: str,
) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": role(colour), "line": {"width": 1, "color": role("page")}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "size": 6, "solidity": 0.2, "fgcolor": role("page"),
                             "bgcolor": role(colour), "fillmode": "replace"}  # fmt: skip
    words = [
        f"{text.count(c)} {'item' if c == 1 else 'items'}: {_between(table.pick.measure, v)}"
        for v, c in zip(x.tolist(), y.tolist())
    ]
    return {
        "type": "bar", "x": x.tolist(), "y": y.tolist(),
        "width": [width * (0.94 if v else 0.3) for v in x.tolist()],
        "customdata": [[w] for w in words], "name": name, "showlegend": True, "hoverinfo": "none",
        "marker": marker,
    }  # fmt: skip


def _between(measure: str, middle: float) -> str:
    if not middle:
        return "no difference"
    return f"B minus A about {said.difference(measure, middle)}"
