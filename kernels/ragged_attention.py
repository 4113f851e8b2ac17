"""Attention of a few queries a variant on ragged blocks, merged exactly over a segment's blocks."""

from __future__ import annotations

import torch


def twin(
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
    """query [V, Hq, T, d]; keys, values [N, B, d]; positions int32 [N, B] (-1 = empty); owner int32 [N]
    = variant * Hkv + KV head; query_positions [V, T] -> float32 out [V, Hq, T, d], lse [V, Hq, T].

    Every filled slot is visible (inside the sliding window of the query's true position, if given).
    A head holding nothing gives out 0 and lse -inf.
    """
    v, hq, t, d = query.shape
    rows = hq // n_kv_heads * t
    segments = v * n_kv_heads
    owner = owner.long()
    q = (query.float() * scaling).to(keys.dtype).reshape(segments, rows, d)
    logits = torch.bmm(q[owner], keys.transpose(1, 2)).float()  # [N, g * T, B]
    hidden = (positions < 0)[:, None, :]
    if sliding_window is not None:
        at = query_positions[owner // n_kv_heads].repeat(1, hq // n_kv_heads)[:, :, None]
        hidden = hidden | (positions[:, None, :] <= at - sliding_window)
    logits.masked_fill_(hidden, float("-inf"))
    top = torch.full((segments, rows), float("-inf"), device=query.device)
    top.scatter_reduce_(0, owner[:, None].expand(-1, rows), logits.amax(-1), "amax")
    base = top.masked_fill(top == float("-inf"), 0.0)
    p = logits.sub_(base[owner][:, :, None]).exp_()
    mass = torch.zeros(segments, rows, device=query.device).index_add_(0, owner, p.sum(-1))
    out = torch.zeros(segments, rows, d, device=query.device)
    out.index_add_(0, owner, torch.bmm(p.to(values.dtype), values).float())
    out /= mass.clamp_min(1e-30)[..., None]
    return out.view(v, hq, t, d), (base + mass.log()).view(v, hq, t)


def merge(
    parts: list[tuple[torch.Tensor, torch.Tensor]], sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact union of attentions over disjoint keys: parts of (out [V, Hq, T, d], lse [V, Hq, T]).

    sinks  [Hq] learned logits that join the softmax with value 0. All -inf gives out 0, lse -inf.
    """
    lse = torch.stack([part[1] for part in parts])
    every = lse
    if sinks is not None:
        every = torch.cat([lse, sinks.float()[None, None, :, None].expand(1, *lse.shape[1:])])
    total = every.logsumexp(0)
    weight = (lse - total.masked_fill(total == float("-inf"), 0.0)).exp()
    return sum(w[..., None] * out for w, (out, _) in zip(weight, parts)), total
