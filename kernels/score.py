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
# Just above one half, so that rounding can never make two keys of a row count as dominant.
DOMINANT = 0.51


def dominant_scores(
    kind: str, values: torch.Tensor, mass: torch.Tensor, others: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Score of keys that hold most of their row, from the rest of the row.

    values [R, d] of the dominant keys; mass [R] = 1 - p; others [R, d], output without the key.
    """
    distance = (values - others).norm(dim=-1)
    if kind == "caote":
        return (1 - mass) * distance
    return ((1 - mass) * mass / (mass + epsilon) * distance).square()


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
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Plain torch twin, blocked over keys.

    query, keys, values, scaling, start, sliding_window, sinks   as in `window_pass`.
    lse [Hq, W], out [Hq, W, d]   what `window_pass` gave (sinks included where there are any).
    kind     "mean", "square", "dropkv" (with its epsilon) or "caote".
    Returns  float32 [Hq, n]; 0 for keys that no row sees.
    """
    n_query_heads, window, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    dtype = accumulator(query)
    rows = (query.to(dtype) * scaling).view(n_kv_heads, -1, window, head_dim)
    shift = torch.where(lse == -torch.inf, 0.0, lse).to(dtype).view(*rows.shape[:3], 1)
    scores = torch.zeros(n_query_heads, n, dtype=dtype, device=query.device)
    exclude = torch.full((n_query_heads, window), -1, device=query.device)
    for low, high in key_blocks(n, n_query_heads * window, first_visible(start, sliding_window)):
        logits = block_logits(rows, keys, low, high, start, sliding_window)
        share = logits.sub_(shift).exp_()  # p, [Hkv, g, W, block]
        if kind == "mean":
            block = share.mean(2)
        elif kind == "square":
            block = share.square_().sum(2)
        else:
            part = share.view(n_query_heads * window, -1)
            row = (part.amax(-1) > DOMINANT).nonzero()[:, 0]
            at = part[row].argmax(-1)
            exclude.view(-1)[row] = at + low
            part[row, at] = 0.0  # computed on its own below
            block = perturbation(kind, share, values[:, low:high], out, epsilon)
        scores[:, low:high] = block.view(n_query_heads, -1)
    if (exclude >= 0).any():
        rest_lse, rest = window_pass(query, keys, values, scaling, start, sliding_window, sinks, exclude)
        head, row = ((exclude >= 0) & (rest_lse > -torch.inf)).nonzero(as_tuple=True)
        key = exclude[head, row]
        mass = torch.exp(rest_lse - lse)[head, row]
        dominant = values[head // (n_query_heads // n_kv_heads), key].to(dtype)
        extra = dominant_scores(kind, dominant, mass, rest[head, row], epsilon)
        scores.index_put_((head, key), extra, accumulate=True)
    return scores


def perturbation(
    kind: str, share: torch.Tensor, values: torch.Tensor, out: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """DropKV's or CAOTE's sum over rows for keys below DOMINANT, in the expanded form.

    share [Hkv, g, W, block], overwritten; values [Hkv, block, d]; out [Hq, W, d].
    Returns [Hkv, g, block].
    """
    n_kv_heads, _, window, _ = share.shape
    centre = out.to(share.dtype).view(n_kv_heads, -1, out.shape[-1])  # [Hkv, g * W, d]
    # Differences do not feel a common shift; near zero the squares cancel less.
    origin = centre.mean(1, keepdim=True)
    values, centre = values.to(share.dtype) - origin, centre - origin
    value_square = values.square().sum(-1)[:, None]
    centre_square = centre.square().sum(-1, keepdim=True)
    if kind == "caote":
        square = value_square + centre_square
        distance = torch.baddbmm(square, centre, values.transpose(1, 2), alpha=-2)
        distance = distance.clamp_min_(0).sqrt_().view(share.shape)
        return distance.mul_(share).div_(1 - share).sum(2)
    # sum_r w_r |v - o_r|^2 = |v|^2 sum_r w_r - 2 v . sum_r w_r o_r + sum_r w_r |o_r|^2
    weight = share.div_(1 + epsilon - share).square_().view(-1, window, share.shape[-1])
    sides = torch.cat([centre, centre_square, torch.ones_like(centre_square)], -1)
    sums = torch.bmm(weight.transpose(1, 2), sides.view(len(weight), window, -1))
    sums = sums.view(n_kv_heads, -1, *sums.shape[1:])  # [Hkv, g, block, d + 2]
    cross = (sums[..., :-2] * values[:, None]).sum(-1)
    return (sums[..., -1] * value_square - 2 * cross + sums[..., -2]).clamp_min_(0)
