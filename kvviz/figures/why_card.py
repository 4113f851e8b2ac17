"""Why this token? What each method saw of one token in one head, and who holds it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.lenses import lens_words
from kvviz.figures.why_smallest import smallest_budget
from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Point

STATES = {
    "score": "kept by score",
    "rule": "kept by rule",
    "evicted": "evicted",
    "outside": "outside window",
    "unscored": "not scored",
}
SCOPES = {"head": "this head", "layer": "all heads of layer {layer}", "all": "all heads"}


@dataclass(frozen=True)
class Neighbour:
    """Another token of the same head, close by in score."""

    token: int
    text: str
    score: float


@dataclass(frozen=True)
class MethodColumn:
    """One method's column of the card. Words are ready to show; "–" with `reason` where missing.

    rank, of     place by score among all that competed, counted from 1.
    places       entries kept by score among those that competed.
    smallest_here, smallest_half  smallest share at which this head, and half of all heads, keep the
                 token; None if no stored one does.
    """

    method: str
    label: str
    state: str
    state_words: str
    score: float | None
    rank: int | None
    of: int | None
    places: int | None
    cutoff: float | None
    score_words: str
    rank_words: str
    places_words: str
    margin_words: str
    scope_words: str
    stage_words: str
    pooling_words: str
    nearest_kept: Neighbour | None
    nearest_evicted: Neighbour | None
    smallest_here: float | None
    smallest_half: float | None
    smallest_words: str
    reason: str


@dataclass(frozen=True)
class WhyCard:
    """The card of one token; `span` is the selection it was chosen from (its least-held token)."""

    token: int
    text: str
    span: tuple[int, int]
    layer: int
    head: int
    place_words: str
    marks: list[str]
    held: dict[str, tuple[int, int]]
    held_line: str
    columns: list[MethodColumn]
    lens_words: list[str]
    note: str


def scores_of(c: Comparison, method: str, k: float | int, first: bool = False) -> Any | None:
    """Scores of a method, a row of float32 [Hkv, n] a layer: at this budget if decoded, else stored.

    first=True asks for the scores of stage 1. None where there are none, or all of them are NaN.
    """
    point = c.at(method, k)
    if first:
        return None if point is None else point.first_scores
    rows = c.scores.get(method) if point is None else point.scores
    if rows is None or not any(np.isfinite(row).any() for row in rows):
        return None
    return rows


def least_held(c: Comparison, method: str, k: float | int, tok: tuple[int, int]) -> int:
    """The token of `tok` (start, end exclusive) that the fewest heads keep, the first of equals."""
    start, end = max(0, tok[0]), min(tok[1], c.n)
    if start >= end:
        raise InputError(f"Choose a token between 0 and {c.n - 1}.")
    return start + int(c.need(method, k).kept.span(start, end).sum(axis=(0, 1)).argmin())


def why_card(
    c: Comparison,
    tok: tuple[int, int],
    layer: int,
    head: int,
    k: float | int,
    methods: Sequence[str],
) -> WhyCard:
    """The card of the least-held token of `tok` (start, end exclusive)."""
    points = {m: point for m in methods if (point := c.at(m, k)) is not None}
    chosen = least_held(c, next(iter(points), methods[0]), k, tok)
    heads = {m: point.kept.token(chosen) for m, point in points.items()}
    held = {m: (int(x.sum()), x.size) for m, x in heads.items()}
    pieces = [
        f"{text.label(c, m)} kept it in {count} of {total} KV heads"
        if index == 0
        else f"{text.label(c, m)} in {count}"
        for index, (m, (count, total)) in enumerate(held.items())
    ]
    return WhyCard(
        token=chosen,
        text=text.plain(c.prompt.tokens[chosen]),
        span=(max(0, tok[0]), min(tok[1], c.n)),
        layer=layer,
        head=head,
        place_words=text.place(layer, head, chosen),
        marks=[m.name for m in c.marks if m.start <= chosen < m.end],
        held=held,
        held_line=", ".join(pieces),
        columns=[_column(c, m, chosen, layer, head, k, point) for m, point in points.items()],
        lens_words=lens_words(c, layer, head, chosen),
        note="Effects of single tokens do not add up.",
    )


def _column(
    c: Comparison, method: str, token: int, layer: int, head: int, k, point: Point
) -> MethodColumn:
    mask, by_rule = point.kept.mask(), point.kept.protected()
    scores = scores_of(c, method, k)
    own = None if scores is None else np.asarray(scores[layer][head])
    value = None if own is None or not np.isfinite(own[token]) else float(own[token])
    stored = value is None and scores is not None and _score_not_stored(c, method, k, layer, head, token)
    state = _state(c, mask, by_rule, value, None if stored else scores, token, layer, head)
    which = point.scope
    chosen = mask & ~by_rule
    rank = of = places = cutoff = None
    near_kept = near_evicted = None
    if scores is not None and own is not None and value is not None:
        rank, of = _rank(scores, which, token, layer, head)
        places = int(_within(chosen, which, layer, head).sum())
        cutoff = _cutoff(scores, chosen, which, layer, head)
        near_kept = _nearest(c, own, chosen[layer, head], token, value)
        near_evicted = _nearest(c, own, ~mask[layer, head], token, value)
    alone = rank if _by_rank_alone(c, method, point) else None
    smallest = smallest_budget(c, method, token, layer, head, alone, int(by_rule[layer, head].sum()))
    return MethodColumn(
        method=method,
        label=text.label(c, method),
        state=state,
        state_words=STATES[state],
        score=value,
        rank=rank,
        of=of,
        places=places,
        cutoff=cutoff,
        score_words=text.score(value) if scores is not None else _by_position(mask[layer, head]),
        rank_words=text.MISSING if rank is None else f"{text.count(rank)} of {text.count(of)}",
        places_words=text.MISSING if places is None else text.count(places),
        margin_words=_margin(value, cutoff),
        scope_words=SCOPES[which].format(layer=layer),
        stage_words=_stage(point, token, layer, head),
        pooling_words=_pooling(point, token, layer, head),
        nearest_kept=near_kept,
        nearest_evicted=near_evicted,
        smallest_here=smallest.here,
        smallest_half=smallest.half,
        smallest_words=smallest.words,
        reason=_NOT_STORED if stored and state != "rule" else _reason(state, value, scores),
    )


def _by_rank_alone(c: Comparison, method: str, point: Point) -> bool:
    """Does a head keep its highest scores at every budget? Then a token's rank says when it is kept."""
    options = next((v.options for v in c.variants if v.method == method), {})
    uniform = options.get("allocation", "uniform") == "uniform"
    return uniform and point.scope == "head" and point.first_scores is None


def _by_position(row: np.ndarray) -> str:
    """What a method that gives no scores keeps of a head: "by position: the first 4 and the last 96"."""
    if row.all():
        return "by position: every token"
    first = int(np.argmin(row))
    last = int(np.argmin(row[::-1]))
    if first + last < row.sum():
        return "by position"
    return f"by position: keeps the first {text.count(first)} and the last {text.count(last)}"


def _state(c, mask, by_rule, value, scores, token: int, layer: int, head: int) -> str:
    if mask[layer, head, token]:
        return "rule" if by_rule[layer, head, token] else "score"
    if c.outside(token, token + 1)[layer, 0]:
        return "outside"
    return "unscored" if value is None and scores is not None else "evicted"


_NOT_STORED = "Its score at this budget was not stored: at the largest budget it is kept by rule."


def _score_not_stored(c, method: str, k, layer: int, head: int, token: int) -> bool:
    """The slider's scores are those of the largest budget, where more tokens are kept by rule."""
    if c.variant(method, k) is not None:
        return False
    return bool(c.largest(method).kept.layer_protected(layer)[head, token])


def _reason(state: str, value: float | None, scores) -> str:
    if value is not None:
        return ""
    if scores is None:
        return "This method goes by position, not by score."
    if state == "rule":
        return "Kept by rule, so it was not scored."
    if state == "outside":
        return "This layer's sliding window has left the token behind."
    return "This method gives no score here."


def _within(values: np.ndarray, which: str, layer: int, head: int) -> np.ndarray:
    """The part of an [L, Hkv, n] array that competes: this head, this layer, or all."""
    if which == "all":
        return values
    return values[layer] if which == "layer" else values[layer, head]


def _rows(scores, which: str, layer: int, head: int):
    """(layer, head, row [n]) of everything that competes; rows are read one by one, never stacked."""
    layers = range(len(scores)) if which == "all" else [layer]
    for index in layers:
        rows = np.asarray(scores[index])
        heads = [head] if which == "head" else range(len(rows))
        for other in heads:
            yield index, other, rows[other]


def _rank(scores, which: str, token: int, layer: int, head: int) -> tuple[int, int]:
    """Place in the order: score descending, then earlier position, lower KV head, lower layer."""
    value = np.asarray(scores[layer])[head, token]
    above = total = 0
    for index, other, row in _rows(scores, which, layer, head):
        total += int(np.isfinite(row).sum())
        above += int((row > value).sum()) + int((row[:token] == value).sum())
        if (other, index) < (head, layer) and row[token] == value:
            above += 1
    return above + 1, total


def _cutoff(scores, chosen: np.ndarray, which: str, layer: int, head: int) -> float | None:
    """The lowest score still kept by score in this head, or among all that competed."""
    own = np.asarray(scores[layer])[head]
    picked = chosen[layer, head] & np.isfinite(own)
    if picked.any():
        return float(own[picked].min())
    lowest = [
        float(row[at].min())
        for index, other, row in _rows(scores, which, layer, head)
        if (at := chosen[index, other] & np.isfinite(row)).any()
    ]
    return min(lowest) if lowest else None


def _margin(value: float | None, cutoff: float | None) -> str:
    if value is None or cutoff is None:
        return text.MISSING
    if cutoff > 0 and value >= 0:
        return f"score is {text.score(value / cutoff)} x the cut-off"
    side = "above" if value >= cutoff else "below"  # a ratio of negative scores says nothing
    return f"score is {text.score(abs(value - cutoff))} {side} the cut-off"


def _stage(point: Point, token: int, layer: int, head: int) -> str:
    if point.first_scores is None or point.stage is None:
        return ""
    stage, first = point.stage[layer, head], point.first_scores[layer][head]
    if not np.isfinite(first[token]):
        return ""
    rivals = np.isfinite(first) & (stage != 3)
    ahead = int((first[rivals] > first[token]).sum())
    ahead += int((rivals[:token] & (first[:token] == first[token])).sum())
    places = int((stage == 1).sum())
    rank = f"rank {text.count(ahead + 1)} of {text.count(places)}"
    if stage[token] == 1:
        return f"passed stage 1, {rank}"
    missed = f"missed stage 1 (rank {text.count(ahead + 1)}, {text.count(places)} places)"
    if stage[token] == 2:
        return f"{missed}, passed stage 2"
    return f"{missed} and stage 2" if stage[token] == 0 else ""


def _pooling(point: Point, token: int, layer: int, head: int) -> str:
    """ "raised by token +2 (pool 7)" where the pooled score comes from a neighbour, else ""."""
    pool = point.options.get("pool")
    if point.scores is None or point.scores_raw is None or point.options.get("pool_kind") == "none":
        return ""
    if not isinstance(pool, int) or pool < 2:
        return ""
    raw = point.scores_raw[layer][head]
    pooled = float(point.scores[layer][head, token])
    reach = pool // 2
    low = max(0, token - reach)
    around = np.where(np.isfinite(raw), raw, -np.inf)[low : token + reach + 1]
    top = low + int(around.argmax())
    if top == token or not pooled > raw[token] or not raw[top] > raw[token]:
        return ""
    return f"raised by token {top - token:+d} (pool {pool})"


def _nearest(c: Comparison, row: np.ndarray, among: np.ndarray, token: int, value: float):
    usable = among & np.isfinite(row)
    usable[token] = False
    at = np.flatnonzero(usable)
    if not len(at):
        return None
    best = int(at[np.abs(row[at] - value).argmin()])
    return Neighbour(best, text.plain(c.prompt.tokens[best]), float(row[best]))
