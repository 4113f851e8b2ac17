"""Score pass: one sweep over the keys that turns the window's attention into a score a key.

With p_rj = exp(scaling * q_r . k_j - lse_r) over the rows r of the window:

    mean    (1 / W) sum_r p_rj                                    SnapKV
    square  sum_r p_rj^2                                          LaProx, which takes the root
    dropkv  sum_r (p_rj / (1 - p_rj + 1e-6))^2 |v_j - out_r|^2    DropKV
    caote   sum_r p_rj / (1 - p_rj) |v_j - out_r|                 CAOTE, the exact single-token change

Near p = 1 both 1 - p and v - out cancel. At most one key of a row has more than half of its mass; for
that key the rest of the row is computed on its own: with c = 1 - p the mass of the other keys and
`others` their mean, out = p v + c others, hence v - out = c (v - others) without any cancellation.
"""

from __future__ import annotations

import torch
from kvviz.kernels.window import (
    accumulator,
    block_logits,
    first_visible,
    key_blocks,
    window_pass,
)

KINDS = ("mean", "square", "dropkv", "caote")
REDUCTIONS = ("none", "mean", "max")
EPSILON = 1e-6  # DropKV's
# Just above one half, so that rounding can never make two keys of a row count as dominant.
DOMINANT = 0.51


def dominant_scores(
    kind: str, values: torch.Tensor, mass: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """Score of keys that hold most of their row, from the rest of the row.

    values [R, d] of the dominant keys; mass [R] = 1 - p; others [R, d], output without the key.
    """
    distance = (values - others).norm(dim=-1)
    if kind == "caote":
        score = (1 - mass) * distance
    else:
        score = ((1 - mass) * mass / (mass + EPSILON) * distance).square()
    return torch.where(mass > 0, score, 0.0)  # a row with a single key: out = v, nothing to compare


def reduce_group(scores: torch.Tensor, n_kv_heads: int, reduce: str) -> torch.Tensor:
    """[Hq, n] -> [Hkv, n] by mean or maximum over each KV head's group; "none" leaves it."""
    if reduce == "none":
        return scores
    grouped = scores.view(n_kv_heads, -1, scores.shape[-1])
    return grouped.mean(1) if reduce == "mean" else grouped.amax(1)


def score_pass(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    scaling: float,
    start: int,
    kind: str,
    sliding_window: int | None = None,
    sinks: torch.Tensor | None = None,
    reduce: str = "none",
) -> torch.Tensor:
    """Plain torch twin, blocked over keys.

    query, keys, values, scaling, start, sliding_window, sinks   as in `window_pass`.
    lse [Hq, W], out [Hq, W, d]   what `window_pass` gave (sinks included where there are any).
    kind     "mean", "square", "dropkv" or "caote"; reduce "none", "mean" or "max" over the group.
    Returns  float32 [Hq, n], or [Hkv, n] when reduced; 0 for keys that no row sees.
    """
    n_query_heads, window, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    dtype = accumulator(query)
    rows = (query.to(dtype) * scaling).view(n_kv_heads, -1, window, head_dim)
    shift = torch.where(lse == -torch.inf, 0.0, lse).to(dtype).view(*rows.shape[:3], 1)
    centre = out.to(dtype).view(n_kv_heads, -1, head_dim)  # [Hkv, g * W, d]
    scores = torch.zeros(n_query_heads, n, dtype=dtype, device=query.device)
    exclude = torch.full((n_query_heads * window,), -1, device=query.device)
    for low, high in key_blocks(n, n_query_heads * window, first_visible(start, sliding_window)):
        logits = block_logits(rows, keys, low, high, start, sliding_window)
        share = logits.sub_(shift).exp_()  # p, [Hkv, g, W, block]
        if kind == "mean":
            block = share.mean(2)
        elif kind == "square":
            block = share.square_().sum(2)
        else:
            top, at = share.view(-1, high - low).max(-1)
            row = (top > DOMINANT).nonzero()[:, 0]
            exclude[row] = at[row] + low
            share.view(-1, high - low)[row, at[row]] = 0.0  # computed on its own below
            block = perturbation(kind, share, values[:, low:high].to(dtype), centre)
        scores[:, low:high] = block.view(n_query_heads, -1)
    row = (exclude >= 0).nonzero()[:, 0]
    if row.numel():
        exclude = exclude.view(n_query_heads, window)
        rest_lse, rest = window_pass(query, keys, values, scaling, start, sliding_window, sinks, exclude)
        head, key = row // window, exclude.view(-1)[row]
        mass = torch.exp(rest_lse - lse.to(dtype)).view(-1)[row]
        kv_head = head // (n_query_heads // n_kv_heads)
        dominant = values[kv_head, key].to(dtype)
        extra = dominant_scores(kind, dominant, mass, rest.view(-1, head_dim)[row])
        scores.index_put_((head, key), extra, accumulate=True)
    return reduce_group(scores, n_kv_heads, reduce)


def perturbation(kind: str, share: torch.Tensor, values: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """DropKV's or CAOTE's sum over rows for keys below DOMINANT, in the expanded form.

    share [Hkv, g, W, block]; values [Hkv, block, d]; centre [Hkv, g * W, d]. Returns [Hkv, g, block].
    """
    square = values.square().sum(-1)[:, None] + centre.square().sum(-1, keepdim=True)
    distance = torch.baddbmm(square, centre, values.transpose(1, 2), alpha=-2).clamp_min_(0)
    distance = distance.view(share.shape)
    if kind == "caote":
        return distance.sqrt_().mul_(share).div_(1 - share).sum(2)
    weight = share.div_(1 + EPSILON - share).square_()
    return weight.mul_(distance).sum(2)
