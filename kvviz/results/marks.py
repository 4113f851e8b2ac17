"""Spans of tokens: where the expected answer stands, and who still holds such a span."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kvviz.results.comparison import Comparison
from kvviz.results.verdict import spans_of
from kvviz.types import Mark, Prompt, complete

_MOST_MARKS = 26


@dataclass(frozen=True)
class Holders:
    """(layer, KV head) pairs that hold ALL tokens of a span.

    count, total  pairs that hold it, pairs in all.
    places        bool [L, Hkv], True where it is held.
    share         float32 [L, Hkv], part of the span's tokens that each head holds.
    """

    count: int
    total: int
    places: np.ndarray
    share: np.ndarray


def holders(c: Comparison, method: str, k: float | int, start: int, end: int) -> Holders | None:
    """Who holds all tokens from `start` to `end` (exclusive); None where this was not stored.

    Tokens from n on are not under compression: every head holds them.
    """
    shape = c.model.n_layers, c.model.n_kv_heads
    first, last = max(0, start), min(end, c.n)
    if first >= last:
        share = np.ones(shape, dtype=np.float32)
        return Holders(share.size, share.size, np.ones(shape, bool), share)
    point = c.at(method, k)
    if point is None:
        return None
    part = point.kept.span(first, last)
    places = np.asarray(part.all(axis=-1))
    beyond = max(0, end - max(start, last))
    share = (part.sum(axis=-1) + beyond) / (last - first + beyond)
    return Holders(int(places.sum()), places.size, places, share.astype(np.float32))


def groups(c: Comparison) -> dict[str, list[Mark]]:
    """Marks by name; a text found several times ("M1a", "M1b") is one group."""
    found: dict[str, list[Mark]] = {}
    for mark in c.marks:
        match = re.fullmatch(r"(M\d+)[a-z]+", mark.name)
        found.setdefault(match[1] if match else mark.name, []).append(mark)
    return found


def group_holders(c: Comparison, method: str, k: float | int, marks: list[Mark]) -> Holders | None:
    """Who holds at least one of these marks in full; None where this was not stored."""
    each = complete(holders(c, method, k, mark.start, mark.end) for mark in marks)
    if not each:
        return None
    places = np.logical_or.reduce([h.places for h in each])
    share = np.maximum.reduce([h.share for h in each])
    return Holders(int(places.sum()), places.size, places, share)


def find_marks(prompt: Prompt, text: str, name: str = "M1") -> list[Mark]:
    """Where `text` stands in the prompt's document, as token spans: verbatim, or if it does so nowhere, as
    the verdict on an answer reads it (case, spaces, compatibility forms).

    One place gives [name], several give name + "a", name + "b", ... (the first 26 places).
    """
    text = text.strip()
    places = spans_of(prompt.document, text)
    reason = "marked because it matches the expected answer"
    if len(places) > _MOST_MARKS:
        reason += f" (the first {_MOST_MARKS} of {len(places):,} places)"
    marks = []
    for number, (first, last) in enumerate(places[:_MOST_MARKS]):
        tokens = prompt.tokens_of(first, last)
        if tokens is not None:
            label = name + ("abcdefghijklmnopqrstuvwxyz"[number] if len(places) > 1 else "")
            marks.append(Mark(label, *tokens, prompt.document[first:last], reason))
    return marks
