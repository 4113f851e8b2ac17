"""Counts of entries, exactly: shares made whole numbers, and how many of the best entries each head holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvviz.lazy import torch


@dataclass(frozen=True)
class Candidates:
    """The competing entries of one layer.

    scores  float32 [Hkv, C], no NaN; order is score first, then earlier position.
    first   bool [Hkv, C] or None: entries that go before all others.
    budget  context entries a KV head may keep on average in this layer (at most C).
    weight  the layer's claim, for the entropy allocators.
    start   true position of the first entry: above 0 behind sinks and in a sliding layer.
    protected  rows each head keeps by rule on top of `budget`.
    """

    scores: torch.Tensor
    first: torch.Tensor | None
    budget: int
    weight: float | None = None
    start: int = 0
    protected: int = 0

    @property
    def heads(self) -> int:
        return self.scores.shape[0]

    @property
    def context(self) -> int:
        return self.scores.shape[1]


def round_to_total(shares: Sequence[float], total: int, caps: Sequence[int]) -> list[int]:
    """Integers close to `shares`, summing to min(total, sum(caps)), none above its cap or below 0.

    What a capped share cannot take goes to the others in proportion; then largest remainder, ties to
    the earlier one.
    """
    total = min(total, sum(caps))
    shares = [max(0.0, float(s)) for s in shares]
    out = [0.0] * len(shares)
    open_ = [i for i, cap in enumerate(caps) if cap > 0]
    left = float(total)
    while open_ and left > 0:
        weight = sum(shares[i] for i in open_)
        give = {i: left * (shares[i] / weight if weight > 0 else 1 / len(open_)) for i in open_}
        full = [i for i in open_ if give[i] >= caps[i]]
        if not full:
            for i in open_:
                out[i] = give[i]
            break
        for i in full:
            out[i] = caps[i]
            left -= caps[i]
        open_ = [i for i in open_ if i not in full]
    whole = [min(int(x + 1e-9), cap) for x, cap in zip(out, caps)]
    order = sorted(range(len(out)), key=lambda i: (-(out[i] - whole[i]), i))
    missing = total - sum(whole)
    while missing > 0:
        for i in order:
            if missing and whole[i] < caps[i]:
                whole[i] += 1
                missing -= 1
    return whole


def best_counts(
    layers: Sequence[Candidates],
    total: int,
    divide: Sequence[float] | None = None,
    members: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """How many of the `total` best entries of all given layers each head holds: list of int64 [Hkv].

    Order: entries marked `first`, then score (divided by the layer's number in `divide`), then earlier
    position, lower KV head, lower layer. `members` (bool [Hkv, C] a layer) says who competes at all.
    """
    divide = divide or [1.0] * len(layers)
    counts = [torch.zeros(c.heads, dtype=torch.int64) for c in layers]
    scores = [(c.scores / d).cpu() for c, d in zip(layers, divide)]
    members = members or [torch.ones_like(s, dtype=torch.bool) for s in scores]
    for tier in (True, False):
        inside = [m & _tier(c, tier) for c, m in zip(layers, members)]
        size = sum(int(m.sum()) for m in inside)
        take = min(total, size)
        total -= take
        if take == size:
            for count, member in zip(counts, inside):
                count += member.sum(1)
        elif take:
            _add_best(counts, scores, inside, take, [c.start for c in layers])
    return counts


def _tier(c: Candidates, first: bool) -> torch.Tensor:
    marked = torch.zeros_like(c.scores, dtype=torch.bool) if c.first is None else c.first
    return (marked if first else ~marked).cpu()


def _add_best(counts, scores, members, take: int, starts: Sequence[int]) -> None:
    """Count the `take` best members: all above the threshold, then ties in the agreed order."""
    flat = torch.cat([s[m] for s, m in zip(scores, members)])
    threshold = flat.kthvalue(flat.numel() - take + 1).values
    ties = []
    for layer, (count, s, m) in enumerate(zip(counts, scores, members)):
        above = (s > threshold) & m
        count += above.sum(1)
        take -= int(above.sum())
        ties += [(p + starts[layer], h, layer) for h, p in ((s == threshold) & m).nonzero().tolist()]
    for _, head, layer in sorted(ties)[:take]:
        counts[layer][head] += 1


def layer_budgets(
    weights: Sequence[float], total: int, floors: Sequence[int], caps: Sequence[int]
) -> list[int]:
    """CompressKV's rule on plain numbers: integers in [floor, cap] that sum to `total`."""
    scale = sum(weights)
    shares = [w / scale if scale > 0 else 1 / len(weights) for w in weights]
    spare = total - sum(floors)
    out = [min(cap, max(low, round(e * spare) + low)) for e, low, cap in zip(shares, floors, caps)]
    order = sorted(range(len(out)), key=lambda i: (-shares[i], i))
    left = total - sum(out)
    step = 1 if left > 0 else -1
    order = order if left > 0 else order[::-1]
    while left:
        for i in order:
            if left and (out[i] < caps[i] if step > 0 else out[i] > floors[i]):
                out[i] += step
                left -= step
    return out
