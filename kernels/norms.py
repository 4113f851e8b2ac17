"""Projected value norms: ||v_j W_O^h|| for every query head, never holding a [Hq, n, D] tensor.

L1 (CriticalKV) has no shortcut: every entry of v W is needed, tile by tile. L2 (LaProx) goes through
the Gram matrix G = W W^T in R^{d x d}: ||v W||^2 = v G v^T, d / D of the work.
"""

from __future__ import annotations

import torch
from kvviz.kernels.window import accumulator

STEP = 512  # tokens projected at once: with a group's heads the product stays near a core's cache


def project(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [m, d] times weight [k, d] transposed.

    On a CPU oneDNN does float32 products at more than twice the speed of the BLAS torch calls on some
    processors (AMD with AVX-512), so it is asked directly where this torch has it.
    """
    if rows.device.type == "cpu" and rows.dtype == torch.float32 and _onednn is not None:
        return _onednn(rows, weight, None, "none", [], "")
    return rows @ weight.T


def _find_onednn():
    if not torch.backends.mkldnn.is_available():
        return None
    operation = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    try:  # an operation without promises: hold it to one known product before trusting it
        one = torch.ones(2, 16)
        return operation if torch.equal(operation(one, one, None, "none", [], ""), one @ one.T) else None
    except (TypeError, RuntimeError):
        return None


_onednn = _find_onednn()


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
        weights = weights.transpose(1, 2).reshape(group * hidden, head_dim)
        for low in range(0, n, STEP):
            projected = project(rows[low : low + STEP], weights)
            target[:, low : low + STEP] = projected.abs_().view(-1, group, hidden).sum(-1).T
    return norms
