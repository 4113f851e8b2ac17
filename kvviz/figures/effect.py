"""How much each head's output changed: relative L2 error a query head, method against method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build, colour_bar, heatmap, legend_entry, map_height, patches
from kvviz.figures.palette import AMOUNT_STEPS, role
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import head_counts, nearest, stop_index
from kvviz.results.table import Table

TITLE = "How much each head's output changed"
SCATTER_TITLE = "Error per head: A against B"
SCATTER_GUIDE = "Dots below the line: B changes that head less. Above: A does."
MAP_GUIDE = (
    "Each cell is one query head of one layer. Stronger colour: its output differs more from the "
    "full cache's. Vertical lines part the KV heads."
)
EQUAL = 0.01  # of the larger error: closer than this counts as equal
CLIP_AT = 99  # percentile at which the shared scale ends

# Codes: 0 no change, 1 to 12 the scale in log steps, then a value beyond its end, then no value.
CLIPPED, MISSING = AMOUNT_STEPS + 1, AMOUNT_STEPS + 2
COLOURS = [*(f"amount-{i}" for i in range(AMOUNT_STEPS + 1)), f"amount-{AMOUNT_STEPS}", "unscored"]


def errors_at(c: Comparison, method: str, k: float | int) -> np.ndarray | None:
    """Relative output error, float32 [L, Hq], at a decoded budget or a slider stop; else None."""
    variant = c.variant(method, k)
    if variant is not None and variant.output_error is not None:
        return np.asarray(variant.output_error)
    index = stop_index(c, k)
    if index is None or method not in c.stop_errors:
        return None
    return np.asarray(c.stop_errors[method][index])


def error_shares(c: Comparison, method: str) -> list[float]:
    """Shares at which this method's output error is known, ascending."""
    found = {c.share(v.budget) for v in c.variants if v.method == method and v.output_error is not None}
    if method in c.stop_errors:
        found |= set(c.stops)
    return sorted(found)


@dataclass(frozen=True)
class EffectTable(Table):
    """Errors of A and (or None) B, float32 [L, Hq]; layer errors after summing heads, float32 [L].

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
    layer_a: np.ndarray | None
    layer_b: np.ndarray | None
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
        usable = np.isfinite(self.a) & np.isfinite(self.b)
        a, b = self.a[usable], self.b[usable]
        equal = np.abs(a - b) <= EQUAL * np.maximum(a, b)
        return int(((b < a) & ~equal).sum()), int(equal.sum()), len(a)

    @property
    def compared_words(self) -> str:
        """ "B lower in 212 of 270 heads, equal (within 1%) in 9"."""
        lower, equal, total = self.compared()
        if not total:
            return ""
        return (
            f"B lower in {text.count(lower)} of {text.count(total)} heads, "
            f"equal (within 1%) in {text.count(equal)}"
        )


def effect_table(c: Comparison, a: str, b: str | None, k: float | int) -> EffectTable:
    """Errors of A and B at budget k; where they were not computed, a message says what is near."""
    methods = {"A": a} if b is None else {"A": a, "B": b}
    errors = {side: errors_at(c, method, k) for side, method in methods.items()}
    message = ""
    for side, method in methods.items():
        if errors[side] is None:
            around = [text.budget_share(s) for s in nearest(error_shares(c, method), c.share(k))]
            message = f"Output error was not computed at {text.budget_name(c, k)}"
            if around:
                verb = "are" if len(around) > 1 else "is"
                message += f"; nearest {verb} {' and '.join(around)}"
            message += "."
            break
    layers = {}
    for side, method in methods.items():
        variant = c.variant(method, k)
        layers[side] = None if variant is None else variant.layer_error
    return EffectTable(
        label_a=text.label(c, a),
        label_b=None if b is None else text.label(c, b),
        budget_name=text.budget_name(c, k),
        group=c.model.group,
        a=None if message else errors["A"],
        b=None if message or b is None else errors["B"],
        layer_a=layers["A"],
        layer_b=layers.get("B"),
        queries=queries_words(c),
        message=message,
        empty={side: empty_heads(c, method, k) for side, method in methods.items()},
    )


def queries_words(c: Comparison) -> str:
    """The queries behind the errors: "at the full cache's 14 answer tokens"."""
    probe = str(c.settings.get("probe", "answer"))
    if "window" in probe and "answer" not in probe:
        return "at the queries of the observation window"
    tokens = len(c.full.token_ids)
    return f"at the full cache's {text.count(tokens)} answer token{'' if tokens == 1 else 's'}"


def empty_heads(c: Comparison, method: str, k: float | int) -> list[str]:
    """Heads that kept no entry at all, by name."""
    counts = head_counts(c, method, k)
    if counts is None:
        return []
    return [text.place(int(layer), int(head)) for layer, head in np.argwhere(counts == 0)]


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
    if errors is None:
        return _empty(f"{TITLE} · {side}", MAP_GUIDE, table.message or "No second method is chosen.")
    layers, heads = errors.shape
    bottom, top = table.bottom, table.top
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
    finite = errors[np.isfinite(errors)]
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
        title=f"{TITLE} · {side}: {label}, {table.budget_name}",
        guide=MAP_GUIDE,
        summary=f"{label} at {table.budget_name}: median relative change of a head's output "
        f"{text.relative_error(median)}, {table.queries}.{named}{more}",
        height=map_height(layers),
        meta={"queries": table.queries, "empty": empty, "message": table.message},
        xaxis=axis("query head (grouped by KV head)", showgrid=False),
        yaxis=axis("layer", range=[layers - 0.5, -0.5], showgrid=False),
        shapes=borders,
    )


def _empty(title: str, guide: str, message: str) -> go.Figure:
    note = {"text": message, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    hidden = {"visible": False}
    return build(
        [],
        title=title,
        guide=guide,
        summary=message,
        meta={"message": message},
        xaxis=hidden,
        yaxis=hidden,
        annotations=[{**note, "showarrow": False}],
    )


def effect_scatter_figure(table: EffectTable) -> go.Figure:
    """One dot a query head, error of A against error of B; zeros lie on the axes' rails."""
    if table.a is None or table.b is None:
        return _empty(SCATTER_TITLE, SCATTER_GUIDE, table.message or "Choose a second method as B.")
    usable = np.isfinite(table.a) & np.isfinite(table.b)
    layer, head = np.nonzero(usable)
    a, b = table.a[usable].astype(np.float64), table.b[usable].astype(np.float64)
    positive = np.concatenate([a[a > 0], b[b > 0]])
    low = math.log10(positive.min()) if len(positive) else -3.0
    high = math.log10(positive.max()) if len(positive) else 0.0
    rail = low - 0.4

    def log(values: np.ndarray) -> np.ndarray:
        return np.where(values > 0, np.log10(np.maximum(values, 1e-300)), rail).astype(np.float32)

    first, last = math.floor(low), math.ceil(high)
    decades = [d for d in range(first, last + 1) if d > rail + 0.15]
    ticks = [rail, *decades] if (np.concatenate([a, b]) == 0).any() else decades
    words = [f"{100 * 10.0**d:g}%" if d != rail else "0" for d in ticks]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": log(a),
        "y": log(b),
        "customdata": np.stack([layer, head, head // table.group], axis=-1).astype(np.int32),
        "hoverinfo": "none",
        "name": "query head",
        "marker": {"size": 6, "color": role("muted"), "line": {"width": 1, "color": role("page")}},
    }
    ends = [rail - 0.2, high + 0.2]
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
        title=SCATTER_TITLE,
        guide=SCATTER_GUIDE,
        summary=f"{table.compared_words}. A is {table.label_a}, B is {table.label_b}, "
        f"{table.budget_name}, {table.queries}.",
        height=400,
        meta={"compared": table.compared_words, "queries": table.queries},
        xaxis=axis("relative change by A (log scale)", tickvals=ticks, ticktext=words, range=ends),
        yaxis=axis("relative change by B (log scale)", tickvals=ticks, ticktext=words, range=ends),
    )


def effect_layers_figure(table: EffectTable) -> go.Figure:
    """The change of each layer's attention output, after summing heads."""
    title = "How much each layer's output changed, after summing heads"
    guide = "Higher: the layer's attention output differs more from the full cache's."
    sides = (("A", table.label_a, table.layer_a), ("B", table.label_b, table.layer_b))
    lines = []
    said = []
    for side, label, errors in sides:
        if errors is None or label is None:
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
        finite = errors[np.isfinite(errors)]
        if len(finite):
            worst = int(np.nanargmax(errors))
            most = text.relative_error(float(errors[worst]))
            said.append(f"{label} most at layer {worst} ({most})")
    if not lines:
        message = "Errors of whole layers are computed for decoded budgets only."
        return _empty(title, guide, table.message or message)
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
