"""What is put back or taken out together: a head, a layer, a passage, a token, a passage in one head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvviz.errors import InputError
from kvviz.results.causes import UNITS
from kvviz.results.passages import Passage


@dataclass(frozen=True)
class Unit:
    """A block of entries that is put back or taken out together; `place` indexes [L, Hkv, n]."""

    kind: str
    place: tuple[slice, slice, slice]
    layer: int | None = None
    head: int | None = None
    passage: Passage | None = None
    token: int | None = None

    @property
    def name(self) -> tuple:
        """What tells a unit from all others, as `Effect.place`."""
        start = None if self.passage is None else self.passage.start
        return self.kind, self.layer, self.head, start, self.token


def units(kind: str, shape: tuple[int, int, int], pieces: Sequence[Passage]) -> list[Unit]:
    """All units of one kind: every (layer, KV head), layer, passage, token, or passage in one head."""
    layers, heads, n = shape
    all_ = slice(None)
    if kind == "layer":
        return [Unit(kind, (slice(i, i + 1), all_, all_), layer=i) for i in range(layers)]
    if kind == "passage":
        return [Unit(kind, (all_, all_, slice(p.start, p.end)), passage=p) for p in pieces]
    if kind == "token":
        return [Unit(kind, (all_, all_, slice(t, t + 1)), token=t) for t in range(n)]
    every = [(i, h) for i in range(layers) for h in range(heads)]
    if kind == "head":
        return [Unit(kind, (slice(i, i + 1), slice(h, h + 1), all_), layer=i, head=h) for i, h in every]
    if kind == "passage-head":
        return [
            Unit(kind, (slice(i, i + 1), slice(h, h + 1), slice(p.start, p.end)), i, h, p)
            for p in pieces
            for i, h in every
        ]
    raise InputError(f"Causes are found by {', '.join(UNITS)}, not by {kind!r}.")


def trials_needed(
    by: Sequence[str], directions: Sequence[str], shape: tuple[int, int, int], pieces: Sequence[Passage]
) -> int:
    """How many trials the effects take, known beforehand (searches ask as many as they need)."""
    return len(directions) * sum(len(units(kind, shape, pieces)) for kind in by)
