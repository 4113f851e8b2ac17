"""Attention of many queries on a prompt's rows, in the two forms the project needs: outputs and weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def causal_attention(query, keys, values, layer, offset: int) -> torch.Tensor:
    """Causal attention of T queries [Hq, T, d], of which row r sees keys up to offset + r -> [Hq, T, d].

    keys and values are [Hkv, offset + T, d]. Sliding windows and learned sink logits are honoured.
    """
    t, total = query.shape[1], keys.shape[1]
    sliding = layer.window is not None and layer.window < total
    mask = None
    if offset or sliding:
        q = torch.arange(offset, offset + t, device=query.device)[:, None]
        k = torch.arange(total, device=query.device)
        mask = k <= q
        if sliding:
            mask &= k > q - layer.window
    if layer.sinks is not None:
        return _attention_with_sinks(query, keys, values, layer, mask)
    return F.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=layer.scaling,
        enable_gqa=True,
    )[0]


def _attention_with_sinks(query, keys, values, layer, mask) -> torch.Tensor:
    """The same with one more logit a head in the softmax, by blocks of queries."""
    hkv, total = keys.shape[0], keys.shape[1]
    out = torch.empty_like(query)
    for begin in range(0, query.shape[1], 256):
        rows = query[:, begin : begin + 256].unflatten(0, (hkv, -1)).float()  # [Hkv, g, R, d]
        logits = torch.einsum("kgrd,knd->kgrn", rows, keys.float()) * layer.scaling
        r = rows.shape[2]
        if mask is None:
            seen = torch.ones(r, total, dtype=torch.bool, device=query.device).tril(begin)
        else:
            seen = mask[begin : begin + r]
        logits = logits.masked_fill(~seen, float("-inf"))
        sinks = layer.sinks.float().view(hkv, -1, 1, 1).expand(-1, -1, r, 1)
        p = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        part = torch.einsum("kgrn,knd->kgrd", p, values.float())
        out[:, begin : begin + r] = part.flatten(0, 1).to(out.dtype)
    return out


def rows_attention(rows: torch.Tensor, keys: torch.Tensor, layer, first: int) -> torch.Tensor:
    """Causal attention weights of query rows [Hq, R, d] at positions first ..: float32 [Hq, R, n]."""
    hkv, r, total = keys.shape[0], rows.shape[1], keys.shape[1]
    grouped = rows.float().unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling
    logits = (grouped @ keys.float().transpose(1, 2)).unflatten(1, (-1, r)).flatten(0, 1)
    q = torch.arange(first, first + r, device=rows.device)[:, None]
    k = torch.arange(total, device=rows.device)
    hidden = k > q
    if layer.window is not None:
        hidden |= k <= q - layer.window
    logits.masked_fill_(hidden, float("-inf"))
    if layer.sinks is None:
        return logits.softmax(-1)
    sinks = layer.sinks.float()[:, None, None].expand(-1, r, 1)
    return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (-b, a) on the two halves of the last axis: RoPE's companion of x."""
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def unrotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Undo RoPE: rows [.., T, d] rotated with cos, sin [T, r]; the rest of the head is left alone.

    The angles' scale (long-context variants stretch cos and sin) is divided out as well.
    """
    r = cos.shape[-1]
    turned, rest = rows[..., :r], rows[..., r:]
    scale = cos.square() + sin.square()  # 1 for plain RoPE
    return torch.cat([(turned * cos - rotate_half(turned) * sin) / scale, rest], -1)
