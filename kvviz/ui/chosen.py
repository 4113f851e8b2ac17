"""The selection every view shares, checked field by field: the browser is not trusted."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from kvviz.errors import InputError
from kvviz.results.comparison import Comparison
from kvviz.results.passages import GRAINS
from kvviz.results.story import Opening
from kvviz.types import Mark


@dataclass(frozen=True)
class Chosen(Opening):
    """What is chosen on the page. `None` means all; `tok` is (start, end), end exclusive.

    marks  put by hand, beside the run's own.
    """

    marks: tuple[tuple[int, int], ...] = ()


def checked(raw: Any, c: Comparison) -> Chosen:
    """`raw` as sent by a browser, every field forced into the range of this run."""
    raw = raw if isinstance(raw, dict) else {}
    methods = c.choices
    a = raw.get("a") if raw.get("a") in methods else methods[0]
    b = raw.get("b")
    if b not in methods or b == a:
        b = None
    layer = whole(raw.get("layer"), 0, c.model.n_layers - 1)
    head = whole(raw.get("head"), 0, c.model.n_kv_heads - 1)
    marks = _marks(raw.get("marks"), c)
    grain = raw["grain"] if raw.get("grain") in GRAINS else "token"
    return Chosen(a, b, _budget(raw.get("budget"), c), _span(raw.get("tok"), c), layer, head, grain, marks)


MOST_MARKS = 12


def _marks(raw: Any, c: Comparison) -> tuple[tuple[int, int], ...]:
    spans = [_span(item, c) for item in raw[:MOST_MARKS]] if isinstance(raw, list) else []
    return tuple(dict.fromkeys(span for span in spans if span is not None))


def marked(c: Comparison, spans: tuple[tuple[int, int], ...]) -> Comparison:
    """The comparison with a visitor's marks beside its own. A stored run is everyone's: it stays as it is."""
    if not spans:
        return c
    groups = {mark.name.rstrip("abcdefghijklmnopqrstuvwxyz") for mark in c.marks}
    new = [
        Mark(f"M{number}", start, end, "".join(c.prompt.tokens[start:end]), "marked by hand")
        for number, (start, end) in enumerate(spans, 1 + len(groups))
    ]
    return dataclasses.replace(c, marks=[*c.marks, *new])


def whole(value: Any, low: int, high: int) -> int | None:
    """`value` as a whole number from low to high, or None."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if low <= number <= high else None


def edits_of(raw: Any, c: Comparison) -> list[Any]:
    """Edits as a browser sends them, each checked; InputError where none is left."""
    from kvviz.engine.experiment import Edit

    found = []
    for item in raw[:50] if isinstance(raw, list) else []:
        span = _span(item.get("tok"), c) if isinstance(item, dict) else None
        if span is None or item.get("kind") not in ("pin", "evict"):
            continue
        layer = whole(item.get("layer"), 0, c.model.n_layers - 1)
        head = whole(item.get("head"), 0, c.model.n_kv_heads - 1)
        found.append(Edit(item["kind"], *span, layer, head))
    if not found:
        raise InputError("Choose tokens, then pin or evict them.")
    return found


def steps(c: Comparison) -> list[float | int]:
    """Every budget at which masks are at hand: slider stops and decoded budgets, smallest first."""
    found: dict[float, float | int] = {}
    for budget in [*c.stops, *c.budgets]:
        found[round(c.share(budget), 9)] = budget  # a decoded budget stands in for an equal stop
    return [found[share] for share in sorted(found)]


def _budget(value: Any, c: Comparison) -> float | int:
    """The step nearest to the share asked for."""
    all_steps = steps(c)
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not math.isfinite(share):
        share = c.share(c.budgets[-1]) if c.budgets else 1.0
    return min(all_steps, key=lambda step: abs(c.share(step) - share))


def _span(value: Any, c: Comparison) -> tuple[int, int] | None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    start, end = whole(value[0], 0, c.n - 1), whole(value[1], 1, c.n)
    return (start, end) if start is not None and end is not None and start < end else None
