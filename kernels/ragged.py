"""Ragged attention: queries of many variants against each variant's own kept rows, in one call.

Storage is flat blocks of rows (see `gather`). Every block belongs to one owner = (variant, KV head);
an owner may hold any number of blocks, or none. Each block gives a partial softmax and the partials of
an owner are merged exactly. All stored rows precede the queries, so there is no causal mask.
"""

from __future__ import annotations

import torch
from kvviz.kernels.window import accumulator

CHUNK_ELEMENTS = 1 << 22  # logits held at once: 16 MB of float32


def ragged_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    owner: torch.Tensor,
    n_kv_heads: int,
    scaling: float,
    query_positions: torch.Tensor,
    sliding_window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain torch twin.

    query      [V, Hq, T, d], rotated; query_positions int64 [V, T], tokens seen before each.
    keys       [N, B, d]; values [N, B, d]; positions int32 [N, B], true position of a row, -1 = empty.
    owner      int32 [N], variant * Hkv + KV head, non-decreasing.
    sliding_window   a row is visible to a query at position t when position > t - sliding_window.
    Returns    (out float32 [V, Hq, T, d], lse float32 [V, Hq, T]); no visible row: 0 and -inf.
    """
    variants, n_query_heads, steps, head_dim = query.shape
    n_blocks, block, _ = keys.shape
    group = n_query_heads // n_kv_heads
    dtype = accumulator(query)
    rows = (query.to(dtype) * scaling).reshape(variants * n_kv_heads, group * steps, head_dim)
    peak = rows.new_full((len(rows), group * steps, 1), -torch.inf)
    mass = torch.zeros_like(peak)
    total = torch.zeros_like(rows)
    owners = owner.long()
    bounds = owners.tolist()
    chunk = max(1, CHUNK_ELEMENTS // (group * steps * block))
    for low in range(0, n_blocks, chunk):
        high = min(n_blocks, low + chunk)
        first, last = bounds[low], bounds[high - 1] + 1
        own = owners[low:high]
        logits = torch.bmm(rows[own], keys[low:high].to(dtype).transpose(1, 2))
        hide(logits, positions[low:high], own // n_kv_heads, query_positions, sliding_window, group)
        index = (own - first)[:, None, None].expand(-1, group * steps, 1)
        old = peak[first:last]
        new = old.scatter_reduce(0, index, logits.amax(-1, keepdim=True), "amax")
        finite = torch.where(new == -torch.inf, 0.0, new)
        decay = torch.exp(old - finite)
        weight = logits.sub_(finite[own - first]).exp_()
        part = torch.bmm(weight, values[low:high].to(dtype))
        mass[first:last] *= decay
        total[first:last] *= decay
        mass[first:last].index_add_(0, own - first, weight.sum(-1, keepdim=True))
        total[first:last].index_add_(0, own - first, part)
        peak[first:last] = new
    out = total / torch.where(mass > 0, mass, 1.0)
    lse = torch.where(mass > 0, mass.log() + peak, -torch.inf)
    shape = (variants, n_query_heads, steps)
    return out.view(*shape, head_dim), lse.view(shape)


def hide(
    logits: torch.Tensor,
    positions: torch.Tensor,
    variant: torch.Tensor,
    query_positions: torch.Tensor,
    sliding_window: int | None,
    group: int,
) -> None:
    """Set empty slots, and rows outside a query's sliding window, to -inf in place.

    logits [blocks, g * T, B]; positions [blocks, B]; variant [blocks].
    """
    if sliding_window is None:
        partial = (positions[:, -1] < 0).nonzero()[:, 0]  # only the last block of an owner has holes
        if len(partial):
            hidden = (positions[partial] < 0)[:, None]
            logits[partial] = logits[partial].masked_fill_(hidden, -torch.inf)
        return
    horizon = query_positions[variant] - sliding_window  # [blocks, T]
    horizon = horizon.repeat(1, group)[..., None]
    logits.masked_fill_((positions[:, None] <= horizon) | (positions < 0)[:, None], -torch.inf)
