"""Putting a figure together: the layout all of them share, and the pieces they are made of.

A figure is built unvalidated because its colours are role names. Its `layout.meta` carries what
the page shows around it: guide (one line), summary (for screen readers), chip, and extras.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.palette import role, stepped

GAP = None  # a break in a line
CAPTION_TOP = 76  # pixels above a plot with a title of up to two lines and a line below it
LEGEND_COLUMNS = 3  # entries that fit beside each other on a narrow screen


def build(
    traces: Sequence[dict[str, Any]],
    *,
    title: str,
    guide: str,
    summary: str,
    chip: str = "",
    height: int = 360,
    meta: dict[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """A figure from plain traces; `height` counts the legend in.

    Whatever text reaches the figure is made inert here (labels of a saved run are a stranger's
    words); `meta` and customdata are data for the page, which shows them as plain text.
    """
    rows = -(-sum(bool(t.get("showlegend")) for t in traces) // LEGEND_COLUMNS)
    base: dict[str, Any] = {
        "template": {},
        "title": {"text": wrapped(title, 90), "x": 0.01, "xanchor": "left", "font": {"size": 15}},
        "font": {"color": role("text"), "size": 12, "family": "system-ui, sans-serif"},
        "paper_bgcolor": role("page"),
        "plot_bgcolor": role("page"),
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 40, "b": 52 + 20 * rows},
        "uirevision": "kvviz",
        "hovermode": "closest",
        "showlegend": any(t.get("showlegend") for t in traces),
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        "meta": {"guide": guide, "summary": summary, "chip": chip, **(meta or {})},
    }
    base.update(layout)
    return go.Figure(inert({"data": list(traces), "layout": base}), _validate=False)


def inert(value: Any, key: str = "") -> Any:
    """Plotly reads a little HTML and LaTeX in every text: only line breaks are let through.

    Entities stay as they are, so text that was escaped before is not escaped twice.
    """
    if key in ("meta", "customdata"):
        return value
    if isinstance(value, str):
        value = re.sub(r"<(?!br>)", "&lt;", value)
        return re.sub(r"(?<!<br)>", "&gt;", value).replace("$", "&#36;")
    if isinstance(value, dict):
        return {name: inert(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [inert(item) for item in value]
    return value


def captioned(figure: go.Figure, run: str) -> go.Figure:
    """`figure` with the line that a picture of it carries below its title: cells, scale, run.

    On the page the title stands outside the plot, and so does this line.
    """
    meta = figure.layout.meta
    line = " · ".join(part for part in (meta["chip"], meta.get("scale"), run) if part)
    title = {**figure.layout.title.to_plotly_json()}
    title["subtitle"] = {"text": inert(line), "font": {"size": 11, "color": role("muted")}}
    title |= {"y": 0.99, "yref": "container", "yanchor": "top"}
    figure.layout.title = title
    figure.layout.margin.t = CAPTION_TOP
    return figure


def narrow(values: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest type that holds them: what is sent is the page's budget."""
    values = np.asarray(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    kinds = (np.uint8, np.uint16, np.uint32) if low >= 0 else (np.int8, np.int16, np.int32)
    kind = next((k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max), kinds[-1])
    return np.ascontiguousarray(values, dtype=kind)


def message_figure(title: str, guide: str, message: str, **meta: Any) -> go.Figure:
    """A sentence where nothing is drawn."""
    middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    hidden = {"visible": False}
    return build(
        [],
        title=title,
        guide=guide,
        summary=message,
        height=150,
        meta={"message": message, **meta},
        xaxis=hidden,
        yaxis=hidden,
        annotations=[{"text": wrapped(message, 70), **middle}],
    )


def panel(side: str, label: str, budget_name: str) -> str:
    """ "A: SnapKV, 10%": what a figure of one method is headed."""
    return f"{side + ': ' if side else ''}{label}, {budget_name}"


def map_height(layers: int) -> int:
    """Pixels for a map of layers: the same for every map, so that rows line up side by side."""
    return max(320, 9 * layers + 190)


def wrapped(title: str, width: int = 48) -> str:
    """A long title on several lines."""
    return "<br>".join(textwrap.wrap(title, width))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title (what and in which unit)."""
    return {
        "title": {"text": wrapped(title), "font": {"size": 12}},
        "zeroline": False,
        "gridcolor": role("grid"),
        "linecolor": role("muted"),
        "tickcolor": role("muted"),
        "automargin": True,
        **more,
    }


def heatmap(codes: np.ndarray, colours: list[str], *, x0: float, dx: float, **more: Any) -> dict:
    """A heatmap of codes (uint8 [rows, columns]) where code i is drawn in the role colours[i]."""
    if codes.dtype != np.uint8 or len(colours) > 16:
        raise ValueError("a heatmap takes uint8 codes of at most 16 colours")
    return {
        "type": "heatmap",
        "z": np.ascontiguousarray(codes),
        "x0": float(x0),
        "dx": float(dx),
        "y0": 0,
        "dy": 1,
        "zmin": -0.5,
        "zmax": len(colours) - 0.5,
        "colorscale": stepped(colours),
        "showscale": False,
        "hoverinfo": "none",  # the page writes the read-out line below the figure instead
        "zsmooth": False,
        **more,
    }


def colour_bar(colours: list[str], ticks: dict[int, str], title: str, **more: Any) -> dict:
    """A colour bar of its own: only the steps of a ramp, not the codes of special states."""
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "mode": "markers",
        "hoverinfo": "skip",
        "showlegend": False,
        "marker": {
            "color": [0],
            "cmin": -0.5,
            "cmax": len(colours) - 0.5,
            "colorscale": stepped(colours),
            "showscale": True,
            "colorbar": {
                "title": {"text": wrapped(title, 20), "side": "right", "font": {"size": 11}},
                "tickvals": list(ticks),
                "ticktext": list(ticks.values()),
                "thickness": 12,
                "outlinewidth": 0,
                **more,
            },
        },
    }


def legend_entry(
    name: str, fill: str, symbol: str = "square", line: str | None = None, pattern: str = ""
) -> dict[str, Any]:
    """A legend row for one state: its colour and, for hatch ("/") or dots ("."), its pattern."""
    entry: dict[str, Any] = {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "name": name,
        "showlegend": True,
        "hoverinfo": "skip",
    }
    if pattern:
        return {
            **entry,
            "mode": "lines",
            "fill": "toself",
            "line": {"width": 0.5, "color": role(line or fill)},
            "fillcolor": role(fill),
            "fillpattern": _pattern(pattern, fill, line or "muted"),
        }
    edge = {"width": 1, "color": role(line or "muted")}
    return {
        **entry,
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 11, "color": role(fill), "line": edge},
    }


def _pattern(shape: str, fill: str, line: str) -> dict[str, Any]:
    return {
        "shape": shape,
        "size": 6,
        "solidity": 0.25,
        "fgcolor": role(line),
        "bgcolor": role(fill),
        "fillmode": "replace",
    }


def patches(
    rows: np.ndarray, x0: float, dx: float, name: str, fill: str, line: str, pattern: str
) -> list[dict[str, Any]]:
    """Pattern over the True cells of a bool map [rows, columns]: equal neighbours in one polygon.

    Returns no trace where nothing is marked, else one trace that also stands in the legend.
    """
    xs: list[float | None] = []
    ys: list[float | None] = []
    for first, last, left, right in _rectangles(rows):
        low, high = first - 0.5, last + 0.5
        start, end = x0 + (left - 0.5) * dx, x0 + (right - 0.5) * dx
        xs += [start, end, end, start, start, GAP]
        ys += [low, low, high, high, low, GAP]
    if not xs:
        return []
    return [
        {
            "type": "scatter",
            "x": xs[:-1],
            "y": ys[:-1],
            "mode": "lines",
            "line": {"width": 0},
            "fill": "toself",
            "fillcolor": role(fill),
            "fillpattern": _pattern(pattern, fill, line),
            "name": name,
            "showlegend": True,
            "hoverinfo": "skip",
        }
    ]


def _rectangles(rows: np.ndarray, most: int = 2000) -> list[tuple[int, int, int, int]]:
    """True cells as (first row, last row, left, right) with right exclusive; rows merge if equal.

    Scattered single cells could be tens of thousands: only the `most` widest get their pattern,
    all of them keep their fill.
    """
    found: list[tuple[int, int, int, int]] = []
    open_runs: dict[tuple[int, int], int] = {}
    for index, row in enumerate(rows):
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
        runs = {(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])}
        for run in [r for r in open_runs if r not in runs]:
            found.append((open_runs.pop(run), index - 1, *run))
        for run in runs:
            open_runs.setdefault(run, index)
    found += [(first, len(rows) - 1, *run) for run, first in open_runs.items()]
    if len(found) > most:
        found = sorted(found, key=lambda r: r[2] - r[3])[:most]
    return sorted(found)
