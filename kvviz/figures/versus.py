"""A against B, counted per head and token before anything is pooled.

Pooling first would hide it: two methods that each keep half of the heads, but not the same half,
have equal shares everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.figure import MOST_COLUMNS
from kvviz.figures.kit import legend_entry, map_height, patches
from kvviz.figures.palette import STRENGTHS
from kvviz.figures.strip import strip_spans
from kvviz.figures.token_map import CellTable, centre, layer_axis, strip_of, token_map
from kvviz.figures.unit_cells import unit_cells
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import bins, over_heads, pool_sum
from kvviz.results.units import units

TITLE = "A against B"
GUIDE = (
    "Orange: only A kept it. Blue: only B did. Solid: both kept it. “Neither” below: both dropped it. "
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
class VersusTable(CellTable):
    """Cells of layers x columns; counts are entries (heads x tokens), int64 [L, columns].

    only_a, only_b, both  entries only A, only B, both kept.
    outside   entries beyond the sliding window; they are nobody's loss.
    entries   int64 [columns], entries of a cell.
    code      uint8: NEITHER, BOTH, A + strength, B + strength, MIXED, OUTSIDE of this module.
    """

    label_a: str
    label_b: str
    budget_name: str
    n_heads: int
    only_a: np.ndarray
    only_b: np.ndarray
    both: np.ndarray
    outside: np.ndarray
    entries: np.ndarray
    code: np.ndarray

    def columns(self):
        """See `Table.columns`."""
        layers = len(self.code)
        return {
            **self.cells("layer", layers),
            "entries": np.tile(self.entries, layers),
            "only A": self.only_a.ravel(),
            "only B": self.only_b.ravel(),
            "both": self.both.ravel(),
            "outside window": self.outside.ravel(),
            "class": [class_name(code) for code in self.code.ravel().tolist()],
        }


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
    columns: int = MOST_COLUMNS,
    grain: str = "token",
) -> VersusTable:
    """Count per head and token what only A, only B and both kept, then pool the counts: into cells, and with
    a `grain` into the words, sentences or paragraphs that these lie in."""
    cut = bins(c.n, x0, x1, columns)
    of_a = c.need(a, k).kept.span(cut.x0, cut.x1)
    of_b = c.need(b, k).kept.span(cut.x0, cut.x1)
    both = pool_sum(over_heads(of_a & of_b), cut).astype(np.int64)
    only_a = pool_sum(over_heads(of_a), cut).astype(np.int64) - both
    only_b = pool_sum(over_heads(of_b), cut).astype(np.int64) - both
    heads = c.model.n_kv_heads
    beyond = pool_sum(c.outside(cut.x0, cut.x1), cut).astype(np.int64) * heads
    entries = cut.widths * heads

    def count(start: int, end: int) -> list[np.ndarray]:
        in_a, in_b = (c.need(m, k).kept.span(start, end) for m in (a, b))
        return [over_heads(part) for part in (in_a & ~in_b, in_b & ~in_a, in_a & in_b)]

    by = unit_cells(grain, units(c.prompt, grain), cut, count)
    if by is None:
        code = cell_classes(only_a, only_b, both, entries[None] - beyond, cut.size > 1)
    else:
        in_a, in_b, in_both = by.means
        code = cell_classes(in_a, in_b, in_both, heads - beyond / cut.widths, True)
    code[beyond == entries[None]] = OUTSIDE
    return VersusTable(
        bins=cut,
        tokens=c.prompt.tokens,
        spans=[s for s in strip_spans(c, a, k) if s.kind != "protected"],
        label_a=text.label(c, a),
        label_b=text.label(c, b),
        budget_name=text.budget_name(k),
        n_heads=heads,
        only_a=only_a,
        only_b=only_b,
        both=both,
        outside=beyond,
        entries=entries,
        code=code,
        by=by,
    )


def versus_figure(table: VersusTable) -> go.Figure:
    """The difference map, with the states present in its legend."""
    layers = len(table.code)
    present = {class_name(int(v)) for v in np.unique(table.code)}
    names = (
        ("both", "both kept it", "both", "square"),
        ("neither", "neither kept it", "neither", "square"),
        ("A only", f"A only ({table.label_a})", "a", "triangle-up"),
        ("B only", f"B only ({table.label_b})", "b", "triangle-down"),
        ("mixed", "mixed: A only and B only in one cell", "mixed", "square"),
    )
    legend = [legend_entry(name, fill, symbol) for key, name, fill, symbol in names if key in present]
    outline = "outside-line"
    hatch = patches(
        table.code == OUTSIDE, *centre(table.bins), "outside the sliding window", "outside", outline, "/"
    )
    total = int((table.entries[None] - table.outside).sum())
    a, both, other = (int(x.sum()) for x in (table.only_a, table.both, table.only_b))
    of = table.by.grain if table.by else "cell"
    return token_map(
        table,
        table.code,
        COLOURS,
        table.counts(**{"only A": table.only_a, "only B": table.only_b, "both": table.both}),
        heads=table.n_heads,
        traces=[*legend, *hatch],
        strip=strip_of(table),
        rows=layer_axis(layers),
        scale=f"stronger: a larger part of the {of}" + (" (square-root scale)" if table.pooled else ""),
        title=f"{TITLE} · {table.label_a} against {table.label_b}, {table.budget_name}",
        guide=GUIDE,
        summary=f"{table.label_a} (A) against {table.label_b} (B) at {table.budget_name}: of "
        f"{text.count(total)} entries {text.count(both)} kept by both, {text.count(a)} by A only, "
        f"{text.count(other)} by B only.",
        height=map_height(layers),
    )
