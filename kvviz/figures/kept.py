"""Which tokens each layer kept: the map of layers by tokens of one method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.figure import MOST_COLUMNS
from kvviz.figures.kit import map_height, panel
from kvviz.figures.strip import strip_spans
from kvviz.figures.token_map import CellTable, centre, layer_axis, strip_of, token_map
from kvviz.figures.unit_cells import unit_cells
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import bins, over_heads, pool_max, pool_sum
from kvviz.results.marks import group_holders, groups
from kvviz.results.units import units

TITLE = "Which tokens each layer kept"
GUIDE = (
    "Each column is a place in your text, each row a layer. A solid column: nearly every head in "
    "nearly every layer kept that token. The shade called “evicted” below: it is gone."
)
RULES = ("mean", "max")
LONG = 20_000  # tokens from which a map opens around the mark
AROUND = 750


@dataclass(frozen=True)
class KeptTable(CellTable):
    """Cells of layers x columns; all counts are entries (heads x tokens), uint32 [L, columns].

    kept, protected, outside, unscored  entries kept (by score or rule), kept by rule, beyond the
               sliding window, dropped without a score.
    strongest  uint8 or uint16, most heads that kept one single token of the cell.
    entries    int64 [columns], entries of a cell.
    code       uint8, see `cells`.
    """

    method: str
    label: str
    budget_name: str
    budget_words: str
    rule: str
    n_heads: int
    kept: np.ndarray
    protected: np.ndarray
    outside: np.ndarray
    unscored: np.ndarray
    strongest: np.ndarray
    entries: np.ndarray
    code: np.ndarray
    row_labels: dict[int, str]
    held: str  # "M1 held in 3 of 90 KV heads." or ""

    def columns(self):
        """See `Table.columns`."""
        layers = len(self.kept)
        possible = np.maximum(self.entries[None] - self.outside.astype(np.int64), 1)
        return {
            **self.cells("layer", layers),
            "entries": np.tile(self.entries, layers),
            "kept": self.kept.ravel(),
            "share": (self.kept / possible).ravel(),
            "strongest token": self.strongest.ravel(),
            "kept by rule": self.protected.ravel(),
            "outside window": self.outside.ravel(),
            "not scored": self.unscored.ravel(),
        }

    @property
    def root(self) -> bool:
        """Are shares shown on a square-root scale? Where a cell is the mean of several tokens."""
        return self.by is not None or (self.rule == "mean" and self.bins.size > 1)

    @property
    def scale(self) -> str:
        """What a shade stands for."""
        if self.by is not None:
            return f"share of the {self.by.grain} kept (square-root scale)"
        if self.bins.size == 1:
            return "share of KV heads that kept it"
        if self.rule == "max":
            return "share of KV heads, strongest token in cell"
        return "mean share kept (square-root scale)"


def kept_table(
    c: Comparison,
    method: str,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = MOST_COLUMNS,
    rule: str = "mean",
    grain: str = "token",
) -> KeptTable:
    """Count kept entries of tokens x0 to x1 into at most `columns` cells a layer.

    With a `grain` the shades are those of words, sentences or paragraphs; the counts stay those of cells.
    """
    if rule not in RULES:
        raise InputError('A cell shows the "mean" of its tokens or the strongest ("max").')
    b = bins(c.n, x0, x1, columns)
    heads = c.model.n_kv_heads
    held = c.need(method, k).kept
    mask = held.span(b.x0, b.x1)
    by_heads = over_heads(mask)
    ruled = pool_sum(over_heads(held.span_protected(b.x0, b.x1)), b)
    beyond = c.outside(b.x0, b.x1)
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

    def count(start: int, end: int) -> list[np.ndarray]:
        return [over_heads(held.span(start, end)), over_heads(held.span_protected(start, end)),
                c.outside(start, end)]  # fmt: skip

    by = unit_cells(grain, units(c.prompt, grain), b, count)
    if by is not None:
        shares = by.means[0] / np.maximum(heads * (1 - by.means[2]), 1e-9)
    root = by is not None or (rule == "mean" and b.size > 1)
    code = codes.cell_codes(shares, entries[None], kept, ruled, gone, missing, root)
    return KeptTable(
        bins=b,
        tokens=c.prompt.tokens,
        spans=strip_spans(c, method, k),
        method=method,
        label=text.label(c, method),
        budget_name=text.budget_name(k),
        budget_words=text.budget_triple(c, method, k),
        rule=rule,
        n_heads=heads,
        kept=kept,
        protected=ruled,
        outside=gone,
        unscored=missing,
        strongest=strongest,
        entries=entries,
        code=code,
        row_labels=row_labels(c, method, k),
        held=held_words(c, method, k),
        by=by,
    )


def row_labels(c: Comparison, method: str, k: float | int) -> dict[int, str]:
    """Layers with nothing to evict: "full", or the hatch where a sliding window holds few tokens."""
    whole = np.flatnonzero(~c.evicted(c.need(method, k)))
    return {int(layer): "▨" if c.window_starts()[layer] > 0 else "full" for layer in whole}


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
    layers = len(table.kept)
    return token_map(
        table,
        table.code,
        codes.COLOURS,
        table.counts(kept=table.kept, protected=table.protected),
        heads=table.n_heads,
        traces=[
            *codes.share_bar(table.scale, table.root, len=0.7),
            *codes.state_traces(table.code, *centre(b)),
        ],
        strip=strip_of(table, bool((table.code == codes.PROTECTED).any())),
        rows=layer_axis(layers, table.row_labels),
        scale=table.scale,
        title=f"{TITLE} · {panel(side, table.label, table.budget_name)}",
        guide=GUIDE,
        summary=f"{table.label}, {table.budget_name} kept, {text.count(layers)} layers by "
        f"{text.count(b.x1 - b.x0)} tokens. {table.held}".strip(),
        height=map_height(layers),
        meta={"budget": table.budget_words, "rule": table.rule},
    )


def opening_range(c: Comparison) -> tuple[int, int]:
    """Tokens a map opens on: all of them, or the surroundings of the first mark in a long text."""
    if c.n <= LONG:
        return 0, c.n
    middle = (c.marks[0].start + c.marks[0].end) // 2 if c.marks else c.n // 2
    start = min(max(0, middle - AROUND), c.n - 2 * AROUND)
    return start, start + 2 * AROUND
