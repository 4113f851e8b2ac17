"""While the answer was written: what each cut of decode-time eviction dropped.

An eviction record is {"step": generated tokens so far, "dropped": counts [L][Hkv], "tokens": the
positions dropped in each layer, by any of its heads}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build, colour_bar, heatmap, map_height
from kvviz.figures.palette import AMOUNT_STEPS
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

TITLE = "What was thrown away while the answer was written"
GUIDE = "Read left to right: what was thrown away while the answer was written."
COLOURS = [f"amount-{i}" for i in range(AMOUNT_STEPS + 1)]


@dataclass(frozen=True)
class StepsTable(Table):
    """Entries dropped at each cut: int64 [L, cuts]; steps int64 [cuts], the generated step.

    tokens  for each cut and layer the positions dropped, where the run recorded them.
    """

    near: ClassVar[str | None] = "step"

    label: str
    budget_name: str
    steps: np.ndarray
    dropped: np.ndarray
    tokens: list[list[list[int]]]

    def columns(self):
        """See `Table.columns`."""
        layers, cuts = self.dropped.shape
        return {
            "layer": np.repeat(np.arange(layers), cuts),
            "step": np.tile(self.steps, layers),
            "dropped": self.dropped.ravel(),
        }

    def tokens_at(self, cut: int, layer: int | None = None) -> list[int]:
        """Token positions dropped at a cut, in one layer or in any."""
        if not self.tokens:
            return []
        layers = self.tokens[cut] if layer is None else [self.tokens[cut][layer]]
        return sorted({int(token) for one in layers for token in one})


def steps_table(c: Comparison, method: str, k: float | int) -> StepsTable:
    """The cuts of a decoded variant; InputError where the run evicted nothing while generating."""
    variant = c.variant(method, k)
    if variant is None or not variant.evictions:
        label = text.label(c, method)
        raise InputError(f"{label} evicted nothing while generating at {text.budget_name(c, k)}.")
    records = sorted(variant.evictions, key=lambda r: r["step"])
    counts = [np.asarray(r["dropped"], dtype=np.int64) for r in records]
    per_layer = [x.sum(axis=-1) if x.ndim == 2 else x for x in counts]
    tokens = [r.get("tokens") for r in records]
    return StepsTable(
        label=text.label(c, method),
        budget_name=text.budget_name(c, k),
        steps=np.array([r["step"] for r in records], dtype=np.int64),
        dropped=np.stack(per_layer, axis=1),
        tokens=tokens if all(t is not None for t in tokens) else [],
    )


def steps_figure(table: StepsTable) -> go.Figure:
    """Cuts by layers; one column a cut, labelled with its generated step."""
    layers, cuts = table.dropped.shape
    top = max(1, int(table.dropped.max()))
    code = np.ceil(AMOUNT_STEPS * table.dropped / top).clip(0, AMOUNT_STEPS).astype(np.uint8)
    every = max(1, -(-cuts // 20))
    shown = np.arange(0, cuts, every)
    ticks = {0: "none", AMOUNT_STEPS: text.count(top)}
    total = int(table.dropped.sum())
    return build(
        [
            heatmap(code, COLOURS, x0=0, dx=1, customdata=table.dropped.astype(np.uint32)),
            colour_bar(COLOURS, ticks, "entries dropped"),
        ],
        title=f"{TITLE} · {table.label}, {table.budget_name}",
        guide=GUIDE,
        summary=f"{table.label} at {table.budget_name} dropped {text.count(total)} entries in "
        f"{text.count(cuts)} cuts while generating.",
        height=map_height(layers),
        meta={"steps": table.steps.tolist()},
        xaxis=axis(
            "generated step",
            tickvals=shown,
            ticktext=[str(s) for s in table.steps[shown].tolist()],
            showgrid=False,
        ),
        yaxis=axis("layer", range=[layers - 0.5, -0.5], showgrid=False),
    )
