"""One layer's KV heads by tokens (kept or not), and the bars of tokens kept a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.kit import axis, build, colour_bar, heatmap, map_height
from kvviz.figures.palette import role
from kvviz.figures.strip import Span, mark_shapes, track
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import (
    Bins,
    bins,
    head_counts,
    layer_kept,
    layer_protected,
    not_stored,
    outside,
    pool_sum,
)
from kvviz.results.table import Table


@dataclass(frozen=True)
class HeadsTable(Table):
    """Cells of KV heads x columns of one layer; counts are tokens, uint32 [Hkv, columns].

    tokens_in  int64 [columns], tokens of a cell.
    code       uint8, see `codes`.
    """

    near: ClassVar[str | None] = "first token"

    label: str
    budget_name: str
    layer: int
    bins: Bins
    kept: np.ndarray
    protected: np.ndarray
    outside: np.ndarray
    unscored: np.ndarray
    tokens_in: np.ndarray
    code: np.ndarray
    tokens: list[str]
    spans: list[Span]

    def columns(self):
        """See `Table.columns`."""
        heads, columns = self.kept.shape
        first = self.bins.x0 + self.bins.starts
        pieces = []
        for column in range(columns):
            start, end = self.bins.span(column)
            pieces.append(text.excerpt(self.tokens[start : end + 1]))
        return {
            "layer": np.full(heads * columns, self.layer),
            "KV head": np.repeat(np.arange(heads), columns),
            "first token": np.tile(first, heads),
            "last token": np.tile(first + self.bins.widths - 1, heads),
            "text": pieces * heads,
            "tokens": np.tile(self.tokens_in, heads),
            "kept": self.kept.ravel(),
            "kept by rule": self.protected.ravel(),
            "outside window": self.outside.ravel(),
            "not scored": self.unscored.ravel(),
        }


def heads_table(
    c: Comparison,
    method: str,
    k: float | int,
    layer: int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = 1500,
) -> HeadsTable:
    """What each KV head of a layer kept of the tokens x0 to x1."""
    if not 0 <= layer < c.model.n_layers:
        raise InputError(f"There are layers 0 to {c.model.n_layers - 1}, not {layer}.")
    b = bins(c, x0, x1, columns)
    mask = layer_kept(c, method, k, layer)[:, b.x0 : b.x1]
    protected = layer_protected(c, method, k, layer)[:, b.x0 : b.x1]
    kept = pool_sum(np.ascontiguousarray(mask), b)
    ruled = pool_sum(np.ascontiguousarray(protected), b)
    beyond = np.broadcast_to(outside(c, b.x0, b.x1)[layer], mask.shape)
    gone = pool_sum(np.ascontiguousarray(beyond), b)
    missing = np.zeros_like(kept)
    for index, blank in enumerate(codes.unscored_layers(c, method, k, b.x0, b.x1) or ()):
        if index == layer:
            missing = pool_sum(blank & ~mask & ~beyond, b)
    widths = b.widths
    share = kept / np.maximum(widths[None] - gone.astype(np.int64), 1)
    code = codes.cell_codes(share, widths[None], kept, ruled, gone, missing, b.size > 1)
    return HeadsTable(
        label=text.label(c, method),
        budget_name=text.budget_name(c, k),
        layer=layer,
        bins=b,
        kept=kept,
        protected=ruled,
        outside=gone,
        unscored=missing,
        tokens_in=widths,
        code=code,
        tokens=c.prompt.tokens,
        spans=track(c, method, k),
    )


def heads_figure(table: HeadsTable, side: str = "") -> go.Figure:
    """The band of one layer: a row a KV head."""
    b = table.bins
    heads = table.kept.shape[0]
    x0, dx = codes.centre(b)
    kind = np.uint8 if b.size < 256 else np.uint16
    cells = np.stack([table.kept, table.protected], axis=-1).astype(kind)
    traces = [heatmap(table.code, codes.COLOURS, x0=x0, dx=dx, customdata=cells)]
    if b.size > 1:
        title = "share of the cell's tokens (square-root scale)"
        traces.append(colour_bar(codes.COLOURS[:11], codes.share_ticks(True), title))
    traces += codes.state_traces(table.code, b)
    panel = f"{side + ': ' if side else ''}{table.label}, {table.budget_name}"
    counts = [text.count(int(x)) for x in table.kept.sum(axis=1)]
    return build(
        traces,
        title=f"Which tokens each head of layer {table.layer} kept · {panel}",
        guide="Each row is a KV head of this layer. Solid: this head kept the token.",
        summary=f"Layer {table.layer}, {table.label}, {table.budget_name}: tokens kept by KV heads "
        f"0 to {heads - 1}: {', '.join(counts)}.",
        chip=b.chip,
        height=max(230, 22 * heads + 160),
        meta={
            "layer": table.layer,
            "cells": {
                "x0": b.x0,
                "x1": b.x1,
                "size": b.size,
                "heads": 1,
                "channels": ["kept", "protected"],
            },
        },
        xaxis=axis("token position", range=[b.x0 - 0.5, b.x1 - 0.5], showgrid=False),
        yaxis=axis(
            "KV head",
            range=[heads - 0.5, -0.5],
            showgrid=False,
            tickvals=np.arange(heads),
            ticktext=[str(h) for h in range(heads)],
        ),
        shapes=mark_shapes(table.spans, heads),
    )


@dataclass(frozen=True)
class PerLayerTable(Table):
    """Tokens kept per KV head in each layer: mean, fewest and most over heads, [L]."""

    near: ClassVar[str | None] = "layer"

    label: str
    budget_name: str
    mean: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    possible: np.ndarray

    def columns(self):
        """See `Table.columns`."""
        return {
            "layer": np.arange(len(self.mean)),
            "mean": self.mean,
            "fewest": self.fewest,
            "most": self.most,
            "possible": self.possible,
        }


def per_layer_table(c: Comparison, method: str, k: float | int) -> PerLayerTable:
    """Tokens kept a layer; uneven budgets show here."""
    counts = head_counts(c, method, k)
    if counts is None:
        raise InputError(not_stored(c, method, k, "The kept tokens were not stored"))
    possible = head_counts(c, "full", 1.0)[:, 0]
    return PerLayerTable(
        label=text.label(c, method),
        budget_name=text.budget_name(c, k),
        mean=counts.mean(axis=1),
        fewest=counts.min(axis=1),
        most=counts.max(axis=1),
        possible=np.asarray(possible),
    )


def per_layer_figure(table: PerLayerTable, side: str = "") -> go.Figure:
    """Bars beside the map: mean tokens kept per KV head, whiskers from fewest to most."""
    layers = len(table.mean)
    colour = side.lower() if side.lower() in ("a", "b") else "muted"
    even = bool((table.fewest == table.most).all())
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": table.mean.astype(np.float32),
        "y": np.arange(layers),
        "marker": {"color": role(colour)},
        "hoverinfo": "none",
        "customdata": np.stack([table.fewest, table.most], axis=-1).astype(np.uint32),
    }
    if not even:
        bars["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": (table.most - table.mean).astype(np.float32),
            "arrayminus": (table.mean - table.fewest).astype(np.float32),
            "color": role("muted"),
            "thickness": 1,
            "width": 0,
        }
    low, high = int(table.fewest.min()), int(table.most.max())
    spread = "the same in every head" if low == high else f"from {low:,} to {high:,} a head"
    return build(
        [bars],
        title="Tokens kept per layer",
        guide="Longer bar: this layer kept more tokens. The line spans its KV heads, fewest to most.",
        summary=f"{table.label}, {table.budget_name}: {text.count(table.mean.mean())} tokens per "
        f"KV head on average, {spread}.",
        height=map_height(layers),
        xaxis=axis("tokens per KV head", rangemode="tozero"),
        yaxis=axis("layer", range=[layers - 0.5, -0.5], showgrid=False),
        bargap=0.2,
    )
