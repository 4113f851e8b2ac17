"""The scatter of attention against effect: dots, zeros on a rail, cut-offs as lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build, heatmap, legend_entry
from kvviz.figures.palette import AMOUNT_STEPS, role
from kvviz.figures.why_table import (
    A_ONLY,
    B_ONLY,
    EVICTED,
    KEPT,
    OUTSIDE,
    PROTECTED,
    STATE_NAMES,
    WhyTable,
)
from kvviz.results import words as text

SAME_QUERIES = (
    "Each dot is a token. Right: much attended while answering. High: removing it alone changes the "
    "output much. High and left: little attended, yet it matters."
)
OTHER_QUERIES = (
    "Each dot is a token. Across is read before the answer, up while answering: a dot high and left was "
    "little attended at the end of the prompt and matters later, not more."
)
NOTE = "Effects of single tokens do not add up."
SVG_DOTS = 2000  # more are drawn by WebGL
WEBGL_DOTS = 20_000  # more become a density with the extremes as dots
DENSITY, EXTREMES = 200, 500

# state, colour, marker: evicted dots are drawn first, so that what was kept lies on top
_STATES: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (EVICTED, "muted", {"symbol": "circle-open", "size": 6}),
    (KEPT, "kept", {"symbol": "circle", "size": 6}),
    (PROTECTED, "protected", {"symbol": "diamond", "size": 8}),
    (A_ONLY, "a", {"symbol": "triangle-up", "size": 8}),
    (B_ONLY, "b", {"symbol": "triangle-down", "size": 8}),
    (OUTSIDE, "outside-line", {"symbol": "x-thin-open", "size": 6}),
)


@dataclass(frozen=True)
class _Scale:
    """How raw values become positions on a linear Plotly axis: log10 with a rail for zeros."""

    log: bool
    rail: float
    low: float
    high: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        if not self.log:
            return np.asarray(values, dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log10(values)
        return np.where(values > 0, logs, self.rail)

    def middle(self, values: np.ndarray) -> float:
        """Middle of the axis for these values."""
        shown = self(values)
        return float((shown.min() + shown.max()) / 2) if len(shown) else 0.0

    def axis(self, title: str) -> dict[str, Any]:
        if not self.log:
            return axis(title)
        first, last = math.floor(self.low), math.ceil(self.high)
        decades = list(range(first, last + 1, max(1, (last - first) // 6)))
        decades = [d for d in decades if d > self.rail + 0.2]
        return axis(
            f"{title} (log scale)",
            tickvals=[self.rail, *decades],
            ticktext=["0", *(f"{10.0**d:g}" for d in decades)],
            range=[self.rail - 0.3, self.high + 0.3],
        )


def _scale(values: np.ndarray, extra: list[float], ranked: bool) -> _Scale:
    """Ranks and scores that can be negative stay linear."""
    values = np.concatenate([values, np.asarray(extra, dtype=np.float64)])
    positive = values[values > 0]
    if ranked or not len(positive) or (values < 0).any():
        return _Scale(False, 0, 0, 0)
    low, high = math.log10(positive.min()), math.log10(positive.max())
    return _Scale(True, low - 0.5, low, high)


def why_figure(table: WhyTable) -> go.Figure:
    """Dots up to 20,000 tokens; beyond, a density with the 500 highest on each axis as dots."""
    cuts = {side: [v for s, v, _ in table.cutoffs if s == side] for side in "xy"}
    across, up = (
        _scale(table.x, cuts["x"], table.ranked),
        _scale(table.y, cuts["y"], table.ranked),
    )
    x, y = across(table.x), up(table.y)
    chosen = np.ones(len(x), dtype=bool)
    traces: list[dict[str, Any]] = []
    if len(x) > WEBGL_DOTS:
        traces += _density(x, y)
        marked = np.zeros(int(table.token.max()) + 1, dtype=bool)
        for mark in table.marks:
            marked[mark.start : mark.end] = True
        chosen = marked[table.token]
        for values in (table.x, table.y):
            chosen[np.argpartition(-values, EXTREMES)[:EXTREMES]] = True
    kind = "scattergl" if SVG_DOTS < len(x) <= WEBGL_DOTS else "scatter"
    for state, colour, marker in _STATES:
        at = np.flatnonzero(chosen & (table.state == state))
        if not len(at):
            continue
        edge = {"width": 1, "color": role("muted" if state == PROTECTED else colour)}
        traces.append(
            {
                "type": kind,
                "mode": "markers",
                "x": x[at].astype(np.float32),
                "y": y[at].astype(np.float32),
                "customdata": table.token[at],
                "name": _state_name(table, state),
                "showlegend": True,
                "hoverinfo": "none",
                "marker": {**marker, "color": role(colour), "line": edge},
            }
        )
    traces += _mark_letters(table, x, y)
    shapes, notes = _cut_lines(table, across, up)
    title = "Attention against effect"
    guides = {"attention_answer": SAME_QUERIES, "attention": OTHER_QUERIES}
    guide = guides.get(table.x_name) if table.y_name == "effect" else None
    if guide is None:
        title = "Two values of each token"
        guide = f"Each dot is a token. Right: higher {table.x_title}. High: higher {table.y_title}."
    counts = np.bincount(table.state, minlength=len(_STATES))
    said = ", ".join(
        f"{text.count(int(counts[s]))} {_state_name(table, s)}" for s, _, _ in _STATES if counts[s]
    )
    return build(
        traces,
        title=f"{title}, {text.place(table.layer, table.head)}",
        guide=guide,
        summary=f"{text.count(len(x))} tokens of {text.place(table.layer, table.head)} at "
        f"{table.budget_name}: {said or 'none'}. {table.correlation_words}.",
        chip="1 cell = many tokens" if len(x) > WEBGL_DOTS else "",
        height=460,
        meta={"correlation": table.correlation_words, "note": NOTE, "layer": table.layer,
              "head": table.head},
        xaxis=across.axis(table.x_title),
        yaxis=up.axis(table.y_title),
        shapes=shapes,
        annotations=notes,
    )  # fmt: skip


def _state_name(table: WhyTable, state: int) -> str:
    if table.label_b is None:
        return STATE_NAMES[state]
    names = {EVICTED: "neither", KEPT: "both", PROTECTED: "kept by rule by A"}
    names |= {A_ONLY: f"A only ({table.label_a})", B_ONLY: f"B only ({table.label_b})"}
    return names.get(state, STATE_NAMES[state])


def _mark_letters(table: WhyTable, x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    """An outline and the mark's name at each marked dot."""
    traces = []
    for mark in table.marks:
        at = np.flatnonzero((table.token >= mark.start) & (table.token < mark.end))
        if len(at):
            names = [""] * len(at)  # one name a mark, at its highest dot
            names[int(y[at].argmax())] = text.visible(mark.name)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text",
                    "x": x[at].astype(np.float32),
                    "y": y[at].astype(np.float32),
                    "customdata": table.token[at],
                    "text": names,
                    "textposition": "top center",
                    "textfont": {"color": role("mark")},
                    "marker": {
                        "symbol": "circle-open",
                        "size": 13,
                        "color": role("mark"),
                        "line": {"width": 2, "color": role("mark")},
                    },
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "name": mark.name,
                }
            )
    return traces


def _cut_lines(table: WhyTable, across: _Scale, up: _Scale) -> tuple[list, list]:
    shapes, notes = [], []
    for side, value, label in table.cutoffs:
        at = float((across if side == "x" else up)(np.array([value]))[0])
        line = {"color": role("text"), "width": 1, "dash": "dash"}
        if side == "x":
            where = {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
            left = at < across.middle(table.x)  # the label stays inside the plot
            anchor = "left" if left else "right"
            note = {"x": at, "y": 1, "yref": "paper", "xanchor": anchor, "yanchor": "bottom"}
        else:
            where = {"y0": at, "y1": at, "x0": 0, "x1": 1, "xref": "paper"}
            note = {"y": at, "x": 1, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
        shapes.append({"type": "line", "line": line, **where})
        notes.append({"text": label, "showarrow": False, "font": {"size": 11}, **note})
    return shapes, notes


def _density(x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    """Tokens a cell, 200 x 200, in logarithmic steps of one hue."""
    counts, xs, ys = np.histogram2d(x, y, bins=DENSITY)
    top = max(1.0, counts.max())
    level = np.ceil(AMOUNT_STEPS * np.log1p(counts) / math.log1p(top))
    code = level.clip(0, AMOUNT_STEPS).astype(np.uint8).T
    colours = ["page", *(f"amount-{i}" for i in range(1, AMOUNT_STEPS + 1))]
    dx, dy = float(xs[1] - xs[0]), float(ys[1] - ys[0])
    grid = heatmap(code, colours, x0=float(xs[0]) + dx / 2, dx=dx)
    grid |= {"y0": float(ys[0]) + dy / 2, "dy": dy}
    name = f"tokens in a cell, up to {text.count(top)} (log scale)"
    return [grid, legend_entry(name, f"amount-{AMOUNT_STEPS}")]
