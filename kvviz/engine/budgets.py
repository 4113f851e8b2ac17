"""Budgets: how many context entries every KV head of every layer may keep.

An allocator shares out the same total in its own way; it never touches protected entries. All totals are
exact: shares become integers by largest remainder, and no head gets more than it has candidates.

    uniform        every head the same
    pyramid        linearly less from the first layer to the last (PyramidKV)
    across_heads   heads of a layer compete; every head keeps a safeguard (AdaKV)
    global         entries of all layers compete; scores of a layer may be divided by their sum first (LaProx)
    entropy        layers in proportion to a claim that the method states (CAKE), heads alike
    entropy_heads  the same, then heads of the layer compete (LAVa)
    calibrated     layers by errors measured beforehand, with a floor and a cap (CompressKV), heads alike
    whole_heads    a head keeps its whole context or none of it, best heads first (DuoAttention)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvviz.engine.counts import Candidates, best_counts, layer_budgets, round_to_total
from kvviz.engine.ranking import rank
from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.lazy import torch
from kvviz.options import CHOICE, LIST, NUMBER, SWITCH, Option

Options = Mapping[str, Any]

SAFEGUARD = Option(
    "safeguard", 0.2, NUMBER, "Share of an even budget that every head keeps of its own best.", 0, 1
)
RULE = Option(
    "rule",
    "floor",
    CHOICE,
    "Whether the safeguard is a floor, or a blend with the even split.",
    choices=("floor", "interpolate"),
)
SAFEGUARD_OF = Option(
    "safeguard_of",
    "context",
    CHOICE,
    "What a floor is a share of: the context's budget, or all of it with what is kept by rule inside.",
    choices=("context", "budget"),
)
PYRAMID_OF = Option(
    "pyramid_of",
    "context",
    CHOICE,
    "What falls from layer to layer: the context's budget, or all of it with the window inside.",
    choices=("context", "budget"),
)
NORMALISE = Option("normalise", True, SWITCH, "Divide the scores of a layer by their sum first.")
BETA = Option("beta", 20.0, NUMBER, "How many times less than the mean the last layer gets.", 1, 1000)
COMPETING = (SAFEGUARD, RULE, SAFEGUARD_OF)  # where heads of a layer compete
LAYER_WEIGHTS = Option(
    "layer_weights", None, LIST, "What each layer may claim: one number a layer.", 0, 1e9, optional=True
)


def entries_of(budget: float | int | str | Budget, n: int) -> int:
    """b, entries per KV head, of a share in (0, 1] or a whole number, among n tokens.

    Exact: floor(0.29 * 100) is 29. At least 1; a number above n means n. InputError otherwise.
    """
    return Budget.parse(budget).of(n)


def uniform(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    return [torch.full((c.heads,), c.budget, dtype=torch.int64) for c in layers]


def across_heads(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """AdaKV. rule "floor": each head keeps floor(safeguard * budget) of its own best, the rest compete.
    rule "interpolate": (1 - safeguard) * count among the best + safeguard * budget.
    safeguard_of "budget": the floor is of the whole budget, what is kept by rule counts towards it."""
    return [_share_heads(c, c.heads * c.budget, options) for c in layers]


def _share_heads(c: Candidates, total: int, options: Options) -> torch.Tensor:
    average = total / c.heads
    alpha = Fraction(str(options["safeguard"]))
    if options["rule"] == "interpolate":
        counts = best_counts([c], total)[0].tolist()
        shares = [(1 - float(alpha)) * f + float(alpha) * average for f in counts]
        return torch.tensor(round_to_total(shares, total, [c.context] * c.heads))
    inside = c.protected if options["safeguard_of"] == "budget" else 0
    safe = min(max(0, math.floor(alpha * (Fraction(total, c.heads) + inside)) - inside), c.context)
    if safe == 0:
        return best_counts([c], total)[0]
    mine = rank(c.scores, c.first) < safe  # each head's own best are safe; the others compete
    return best_counts([c], total - safe * c.heads, members=[~mine])[0] + safe


def global_(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """LaProx: one ranking over all layers and heads; `normalise` divides a layer by its sum."""
    total = sum(c.heads * c.budget for c in layers)
    divide = None
    if options["normalise"]:
        # The sum of a layer's scores; of their sizes where a method's scores are negative.
        divide = [max(float(c.scores[c.scores.isfinite()].abs().sum()), 1e-30) for c in layers]
    return best_counts(layers, total, divide)


def by_layer(layers: Sequence[Candidates], weights: Sequence[float]) -> list[int]:
    """Context entries of each layer in proportion to `weights`, capped by what the layer has."""
    total = sum(c.heads * c.budget for c in layers)
    return round_to_total(weights, total, [c.heads * c.context for c in layers])


def pyramid(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """PyramidKV: the last layer gets 1 / beta of the mean, the first so much that the mean holds.

    Where the first layer has fewer candidates than that, the line is turned about its middle until the
    first layer just fits. pyramid_of "budget" (kvpress): the line is drawn for what a layer keeps in all,
    and where its low end would not hold what is kept by rule, all layers get the same.
    """
    count, beta = len(layers), options["beta"]
    whole = options["pyramid_of"] == "budget"
    inside = max((c.protected for c in layers), default=0) if whole else 0
    mean = sum(c.budget + inside for c in layers) / max(count, 1)
    low = mean / beta
    high = 2 * mean - low
    room = max((c.context for c in layers), default=0)
    if high > room:
        high, low = float(room), 2 * mean - room
    if whole and not high >= low >= inside:
        high = low = mean
    high, low, mean = high - inside, low - inside, mean - inside
    step = (high - low) / max(count - 1, 1)
    weights = [high - i * step for i in range(count)] if count > 1 else [mean]
    totals = by_layer(layers, [w * c.heads for w, c in zip(weights, layers)])
    return _spread(layers, totals)


def _spread(layers: Sequence[Candidates], totals: Sequence[int]) -> list[torch.Tensor]:
    """A layer's total among its heads alike; what does not divide goes to the lower heads."""
    out = []
    for c, total in zip(layers, totals):
        base, more = divmod(total, c.heads)
        out.append(torch.tensor([base + (h < more) for h in range(c.heads)], dtype=torch.int64))
    return out


def _claims(layers: Sequence[Candidates]) -> list[float]:
    return [c.weight if c.weight is not None else flat_entropy(c.scores) for c in layers]


def flat_entropy(scores: torch.Tensor) -> float:
    """Entropy of a layer's scores over log of their number: 1 for a flat layer, 0 for a single peak."""
    p = scores.clamp_min(0).flatten().double()
    if p.numel() < 2 or p.sum() <= 0:
        return 1.0
    p = p / p.sum()
    return float(-(p * p.clamp_min(1e-300).log()).sum() / math.log(p.numel()))


def entropy(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    return _spread(layers, by_layer(layers, _claims(layers)))


def entropy_heads(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    totals = by_layer(layers, _claims(layers))
    return [_share_heads(c, total, options) for c, total in zip(layers, totals)]


CALIBRATED_FLOOR = 32  # entries a layer keeps at least, as far as the budget goes that far
CALIBRATED_CAP = 3  # times the average budget that a layer keeps at most


def calibrated(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """CompressKV: floor + share of the rest in proportion to a layer's error, clipped, then repaired.

    B_l = clip(round(e_l * (sum B - sum floor)) + floor, floor, 3 B), floor = min(32, B), protected rows
    counted in. A deficit goes one entry at a time to the layers below their cap in descending order of
    e, a surplus is taken from those above their floor in ascending order, until the total is exact. All
    heads of a layer get the same number, so that a method with one ranking keeps one set. e comes from
    the option `layer_weights`, else from the method's own claims.
    """
    weights = options["layer_weights"]
    claims = [c.weight for c in layers]
    if weights is None and layers and None not in claims:
        weights = claims
    if weights is None or len(weights) != len(layers):
        raise InputError(f"The calibrated allocation {_one_a_layer(len(layers))}.")
    whole = [c.budget + c.protected for c in layers]
    floors = [max(c.protected, min(CALIBRATED_FLOOR, b)) for c, b in zip(layers, whole)]
    caps = [min(c.context + c.protected, CALIBRATED_CAP * b) for c, b in zip(layers, whole)]
    shares = layer_budgets(weights, sum(whole), floors, caps)
    return [torch.full((c.heads,), s - c.protected, dtype=torch.int64) for c, s in zip(layers, shares)]


def whole_heads(layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """DuoAttention: heads in the order of their score keep their whole context as long as it fits.

    The total is as near to the budget as whole heads come from below.
    """
    left = sum(c.heads * c.budget for c in layers)
    counts = [torch.zeros(c.heads, dtype=torch.int64) for c in layers]
    ranked = [
        (-float(c.scores[h, 0]), h, index)
        for index, c in enumerate(layers)
        for h in range(c.heads)
        if c.context
    ]
    for _, head, index in sorted(ranked):
        if layers[index].context <= left:
            counts[index][head] = layers[index].context
            left -= layers[index].context
    return counts


def _one_a_layer(layers: int | None) -> str:
    which = "each layer" if layers is None else f"each of the {layers} layers"
    return (
        f"needs layer_weights: one number for {which} (`python -m kvviz calibrate compresskv` measures them)"
    )


def _claimed(method: Any, options: Options, layers: int | None) -> str:
    """Why `calibrated` cannot serve this method, "" where it can."""
    weights = options["layer_weights"]
    if weights is None:
        return "" if method.claims else f"{_one_a_layer(layers)}, as the method itself claims nothing"
    return "" if layers in (None, len(weights)) else _one_a_layer(layers)


def _gated(method: Any, options: Options, layers: int | None) -> str:
    return "" if method.gates else "ranks heads by a score of the whole head, which this method does not give"


@dataclass(frozen=True)
class Allocator:
    """scope     what an entry competes with: "head", "layer" or "all".
    rows      the options it reads.
    requires  (method, options, number of layers or None) -> why it cannot serve them, after "this
              allocation"; "" where it can.
    exact     whether the total is exact; otherwise it is the nearest one from below.
    """

    id: str
    label: str
    scope: str
    share: Callable[[Sequence[Candidates], Options], list[torch.Tensor]]
    rows: tuple[Option, ...] = ()
    requires: Callable[[Any, Options, int | None], str] = lambda method, options, layers: ""
    exact: bool = True


ALLOCATORS: dict[str, Allocator] = {
    a.id: a
    for a in (
        Allocator("uniform", "uniform", "head", uniform),
        Allocator("pyramid", "pyramid", "head", pyramid, (BETA, PYRAMID_OF)),
        Allocator("across_heads", "across heads", "layer", across_heads, COMPETING),
        Allocator("global", "global", "all", global_, (NORMALISE,)),
        Allocator("entropy", "entropy", "head", entropy),
        Allocator("entropy_heads", "entropy and heads", "layer", entropy_heads, COMPETING),
        Allocator("calibrated", "calibrated", "head", calibrated, (LAYER_WEIGHTS,), _claimed),
        Allocator("whole_heads", "whole heads", "all", whole_heads, (), _gated, exact=False),
    )
}


def allocate(name: str, layers: Sequence[Candidates], options: Options) -> list[torch.Tensor]:
    """Context entries per head, list over layers of int64 [Hkv]; totals are exact. Options are checked before
    (`Method.resolve`)."""
    allocator = ALLOCATORS[name]
    counts = allocator.share(layers, options)
    wanted = sum(c.heads * c.budget for c in layers)
    got = sum(int(c.sum()) for c in counts)
    right = got == wanted if allocator.exact else got <= wanted
    assert right, f"{name} shared out {got} entries of {wanted}"
    return counts
