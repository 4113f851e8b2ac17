"""Output errors head by head, A against B: one dot a query head."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.effect import EffectTable
from kvviz.figures.kit import axis, build, message_figure
from kvviz.figures.palette import role

TITLE = "Error per head: A against B"
GUIDE = "Dots below the line: B changes that head less. Above: A does."
DECADES = 4  # that the scale spans: what is smaller lies on its edge


def effect_scatter_figure(table: EffectTable) -> go.Figure:
    """One dot a query head, error of A against error of B.

    The scale spans four decades at most: one head that hardly changed does not press all others
    into a corner. Heads below it, and those that did not change at all, lie on the edge.
    """
    if table.a is None or table.b is None:
        message = table.message or "Choose a second method as B."
        return message_figure(TITLE, GUIDE, message)
    usable = np.isfinite(table.a) & np.isfinite(table.b)
    layer, head = np.nonzero(usable)
    a, b = table.a[usable].astype(np.float64), table.b[usable].astype(np.float64)
    both = np.concatenate([a, b])
    if not (both > 0).any():
        message = f"No head's output changed at {table.budget_name}, {table.queries}."
        return message_figure(TITLE, GUIDE, message)
    high = math.log10(both.max())
    low = max(math.log10(both[both > 0].min()), high - DECADES)
    edge = low - 0.4

    def log(values: np.ndarray) -> np.ndarray:
        least = 10.0 ** (low - 1e-9)
        return np.where(values >= least, np.log10(np.maximum(values, least)), edge).astype(np.float32)

    below = both < 10.0 ** (low - 1e-9)
    decades = [d for d in range(math.floor(low), math.ceil(high) + 1) if d > edge + 0.6]
    ticks: list[float] = [*decades]
    words = [percent_of_decade(d) for d in decades]
    if below.any():
        less = "0" if (both[below] == 0).all() else f"<{100 * 10.0**low:.1g}%"
        ticks, words = [edge, *ticks], [less, *words]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": log(a),
        "y": log(b),
        "customdata": np.stack([layer, head, head // table.group, a, b], axis=-1).astype(np.float32),
        "hoverinfo": "none",
        "name": "query head",
        "marker": {"size": 6, "color": role("muted"), "line": {"width": 1, "color": role("page")}},
    }
    ends = [edge - 0.2, high + 0.2]
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": ends,
        "name": "equal",
        "hoverinfo": "skip",
        "line": {"color": role("text"), "width": 1, "dash": "dash"},
    }
    return build(
        [diagonal, dots],
        title=TITLE,
        guide=GUIDE,
        summary=f"{table.compared_words}. A is {table.label_a}, B is {table.label_b}, "
        f"{table.budget_name}, {table.queries}.",
        height=400,
        meta={"compared": table.compared_words, "queries": table.queries},
        xaxis=axis("relative change by A (log scale)", tickvals=ticks, ticktext=words, range=ends),
        yaxis=axis("relative change by B (log scale)", tickvals=ticks, ticktext=words, range=ends),
    )


def percent_of_decade(decade: int) -> str:
    """10 to the power `decade` as percent, written out: -5 is "0.001%"."""
    return f"{100 * 10.0**decade:.{max(0, -decade - 2)}f}%"
