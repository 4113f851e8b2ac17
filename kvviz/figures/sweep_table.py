"""One measure at every budget, a series a method, for this one document."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.effect import error_shares, errors_at
from kvviz.results import words as text
from kvviz.results.answers import verdict
from kvviz.results.comparison import Comparison, mean_kl
from kvviz.results.marks import group_holders, groups, holders
from kvviz.results.table import Table

MEASURES = {
    "kl": "mean KL, nats/token",
    "output_error": "output error, median head, % (band: quartiles)",
    "mark_held": "{mark} held, % of KV heads",
    "overlap": "entries shared with {a}, %",
    "bytes": "cache, MB (filled: as allocated after reading, open: by count of entries)",
    "expected": "expected answer in the text",
}
TITLES = {
    "kl": "Mean KL",
    "output_error": "Output error",
    "mark_held": "{mark} held",
    "overlap": "Overlap with {a}",
    "bytes": "Memory",
    "expected": "Expected answer",
}
_DECODED_ONLY = ("kl", "expected")
PERCENT = ("output_error", "mark_held", "overlap")


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

    def columns(self):
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
    words = {"a": text.label(c, a), "mark": named}
    title = f"{TITLES[measure].format(**words)} against budget, this document"
    return SweepTable(
        measure, title, MEASURES[measure].format(**words), _merged(c, series), message, c.share(k)
    )


def _merged(c: Comparison, series: list[Series]) -> list[Series]:
    """Methods other than A and B that kept the same entries at every budget join the series they equal."""
    found: list[Series] = []
    for s in sorted(series, key=lambda s: s.role == "muted"):
        twin = next((i for i, one in enumerate(found) if s.role == "muted" and _equal(c, one, s)), None)
        if twin is None:
            found.append(s)
        else:
            found[twin] = replace(found[twin], same=(*found[twin].same, s.label))
    order = {method: i for i, method in enumerate(c.methods)}
    return sorted(found, key=lambda s: order[s.method])


def _equal(c: Comparison, one: Series, other: Series) -> bool:
    if one.value != other.value or one.share != other.share:
        return False
    pairs = ((c.at(one.method, s), c.at(other.method, s)) for s in one.share)
    return all(
        x is y if x is None or y is None else np.array_equal(x.kept.bits, y.kept.bits) for x, y in pairs
    )


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
        one, other = c.at(a, share), c.at(method, share)
        return single(None if one is None or other is None else one.kept.overlap(other.kept))

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
        shares = set(c.shares(method)) | {c.share(k) for k in c.budgets}
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
