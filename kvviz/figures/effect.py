"""How much each head's output changed: relative L2 error a query head, method against method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import (
    axis,
    build,
    colour_bar,
    heatmap,
    legend_entry,
    map_height,
    message_figure,
    panel,
    patches,
)
from kvviz.figures.palette import AMOUNT_STEPS, role
from kvviz.figures.token_map import layer_axis
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import nearest
from kvviz.results.measures import heads_compared
from kvviz.results.points import PROBE_CUT
from kvviz.results.table import Table

TITLE = "How much each head's output changed"
MAP_GUIDE = (
    "Each cell is one query head of one layer. Stronger colour: its output differs more from the "
    "full cache's. Vertical lines part the KV heads."
)
CLIP_AT = 99  # percentile at which the shared scale ends

# Codes: 0 no change, 1 to 12 the scale in log steps, then a value beyond its end, then no value.
CLIPPED, MISSING = AMOUNT_STEPS + 1, AMOUNT_STEPS + 2
COLOURS = [*(f"amount-{i}" for i in range(AMOUNT_STEPS + 1)), f"amount-{AMOUNT_STEPS}", "unscored"]


def errors_at(c: Comparison, method: str, k: float | int) -> np.ndarray | None:
    """Relative output error, float32 [L, Hq], at a decoded budget or a slider stop; else None."""
    point = c.at(method, k)
    return None if point is None else point.error


def error_shares(c: Comparison, method: str) -> list[float]:
    """Shares at which this method's output error is known, ascending."""
    return [s for s in c.shares(method) if errors_at(c, method, s) is not None]


@dataclass(frozen=True)
class EffectTable(Table):
    """Errors of A and (or None) B, float32 [L, Hq]; layer errors after summing heads, float32 [L].

    evicting bool [L], layers where A or B evicted something: only these can change, so medians and
             counts of heads are taken over them.
    message  why nothing is drawn, else "": errors exist at stops only.
    empty    names of KV heads that kept no entry, {"A": [...], "B": [...]}.
    """

    near: ClassVar[str | None] = "layer"

    label_a: str
    label_b: str | None
    budget_name: str
    group: int
    a: np.ndarray | None
    b: np.ndarray | None
    evicting: np.ndarray
    queries: str
    message: str
    empty: dict[str, list[str]]

    def columns(self):
        """See `Table.columns`."""
        if self.a is None:
            return {"layer": [], "query head": [], "KV head": []}
        layers, heads = self.a.shape
        columns = {
            "layer": np.repeat(np.arange(layers), heads),
            "query head": np.tile(np.arange(heads), layers),
            "KV head": np.tile(np.arange(heads) // self.group, layers),
            "error of A": self.a.ravel(),
        }
        if self.b is not None:
            columns["error of B"] = self.b.ravel()
        return columns

    @property
    def top(self) -> float:
        """End of the shared scale: the 99th percentile of all errors shown."""
        parts = [x[np.isfinite(x)] for x in (self.a, self.b) if x is not None]
        values = np.concatenate(parts) if parts else np.zeros(0)
        positive = values[values > 0]
        return float(np.percentile(positive, CLIP_AT)) if len(positive) else 0.0

    @property
    def bottom(self) -> float:
        """Start of the shared log scale: at most three decades below its end."""
        parts = [x[np.isfinite(x) & (x > 0)] for x in (self.a, self.b) if x is not None]
        values = np.concatenate(parts) if parts else np.zeros(0)
        if not len(values):
            return 0.0
        return max(float(values.min()), self.top / 1000)

    def compared(self) -> tuple[int, int, int]:
        """(heads where B is lower, heads equal within 1%, heads compared)."""
        if self.a is None or self.b is None:
            return 0, 0, 0
        return heads_compared(self.a[self.evicting], self.b[self.evicting])

    @property
    def compared_words(self) -> str:
        """ "B lower in 212 of 270 heads, equal (within 1%) in 9"."""
        lower, equal, total = self.compared()
        if not total:
            return ""
        return (
            f"B lower in {text.count(lower)} of {text.count(total)} heads, "
            f"equal (within 1%) in {text.count(equal)}{self.where}"
        )

    @property
    def where(self) -> str:
        """ ", in the 3 of 18 layers where something was evicted"; "" where that is all of them."""
        some, layers = int(self.evicting.sum()), len(self.evicting)
        if some == layers:
            return ""
        return f", in the {text.count(some)} of {text.count(layers)} layers where something was evicted"


def evicting_layers(c: Comparison, methods: list[str], k: float | int) -> np.ndarray:
    """Layers where one of the methods evicted something, bool [L]; all where that is not known."""
    points = [c.at(method, k) for method in methods]
    found = [np.ones(c.model.n_layers, bool) if p is None else c.evicted(p) for p in points]
    return np.any(found, axis=0)


def effect_table(c: Comparison, a: str, b: str | None, k: float | int) -> EffectTable:
    """Errors of A and B at budget k; where they were not computed, a message says what is near."""
    methods = {"A": a} if b is None else {"A": a, "B": b}
    errors = {side: errors_at(c, method, k) for side, method in methods.items()}
    message = ""
    for side, method in methods.items():
        if errors[side] is None:
            around = [text.budget_share(s) for s in nearest(error_shares(c, method), c.share(k))]
            message = f"Output error was not computed at {text.budget_name(k)}"
            if around:
                verb = "are" if len(around) > 1 else "is"
                message += f"; nearest {verb} {' and '.join(around)}"
            message += "."
            break
    return EffectTable(
        label_a=text.label(c, a),
        label_b=None if b is None else text.label(c, b),
        budget_name=text.budget_name(k),
        group=c.model.group,
        a=None if message else errors["A"],
        b=None if message or b is None else errors["B"],
        evicting=evicting_layers(c, list(methods.values()), k),
        queries=queries_words(c, list(methods.values()), k),
        message=message,
        empty={side: empty_heads(c, method, k) for side, method in methods.items()},
    )


def queries_words(c: Comparison, methods: Sequence[str], k: float | int) -> str:
    """The queries behind the errors of methods at a budget: "at the full cache's 14 answer tokens"."""
    tokens = len(c.full.token_ids)
    said = f"at the full cache's {text.count(tokens)} answer token{'' if tokens == 1 else 's'}"
    if any(v.evictions for v in c.variants):
        decoded = all(c.variant(method, k) is not None for method in methods)
        if decoded and c.settings.get("probe") == PROBE_CUT:
            return f"{said}, with what each cache held then"
        said += ", before anything was evicted while writing"
    return said


def empty_heads(c: Comparison, method: str, k: float | int) -> list[str]:
    """Heads that kept no entry at all, by name."""
    point = c.at(method, k)
    if point is None:
        return []
    empty = np.argwhere(point.kept.counts() == 0)
    return [text.place(int(layer), int(head)) for layer, head in empty]


def error_codes(errors: np.ndarray, bottom: float, top: float) -> np.ndarray:
    """Errors as codes (uint8) on a log scale from bottom to top; see the codes of this module."""
    code = np.full(errors.shape, MISSING, dtype=np.uint8)
    code[errors == 0] = 0
    positive = np.isfinite(errors) & (errors > 0)
    if top > 0:
        span = max(math.log(top / bottom), 1e-9)
        level = np.log(np.maximum(errors[positive], bottom) / bottom) / span * AMOUNT_STEPS
        steps = 1 + np.floor(level).clip(0, AMOUNT_STEPS - 1)
        code[positive] = np.where(errors[positive] > top, CLIPPED, steps).astype(np.uint8)
    return code


def effect_map_figure(table: EffectTable, which: str = "a") -> go.Figure:
    """Layers x query heads of A ("a") or B ("b"); both maps share their scale."""
    errors = table.a if which == "a" else table.b
    label = table.label_a if which == "a" else table.label_b
    side = which.upper()
    if errors is None or label is None:
        message = table.message or "No second method is chosen."
        return message_figure(f"{TITLE} · {side}", MAP_GUIDE, message)
    title = f"{TITLE} · {panel(side, label, table.budget_name)}"
    layers, heads = errors.shape
    bottom, top = table.bottom, table.top
    if top == 0:
        message = f"No head's output changed at {table.budget_name}, {table.queries}."
        return message_figure(title, MAP_GUIDE, message, queries=table.queries, empty=[])
    code = error_codes(errors, bottom, top)
    shown = np.where(np.isfinite(errors), errors, -1).astype(np.float32)  # -1: no value
    missing = patches(code == MISSING, 0, 1, "no value", "unscored", "unscored-line", ".")
    clipped = int((code == CLIPPED).sum())
    extra = [legend_entry(f"clipped: {text.relative_error(top)} or more", f"amount-{AMOUNT_STEPS}")]
    middle = math.sqrt(bottom * top)
    ticks = {0: "no change", AMOUNT_STEPS // 2: text.relative_error(middle)}
    ticks[AMOUNT_STEPS] = text.relative_error(top) + (" or more" if clipped else "")
    bar = colour_bar(COLOURS[: AMOUNT_STEPS + 1], ticks, "relative change (log scale)")
    borders = [
        {
            "type": "line",
            "x0": edge - 0.5,
            "x1": edge - 0.5,
            "y0": -0.5,
            "y1": layers - 0.5,
            "line": {"color": role("page"), "width": 2},
        }
        for edge in range(table.group, heads, table.group)
    ]
    changed = errors[table.evicting]
    finite = changed[np.isfinite(changed)]
    median = float(np.median(finite)) if len(finite) else float("nan")
    empty = table.empty.get(side, [])
    named = f" No entry kept in: {'; '.join(empty[:10])}." if empty else ""
    more = f" and {len(empty) - 10} more" if len(empty) > 10 else ""
    return build(
        [
            heatmap(code, COLOURS, x0=0, dx=1, customdata=shown),
            bar,
            *missing,
            *(extra if clipped else []),
        ],
        title=title,
        guide=MAP_GUIDE,
        summary=f"{label} at {table.budget_name}: median relative change of a head's output "
        f"{text.relative_error(median)}, {table.queries}{table.where}.{named}{more}",
        height=map_height(layers),
        meta={"queries": table.queries, "empty": empty, "scale": "relative change (log scale)"},
        xaxis=axis("query head (grouped by KV head)", showgrid=False),
        yaxis=layer_axis(layers),
        shapes=borders,
    )
