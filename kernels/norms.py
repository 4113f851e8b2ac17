"""Projected value norms: ||v_j W_O^h|| for every query head, never holding a [Hq, n, D] tensor.

L1 (CriticalKV) has no shortcut: every entry of v W is needed, tile by tile. L2 (LaProx) goes through
the Gram matrix G = W W^T in R^{d x d}: ||v W||^2 = v G v^T, d / D of the work.
"""

from __future__ import annotations

import torch
from kvviz.kernels.product import project
from kvviz.kernels.window import accumulator

PROJECTED = 1_200_000  # numbers of a projection at once (5 MB): fewer and the products are small, more
# and they fall out of the cache before they are summed


def value_norms(values: torch.Tensor, w_o: torch.Tensor, order: int = 1) -> torch.Tensor:
    """Plain torch twin, blocked over KV heads and tokens.

    values  [Hkv, n, d]; w_o [Hq, d, D], the rows of the output projection that belong to each head.
    order   1 or 2.
    Returns float32 [Hq, n].
    """
    n_kv_heads, n, head_dim = values.shape
    n_query_heads, _, hidden = w_o.shape
    group = n_query_heads // n_kv_heads
    dtype = accumulator(values)
    norms = torch.empty(n_query_heads, n, dtype=dtype, device=values.device)
    for head in range(n_kv_heads):
        rows = values[head].to(dtype).contiguous()
        weights = w_o[head * group : (head + 1) * group].to(dtype)
        target = norms[head * group : (head + 1) * group]
        if order == 2:
            gram = torch.bmm(weights, weights.transpose(1, 2))  # [g, d, d]
            square = (torch.matmul(rows, gram) * rows).sum(-1)  # [g, n]
            torch.sqrt(square.clamp_min_(0), out=target)
            continue
        step = max(1, PROJECTED // hidden)
        for member, weight in enumerate(weights.transpose(1, 2).contiguous()):
            for low in range(0, n, step):
                target[member, low : low + step] = project(rows[low : low + step], weight).abs_().sum(-1)
    return norms
