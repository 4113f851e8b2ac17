"""A against B, counted per head and token before anything is pooled.

Pooling first would hide it: two methods that each keep half of the heads, but not the same half,
have equal shares everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.cells import centre, layer_ticks
from kvviz.figures.kit import axis, build, heatmap, legend_entry, map_height, patches
from kvviz.figures.palette import STRENGTHS
from kvviz.figures.strip import Span, mark_shapes, track, track_traces
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import Bins, bins, need_kept, outside, over_heads, pool_sum
from kvviz.results.table import Table

TITLE = "A against B"
GUIDE = (
    "Orange: only A kept it. Blue: only B did. Solid: both kept it. Pale: neither. "
    "Yellow: A and B kept different heads here."
)
AGREE = 0.05  # of a cell's entries: fewer differences count as agreement

NEITHER, BOTH, A, B, MIXED = 0, 1, 2, 2 + STRENGTHS, 2 + 2 * STRENGTHS
OUTSIDE = MIXED + 1
COLOURS = [
    "neither",
    "both",
    *(f"a-{i}" for i in range(1, STRENGTHS + 1)),
    *(f"b-{i}" for i in range(1, STRENGTHS + 1)),
    "mixed",
    "outside",
]


def cell_classes(only_a, only_b, both, entries, pooled: bool) -> np.ndarray:
    """Class codes (uint8) of cells from counts of entries (int arrays of one shape).

    Both or neither (by majority, both in a draw) if A-only + B-only is under 5% of the entries;
    mixed if the smaller of the two is at least half the larger; else the larger, in 3 strengths of
    its share (square root where cells pool tokens, as in the kept map).
    """
    entries = np.maximum(entries, 1)
    neither = entries - only_a - only_b - both
    larger, smaller = np.maximum(only_a, only_b), np.minimum(only_a, only_b)
    share = larger / entries
    level = np.ceil(STRENGTHS * (np.sqrt(share) if pooled else share) - 1e-9)
    level = level.clip(1, STRENGTHS).astype(np.int64) - 1
    code = np.where(only_a > only_b, A, B) + level
    code = np.where(2 * smaller >= larger, MIXED, code)
    agreed = np.where((both >= neither) & (both > 0), BOTH, NEITHER)
    code = np.where((only_a + only_b < AGREE * entries) | (larger == 0), agreed, code)
    return code.astype(np.uint8)


@dataclass(frozen=True)
class VersusTable(Table):
    """Cells of layers x columns; counts are entries (heads x tokens), int64 [L, columns].

    only_a, only_b, both  entries only A, only B, both kept.
    outside   entries beyond the sliding window; they are nobody's loss.
    entries   int64 [columns], entries of a cell.
    code      uint8: NEITHER, BOTH, A + strength, B + strength, MIXED, OUTSIDE of this module.
    """

    near: ClassVar[str | None] = "first token"

    label_a: str
    label_b: str
    budget_name: str
    bins: Bins
    n_heads: int
    only_a: np.ndarray
    only_b: np.ndarray
    both: np.ndarray
    outside: np.ndarray
    entries: np.ndarray
    code: np.ndarray
    tokens: list[str]
    spans: list[Span]

    def columns(self):
        """See `Table.columns`."""
        layers, columns = self.code.shape
        first = self.bins.x0 + self.bins.starts
        pieces = [self.piece(i) for i in range(columns)]
        return {
            "layer": np.repeat(np.arange(layers), columns),
            "first token": np.tile(first, layers),
            "last token": np.tile(first + self.bins.widths - 1, layers),
            "text": pieces * layers,
            "entries": np.tile(self.entries, layers),
            "only A": self.only_a.ravel(),
            "only B": self.only_b.ravel(),
            "both": self.both.ravel(),
            "outside window": self.outside.ravel(),
            "class": [class_name(code) for code in self.code.ravel().tolist()],
        }

    def piece(self, column: int) -> str:
        """The text of a column, short."""
        first, last = self.bins.span(column)
        return text.excerpt(self.tokens[first : last + 1])

    def readout(self, layer: int, column: int) -> str:
        """ "layer 7, tokens 410-415 '...': A kept 4 of 18 entries, B 12 of 18; both 2"."""
        first, last = self.bins.span(column)
        where = f"token {first}" if first == last else f"tokens {first}-{last}"
        both = int(self.both[layer, column])
        total = text.count(int(self.entries[column]))
        of_a = text.count(int(self.only_a[layer, column]) + both)
        of_b = text.count(int(self.only_b[layer, column]) + both)
        return (
            f"layer {layer}, {where} '{self.piece(column)}': A kept {of_a} of {total} entries, "
            f"B {of_b} of {total}; both {text.count(both)}"
        )


def class_name(code: int) -> str:
    """ "neither", "both", "A only", "B only", "mixed" or "outside"."""
    if code in (NEITHER, BOTH, MIXED, OUTSIDE):
        return {NEITHER: "neither", BOTH: "both", MIXED: "mixed", OUTSIDE: "outside"}[code]
    return "A only" if code < B else "B only"


def versus_table(
    c: Comparison,
    a: str,
    b: str,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = 1500,
) -> VersusTable:
    """Count per head and token what only A, only B and both kept, then pool the counts."""
    cut = bins(c, x0, x1, columns)
    of_a = need_kept(c, a, k)[:, :, cut.x0 : cut.x1]
    of_b = need_kept(c, b, k)[:, :, cut.x0 : cut.x1]
    both = pool_sum(over_heads(of_a & of_b), cut).astype(np.int64)
    only_a = pool_sum(over_heads(of_a), cut).astype(np.int64) - both
    only_b = pool_sum(over_heads(of_b), cut).astype(np.int64) - both
    heads = c.model.n_kv_heads
    beyond = pool_sum(outside(c, cut.x0, cut.x1), cut).astype(np.int64) * heads
    entries = cut.widths * heads
    code = cell_classes(only_a, only_b, both, entries[None] - beyond, cut.size > 1)
    code[beyond == entries[None]] = OUTSIDE
    return VersusTable(
        label_a=text.label(c, a),
        label_b=text.label(c, b),
        budget_name=text.budget_name(c, k),
        bins=cut,
        n_heads=heads,
        only_a=only_a,
        only_b=only_b,
        both=both,
        outside=beyond,
        entries=entries,
        code=code,
        tokens=c.prompt.tokens,
        spans=[s for s in track(c, a, k) if s.kind != "protected"],
    )


def versus_figure(table: VersusTable) -> go.Figure:
    """The difference map, with the states present in its legend."""
    b = table.bins
    layers = table.code.shape[0]
    x0, dx = centre(b)
    largest = int(table.entries.max())
    kind = np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.uint32
    cells = np.stack([table.only_a, table.only_b, table.both], axis=-1).astype(kind)
    present = {class_name(int(v)) for v in np.unique(table.code)}
    names = (
        ("both", "both kept it", "both", "square"),
        ("neither", "neither kept it", "neither", "square"),
        ("A only", f"A only ({table.label_a})", "a", "triangle-up"),
        ("B only", f"B only ({table.label_b})", "b", "triangle-down"),
        ("mixed", "mixed: A only and B only in one cell", "mixed", "square"),
    )
    legend = [legend_entry(name, fill, symbol) for key, name, fill, symbol in names if key in present]
    hatch = patches(
        table.code == OUTSIDE, x0, dx, "outside the sliding window", "outside", "outside-line", "/"
    )
    total = int((table.entries[None] - table.outside).sum())
    a, both, other = (int(x.sum()) for x in (table.only_a, table.both, table.only_b))
    ticks, labels = layer_ticks({}, layers)
    return build(
        [
            heatmap(table.code, COLOURS, x0=x0, dx=dx, customdata=cells),
            *legend,
            *hatch,
            *track_traces(table.spans, b.x0, b.x1),
        ],
        title=f"{TITLE} · {table.label_a} against {table.label_b}, {table.budget_name}",
        guide=GUIDE,
        summary=f"{table.label_a} (A) against {table.label_b} (B) at {table.budget_name}: of "
        f"{text.count(total)} entries {text.count(both)} kept by both, {text.count(a)} by A only, "
        f"{text.count(other)} by B only.",
        chip=b.chip,
        height=map_height(layers),
        meta={
            "cells": {
                "x0": b.x0,
                "x1": b.x1,
                "size": b.size,
                "heads": table.n_heads,
                "channels": ["only A", "only B", "both"],
            }
        },
        xaxis=axis("token position", range=[b.x0 - 0.5, b.x1 - 0.5], showgrid=False),
        yaxis=axis(
            "layer",
            range=[layers - 0.5, -0.5],
            domain=[0, 0.88],
            showgrid=False,
            tickvals=ticks,
            ticktext=labels,
        ),
        yaxis2={"domain": [0.9, 1], "range": [0, 4.5], "visible": False, "fixedrange": True},
        shapes=mark_shapes(table.spans, layers),
    )
