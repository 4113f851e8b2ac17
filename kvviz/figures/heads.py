"""What each KV head of one layer kept: the map of heads by tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.figure import MOST_COLUMNS
from kvviz.figures.kit import axis, panel
from kvviz.figures.strip import strip_spans
from kvviz.figures.token_map import CellTable, centre, token_map
from kvviz.figures.unit_cells import unit_cells
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import bins, pool_sum
from kvviz.results.units import units


@dataclass(frozen=True)
class HeadsTable(CellTable):
    """Cells of KV heads x columns of one layer; counts are tokens, uint32 [Hkv, columns].

    tokens_in  int64 [columns], tokens of a cell.
    code       uint8, see `cells`.
    """

    label: str
    budget_name: str
    layer: int
    kept: np.ndarray
    protected: np.ndarray
    outside: np.ndarray
    unscored: np.ndarray
    tokens_in: np.ndarray
    code: np.ndarray

    def columns(self):
        """See `Table.columns`."""
        heads, columns = self.kept.shape
        return {
            "layer": np.full(heads * columns, self.layer),
            **self.cells("KV head", heads),
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
    columns: int = MOST_COLUMNS,
    grain: str = "token",
) -> HeadsTable:
    """What each KV head of a layer kept of the tokens x0 to x1, or of the units they lie in."""
    if not 0 <= layer < c.model.n_layers:
        raise InputError(f"There are layers 0 to {c.model.n_layers - 1}, not {layer}.")
    b = bins(c.n, x0, x1, columns)
    held = c.need(method, k).kept
    mask = held.layer(layer)[:, b.x0 : b.x1]
    protected = held.layer_protected(layer)[:, b.x0 : b.x1]
    kept = pool_sum(np.ascontiguousarray(mask), b)
    ruled = pool_sum(np.ascontiguousarray(protected), b)
    beyond = np.broadcast_to(c.outside(b.x0, b.x1)[layer], mask.shape)
    gone = pool_sum(np.ascontiguousarray(beyond), b)
    missing = np.zeros_like(kept)
    for index, blank in enumerate(codes.unscored_layers(c, method, k, b.x0, b.x1) or ()):
        if index == layer:
            missing = pool_sum(blank & ~mask & ~beyond, b)
    widths = b.widths
    share = kept / np.maximum(widths[None] - gone.astype(np.int64), 1)
    seen = ~c.outside()[layer]

    def count(start: int, end: int) -> list[np.ndarray]:
        part, rule = held.layer(layer), held.layer_protected(layer)
        return [part[:, start:end], rule[:, start:end], seen[None, start:end]]

    by = unit_cells(grain, units(c.prompt, grain), b, count)
    if by is not None:
        share = by.means[0] / np.maximum(by.means[2], 1e-9)
    code = codes.cell_codes(share, widths[None], kept, ruled, gone, missing, by is not None or b.size > 1)
    return HeadsTable(
        bins=b,
        tokens=c.prompt.tokens,
        spans=strip_spans(c, method, k),
        label=text.label(c, method),
        budget_name=text.budget_name(k),
        layer=layer,
        kept=kept,
        protected=ruled,
        outside=gone,
        unscored=missing,
        tokens_in=widths,
        code=code,
        by=by,
    )


def heads_figure(table: HeadsTable, side: str = "") -> go.Figure:
    """The band of one layer: a row a KV head."""
    heads = len(table.kept)
    of = f"of the {table.by.grain}" if table.by else "of the cell's tokens"
    scale = f"share {of} (square-root scale)" if table.pooled else ""
    counts = [text.count(int(x)) for x in table.kept.sum(axis=1)]
    return token_map(
        table,
        table.code,
        codes.COLOURS,
        table.counts(kept=table.kept, protected=table.protected),
        heads=1,
        traces=[*codes.share_bar(scale), *codes.state_traces(table.code, *centre(table.bins))],
        rows=axis(
            "KV head",
            range=[heads - 0.5, -0.5],
            showgrid=False,
            tickvals=np.arange(heads),
            ticktext=[str(h) for h in range(heads)],
        ),
        scale=scale,
        title=f"Which tokens each head of layer {table.layer} kept · "
        f"{panel(side, table.label, table.budget_name)}",
        guide="Each row is a KV head of this layer. Solid: this head kept the token.",
        summary=f"Layer {table.layer}, {table.label}, {table.budget_name}: tokens kept by KV heads "
        f"0 to {heads - 1}: {', '.join(counts)}.",
        height=max(230, 22 * heads + 160),
        meta={"layer": table.layer},
    )
