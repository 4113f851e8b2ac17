"""Two values of each token of one head, and what became of the token.

What is measured of single tokens (`lenses`) and any method's score can stand on either axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.effect import errors_at
from kvviz.figures.lenses import LENSES, lens_title
from kvviz.figures.why_card import scores_of
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table
from kvviz.types import Mark, complete

TWICE = " (y)"  # the second axis of the same name
FIRST = "#first"  # "criticalkv#first" is the score of its first stage
SINKS = 4

EVICTED, KEPT, PROTECTED, A_ONLY, B_ONLY, OUTSIDE = range(6)
STATE_NAMES = (
    "evicted",
    "kept",
    "kept by rule",
    "A only",
    "B only",
    "outside the sliding window",
)


@dataclass(frozen=True)
class WhyTable(Table):
    """One row a token of one head; arrays [m], m <= n tokens that have a value on both axes.

    state    uint8: EVICTED (with B: by both), KEPT (with B: by both), PROTECTED (by A), A_ONLY,
             B_ONLY, OUTSIDE of this module.
    cutoffs  (axis "x" or "y", value, label) where a method cuts this axis in this head.
    missing  tokens left out because an axis gives them no value.
    """

    near: ClassVar[str | None] = "token"

    layer: int
    head: int
    x_name: str
    y_name: str
    x_title: str
    y_title: str
    token: np.ndarray
    x: np.ndarray
    y: np.ndarray
    state: np.ndarray
    cutoffs: list[tuple[str, float, str]]
    correlation: float | None
    missing: int
    tokens: list[str]
    marks: list[Mark]
    label_a: str
    label_b: str | None
    budget_name: str
    ranked: bool

    def columns(self):
        """See `Table.columns`."""
        return {
            "token": self.token,
            "text": [text.plain(self.tokens[t]) for t in self.token.tolist()],
            self.x_name: self.x,
            self.y_name: self.y,
            "state": [STATE_NAMES[s] for s in self.state.tolist()],
        }

    @property
    def correlation_words(self) -> str:
        """The line below the scatter."""
        n = text.count(len(self.token))
        if self.correlation is None:
            return f"rank correlation {text.MISSING}, n = {n}"
        said = f"rank correlation {self.correlation:.2f}, n = {n}"
        if self.missing:
            said += f" ({text.count(self.missing)} tokens without a value left out)"
        return said


def axis_choices(c: Comparison, k: float | int) -> list[tuple[str, str]]:
    """(name, title) of everything that can stand on an axis."""
    choices = [(name, lens_title(c, name)) for name in LENSES if name in c.lenses]
    for method in c.methods:
        if scores_of(c, method, k) is None:
            continue
        choices.append((method, f"score of {text.label(c, method)}"))
        if scores_of(c, method, k, first=True) is not None:
            choices.append((method + FIRST, f"stage 1 score of {text.label(c, method)}"))
    return choices


def why_table(
    c: Comparison,
    layer: int,
    head: int,
    a: str,
    b: str | None,
    k: float | int,
    x: str = "",
    y: str = "effect",
    *,
    sinks: bool = True,
    ranks: bool = False,
) -> WhyTable:
    """Tokens of one head on two axes. sinks=False leaves out the first 4; ranks=True ranks both.

    x, y  names of `axis_choices`; without x it is attention at the answer's queries, or at the prompt's
          where a run holds no other.
    """
    check_head(c, layer, head)
    x = x or ("attention_answer" if "attention_answer" in c.lenses else "attention")
    xs, x_title = _axis(c, x, layer, head, k)
    ys, y_title = _axis(c, y, layer, head, k)
    state = _states(c, layer, head, a, b, k)
    usable = np.isfinite(xs) & np.isfinite(ys)
    if not sinks:
        usable[:SINKS] = False
    token = np.flatnonzero(usable).astype(np.int32)
    cutoffs = [
        (side, value, label)
        for side, name in (("x", x), ("y", y))
        for value, label in _cutoffs(c, name, layer, head, k)
    ]
    correlation = rank_correlation(xs[token], ys[token])
    xs, ys = xs[token], ys[token]
    if ranks:
        cutoffs = [
            (side, float(np.sum((xs if side == "x" else ys) < value)) + 0.5, label)
            for side, value, label in cutoffs
        ]
        xs, ys = _ranks(xs), _ranks(ys)
        x_title, y_title = f"rank of {x_title}", f"rank of {y_title}"
    return WhyTable(
        layer=layer,
        head=head,
        x_name=x,
        y_name=y if y != x else y + TWICE,
        x_title=x_title,
        y_title=y_title,
        token=token,
        x=xs,
        y=ys,
        state=state[token],
        cutoffs=cutoffs,
        correlation=correlation,
        missing=int(c.n - len(token) - (0 if sinks else min(SINKS, c.n))),
        tokens=c.prompt.tokens,
        marks=list(c.marks),
        label_a=text.label(c, a),
        label_b=None if b is None else text.label(c, b),
        budget_name=text.budget_name(k),
        ranked=ranks,
    )


def check_head(c: Comparison, layer: int, head: int) -> None:
    """An InputError for a layer or KV head that this model does not have."""
    if not (0 <= layer < c.model.n_layers and 0 <= head < c.model.n_kv_heads):
        raise InputError(
            f"There are layers 0 to {c.model.n_layers - 1} and KV heads 0 to "
            f"{c.model.n_kv_heads - 1}, not layer {layer}, KV head {head}."
        )


def _axis(c: Comparison, name: str, layer: int, head: int, k) -> tuple[np.ndarray, str]:
    if name in LENSES:
        if name not in c.lenses:
            stopped = any(v.finished == "cancelled" for v in (c.full, *c.variants))
            raise InputError(
                "This run was stopped before attention and effects were measured."
                if stopped
                else "This run was made without measuring attention and effects of single tokens."
            )
        return np.asarray(c.lenses[name][layer, head], dtype=np.float64), lens_title(c, name)
    method, first = name.removesuffix(FIRST), name.endswith(FIRST)
    scores = scores_of(c, method, k, first=first)
    if scores is None:
        known = ", ".join(choice for choice, _ in axis_choices(c, k))
        raise InputError(f"This run holds no values called {name!r}. Choose one of: {known}.")
    stage = "stage 1 score" if first else "score"
    title = f"{stage} of {text.label(c, method)}"
    return np.asarray(scores[layer][head], dtype=np.float64), title


def _states(c: Comparison, layer: int, head: int, a: str, b: str | None, k) -> np.ndarray:
    kept = c.need(a, k).kept
    of_a = kept.layer(layer)[head]
    if b is None:
        state = np.where(of_a, KEPT, EVICTED)
    else:
        of_b = c.need(b, k).kept.layer(layer)[head]
        state = np.select([of_a & of_b, of_a, of_b], [KEPT, A_ONLY, B_ONLY], EVICTED)
    protected = kept.layer_protected(layer)[head]
    state = np.where(protected & of_a, PROTECTED, state)
    return np.where(c.outside()[layer] & (state == EVICTED), OUTSIDE, state).astype(np.uint8)


def _cutoffs(c: Comparison, name: str, layer: int, head: int, k) -> list[tuple[float, str]]:
    """The lowest value still kept by score on this axis in this head, where a method cuts it."""
    method, first = name.removesuffix(FIRST), name.endswith(FIRST)
    scores = scores_of(c, method, k, first=first) if method in c.methods else None
    point = c.at(method, k)
    if scores is None or point is None:
        return []
    label = text.label(c, method)
    values = np.asarray(scores[layer][head])
    chosen = point.kept.layer(layer)[head] & np.isfinite(values)
    if point.first_scores is not None and point.stage is not None:
        stage = 1 if first else 2
        chosen &= point.stage[layer, head] == stage
        label = f"cut-off of {label}, stage {stage}"
    else:
        chosen &= ~point.kept.layer_protected(layer)[head]
        label = f"cut-off of {label}"
    return [(float(values[chosen].min()), label)] if chosen.any() else []


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks 1 to m, ties share their mean."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(first, append=len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(first + (sizes + 1) / 2, sizes)
    return ranks


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties at mean rank; None where one side does not vary."""
    if len(x) < 3:
        return None
    rx, ry = _ranks(x), _ranks(y)
    rx, ry = rx - rx.mean(), ry - ry.mean()
    norm = math.sqrt(float(rx @ rx) * float(ry @ ry))
    return float(rx @ ry) / norm if norm > 0 else None


def default_head(
    c: Comparison, a: str, b: str | None, k: float | int, tok: tuple[int, int] | None
) -> tuple[int, int]:
    """The head to show while none is chosen: (layer, KV head) of the largest difference.

    By |tokens held by A - held by B| of `tok`, else by the difference of output errors. Without B
    the comparison is with the full cache.
    """
    shape = c.model.n_layers, c.model.n_kv_heads
    difference = np.zeros(shape)
    if tok is not None and tok[0] < c.n:
        span = max(0, tok[0]), min(tok[1], c.n)
        points = complete(c.at(m, k) for m in (a, b if b is not None else "full"))
        if points is not None:
            one, other = (p.kept.span(*span).sum(axis=-1, dtype=np.int64) for p in points)
            difference = np.abs(one - other).astype(np.float64)
    if not difference.any():
        errors = complete(errors_at(c, method, k) for method in (a, b) if method is not None)
        if errors is not None:
            gap = np.abs(errors[0] - errors[1]) if len(errors) == 2 else errors[0]
            difference = np.nan_to_num(gap).reshape(*shape, -1).max(axis=-1)
    layer, head = np.unravel_index(int(difference.argmax()), shape)
    return int(layer), int(head)


def shown_head(
    c: Comparison,
    a: str,
    b: str | None,
    k: float | int,
    tok: tuple[int, int] | None,
    layer: int | None,
    head: int | None,
) -> tuple[int, int]:
    """Layer and KV head that a view of one head shows: the chosen ones, the rest by `default_head`."""
    if layer is not None:
        return layer, head or 0
    found, other = default_head(c, a, b, k, tok)
    return found, other if head is None else head
