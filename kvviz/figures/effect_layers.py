"""Output errors of whole layers, heads summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.effect import queries_words
from kvviz.figures.kit import axis, build, message_figure
from kvviz.figures.palette import role
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table


@dataclass(frozen=True)
class EffectLayersTable(Table):
    """Relative change of each layer's attention output, heads summed: float32 [L], None where unknown."""

    near: ClassVar[str | None] = "layer"

    label_a: str
    label_b: str | None
    budget_name: str
    a: np.ndarray | None
    b: np.ndarray | None
    queries: str

    def columns(self):
        """See `Table.columns`."""
        known = {"error of A": self.a, "error of B": self.b}
        known = {name: values for name, values in known.items() if values is not None}
        length = len(next(iter(known.values()), ()))
        return {"layer": np.arange(length), **known}


def effect_layers_table(c: Comparison, a: str, b: str | None, k: float | int) -> EffectLayersTable:
    """Errors of whole layers; they are known at decoded budgets only."""

    def errors(method: str | None) -> np.ndarray | None:
        variant = None if method is None else c.variant(method, k)
        known = None if variant is None else variant.layer_error
        return None if known is None else np.asarray(known, np.float32)

    return EffectLayersTable(
        label_a=text.label(c, a),
        label_b=None if b is None else text.label(c, b),
        budget_name=text.budget_name(k),
        a=errors(a),
        b=errors(b),
        queries=queries_words(c, [a] if b is None else [a, b], k),
    )


def effect_layers_figure(table: EffectLayersTable) -> go.Figure:
    """The change of each layer's attention output, after summing heads."""
    title = "How much each layer's output changed, after summing heads"
    guide = "Higher: the layer's attention output differs more from the full cache's."
    lines = []
    said = []
    for side, label, errors in (("A", table.label_a, table.a), ("B", table.label_b, table.b)):
        if errors is None:
            continue
        errors = np.asarray(errors, dtype=np.float64)
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": np.arange(len(errors)),
                "y": [100 * float(e) if np.isfinite(e) else None for e in errors],
                "name": f"{side}: {label}",
                "showlegend": True,
                "hoverinfo": "none",
                "line": {"color": role(side.lower()), "dash": "solid" if side == "A" else "dot"},
                "marker": {"symbol": "triangle-up" if side == "A" else "triangle-down"},
            }
        )
        if np.isfinite(errors).any():
            worst = int(np.nanargmax(errors))
            said.append(f"{label} most at layer {worst} ({text.relative_error(float(errors[worst]))})")
    if not lines:
        message = (
            f"Errors of whole layers are known for decoded budgets only: {table.budget_name} was not decoded."
        )
        return message_figure(title, guide, message)
    return build(
        lines,
        title=title,
        guide=guide,
        summary=f"At {table.budget_name}, {table.queries}: {', '.join(said) or 'no values'}.",
        height=260,
        meta={"queries": table.queries},
        xaxis=axis("layer"),
        yaxis=axis("relative change, %", rangemode="tozero"),
    )
