"""Ragged attention: queries of many variants against each variant's own kept rows, in one call.

Storage is flat blocks of rows (see `gather`). Every block belongs to one owner = (variant, KV head);
an owner may hold any number of blocks, or none. Each block gives a partial softmax and the partials of
an owner are merged exactly. All stored rows precede the queries, so there is no causal mask.
"""

from __future__ import annotations

import torch
from kvviz.kernels.window import accumulator

CHUNK_ELEMENTS = 1 << 22  # storage or logits touched at once: 16 MB of float32
# From this many query rows an owner on, its rows are worth one large product each instead of a batch of
# small ones (measured on two cores: even at 8, twice as fast at 96).
LARGE_PRODUCT = 12
# Whether queries stand on the left of the small products: faster on some processors, slower on others, by up
# to a factor of two. A fact of the machine, which `kvviz.engine.products` finds out.
queries_left = False


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
    group = n_query_heads // n_kv_heads
    dtype = accumulator(query)
    rows = (query.to(dtype) * scaling).reshape(variants * n_kv_heads, group * steps, head_dim)
    out = torch.zeros_like(rows)
    lse = rows.new_full(rows.shape[:2], -torch.inf)
    horizon = None
    if sliding_window is not None:  # [owners, g * T]: rows up to here have left a query's window
        horizon = (query_positions - sliding_window).repeat_interleave(n_kv_heads, 0).repeat(1, group)
    if len(keys):
        attend = attend_by_owner if group * steps >= LARGE_PRODUCT else attend_by_block
        attend(rows, keys, values, positions, owner.long(), horizon, out, lse)
    shape = (variants, n_query_heads, steps)
    return out.view(*shape, head_dim), lse.view(shape)


def block_logits(asked: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor, left: bool) -> torch.Tensor:
    """asked [N, g * T, d] on keys [N, B, d], with bias [N, B] -> [N, g * T, B].

    left  whether queries stand on the left of the product; else it is turned afterwards.
    """
    if left:
        return torch.baddbmm(bias[:, None], asked, keys.transpose(1, 2))
    logits = torch.baddbmm(bias[..., None], keys, asked.transpose(1, 2))
    return logits.transpose(1, 2).contiguous()


def attend_by_owner(rows, keys, values, positions, owner, horizon, out, lse) -> None:
    """One product an owner: its blocks lie next to each other, so its rows are one matrix."""
    first = 0
    for index, count in enumerate(torch.bincount(owner, minlength=len(rows)).tolist()):
        if not count:
            continue
        span = slice(first, first + count)
        first += count
        keys_here, values_here = (t[span].flatten(0, 1).to(rows.dtype) for t in (keys, values))
        at = positions[span].flatten()
        empty = at < 0
        bias = torch.zeros(len(at), dtype=rows.dtype, device=rows.device).masked_fill_(empty, -torch.inf)
        logits = torch.addmm(bias, rows[index], keys_here.T)  # [g * T, rows held]
        if horizon is not None:
            logits.masked_fill_(at <= horizon[index][:, None], -torch.inf)
        peak = logits.amax(-1)
        weight = logits.softmax(-1)
        # The largest weight is 1 / sum exp(logit - peak), so its log completes the log-sum-exp.
        lse[index] = torch.where(peak == -torch.inf, -torch.inf, peak - weight.amax(-1).log())
        weight[peak == -torch.inf] = 0.0
        torch.mm(weight, values_here, out=out[index])


def attend_by_block(rows, keys, values, positions, owner, horizon, out, lse) -> None:
    """A batch of small products, one a block, chunk by chunk; partials merge into running sums."""
    n_blocks, block, head_dim = keys.shape
    n_rows = rows.shape[1]
    bounds = owner.tolist()
    mass = torch.zeros_like(lse)
    bias = torch.zeros(positions.shape, dtype=rows.dtype, device=rows.device)
    bias.masked_fill_(positions < 0, -torch.inf)
    chunk = max(1, CHUNK_ELEMENTS // (block * max(n_rows, head_dim)))
    for low in range(0, n_blocks, chunk):
        high = min(n_blocks, low + chunk)
        # Owners never decrease, so a chunk touches one span of them.
        span = slice(bounds[low], bounds[high - 1] + 1)
        own = owner[low:high]
        index = own - bounds[low]
        asked = rows.index_select(0, own)
        logits = block_logits(asked, keys[low:high].to(rows.dtype), bias[low:high], queries_left)
        if horizon is not None:
            logits.masked_fill_(positions[low:high, None] <= horizon[own][..., None], -torch.inf)
        old = lse[span]  # holds the running maximum until the end
        new = old.scatter_reduce(0, index[:, None].expand(-1, n_rows), logits.amax(-1), "amax")
        finite = torch.where(new == -torch.inf, 0.0, new)
        decay = torch.exp(old - finite)
        weight = logits.sub_(finite[index][..., None]).exp_()
        mass[span] *= decay
        out[span] *= decay[..., None]
        mass[span].index_add_(0, index, weight.sum(-1))
        out[span].index_add_(0, index, torch.bmm(weight, values[low:high].to(rows.dtype)))
        lse[span] = new
    out /= torch.where(mass > 0, mass, 1.0)[..., None]
    lse += mass.log()  # log(0) = -inf where nothing was visible
