"""Projected value norms: ||v_j W_O^h|| for every query head, never holding a [Hq, n, D] tensor.

L1 (CriticalKV) has no shortcut: every entry of v W is needed, tile by tile. L2 (LaProx) goes through
the Gram matrix G = W W^T in R^{d x d}: ||v W||^2 = v G v^T, d / D of the work.
"""

from __future__ import annotations

import torch
from kvviz.kernels.window import accumulator

BLOCK_ELEMENTS = 1 << 17  # projected values held at once: 512 KB of float32, inside a core's L2


def value_norms(values: torch.Tensor, w_o: torch.Tensor, order: int = 1) -> torch.Tensor:
    """Plain torch twin, blocked over heads and tokens.

    values  [Hkv, n, d]; w_o [Hq, d, D], the rows of the output projection that belong to each head.
    order   1 or 2.
    Returns float32 [Hq, n].
    """
    n_kv_heads, n, head_dim = values.shape
    n_query_heads, _, hidden = w_o.shape
    group = n_query_heads // n_kv_heads
    dtype = accumulator(values)
    norms = torch.empty(n_query_heads, n, dtype=dtype, device=values.device)
    if order == 2:
        wide = w_o.to(dtype)
        gram = torch.bmm(wide, wide.transpose(1, 2))  # [Hq, d, d]
        for head in range(n_query_heads):
            rows = values[head // group].to(dtype)
            norms[head] = ((rows @ gram[head]) * rows).sum(-1).clamp_min_(0).sqrt_()
        return norms
    step = max(16, BLOCK_ELEMENTS // hidden)
    for head in range(n_query_heads):
        rows, weight = values[head // group].to(dtype), w_o[head].to(dtype)
        for low in range(0, n, step):
            torch.sum((rows[low : low + step] @ weight).abs_(), -1, out=norms[head, low : low + step])
    return norms
