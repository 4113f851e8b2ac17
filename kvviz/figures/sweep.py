"""One measure against budget: a line a method, dots where the answer was decoded."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from kvviz.figures.kit import GAP, axis, build, legend_entry
from kvviz.figures.palette import role
from kvviz.figures.sweep_table import Series, SweepTable
from kvviz.results import words as text
from kvviz.results.causes import FOUND
from kvviz.results.measures import MEASURE

GUIDE = "Left is a smaller cache. One document: {what} show this text, not a ranking."
MARGIN = 0.05  # of the value axis, below zero and above the highest value: no line lies on the edge

# Methods that are neither A nor B are grey: they differ by symbol and dash.
OTHERS = [
    (symbol, dash)
    for dash in ("solid", "dash", "dashdot")
    for symbol in ("square", "diamond", "triangle-up", "triangle-down")
]


def sweep_figure(table: SweepTable) -> go.Figure:
    """Lines, or dots for the expected answer; a dashed line stands at the budget shown."""
    expected = table.measure == "expected"
    ordered = sorted(table.series, key=lambda s: s.role != "muted")  # A and B lie on top
    others = iter(OTHERS * len(ordered))
    styles = {s.method: next(others) if s.role == "muted" and s.method != FOUND else _own(s) for s in ordered}
    traces: list[dict[str, Any]] = []
    for place, s in enumerate(ordered):
        if table.measure == "output_error" and s.role != "muted":
            traces += _band(table, s)
        traces.append(_dots(s, place) if expected else _line(table, s, *styles[s.method]))
    if expected and ordered:
        traces += [legend_entry("contains it", "text", "circle")]
        traces += [legend_entry("does not", "text", "circle-open", "text")]
    elif not expected:
        traces += [_key(s, *styles[s.method]) for s in table.series]
        traces += _point_legend(table)
    shares = [x for s in table.series for x in s.share] or [0.01, 1.0]
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if t >= min(shares) * 0.9]
    low, high = math.log10(min(shares)), math.log10(max(shares))
    line = {"color": role("selection"), "width": 1, "dash": "dash"}
    cursor = {"x0": table.budget, "x1": table.budget, "y0": 0, "y1": 1, "yref": "paper"}
    middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    if expected:
        names = [s.label for s in ordered]
        up = axis(table.y_title, tickvals=list(range(len(names))), ticktext=names)
    else:
        values = [v for s in table.series for v in (*s.value, *s.high) if v is not None]
        top = MEASURE[table.measure].scale * max(values, default=0) or 1.0
        up = axis(table.y_title, range=[-MARGIN * top, (1 + MARGIN) * top])
    return build(
        traces,
        title=table.title,
        guide=GUIDE.format(what="dots" if expected else "lines"),
        summary=_summary(table),
        height=420,
        meta={"message": table.message, "measure": table.measure},
        xaxis=axis(
            "share kept (log scale)",
            type="log",
            tickvals=ticks,
            ticktext=[text.budget_share(t) for t in ticks],
            range=[low - 0.05, high + 0.05],
        ),
        yaxis=up,
        annotations=[{"text": table.message, **middle}] if table.message else [],
        shapes=[{"type": "line", "name": "budget", "line": line, **cursor}],
    )


def _own(s: Series) -> tuple[str, str]:
    """Symbol and dash of A, of B, and of what a search found."""
    if s.method == FOUND:
        return "star", "solid"
    return "circle", "dot" if s.role == "b" else "solid"


def _name(s: Series) -> str:
    """ "A: SnapKV", "B: DropKV", "KeyDiff", with the methods whose line is the very same."""
    own = f"{s.role.upper()}: {s.label}" if s.role != "muted" else s.label
    return " = ".join([own, *s.same])


def _point_legend(table: SweepTable) -> list[dict[str, Any]]:
    """What filled and open points mean, as far as they occur."""
    known = [d for s in table.series for d, v in zip(s.decoded, s.value) if v is not None]
    entries = []
    if any(known):
        entries.append(legend_entry("filled: decoded", "text", "circle"))
    if not all(known):
        entries.append(legend_entry("open: from stored scores", "text", "circle-open", "text"))
    return entries


def _shown(table: SweepTable, value: float | None) -> float | None:
    return GAP if value is None else MEASURE[table.measure].scale * value


def _key(s: Series, symbol: str, dash: str) -> dict[str, Any]:
    """The row of a line in the legend."""
    colour = role(s.role)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [None],
        "y": [None],
        "name": _name(s),
        "showlegend": True,
        "hoverinfo": "skip",
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "symbol": symbol, "size": 8},
    }


def _line(table: SweepTable, s: Series, symbol: str, dash: str) -> dict[str, Any]:
    colour = role(s.role)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": s.share,
        "y": [_shown(table, v) for v in s.value],
        "connectgaps": False,
        "name": _name(s),
        "showlegend": False,  # `_key` stands there: a line has two kinds of points
        "customdata": s.words,
        "meta": {"method": s.method},
        "hoverinfo": "none",
        "line": {"color": colour, "width": 2.5 if s.role != "muted" else 1, "dash": dash},
        "marker": {
            "color": colour,
            "symbol": [symbol if d else f"{symbol}-open" for d in s.decoded],
            "size": [9 if d else 5 for d in s.decoded],
            "opacity": 1,
        },
    }


def _dots(s: Series, place: int) -> dict[str, Any]:
    """One row a method: filled for yes, ring for no; single answers are not joined."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": s.share,
        "y": [place if v is not None else GAP for v in s.value],
        "name": _name(s),
        "showlegend": False,
        "customdata": s.words,
        "meta": {"method": s.method},
        "hoverinfo": "none",
        "line": {"color": role(s.role)},
        "marker": {
            "color": role(s.role),
            "symbol": ["circle" if v else "circle-open" for v in s.value],
            "size": 9,
        },
    }


def _band(table: SweepTable, s: Series) -> list[dict[str, Any]]:
    """Quartiles as a pale band, one closed piece for each stretch without a gap."""
    pieces: list[list[int]] = [[]]
    for i, low in enumerate(s.low):
        if low is None:
            pieces.append([])
        else:
            pieces[-1].append(i)
    traces = []
    for piece in (p for p in pieces if len(p) > 1):
        there, back = piece, piece[::-1]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [s.share[i] for i in [*there, *back]],
                "y": [_shown(table, s.high[i]) for i in there] + [_shown(table, s.low[i]) for i in back],
                "fill": "toself",
                "fillcolor": role(s.role),
                "opacity": 0.18,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
                "name": f"{s.label}, quartiles",
            }
        )
    return traces


def _summary(table: SweepTable) -> str:
    if table.message:
        return table.message
    parts = []
    for s in table.series:
        known = [i for i, v in enumerate(s.value) if v is not None]
        if known:
            ends = dict.fromkeys((known[0], known[-1]))
            said = [f"{s.words[i]} at {text.budget_share(s.share[i])}" for i in ends]
            parts.append(f"{' = '.join([s.label, *s.same])} {', '.join(said)}")
    return f"{table.y_title}: {'; '.join(parts)}." if parts else f"{table.y_title}: no values."
