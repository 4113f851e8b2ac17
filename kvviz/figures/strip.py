"""The strip above a map: protected tokens, marks, question, observation window. Never pooled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvviz.figures.kit import GAP
from kvviz.figures.palette import role
from kvviz.results import words as text
from kvviz.results.comparison import Comparison

RULED = "kept by rule"
_LANES = {"mark": 4.0, "protected": 3.0, "question": 2.0, "window": 1.0}  # one each: none lies on another


@dataclass(frozen=True)
class Span:
    """Tokens start to end (exclusive) that the strip names."""

    kind: str  # "protected", "mark", "question" or "window"
    name: str
    start: int
    end: int
    label: str


def strip_spans(c: Comparison, method: str, k: float | int) -> list[Span]:
    """Everything the strip shows for a method at a budget, in token order within each kind."""
    spans = [Span("mark", m.name, m.start, m.end, m.name) for m in c.marks]
    point = c.at(method, k)
    for start, end in [] if point is None else runs(point.kept.protected_tokens()):
        spans.append(Span("protected", "protected", start, end, RULED))
    start, end = c.prompt.question_span
    if start < min(end, c.n):
        spans.append(Span("question", "question", start, min(end, c.n), "question"))
    window = observation_window(c, method)
    if window:
        label = f"window (last {window} tokens)"
        spans.append(Span("window", "window", c.n - window, c.n, label))
    return spans


def observation_window(c: Comparison, method: str) -> int:
    """Length of the observation window this method read, 0 if it has none."""
    for v in c.variants:
        if v.method == method:
            window = v.options.get("window")
            return min(int(window), c.n) if isinstance(window, int | float) else 0
    return 0


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of True in a bool [n], as (start, end exclusive)."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])]


def strip_traces(spans: list[Span], x0: int, x1: int, named: bool = False) -> list[dict[str, Any]]:
    """Brackets on axis y2 for the spans that touch tokens x0 to x1; marks keep a visible size.

    named=True: the legend says "kept by rule" already.
    """
    traces = []
    for kind, colour in (("protected", "protected"), ("question", "muted"), ("window", "muted")):
        shown = [s for s in spans if s.kind == kind and s.start < x1 and s.end > x0]
        if not shown:
            continue
        xs: list[float | None] = []
        ys: list[float | None] = []
        high = _LANES[kind]
        for span in shown[:500]:
            left, right = span.start - 0.5, span.end - 0.5
            xs += [left, left, right, right, GAP]
            ys += [high - 0.4, high, high, high - 0.4, GAP]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": xs,
                "y": ys,
                "yaxis": "y2",
                "name": RULED if kind == "protected" else shown[0].label,
                "line": {
                    "color": role(colour),
                    "width": 4 if kind == "protected" else 2,
                    "dash": "dot" if kind == "window" else "solid",
                },
                "hoverinfo": "skip",
                "showlegend": not (named and kind == "protected"),
            }
        )
    marks = [s for s in spans if s.kind == "mark" and s.start < x1 and s.end > x0]
    if marks:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [(s.start + s.end - 1) / 2 for s in marks],
                "y": [_LANES["mark"]] * len(marks),
                "yaxis": "y2",
                "text": _mark_labels(marks, x1 - x0),
                "textposition": [
                    "middle left" if s.end > x1 - 0.06 * (x1 - x0) else "middle right" for s in marks
                ],
                "cliponaxis": False,
                "textfont": {"color": role("mark")},
                "marker": {
                    "symbol": "triangle-down-open",
                    "size": 9,
                    "color": role("mark"),
                    "line": {"width": 2, "color": role("mark")},
                },
                "name": "marked",
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
    return traces


def _mark_labels(marks: list[Span], width: int) -> list[str]:
    """Names that fit: marks too close for a label each share one, such as "M1a to M1c"."""
    groups: list[list[int]] = []
    for i, s in enumerate(marks):
        near = groups and s.start - marks[groups[-1][0]].start < 0.04 * width
        if near:
            groups[-1].append(i)
        else:
            groups.append([i])
    labels = [""] * len(marks)
    for group in groups:
        first, last = text.visible(marks[group[0]].name), text.visible(marks[group[-1]].name)
        labels[group[0]] = first if len(group) == 1 else f"{first} to {last}"
    return labels


def mark_shapes(spans: list[Span], rows: int) -> list[dict[str, Any]]:
    """Outlines of the marks over a map of `rows` rows: never a fill."""
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "y",
            "x0": s.start - 0.5,
            "x1": s.end - 0.5,
            "y0": -0.5,
            "y1": rows - 0.5,
            "line": {"color": role("mark"), "width": 1},
            "name": s.name,
        }
        for s in spans
        if s.kind == "mark"
    ]
