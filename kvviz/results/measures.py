"""What is measured of a method at a budget: a row a measure, which figures, tables and the page read.

A new measure is a function and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.marks import group_holders, groups, holders
from kvviz.results.verdict import judge
from kvviz.types import QUESTION_AWARE

EQUAL = 0.01  # of the larger error: closer than this counts as equal


@dataclass(frozen=True)
class Against:
    """What some measures refer to: the first method, tokens in place of the mark, the expected answer."""

    a: str = ""
    tok: tuple[int, int] | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Measure:
    """One measure of a point of a comparison.

    title   its heading, label what an axis says before the unit; {a} and {mark} stand for what it refers to.
    better  "lower", "higher", or "" where neither is.
    write   a value in words.
    of      (comparison, point, against) -> value, None where it is not known.
    spread  the same -> (lower, upper) quartile, None for a measure that has none.
    decoded_only  known only where an answer was decoded.
    scale   by which a drawing multiplies a value to have it in `unit`.
    column  its name in `Comparison.to_frame`, "" where it refers to something.
    """

    id: str
    title: str
    label: str
    unit: str
    better: str
    write: Callable[[float], str]
    of: Callable[[Comparison, Point, Against], float | None]
    decoded_only: bool = False
    spread: Callable[[Comparison, Point, Against], tuple[float, float] | None] | None = None
    scale: float = 1
    column: str = ""

    @property
    def axis(self) -> str:
        """Label and unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def words(self, value: float | None) -> str:
        """A value in words, "–" where it is missing."""
        return text.MISSING if value is None else self.write(value)


def mean_kl(kl: np.ndarray | None, protocol: str) -> float | None:
    """Mean of KL a step. Question-aware, step 0 was chosen before anything was evicted and says nothing."""
    rest = _steps(kl, protocol)
    return float(np.mean(rest)) if len(rest) else None


def max_kl(kl: np.ndarray | None, protocol: str) -> float | None:
    """The largest KL of those steps."""
    rest = _steps(kl, protocol)
    return float(np.max(rest)) if len(rest) else None


def _steps(kl: np.ndarray | None, protocol: str) -> np.ndarray:
    if kl is None:
        return np.zeros(0)
    return kl[1:] if protocol == QUESTION_AWARE else kl


def kl_of(c: Comparison, v: Variant) -> float | None:
    """Mean KL of an answer, None where it was not measured or says nothing."""
    return mean_kl(v.kl, c.prompt.protocol)


def errors(c: Comparison, point: Point) -> np.ndarray | None:
    """Output errors of the layers where something was evicted, float32 [L', Hq]; of all where none was.

    A sliding layer that keeps every row it can still see has error 0 whatever the method; counted in,
    it would make every median 0.
    """
    if point.error is None:
        return None
    evicted = c.evicted(point)
    return point.error[evicted] if evicted.any() else point.error


def _error(c: Comparison, point: Point, against: Against) -> float | None:
    found = errors(c, point)
    return None if found is None or not np.isfinite(found).any() else float(np.nanmedian(found))


def _quartiles(c: Comparison, point: Point, against: Against) -> tuple[float, float] | None:
    found = errors(c, point)
    if found is None or not np.isfinite(found).any():
        return None
    low, high = np.nanpercentile(found, (25, 75))
    return float(low), float(high)


def heads_compared(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int]:
    """(heads where b is lower, equal within 1% of the larger, heads with both values)."""
    usable = np.isfinite(a) & np.isfinite(b)
    a, b = a[usable], b[usable]
    equal = np.abs(a - b) <= EQUAL * np.maximum(a, b)
    return int(((b < a) & ~equal).sum()), int(equal.sum()), len(a)


def improved(c: Comparison, point: Point, against: Against | None = None) -> float | None:
    """Share of heads whose output error is below that of the method's attention-only base, in layers where
    either evicted something; None where the base was not in the run."""
    base = c.at(c.base_of(point.method), point.budget)
    if base is None or base.error is None or point.error is None or base.method == point.method:
        return None
    rows = c.evicted(point) | c.evicted(base)
    lower, _, total = heads_compared(base.error[rows], point.error[rows])
    return lower / total if total else None


def token_f1(answer: str, expected: str) -> float:
    """Harmonic mean of word precision and recall, the usual question-answering F1."""
    a, e = words_of(answer), words_of(expected)
    if not a or not e:
        return float(a == e)
    common = sum(min(a.count(w), e.count(w)) for w in set(a))
    return 2 * common / (len(a) + len(e))


def words_of(words: str) -> list[str]:
    """Words after folding case and punctuation."""
    return "".join(c if c.isalnum() else " " for c in words.casefold()).split()


def _held(c: Comparison, point: Point, against: Against) -> float | None:
    if against.tok is not None:
        found = holders(c, point.method, point.budget, *against.tok)
    else:
        marks = next(iter(groups(c).values()), None)
        found = None if marks is None else group_holders(c, point.method, point.budget, marks)
    return None if found is None else found.count / found.total


def _overlap(c: Comparison, point: Point, against: Against) -> float | None:
    other = c.at(against.a, point.budget)
    return None if other is None else point.kept.overlap(other.kept)


def _right(c: Comparison, point: Point, against: Against) -> float | None:
    judged = judge(point.answer, against.expected)
    return None if not judged else float(judged == "right")


MEASURES = (
    Measure(
        "kl", "Mean KL", "mean KL", "nats/token", "lower", text.kl,
        lambda c, p, against: None if p.answer is None else kl_of(c, p.answer), decoded_only=True,
        column="mean_kl",
    ),
    Measure(
        "output_error", "Output error", "output error, median head", "% (band: quartiles)", "lower",
        text.relative_error, _error, spread=_quartiles, scale=100, column="median_output_error",
    ),
    Measure(
        "improved", "Heads improved", "heads with less error than the method's base", "%", "higher",
        text.share, improved, scale=100, column="heads_improved",
    ),
    Measure(
        "mark_held", "{mark} held", "{mark} held", "% of KV heads", "higher", text.share, _held, scale=100,
    ),
    Measure(
        "overlap", "Overlap with {a}", "entries shared with {a}", "%", "", text.share, _overlap, scale=100,
    ),
    Measure(
        "bytes", "Memory", "cache after reading", "MB (filled: as allocated, open: by count of entries)",
        "lower", text.mb, lambda c, p, against: text.kept_bytes(c, p.method, p.budget), scale=1e-6,
    ),
    Measure(
        "expected", "Expected answer", "expected answer in the text", "", "higher",
        lambda value: "yes" if value else "no", _right, decoded_only=True,
    ),
)  # fmt: skip
MEASURE = {measure.id: measure for measure in MEASURES}


def rows(c: Comparison) -> list[dict[str, Any]]:
    """One row an answer as plain values; the full cache comes first. See `Comparison.to_frame`."""
    return [_row(c, v) for v in [c.full, *c.variants]]


def _row(c: Comparison, v: Variant) -> dict[str, Any]:
    point = c.whole if v.selection is None else Point.of(v)
    found = errors(c, point)
    measured = {m.column: m.of(c, point, Against()) for m in MEASURES if m.column}
    return {
        "method": v.method,
        "label": v.label,
        "options": v.options,
        "budget": v.budget,
        "share": c.share(v.budget),
        "entries": v.entries,
        "tokens_kept": v.tokens_kept,
        "bytes": v.bytes,
        "bytes_at_end": c.bytes_at_end(v),
        "text": v.text,
        "finished": v.finished,
        "verdict": judge(v, c.expected),
        "first_difference": v.first_difference,
        **measured,
        "max_kl": max_kl(v.kl, c.prompt.protocol),
        "mean_output_error": None if found is None else float(np.nanmean(found)),
        "layers_evicting": int(c.evicted(point).sum()),
        "f1_full": token_f1(v.text, c.full.text),
        "f1_expected": token_f1(v.text, c.expected) if c.expected else None,
        "seconds": sum(v.seconds.values()),
    }
