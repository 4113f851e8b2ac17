"""Attention of many queries on a prompt's rows, in the two forms the project needs: outputs and weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_ROWS = 512


def causal_attention(query, keys, values, layer, offset: int) -> torch.Tensor:
    """Causal attention of T queries [Hq, T, d], of which row r sees keys up to offset + r -> [Hq, T, d].

    keys and values are [Hkv, offset + T, d]. Sliding windows and learned sink logits are honoured.
    """
    t, total = query.shape[1], keys.shape[1]
    if layer.sinks is not None:
        return _attention_with_sinks(query, keys, values, layer, offset)
    sliding = layer.window is not None and layer.window < total
    if not offset and not sliding:
        return _sdpa(query, keys, values, layer, None)
    out = torch.empty_like(query)
    for begin in range(0, t, _ROWS):  # by blocks of queries, so that few hidden keys are worked on
        end = min(t, begin + _ROWS)
        last = offset + end
        first = max(0, offset + begin - layer.window + 1) if sliding else 0
        mask = visible(offset + begin, offset + end, first, last, layer.window, query.device)
        out[:, begin:end] = _sdpa(
            query[:, begin:end], keys[:, first:last], values[:, first:last], layer, mask
        )
    return out


def visible(start: int, end: int, first: int, last: int, window: int | None, device) -> torch.Tensor:
    """Which keys first .. last - 1 the queries start .. end - 1 see: bool [end - start, last - first]."""
    query = torch.arange(start, end, device=device)[:, None]
    key = torch.arange(first, last, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _sdpa(query, keys, values, layer, mask) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=layer.scaling,
        enable_gqa=True,
    )[0]


def _attention_with_sinks(query, keys, values, layer, offset: int) -> torch.Tensor:
    """The same with one more logit a head in the softmax, by blocks of queries."""
    out = torch.empty_like(query)
    hkv = keys.shape[0]
    for begin in range(0, query.shape[1], 256):
        rows = query[:, begin : begin + 256]
        last = offset + begin + rows.shape[1]
        p = rows_attention(rows, keys[:, :last], layer, offset + begin)
        part = p.unflatten(0, (hkv, -1)).flatten(1, 2) @ values[:, :last].float()
        out[:, begin : begin + 256] = part.unflatten(1, (-1, rows.shape[1])).flatten(0, 1).to(out.dtype)
    return out


def rows_attention(rows: torch.Tensor, keys: torch.Tensor, layer, first: int) -> torch.Tensor:
    """Causal attention weights of query rows [Hq, R, d] at positions first ..: float32 [Hq, R, n]."""
    hkv, r, total = keys.shape[0], rows.shape[1], keys.shape[1]
    grouped = rows.float().unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling
    logits = (grouped @ keys.float().transpose(1, 2)).unflatten(1, (-1, r)).flatten(0, 1)
    seen = visible(first, first + r, 0, total, layer.window, rows.device)
    logits.masked_fill_(~seen, float("-inf"))
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
