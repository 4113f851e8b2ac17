"""One measure at every budget, a series a method, for this one document."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kvviz.errors import InputError
from kvviz.results import words as text
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison
from kvviz.results.marks import groups
from kvviz.results.measures import MEASURE, Against, Measure
from kvviz.results.table import Table
from kvviz.results.verdict import verdict


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
    same: tuple[str, ...] = ()  # labels of methods with the very same kept entries and values


@dataclass(frozen=True)
class SweepTable(Table):
    """All methods' series of one measure."""

    near: ClassVar[str | None] = None

    measure: str
    title: str
    y_title: str
    series: list[Series]
    message: str
    budget: float  # share that is shown elsewhere on the page

    def columns(self) -> dict[str, list[Any]]:
        """See `Table.columns`."""
        columns: dict[str, list[Any]] = {"method": [], "share": [], self.measure: []}
        if self.measure == "output_error":
            columns |= {"lower quartile": [], "upper quartile": []}
        columns |= {"decoded": [], "shown": []}
        for s in self.series:
            columns["method"] += [" = ".join([s.label, *s.same])] * len(s.share)
            columns["share"] += s.share
            columns[self.measure] += s.value
            columns["decoded"] += s.decoded
            columns["shown"] += s.words
            if self.measure == "output_error":
                columns["lower quartile"] += s.low
                columns["upper quartile"] += s.high
        return columns


def measures_of(c: Comparison, a: str, tok: tuple[int, int] | None) -> list[tuple[str, str]]:
    """(id, title) of every measure, as the page offers them."""
    words = {"a": text.label(c, a), "mark": _followed(c, tok)}
    return [(row.id, row.title.format(**words)) for row in MEASURE.values()]


def _followed(c: Comparison, tok: tuple[int, int] | None) -> str:
    """What "held" refers to: chosen tokens, else the first mark."""
    if tok is None:
        return next(iter(groups(c)), "M1")
    return f"token {tok[0]}" if tok[1] - tok[0] == 1 else f"tokens {tok[0]}-{tok[1] - 1}"


def sweep_table(
    c: Comparison,
    measure: str,
    a: str,
    b: str | None,
    k: float | int,
    tok: tuple[int, int] | None = None,
    expected: str | None = None,
) -> SweepTable:
    """A measure at every decoded budget and stored stop; k is shown elsewhere on the page.

    `tok` is followed instead of the mark. Methods that keep the same entries throughout are one series.
    """
    if measure not in MEASURE:
        raise InputError(f"Choose a measure of: {', '.join(MEASURE)}.")
    row = MEASURE[measure]
    expected = c.expected if expected is None else expected
    message = ""
    if measure == "mark_held" and tok is None and not groups(c):
        message = "Mark a passage in the text to see who holds it."
    if measure == "expected" and not (expected and expected.strip()):
        message = "No expected answer was given."
    if measure == "improved" and not any(c.base_of(method) for method in c.methods):
        message = "No method of this run is an improvement of another one in it."
    series = []
    for method in c.methods:
        if message or (measure == "overlap" and method == a):
            continue
        series.append(_series(c, row, method, b, Against(a, tok, expected)))
    if not message and (found := _found_series(c, row, b, Against(a, tok, expected))) is not None:
        series.append(found)
    words = {"a": text.label(c, a), "mark": _followed(c, tok)}
    title = f"{row.title.format(**words)} against budget, this document"
    return SweepTable(
        measure, title, row.axis.format(**words), _merged(c, series), message, c.share(k)
    )


def _merged(c: Comparison, series: list[Series]) -> list[Series]:
    """Methods other than A and B that kept the same entries at every budget join the series they equal."""
    found: list[Series] = []
    for s in sorted(series, key=lambda s: s.role == "muted"):
        alike = s.role == "muted" and s.method != FOUND
        twin = next((i for i, one in enumerate(found) if alike and _equal(c, one, s)), None)
        if twin is None:
            found.append(s)
        else:
            found[twin] = replace(found[twin], same=(*found[twin].same, s.label))
    order = {method: i for i, method in enumerate([*c.methods, FOUND])}
    return sorted(found, key=lambda s: order[s.method])


def _equal(c: Comparison, one: Series, other: Series) -> bool:
    if one.value != other.value or one.share != other.share:
        return False
    pairs = ((c.at(one.method, s), c.at(other.method, s)) for s in one.share)
    return all(
        x is y if x is None or y is None else np.array_equal(x.kept.bits, y.kept.bits) for x, y in pairs
    )


def _role(method: str, a: str, b: str | None) -> str:
    return "a" if method == a else "b" if method == b else "muted"


def _series(c: Comparison, row: Measure, method: str, b: str | None, look: Against) -> Series:
    known = [] if row.decoded_only else c.shares(method)
    shares = _distinct(sorted([*known, *(c.share(k) for k in c.budgets)]))
    points = [c.at(method, s) for s in shares]
    decoded = [p is not None and p.answer is not None for p in points]
    if row.decoded_only:
        points = [p if answered else None for p, answered in zip(points, decoded)]
    values = [None if p is None else row.of(c, p, look) for p in points]
    spreads = [None if p is None or row.spread is None else row.spread(c, p, look) for p in points]
    return Series(
        method=method,
        label=text.label(c, method),
        role=_role(method, look.a, b),
        share=shares,
        value=values,
        low=[None if pair is None else pair[0] for pair in spreads],
        high=[None if pair is None else pair[1] for pair in spreads],
        decoded=decoded,
        words=[row.words(value) for value in values],
    )


def _found_series(c: Comparison, row: Measure, b: str | None, look: Against) -> Series | None:
    """The cache that a search found: one point at its true size; None where it has no such value."""
    if c.would_do is None:
        return None
    found, point = c.would_do, c.would_do.point
    judged = verdict(found.text, look.expected)
    own = {"kl": found.kl, "bytes": float(found.bytes), "improved": None,
           "expected": float(judged == "right") if judged else None}  # fmt: skip
    value = own[row.id] if row.id in own else row.of(c, point, look)
    if value is None:
        return None
    return Series(
        method=FOUND, label=text.label(c, FOUND), role=_role(FOUND, look.a, b),
        share=[point.budget], value=[value],
        low=[None], high=[None], decoded=[True], words=[row.words(value)],
    )  # fmt: skip


def _distinct(shares: list[float]) -> list[float]:
    kept: list[float] = []
    for share in shares:
        if not kept or not math.isclose(share, kept[-1]):
            kept.append(share)
    return kept
