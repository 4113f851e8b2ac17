"""Attention against effect: each token of one head as a dot, and what each method did with it."""

from __future__ import annotations

import numpy as np

from kvviz.figures.effect import errors_at
from kvviz.figures.why_card import WhyCard, why_card
from kvviz.figures.why_dots import GUIDE, NOTE, why_figure
from kvviz.figures.why_minimap import why_minimap_figure, why_minimap_table
from kvviz.figures.why_table import WhyTable, axis_choices, rank_correlation, why_table
from kvviz.results.comparison import Comparison
from kvviz.results.kept import span_kept

__all__ = [
    "GUIDE",
    "NOTE",
    "WhyCard",
    "WhyTable",
    "axis_choices",
    "default_head",
    "rank_correlation",
    "why_card",
    "why_figure",
    "why_minimap_figure",
    "why_minimap_table",
    "why_table",
]


def default_head(
    c: Comparison, a: str, b: str | None, k: float | int, tok: tuple[int, int] | None
) -> tuple[int, int]:
    """The head to show while none is chosen: (layer, KV head) of the largest difference.

    By |tokens held by A - held by B| of `tok`, else by the difference of output errors. Without B
    the comparison is with the full cache.
    """
    shape = c.model.n_layers, c.model.n_kv_heads
    difference = np.zeros(shape)
    if tok is not None and tok[0] < c.n:
        span = max(0, tok[0]), min(tok[1], c.n)
        masks = [span_kept(c, m, k, *span) for m in (a, b if b is not None else "full")]
        if all(m is not None for m in masks):
            one, other = (m.sum(axis=-1, dtype=np.int64) for m in masks)
            difference = np.abs(one - other).astype(np.float64)
    if not difference.any():
        errors = [errors_at(c, method, k) for method in (a, b) if method is not None]
        if all(e is not None for e in errors):
            gap = np.abs(errors[0] - errors[1]) if len(errors) == 2 else errors[0]
            difference = np.nan_to_num(gap).reshape(*shape, -1).max(axis=-1)
    layer, head = np.unravel_index(int(difference.argmax()), shape)
    return int(layer), int(head)
