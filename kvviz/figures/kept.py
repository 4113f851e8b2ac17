"""Which tokens each layer kept: the map of layers by tokens, and what stands around it.

The other maps of this view live beside it and are offered here: A against B (`versus`), one
layer's heads and the bars a layer (`heads`), the strip on top (`track`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.heads import (
    heads_figure,
    heads_table,
    per_layer_figure,
    per_layer_table,
)
from kvviz.figures.kit import axis, build, colour_bar, heatmap, map_height
from kvviz.figures.strip import Span, mark_shapes, track, track_traces
from kvviz.figures.versus import versus_figure, versus_table
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import (
    Bins,
    bins,
    head_counts,
    need_kept,
    outside,
    over_heads,
    pool_max,
    pool_sum,
    window_starts,
)
from kvviz.results.marks import group_holders, groups
from kvviz.results.table import Table

__all__ = [
    "KeptTable",
    "all_methods_figure",
    "all_methods_table",
    "heads_figure",
    "heads_table",
    "kept_figure",
    "kept_table",
    "opening_range",
    "per_layer_figure",
    "per_layer_table",
    "track",
    "versus_figure",
    "versus_table",
]

TITLE = "Which tokens each layer kept"
GUIDE = (
    "Each column is a place in your text, each row a layer. A solid column: nearly every head in "
    "nearly every layer kept that token. A pale column: it is gone."
)
RULES = ("mean", "max")
LONG = 20_000  # tokens from which a map opens around the mark
AROUND = 750


@dataclass(frozen=True)
class KeptTable(Table):
    """Cells of layers x columns; all counts are entries (heads x tokens), uint32 [L, columns].

    kept, protected, outside, unscored  entries kept (by score or rule), kept by rule, beyond the
               sliding window, dropped without a score.
    strongest  uint8 or uint16, most heads that kept one single token of the cell.
    entries    int64 [columns], entries of a cell.
    code       uint8, see `codes`.
    """

    near: ClassVar[str | None] = "first token"

    method: str
    label: str
    budget: float | int
    budget_name: str
    budget_words: str
    bins: Bins
    rule: str
    n_heads: int
    kept: np.ndarray
    protected: np.ndarray
    outside: np.ndarray
    unscored: np.ndarray
    strongest: np.ndarray
    entries: np.ndarray
    code: np.ndarray
    tokens: list[str]
    spans: list[Span]
    row_labels: dict[int, str]
    held: str  # "M1 held in 3 of 90 KV heads." or ""

    def columns(self):
        """See `Table.columns`."""
        layers, columns = self.kept.shape
        first = self.bins.x0 + self.bins.starts
        last = first + self.bins.widths - 1
        pieces = [self.piece(i) for i in range(columns)]
        possible = np.maximum(self.entries[None] - self.outside.astype(np.int64), 1)
        return {
            "layer": np.repeat(np.arange(layers), columns),
            "first token": np.tile(first, layers),
            "last token": np.tile(last, layers),
            "text": pieces * layers,
            "entries": np.tile(self.entries, layers),
            "kept": self.kept.ravel(),
            "share": (self.kept / possible).ravel(),
            "strongest token": self.strongest.ravel(),
            "kept by rule": self.protected.ravel(),
            "outside window": self.outside.ravel(),
            "not scored": self.unscored.ravel(),
        }

    def piece(self, column: int) -> str:
        """The text of a column, short."""
        first, last = self.bins.span(column)
        return text.excerpt(self.tokens[first : last + 1])

    def readout(self, layer: int, column: int) -> str:
        """ "layer 7, tokens 410-415 '...': SnapKV kept 4 of 18 entries; 1 protected"."""
        first, last = self.bins.span(column)
        where = f"token {first}" if first == last else f"tokens {first}-{last}"
        said = f"layer {layer}, {where} '{self.piece(column)}': {self.label} kept "
        said += f"{text.count(int(self.kept[layer, column]))} of "
        said += f"{text.count(int(self.entries[column]))} entries"
        for amount, name in ((self.protected, "protected"), (self.unscored, "not scored")):
            if amount[layer, column]:
                said += f"; {text.count(int(amount[layer, column]))} {name}"
        if self.outside[layer, column]:
            said += f"; {text.count(int(self.outside[layer, column]))} outside the sliding window"
        return said


def kept_table(
    c: Comparison,
    method: str,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = 1500,
    rule: str = "mean",
) -> KeptTable:
    """Count kept entries of tokens x0 to x1 into at most `columns` cells a layer."""
    if rule not in RULES:
        raise InputError('A cell shows the "mean" of its tokens or the strongest ("max").')
    b = bins(c, x0, x1, columns)
    layers, heads = c.model.n_layers, c.model.n_kv_heads
    mask = need_kept(c, method, k)[:, :, b.x0 : b.x1]
    by_heads = over_heads(mask)
    protected = c.protected(method, k)
    if protected is None:
        ruled = np.zeros((layers, len(b.starts)), dtype=np.uint32)
    else:
        ruled = pool_sum(over_heads(protected[:, :, b.x0 : b.x1]), b)
    beyond = outside(c, b.x0, b.x1)
    kept = pool_sum(by_heads, b)
    gone = pool_sum(beyond, b) * np.uint32(heads)
    missing = np.zeros_like(kept)
    unscored = codes.unscored_layers(c, method, k, b.x0, b.x1)
    for layer, blank in enumerate(unscored or ()):
        blank = blank & ~mask[layer] & ~beyond[layer]
        missing[layer] = pool_sum(blank.view(np.uint8).sum(axis=0, dtype=np.uint16), b)
    strongest = pool_max(by_heads, b)
    entries = b.widths * heads
    possible = entries[None] - gone.astype(np.int64)
    shares = kept / np.maximum(possible, 1) if rule == "mean" else strongest / heads
    code = codes.cell_codes(shares, entries[None], kept, ruled, gone, missing, rule == "mean" and b.size > 1)
    return KeptTable(
        method=method,
        label=text.label(c, method),
        budget=k,
        budget_name=text.budget_name(c, k),
        budget_words=text.budget_triple(c, method, k),
        bins=b,
        rule=rule,
        n_heads=heads,
        kept=kept,
        protected=ruled,
        outside=gone,
        unscored=missing,
        strongest=strongest,
        entries=entries,
        code=code,
        tokens=c.prompt.tokens,
        spans=track(c, method, k),
        row_labels=row_labels(c, method, k),
        held=held_words(c, method, k),
    )


def row_labels(c: Comparison, method: str, k: float | int) -> dict[int, str]:
    """Layers with nothing to evict: "full", or the hatch where a sliding window holds few tokens."""
    counts, most = head_counts(c, method, k), head_counts(c, "full", 1.0)
    starts = window_starts(c)
    labels = {}
    for layer in range(c.model.n_layers):
        if counts is not None and (counts[layer] == most[layer]).all():
            labels[layer] = "▨" if starts[layer] > 0 else "full"
    return labels


def held_words(c: Comparison, method: str, k: float | int) -> str:
    """ "M1 held in 3 of 90 KV heads." for the first mark, or ""."""
    for name, marks in groups(c).items():
        held = group_holders(c, method, k, marks)
        if held is not None:
            return f"{name} held in {text.count(held.count)} of {text.count(held.total)} KV heads."
    return ""


def kept_figure(table: KeptTable, side: str = "") -> go.Figure:
    """The map of one method. `side` ("A" or "B") names the panel."""
    b = table.bins
    layers = table.kept.shape[0]
    root = table.rule == "mean" and b.size > 1
    x0, dx = codes.centre(b)
    cells = np.stack([table.kept, table.protected], axis=-1).astype(np.uint32)
    traces = [
        heatmap(table.code, codes.COLOURS, x0=x0, dx=dx, customdata=_narrow(cells)),
        colour_bar(codes.COLOURS[:11], codes.share_ticks(root), _scale_title(table), len=0.7),
        *codes.state_traces(table.code, b),
        *track_traces(table.spans, b.x0, b.x1, bool((table.code == codes.PROTECTED).any())),
    ]
    ticks, names = codes.layer_ticks(table.row_labels, layers)
    panel = f"{side + ': ' if side else ''}{table.label}, {table.budget_name}"
    return build(
        traces,
        title=f"{TITLE} · {panel}",
        guide=GUIDE,
        summary=f"{table.label}, {table.budget_name} kept, {text.count(layers)} layers by "
        f"{text.count(b.x1 - b.x0)} tokens. {table.held}".strip(),
        chip=b.chip,
        height=map_height(layers),
        meta={
            "budget": table.budget_words,
            "rule": table.rule,
            "cells": {
                "x0": b.x0,
                "x1": b.x1,
                "size": b.size,
                "heads": table.n_heads,
                "channels": ["kept", "protected"],
            },
        },
        xaxis=axis("token position", range=[b.x0 - 0.5, b.x1 - 0.5], showgrid=False),
        yaxis=axis(
            "layer",
            range=[layers - 0.5, -0.5],
            domain=[0, 0.88],
            showgrid=False,
            tickvals=ticks,
            ticktext=names,
        ),
        yaxis2={"domain": [0.9, 1], "range": [0, 4.5], "visible": False, "fixedrange": True},
        shapes=mark_shapes(table.spans, layers),
    )


def _scale_title(table: KeptTable) -> str:
    if table.bins.size == 1:
        return "share of KV heads that kept it"
    if table.rule == "max":
        return "share of KV heads, strongest token in cell"
    return "mean share kept (square-root scale)"


def _narrow(counts: np.ndarray) -> np.ndarray:
    """The smallest unsigned type that holds the counts: payload is the page's budget."""
    largest = int(counts.max(initial=0))
    kind = np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.uint32
    return counts.astype(kind)


def opening_range(c: Comparison) -> tuple[int, int]:
    """Tokens a map opens on: all of them, or the surroundings of the first mark in a long text."""
    if c.n <= LONG:
        return 0, c.n
    middle = (c.marks[0].start + c.marks[0].end) // 2 if c.marks else c.n // 2
    start = min(max(0, middle - AROUND), c.n - 2 * AROUND)
    return start, start + 2 * AROUND


@dataclass(frozen=True)
class AllMethodsTable(Table):
    """The same map for every method, stacked; one KeptTable a method."""

    near: ClassVar[str | None] = "first token"

    tables: list[KeptTable]
    budget_name: str

    def columns(self):
        """See `Table.columns`."""
        parts = [table.columns() for table in self.tables]
        lengths = [len(part["layer"]) for part in parts]
        names = [t.label for t, length in zip(self.tables, lengths) for _ in range(length)]
        joined = {"method": names}
        for name, first in parts[0].items():
            if isinstance(first, list):
                joined[name] = [value for part in parts for value in part[name]]
            else:
                joined[name] = np.concatenate([part[name] for part in parts])
        return joined


def all_methods_table(
    c: Comparison,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = 1500,
    rule: str = "mean",
) -> AllMethodsTable:
    """Maps of all methods whose kept entries are known at k, in the order they were asked for."""
    stored = [m for m in c.methods if head_counts(c, m, k) is not None]
    if not stored:
        raise InputError(f"No method's kept tokens were stored at {text.budget_name(c, k)}.")
    tables = [kept_table(c, m, k, x0, x1, columns, rule) for m in stored]
    return AllMethodsTable(tables, text.budget_name(c, k))


def all_methods_figure(table: AllMethodsTable) -> go.Figure:
    """Methods stacked at 3 pixels a layer, same token axis."""
    b = table.tables[0].bins
    layers = table.tables[0].kept.shape[0]
    gap = max(1, layers // 10)
    empty = np.full((gap, len(b.starts)), codes.UNSCORED, dtype=np.uint8)
    blocks, middles = [], []
    for index, one in enumerate(table.tables):
        blocks += [one.code] if index == 0 else [empty, one.code]
        middles.append(index * (layers + gap) + (layers - 1) / 2)
    stacked = np.concatenate(blocks)
    real = np.concatenate([one.code for one in table.tables])
    root = table.tables[0].rule == "mean" and b.size > 1
    x0, dx = codes.centre(b)
    labels = [one.label for one in table.tables]
    states = [t for t in codes.state_traces(real, b) if "fillpattern" not in t]
    traces = [
        heatmap(stacked, codes.COLOURS, x0=x0, dx=dx),
        colour_bar(codes.COLOURS[:11], codes.share_ticks(root), _scale_title(table.tables[0])),
        *states,
    ]
    return build(
        traces,
        title=f"{TITLE}, every method at {table.budget_name}",
        guide="One band a method, layer 0 on top of each. A column that is solid in one band and "
        "pale in another: the methods disagree about that place.",
        summary=f"{len(labels)} methods at {table.budget_name}: {', '.join(labels)}.",
        chip=b.chip,
        height=3 * len(stacked) + 170,
        meta={"methods": [one.method for one in table.tables], "layers": layers, "gap": gap},
        xaxis=axis("token position", range=[b.x0 - 0.5, b.x1 - 0.5], showgrid=False),
        yaxis=axis(
            "method, layers from top",
            range=[len(stacked) - 0.5, -0.5],
            showgrid=False,
            tickvals=middles,
            ticktext=labels,
        ),
        shapes=mark_shapes(table.tables[0].spans, len(stacked)),
    )
