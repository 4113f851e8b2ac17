"""The cache that decodes: kept entries in ragged storage, one run of blocks a head.

Evicted entries are not in it. Rows lie in flat blocks; every block belongs to one (variant, KV head), and
remembers the true positions of its rows. The whole cache is a view of the trace, not a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch

from kvviz import kernels
from kvviz.engine.attention import masked_attention
from kvviz.engine.trace import Trace, block_rows
from kvviz.settings import settings

T = TypeVar("T")


@dataclass(frozen=True)
class Blocks:
    """Rows of one layer for the variants first .. first + count - 1 of a wave.

    keys, values  [N, B, d]; positions int32 [N, B], -1 = empty slot; owner int32 [N], non-decreasing:
    (variant - first) * Hkv + KV head.
    """

    first: int
    count: int
    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    owner: torch.Tensor

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values, self.positions, self.owner))

    def attend(self, query, layer, heads: int, positions) -> tuple[torch.Tensor, torch.Tensor]:
        """What these variants of a wave get from the rows: float32 (out [v, Hq, T, d], lse [v, Hq, T]).

        query [V, Hq, T, d] of the whole wave, at true positions [V, T]; heads, KV heads.
        """
        mine = slice(self.first, self.first + self.count)
        return kernels.ragged_attention(
            query[mine], self.keys, self.values, self.positions, self.owner, heads, layer.scaling,
            positions[mine], layer.window,
        )  # fmt: skip

    def of(self, variant: int, heads: int) -> Blocks:
        """The blocks of one variant: a view."""
        owner = variant - self.first
        ends = self.owner.new_tensor([owner * heads, (owner + 1) * heads])
        start, end = torch.searchsorted(self.owner, ends).tolist()
        mine = slice(start, end)
        keys, values, positions = self.keys[mine], self.values[mine], self.positions[mine]
        return Blocks(variant, 1, keys, values, positions, self.owner[mine] - owner * heads)


@dataclass(frozen=True)
class Masked:
    """One layer's rows as they lie in the trace, seen by the variants of a wave each through a mask of its
    own. For kept sets that hold much of the prompt: nothing is gathered, nothing evicted.

    keys, values  [Hkv, n, d]; bias  float32 [Hkv, V, n], 0 where a variant holds a row and -inf where not.
    """

    keys: torch.Tensor
    values: torch.Tensor
    bias: torch.Tensor

    def attend(self, query, layer, heads: int, positions) -> tuple[torch.Tensor, torch.Tensor]:
        """As that of `Blocks`; all variants are at the same positions."""
        return masked_attention(query, self.keys, self.values, layer, self.bias, positions[0])


def joined(parts: Sequence[Blocks], heads: int) -> Blocks:
    """The blocks of consecutive variants as one."""
    first = parts[0].first
    return Blocks(
        first,
        sum(p.count for p in parts),
        torch.cat([p.keys for p in parts]),
        torch.cat([p.values for p in parts]),
        torch.cat([p.positions for p in parts]),
        torch.cat([p.owner + (p.first - first) * heads for p in parts]),
    )


def gathered(
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    variant: int,
    block: int,
) -> Blocks:
    """The kept rows of one variant in blocks of their own: keys, values [Hkv, m, d], true positions and
    mask [Hkv, m]."""
    keys, values, slots, owner = kernels.gather_rows(keys, values, mask.to(keys.device), block)
    # Rows are numbered as they were found: put true positions there.
    true = positions.to(torch.int32)[owner.long()].gather(1, slots.clamp_min(0).long())
    return Blocks(variant, 1, keys, values, torch.where(slots < 0, -1, true).to(torch.int32), owner)


def joined_rows(
    before: Blocks | None, keys: torch.Tensor, values: torch.Tensor, first: Sequence[int],
    lengths: torch.Tensor, block: int,
) -> Blocks:  # fmt: skip
    """`before` with the first lengths[v] of further rows [V, Hkv, S, d], which stand at first[v] ff."""
    variants, heads, s = keys.shape[:3]
    owners = lengths.repeat_interleave(heads)
    mask = (torch.arange(s) < owners[:, None]).to(keys.device)
    k, v, slots, owner = kernels.gather_rows(keys.flatten(0, 1), values.flatten(0, 1), mask, block)
    start = torch.tensor(first, device=owner.device)[owner.long() // heads][:, None]
    positions = torch.where(slots < 0, -1, slots + start).to(torch.int32)
    new = Blocks(0, variants, k, v, positions, owner)
    if before is None:
        return new
    order = torch.cat([before.owner, owner]).argsort(stable=True)
    sides = zip(
        (before.keys, before.values, before.positions, before.owner), (k, v, positions, owner), strict=True
    )
    return Blocks(0, variants, *(torch.cat(pair)[order] for pair in sides))


@dataclass(frozen=True)
class PromptCache:
    """The prompt's kept entries of all variants of one wave.

    layers    list over layers of the Blocks that together hold every variant once, or of one Masked.
    bytes     storage allocated for each variant, slack, indices and readout state included.
    block     rows of a block.
    readouts  {variant: what its method adds to the attention output}, mostly empty.
    """

    layers: Sequence[Sequence[Blocks | Masked]]
    bytes: list[int]
    n: int
    block: int
    readouts: dict[int, Any] = field(default_factory=dict)


def batches(
    trace: Trace, items: Iterable[T], entries: Callable[[T], int], widest: int | None = None
) -> Iterator[list[T]]:
    """Items in their order, as many together as the memory for caches holds (and at most `widest`).

    entries  that an item's cache holds; 0 for the whole cache, a view of the trace.
    """
    room = settings().wave_bytes // (2 * trace.model.head_dim * trace.keys[0].element_size())
    batch: list[T] = []
    used = 0
    for item in items:
        size = entries(item)
        if (used and used + size > room) or len(batch) == widest:
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += size
    if batch:
        yield batch


def masked_cache(trace: Trace, masks: torch.Tensor) -> PromptCache:
    """A cache of kept sets, bool [V, L, Hkv, n], that copies none of their rows."""
    layers = []
    for index, (keys, values) in enumerate(zip(trace.keys, trace.values)):
        hidden = ~masks[:, index].transpose(0, 1).to(keys.device)
        bias = torch.zeros(hidden.shape, device=keys.device).masked_fill_(hidden, -torch.inf)
        layers.append([Masked(keys, values, bias)])
    return PromptCache(layers, [0] * len(masks), trace.n, block_rows(trace.n))


class Keeps(Protocol):
    """What a cache is gathered from: mask, a list over layers of bool [Hkv, n]; readout as in `Selection`."""

    @property
    def mask(self) -> list[torch.Tensor]: ...

    @property
    def readout(self) -> Any: ...


def build_cache(trace: Trace, selections: Sequence[Keeps | None]) -> PromptCache:
    """Gather what each selection keeps; None is the whole cache and must come first if it comes at all."""
    if None in selections[1:]:
        raise AssertionError("the whole cache comes first")
    whole = bool(selections) and selections[0] is None
    kept = [s for s in selections if s is not None]
    bytes_ = [0] * len(selections)
    layers = []
    for index in range(trace.model.n_layers):
        blocks = []
        if whole:
            blocks.append(_whole(trace, index))
        if kept:
            blocks.append(_gathered(trace, index, kept, len(selections) - len(kept), bytes_))
        layers.append(blocks)
    if whole:
        bytes_[0] = trace.bytes
    readouts = {i: s.readout for i, s in enumerate(selections) if s is not None and s.readout is not None}
    for i, readout in readouts.items():
        bytes_[i] += readout.bytes
    return PromptCache(layers, bytes_, trace.n, block_rows(trace.n), readouts)


def with_guest(cache: PromptCache, trace: Trace) -> PromptCache:
    """The same with the whole cache of another reading as one more variant, the last."""
    last = len(cache.bytes)
    layers = [[*rows, replace(_whole(trace, index), first=last)] for index, rows in enumerate(cache.layers)]
    return replace(cache, layers=layers, bytes=[*cache.bytes, trace.bytes])


def _whole(trace: Trace, index: int) -> Blocks:
    keys, values = trace.padded[0][index], trace.padded[1][index]
    heads, rows, d = keys.shape
    block = block_rows(trace.n)
    per_head = rows // block
    positions = torch.arange(rows, dtype=torch.int32, device=keys.device)
    positions = positions.masked_fill(positions >= trace.n, -1).view(per_head, block)
    return Blocks(
        0,
        1,
        keys.view(heads * per_head, block, d),
        values.view(heads * per_head, block, d),
        positions.repeat(heads, 1),
        torch.arange(heads, dtype=torch.int32, device=keys.device).repeat_interleave(per_head),
    )


def _gathered(trace: Trace, index: int, selections: Sequence[Keeps], first: int, bytes_: list[int]) -> Blocks:
    heads = trace.model.n_kv_heads
    masks = torch.cat([s.mask[index] for s in selections]).to(trace.keys[index].device)
    keys, values, positions, owner = kernels.gather_rows(
        trace.keys[index], trace.values[index], masks, block_rows(trace.n)
    )
    blocks = Blocks(first, len(selections), keys, values, positions, owner)
    held = torch.bincount(blocks.owner // heads, minlength=len(selections)).tolist()  # blocks a variant
    for i, count in enumerate(held):
        bytes_[first + i] += count * blocks.bytes // max(1, len(blocks.owner))
    return blocks
