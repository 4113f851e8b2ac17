"""Codes of map cells: a share in steps, and the states that are not a share.

A cell stands for several entries (heads x tokens). Codes 0 to 10 are the share kept: 0 only if
none is, 10 only if all are. The states above them have a colour, a pattern and a legend row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvviz.figures.kit import colour_bar, legend_entry, patches
from kvviz.figures.palette import RAMP_STEPS
from kvviz.results.comparison import Comparison

EVICTED, KEPT = 0, RAMP_STEPS
PROTECTED, OUTSIDE, UNSCORED = RAMP_STEPS + 1, RAMP_STEPS + 2, RAMP_STEPS + 3
COLOURS = [f"ramp-{i}" for i in range(RAMP_STEPS + 1)] + ["protected", "outside", "unscored"]
NAMES = {
    EVICTED: "evicted",
    KEPT: "kept by all",
    PROTECTED: "kept by rule",
    OUTSIDE: "outside the sliding window",
    UNSCORED: "not scored",
}


def share_codes(share: np.ndarray, square_root: bool = False) -> np.ndarray:
    """Shares 0 to 1 (NaN counts as 0) as codes 0 to 10, uint8, on a linear or square-root scale."""
    share = np.nan_to_num(share)
    value = np.sqrt(share) if square_root else share
    between = 1 + np.floor(value * (RAMP_STEPS - 1)).clip(0, RAMP_STEPS - 2)
    code = np.where(share <= 0, EVICTED, np.where(share >= 1, KEPT, between))
    return code.astype(np.uint8)


def share_bar(title: str, square_root: bool = True, **more: Any) -> list[dict[str, Any]]:
    """The colour bar of the share codes, which tells true values whatever the scale; none without a title,
    where a cell is either kept or not."""
    if not title:
        return []
    ticks = {EVICTED: "none", (RAMP_STEPS // 2): "25%" if square_root else "50%", KEPT: "all"}
    return [colour_bar(COLOURS[: KEPT + 1], ticks, title, **more)]


def cell_codes(
    share: np.ndarray,
    entries: np.ndarray,
    kept: np.ndarray,
    protected: np.ndarray,
    outside: np.ndarray,
    unscored: np.ndarray,
    square_root: bool = False,
) -> np.ndarray:
    """Codes of cells from counts (all of one shape): a state only where it fills the whole cell."""
    code = share_codes(share, square_root)
    code[(entries > 0) & (protected == entries)] = PROTECTED
    code[(kept == 0) & (unscored > 0) & (unscored + outside == entries)] = UNSCORED
    code[outside == entries] = OUTSIDE
    return code


def state_traces(code: np.ndarray, x0: float, dx: float) -> list[dict[str, Any]]:
    """Hatch and dots over cells in a special state, and one legend row for each state present.

    x0, dx  middle of the first column and distance of columns, in tokens.
    """
    present = {int(v) for v in np.unique(code)}
    traces = []
    if EVICTED in present:
        traces.append(legend_entry(NAMES[EVICTED], "evicted"))
    if KEPT in present:
        traces.append(legend_entry(NAMES[KEPT], "kept"))
    if PROTECTED in present:
        traces.append(legend_entry(NAMES[PROTECTED], "protected"))
    for state, fill, line, pattern in (
        (OUTSIDE, "outside", "outside-line", "/"),
        (UNSCORED, "unscored", "unscored-line", "."),
    ):
        if state in present:
            traces += patches(code == state, x0, dx, NAMES[state], fill, line, pattern)
    return traces


def unscored_layers(
    c: Comparison, method: str, k: float | int, x0: int, x1: int
) -> Iterator[np.ndarray] | None:
    """Entries without a score, layer by layer bool [Hkv, x1 - x0]; None if the method has no scores.

    A method that gives no score anywhere (it goes by position) leaves nothing "not scored". The
    scores stored for the slider are those of the largest budget: what was protected there and so
    had no score may well have had one here, and is not counted.
    """
    point = c.at(method, k)
    if point is None or point.scores is None or not any(_any_number(a) for a in point.scores):
        return None
    blanks = (np.isnan(a[:, x0:x1]) for a in point.scores)
    if point.answer is not None:
        return blanks
    ruled = c.largest(method).kept
    return (blank & ~ruled.layer_protected(i)[:, x0:x1] for i, blank in enumerate(blanks))


def _any_number(scores: np.ndarray) -> bool:
    # A look at a few columns answers for nearly every method; the full pass is for the rest.
    return not np.isnan(scores[:, :64]).all() or not np.isnan(scores).all()
