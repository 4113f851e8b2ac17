"""Who keeps one token: a small map of layers by KV heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build, heatmap, legend_entry
from kvviz.figures.palette import role
from kvviz.figures.why_card import least_held
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table


@dataclass(frozen=True)
class MinimapTable(Table):
    """Who keeps one token where: code uint8 [L, Hkv], 0 neither, 1 both, 2 A only, 3 B only."""

    token: int
    text: str
    label_a: str
    label_b: str | None
    code: np.ndarray
    layer: int | None = None
    head: int | None = None

    def columns(self):
        """See `Table.columns`."""
        layers, heads = self.code.shape
        names = ["neither", "both", "A only", "B only"]
        if self.label_b is None:
            names[:2] = ["evicted", "kept"]
        return {
            "layer": np.repeat(np.arange(layers), heads),
            "KV head": np.tile(np.arange(heads), layers),
            "kept by": [names[i] for i in self.code.ravel()],
        }


def why_minimap_table(
    c: Comparison,
    tok: tuple[int, int] | None,
    a: str,
    b: str | None,
    k: float | int,
    layer: int | None = None,
    head: int | None = None,
) -> MinimapTable:
    """Layers x KV heads of the token of `tok` that A holds least; (layer, head) is outlined."""
    if tok is None:
        raise InputError("Choose a word in the text, or a dot.")
    token = least_held(c, a, k, tok)
    of_a = c.need(a, k).kept.token(token)
    if b is None:
        code = of_a.astype(np.uint8)
    else:
        of_b = c.need(b, k).kept.token(token)
        code = np.select([of_a & of_b, of_a, of_b], [1, 2, 3], 0).astype(np.uint8)
    label_b = None if b is None else text.label(c, b)
    name = text.plain(c.prompt.tokens[token])
    return MinimapTable(token, name, text.label(c, a), label_b, code, layer, head)


def why_minimap_figure(table: MinimapTable) -> go.Figure:
    """The small map below the card."""
    layers, heads = table.code.shape
    alone = table.label_b is None
    names = ["evicted", "kept"] if alone else ["neither", "both", "A only", "B only"]
    symbols = ("square", "square", "triangle-up", "triangle-down")
    colours = ["neither", "both", "a", "b"]
    present = [int(i) for i in np.unique(table.code)]
    counts = np.bincount(table.code.ravel(), minlength=4)
    shapes = []
    if table.layer is not None and table.head is not None:
        box = {"x0": table.head - 0.5, "x1": table.head + 0.5}
        from_top = {"y0": table.layer - 0.5, "y1": table.layer + 0.5}
        line = {"color": role("selection"), "width": 2}
        shapes = [{"type": "rect", **box, **from_top, "line": line}]
    said = ", ".join(f"{names[i]} in {text.count(int(counts[i]))}" for i in present)
    return build(
        [
            heatmap(table.code, colours, x0=0, dx=1),
            *(legend_entry(names[i], colours[i], symbols[i]) for i in present),
        ],
        title=f"Who keeps token {table.token} '{text.visible(table.text)}'",
        guide="Each cell is one KV head of one layer.",
        summary=f"Token {table.token}: {said} of {text.count(layers * heads)} KV heads.",
        height=max(220, 8 * layers + 130),
        xaxis=axis("KV head", tickvals=np.arange(heads), showgrid=False),
        yaxis=axis("layer", range=[layers - 0.5, -0.5], showgrid=False),
        shapes=shapes,
    )
