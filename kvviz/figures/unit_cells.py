"""Shades of words, sentences or paragraphs on a map of tokens: every column shows the unit it lies in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvviz.results.kept import Bins
from kvviz.results.units import Units


@dataclass(frozen=True, eq=False)
class UnitCells:
    """What a map's columns stand for.

    spans   int64 [columns, 2], first token and last + 1 of the unit at each column's middle.
    totals  what that unit holds as a whole, int64 [rows, columns] each.
    means   the units' counts a token, as a mean over the tokens of each column, float [rows, columns] each.
    """

    grain: str
    spans: np.ndarray
    totals: list[np.ndarray]
    means: list[np.ndarray]

    @property
    def chip(self) -> str:
        """ "by sentence"."""
        return f"by {self.grain}"


def unit_cells(
    grain: str, whole: Units, b: Bins, count: Callable[[int, int], Sequence[np.ndarray]]
) -> UnitCells | None:
    """None where every token is its own unit.

    count  (x0, x1) -> counts of those tokens, [rows, x1 - x0] each. It is asked for whole units: a map's
           edge may cut one, its share stays that of all of it.
    """
    if grain == "token":
        return None
    start = int(whole.starts[int(whole.at(b.x0))])
    near = whole.within(b.x0, b.x1)
    middle = near.at(b.x0 - start + b.starts + (b.widths - 1) // 2)
    widths = np.diff(near.starts, append=near.n)
    totals, means = [], []
    for values in count(start, start + near.n):
        total = near.totals(values)
        totals.append(total[..., middle])
        each = np.repeat(total / widths, widths, axis=-1)[..., b.x0 - start : b.x1 - start]
        means.append(each if b.size == 1 else np.add.reduceat(each, b.starts, axis=-1) / b.widths)
    spans = np.stack([near.starts, near.ends], axis=-1)[middle] + start
    return UnitCells(grain, spans, totals, means)
