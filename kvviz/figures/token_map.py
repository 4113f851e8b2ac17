"""What all maps over token positions share: their cells, their axes, the strip on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build, heatmap, narrow
from kvviz.figures.strip import Span, mark_shapes, strip_traces
from kvviz.figures.unit_cells import UnitCells
from kvviz.results import words as text
from kvviz.results.kept import Bins
from kvviz.results.table import Table

_STRIP_FROM = 0.88  # of the height: the map ends there


@dataclass(frozen=True)
class CellTable(Table):
    """Cells of rows x columns of tokens.

    bins    which tokens a column stands for.
    tokens  of the whole prompt.
    spans   what the strip above the map names.
    by      the units that the shades are of, None where each token is its own.
    """

    near: ClassVar[str | None] = "first token"

    bins: Bins
    tokens: list[str]
    spans: list[Span]
    by: UnitCells | None = field(default=None, kw_only=True)

    @property
    def pooled(self) -> bool:
        """Does a shade stand for several tokens?"""
        return self.bins.size > 1 or self.by is not None

    @property
    def chip(self) -> str:
        """What a cell is, where it is not one token."""
        return " · ".join(part for part in (self.by.chip if self.by else "", self.bins.chip) if part)

    def counts(self, **cells: np.ndarray) -> dict[str, np.ndarray]:
        """What a cell reads out: its own counts, or those of the unit it lies in."""
        return cells if self.by is None else dict(zip(cells, self.by.totals))

    def cells(self, rows: str, count: int) -> dict[str, Sequence[Any] | np.ndarray]:
        """The columns that say which cell a row of the table is; `rows` names the map's rows."""
        first = self.bins.x0 + self.bins.starts
        pieces = []
        for column in range(len(first)):
            start, end = self.bins.span(column)
            pieces.append(text.excerpt(self.tokens[start : end + 1]))
        return {
            rows: np.repeat(np.arange(count), len(first)),
            "first token": np.tile(first, count),
            "last token": np.tile(first + self.bins.widths - 1, count),
            "text": pieces * count,
        }


def centre(b: Bins) -> tuple[float, float]:
    """Middle of the first column and distance of columns, in tokens."""
    return b.x0 + (b.size - 1) / 2, float(b.size)


def layer_ticks(labels: dict[int, str], layers: int, most: int = 10) -> tuple[list[int], list[str]]:
    """Tick positions and texts for layers: evenly spaced, and always those with a label."""
    step = max(1, -(-layers // most))
    shown = [i for i in range(layers) if i % step == 0 or i in labels]
    return shown, [f"{i} {labels[i]}" if i in labels else str(i) for i in shown]


def layer_axis(layers: int, labels: dict[int, str] | None = None, **more: Any) -> dict[str, Any]:
    """Layers downwards from 0; `labels` adds a word to some."""
    ticks, names = layer_ticks(labels or {}, layers)
    return axis(
        "layer", range=[layers - 0.5, -0.5], showgrid=False, tickvals=ticks, ticktext=names, **more
    )


def token_map(
    table: CellTable,
    code: np.ndarray,
    colours: list[str],
    counts: dict[str, np.ndarray],
    *,
    heads: int,
    traces: Sequence[dict[str, Any]],
    rows: dict[str, Any],
    strip: Sequence[dict[str, Any]] = (),
    scale: str = "",
    meta: dict[str, Any] | None = None,
    **texts: Any,
) -> go.Figure:
    """A heatmap over tokens.

    code     uint8 [rows, columns], indices in `colours`.
    counts   what the page reads out of a cell, by name: whole numbers [rows, columns].
    heads    entries that one token has in a cell.
    traces   legend and colour bar; strip: traces on the axis above the map.
    rows     the y axis.
    scale    what the shades mean, where they are more than kept or not.
    """
    b = table.bins
    x0, dx = centre(b)
    cells = {"x0": b.x0, "x1": b.x1, "size": b.size, "heads": heads, "channels": list(counts)}
    if table.by is not None:
        cells["units"] = table.by.spans.tolist()
    layout: dict[str, Any] = {"yaxis": rows}
    if strip:
        layout["yaxis"] = {**rows, "domain": [0, _STRIP_FROM]}
        layout["yaxis2"] = {
            "domain": [_STRIP_FROM + 0.02, 1],
            "range": [0, 4.5],
            "visible": False,
            "fixedrange": True,
        }
    return build(
        [
            heatmap(code, colours, x0=x0, dx=dx, customdata=narrow(np.stack([*counts.values()], axis=-1))),
            *traces,
            *strip,
        ],
        chip=table.chip,
        meta={"cells": cells, "scale": scale, **(meta or {})},
        # To the end of the last cell, which may hold fewer tokens: it is as wide as the others.
        xaxis=axis("token position", range=[b.x0 - 0.5, b.x0 + len(b.starts) * b.size - 0.5], showgrid=False),
        shapes=mark_shapes(table.spans, len(code)),
        **layout,
        **texts,
    )


def strip_of(table: CellTable, named: bool = False) -> list[dict[str, Any]]:
    """The strip above a map; `named`: the legend says "kept by rule" already."""
    return strip_traces(table.spans, table.bins.x0, table.bins.x1, named)
