"""Tokens kept per layer: a bar each, or one sentence where all are equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build, map_height, message_figure, panel
from kvviz.figures.palette import role
from kvviz.figures.token_map import layer_axis
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

TITLE = "Tokens kept per layer"
GUIDE = "Longer bar: this layer kept more tokens. The line spans its KV heads, fewest to most."
EVEN = "Layers may keep different numbers of tokens. Here they do not."


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
    counts = c.need(method, k).kept.counts()
    return PerLayerTable(
        label=text.label(c, method),
        budget_name=text.budget_name(k),
        mean=counts.mean(axis=1),
        fewest=counts.min(axis=1),
        most=counts.max(axis=1),
        possible=c.n - c.window_starts(),
    )


def per_layer_figure(table: PerLayerTable, side: str = "") -> go.Figure:
    """Mean tokens kept per KV head, with whiskers from fewest to most where heads differ."""
    title = f"{TITLE} · {panel(side, table.label, table.budget_name)}"
    layers, low, high = len(table.mean), int(table.fewest.min()), int(table.most.max())
    if low == high and layers > 1:
        tokens = "1 token" if low == 1 else f"{text.count(low)} tokens"
        return message_figure(title, EVEN, f"{table.label} keeps {tokens} in every KV head of every layer.")
    colour = side.lower() if side.lower() in ("a", "b") else "muted"
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": table.mean.astype(np.float32),
        "y": np.arange(layers),
        "marker": {"color": role(colour)},
        "hoverinfo": "none",
        "customdata": np.stack([table.fewest, table.most], axis=-1).astype(np.uint32),
    }
    if not (table.fewest == table.most).all():
        bars["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": (table.most - table.mean).astype(np.float32),
            "arrayminus": (table.mean - table.fewest).astype(np.float32),
            "color": role("muted"),
            "thickness": 1,
            "width": 0,
        }
    return build(
        [bars],
        title=title,
        guide=GUIDE,
        summary=f"{table.label}, {table.budget_name}: {text.count(table.mean.mean())} tokens per "
        f"KV head on average, from {text.count(low)} to {text.count(high)} a head.",
        height=map_height(layers),
        xaxis=axis("tokens per KV head", rangemode="tozero"),
        yaxis=layer_axis(layers),
        bargap=0.2,
    )
