"""Loss against budget: one measure, one line a method, for this one document."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.effect import error_shares, errors_at
from kvviz.figures.kit import GAP, axis, build, legend_entry
from kvviz.figures.palette import role
from kvviz.results import words as text
from kvviz.results.answers import verdict
from kvviz.results.comparison import Comparison, mean_kl
from kvviz.results.kept import jaccard, packed, stored_shares
from kvviz.results.marks import group_holders, groups, holders
from kvviz.results.table import Table

TITLE = "Loss against budget, this document"
GUIDE = "Left is a smaller cache. One document: lines show this text, not a ranking."
MEASURES = {
    "kl": "mean KL, nats/token",
    "output_error": "output error, median head, % (band: quartiles)",
    "mark_held": "{mark} held, % of KV heads",
    "overlap": "entries shared with {a}, %",
    "bytes": "cache, MB (filled: as allocated, ticks: by count of entries)",
    "expected": "expected answer in the text",
}
PLOT_HEIGHT, LABEL_HEIGHT = 270, 13  # pixels, about what the page gives this figure
_DECODED_ONLY = ("kl", "expected")
_PERCENT = ("output_error", "mark_held", "overlap")


@dataclass(frozen=True)
class Series:
    """One method: values at ascending shares, None where missing; quartiles for output error."""

    method: str
    label: str
    role: str
    share: list[float]
    value: list[float | None]
    low: list[float | None]
    high: list[float | None]
    decoded: list[bool]
    words: list[str]


@dataclass(frozen=True)
class SweepTable(Table):
    """All methods' series of one measure."""

    near: ClassVar[str | None] = None

    measure: str
    y_title: str
    series: list[Series]
    message: str

    def columns(self):
        """See `Table.columns`."""
        columns: dict[str, list[Any]] = {"method": [], "share": [], self.measure: []}
        if self.measure == "output_error":
            columns |= {"lower quartile": [], "upper quartile": []}
        columns |= {"decoded": [], "shown": []}
        for s in self.series:
            columns["method"] += [s.label] * len(s.share)
            columns["share"] += s.share
            columns[self.measure] += s.value
            columns["decoded"] += s.decoded
            columns["shown"] += s.words
            if self.measure == "output_error":
                columns["lower quartile"] += s.low
                columns["upper quartile"] += s.high
        return columns


def sweep_table(
    c: Comparison,
    measure: str,
    a: str,
    b: str | None,
    tok: tuple[int, int] | None = None,
    expected: str | None = None,
) -> SweepTable:
    """A measure at every decoded budget and stored stop. `tok` is followed instead of the mark."""
    if measure not in MEASURES:
        raise InputError(f"Choose a measure of: {', '.join(MEASURES)}.")
    expected = c.expected if expected is None else expected
    named = "M1"
    message = ""
    marks = next(iter(groups(c).items()), None)
    if measure == "mark_held":
        if tok is not None:
            named = f"tokens {tok[0]}-{tok[1] - 1}"
        elif marks is None:
            message = "Mark a passage in the text to see who holds it."
        else:
            named = marks[0]
    if measure == "expected" and not (expected and expected.strip()):
        message = "No expected answer was given."
    series = []
    for method in c.methods:
        if message or (measure == "overlap" and method == a):
            continue
        values = _measure(c, measure, a, method, tok, expected)
        series.append(_series(c, measure, method, a, b, values))
    title = MEASURES[measure].format(a=text.label(c, a), mark=named)
    return SweepTable(measure, title, series, message)


_Values = Callable[[float], tuple[float | None, float | None, float | None]]


def _measure(c, measure: str, a: str, method: str, tok, expected: str | None) -> _Values:
    """A function from a share to (value, lower, upper) of one method."""

    def single(value: float | None):
        return value, None, None

    def kl(share: float):
        v = c.variant(method, share)
        return single(None if v is None else mean_kl(v.kl, c.prompt.protocol))

    def error(share: float):
        errors = errors_at(c, method, share)
        if errors is None or not np.isfinite(errors).any():
            return None, None, None
        low, middle, high = np.percentile(errors[np.isfinite(errors)], (25, 50, 75))
        return float(middle), float(low), float(high)

    def held(share: float):
        if tok is not None:
            found = holders(c, method, share, *tok)
        else:
            found = group_holders(c, method, share, next(iter(groups(c).values())))
        return single(None if found is None else found.count / found.total)

    def overlap(share: float):
        one, other = packed(c, a, share), packed(c, method, share)
        return single(None if one is None or other is None else jaccard(one, other))

    def size(share: float):
        return single(text.kept_bytes(c, method, share))

    def right(share: float):
        v = c.variant(method, share)
        return single(None if v is None else float(verdict(v.text, expected) == "right"))

    chosen: dict[str, _Values] = {
        "kl": kl,
        "output_error": error,
        "mark_held": held,
        "overlap": overlap,
        "bytes": size,
        "expected": right,
    }
    return chosen[measure]


def _series(c: Comparison, measure: str, method: str, a: str, b: str | None, values) -> Series:
    decoded_shares = {c.share(v.budget) for v in c.variants if v.method == method}
    if measure in _DECODED_ONLY:
        shares = {c.share(k) for k in c.budgets}
    elif measure == "output_error":
        shares = set(error_shares(c, method)) | {c.share(k) for k in c.budgets}
    else:
        shares = set(stored_shares(c, method)) | {c.share(k) for k in c.budgets}
    ordered = _distinct(sorted(shares))
    found = [values(s) for s in ordered]
    return Series(
        method=method,
        label=text.label(c, method),
        role="a" if method == a else "b" if method == b else "muted",
        share=ordered,
        value=[v for v, _, _ in found],
        low=[v for _, v, _ in found],
        high=[v for _, _, v in found],
        decoded=[any(math.isclose(s, d) for d in decoded_shares) for s in ordered],
        words=[_words(measure, v) for v, _, _ in found],
    )


def _distinct(shares: list[float]) -> list[float]:
    kept: list[float] = []
    for share in shares:
        if not kept or not math.isclose(share, kept[-1]):
            kept.append(share)
    return kept


def _words(measure: str, value: float | None) -> str:
    if value is None:
        return text.MISSING
    if measure == "expected":
        return "yes" if value else "no"
    shown = {"kl": text.kl, "output_error": text.relative_error, "bytes": text.mb}
    return shown.get(measure, text.share)(value)


def sweep_figure(table: SweepTable, budget: float | None = None) -> go.Figure:
    """Lines (dots for the expected answer); `budget` (a share) is the cursor."""
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    others_last = sorted(table.series, key=lambda s: s.role != "muted")
    for place, s in enumerate(others_last):
        if table.measure == "output_error" and s.role != "muted":
            traces += _band(table, s)
        traces.append(_line(table, s, place))
    if table.measure != "expected":
        notes += _end_labels(table)
    traces += _point_legend(table)
    shares = [x for s in table.series for x in s.share] or [0.01, 1.0]
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if t >= min(shares) * 0.9]
    cursor = []
    if budget is not None:
        line = {"color": role("selection"), "width": 1, "dash": "dash"}
        where = {"x0": budget, "x1": budget, "y0": 0, "y1": 1, "yref": "paper"}
        cursor = [{"type": "line", "name": "budget", "line": line, **where}]
    y_axis = axis(table.y_title, rangemode="tozero")
    if table.measure == "expected":
        names = [s.label for s in others_last]
        y_axis = axis(table.y_title, tickvals=list(range(len(names))), ticktext=names)
    if table.message:
        middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
        notes.append({"text": table.message, **middle})
    low, high = math.log10(min(shares)), math.log10(max(shares))
    return build(
        traces,
        title=TITLE,
        guide=GUIDE,
        summary=_summary(table),
        height=380,
        meta={"message": table.message},
        margin={"l": 56, "r": 110, "t": 40, "b": 72},
        xaxis=axis(
            "share kept (log scale)",
            type="log",
            tickvals=ticks,
            ticktext=[text.budget_share(t) for t in ticks],
            range=[low - 0.05, high + 0.05],
        ),
        yaxis=y_axis,
        annotations=notes,
        shapes=cursor,
    )


def _end_labels(table: SweepTable) -> list[dict[str, Any]]:
    """A label at the right end of each line, moved apart where lines end close together."""
    ends = []
    for s in table.series:
        last = next((i for i in reversed(range(len(s.value))) if s.value[i] is not None), None)
        if last is not None:
            ends.append((_shown(table, s.value[last]), s, last))
    values = [_shown(table, v) for s in table.series for v in s.value if v is not None]
    top = max([*values, 1e-12])
    ends.sort(key=lambda end: -end[0])
    pixels = [PLOT_HEIGHT * y / top for y, _, _ in ends]
    places = pixels.copy()
    for i in range(1, len(places)):  # downwards, then back up from the axis
        places[i] = min(places[i], places[i - 1] - LABEL_HEIGHT)
    for i in reversed(range(len(places))):
        lowest = 0 if i == len(places) - 1 else places[i + 1] + LABEL_HEIGHT
        places[i] = max(places[i], lowest)
    notes = []
    for (y, s, last), pixel, moved in zip(ends, pixels, places):
        notes.append(
            {
                "x": math.log10(s.share[last]),  # annotations of a log axis are in decades
                "y": y,
                "text": s.label,
                "xanchor": "left",
                "showarrow": False,
                "xshift": 6,
                "yshift": moved - pixel,
                "font": {"size": 11, "color": role(s.role)},
            }
        )
    return notes


def _point_legend(table: SweepTable) -> list[dict[str, Any]]:
    """What filled points and ticks mean, as far as they occur."""
    if table.measure == "expected" and table.series:
        yes = legend_entry("contains it", "text", "circle")
        return [yes, legend_entry("does not", "text", "circle-open", "text")]
    known = [d for s in table.series for d, v in zip(s.decoded, s.value) if v is not None]
    entries = []
    if any(known):
        entries.append(legend_entry("decoded", "text", "circle"))
    if not all(known):
        entries.append(legend_entry("from stored scores", "text", "line-ns-open", "text"))
    return entries


def _shown(table: SweepTable, value: float | None) -> float | None:
    if value is None:
        return GAP
    if table.measure in _PERCENT:
        return 100 * value
    return value / 1e6 if table.measure == "bytes" else value


def _line(table: SweepTable, s: Series, place: int) -> dict[str, Any]:
    if table.measure == "expected":
        # One row a method: filled for yes, ring for no; single answers are not joined.
        y = [place if v is not None else GAP for v in s.value]
        symbols = ["circle" if v else "circle-open" for v in s.value]
        mode = "markers"
    else:
        y = [_shown(table, v) for v in s.value]
        symbols = ["circle" if d else "line-ns-open" for d in s.decoded]
        mode = "lines+markers"
    return {
        "type": "scatter",
        "mode": mode,
        "x": s.share,
        "y": y,
        "connectgaps": False,
        "name": f"{s.role.upper()}: {s.label}" if s.role != "muted" else s.label,
        "showlegend": False,  # each line carries its label at its end
        "customdata": s.words,
        "meta": {"method": s.method},
        "hoverinfo": "none",
        "line": {
            "color": role(s.role),
            "width": 2.5 if s.role != "muted" else 1,
            "dash": "dot" if s.role == "b" else "solid",
        },
        "marker": {"color": role(s.role), "symbol": symbols, "size": 8},
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
            parts.append(f"{s.label} {', '.join(said)}")
    return f"{table.y_title}: {'; '.join(parts)}." if parts else f"{table.y_title}: no values."
