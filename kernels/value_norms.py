"""Norms of projected values ||v_j W_O^h||, without ever storing n x D for all heads."""

from __future__ import annotations

import torch

_ROWS = 512  # rows projected at once: the product stays in cache


def twin(values: torch.Tensor, w_o: torch.Tensor, order: int) -> torch.Tensor:
    """values [Hkv, n, d], w_o [Hq, d, D] -> float32 [Hq, n]; order 1 or 2 (by the Gram matrix)."""
    hkv, n, d = values.shape
    hq = w_o.shape[0]
    grouped = w_o.float().view(hkv, hq // hkv, d, -1)
    values = values.float()
    if order == 2:
        gram = grouped @ grouped.transpose(2, 3)  # [Hkv, g, d, d]
        square = ((values[:, None] @ gram) * values[:, None]).sum(-1)
        return square.clamp_min(0).sqrt().view(hq, n)
    out = torch.empty(hkv, hq // hkv, n, device=values.device)
    for head in range(hkv):
        for g in range(hq // hkv):
            for start in range(0, n, _ROWS):
                rows = values[head, start : start + _ROWS]
                out[head, g, start : start + _ROWS] = torch.linalg.vector_norm(rows @ grouped[head, g], 1, -1)
    return out.view(hq, n)
