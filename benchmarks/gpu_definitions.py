"""Plain torch definitions of what the GPU kernels compute, as baselines: short, dense, unblocked."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def dense_attention(query, keys, values, scaling, start):
    """(p float32 [Hq, W, n], out float32 [Hq, W, d]) holding the whole [Hq, W, n]."""
    group = len(query) // len(keys)
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    logits = (query @ keys.transpose(1, 2)).float() * scaling
    position = start + torch.arange(query.shape[1], device=query.device)[:, None]
    hidden = torch.arange(keys.shape[1], device=query.device) > position
    p = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    return p, (p.to(values.dtype) @ values).float()


def window_definition(query, keys, values, scaling, start):
    """Output of the window's queries, [Hq, W, d]."""
    return dense_attention(query, keys, values, scaling, start)[1]


def window_sdpa(query, keys, values, scaling, start):
    """The same through scaled_dot_product_attention with a mask; it gives no log-sum-exp."""
    position = start + torch.arange(query.shape[1], device=query.device)[:, None]
    mask = torch.arange(keys.shape[1], device=query.device) <= position
    return F.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, scale=scaling, enable_gqa=True
    )


def dropkv_definition(query, keys, values, scaling, start):
    """DropKV's scores [Hq, n] in the expanded form, fastest to write and to run in plain torch."""
    p, out = dense_attention(query, keys, values, scaling, start)
    wide = values.float().repeat_interleave(len(query) // len(keys), 0)
    distance = wide.square().sum(-1)[:, None] + out.square().sum(-1, keepdim=True)
    distance = distance - 2 * out @ wide.transpose(1, 2)
    return ((p / (1 - p + 1e-6)).square() * distance).sum(1)


def snapkv_definition(query, keys, values, scaling, start):
    """Mean attention of the window, [Hq, n]."""
    return dense_attention(query, keys, values, scaling, start)[0].mean(1)


def norms_definition(values, w_o, order):
    """||v W_O^h||, [Hq, n], one head at a time."""
    group = len(w_o) // len(values)
    return torch.stack([(values[h // group] @ w).float().norm(order, dim=-1) for h, w in enumerate(w_o)])


def gather_definition(keys, values, mask):
    """Kept rows head by head, without blocks: the copies alone."""
    return [side[head, mask[head]] for side in (keys, values) for head in range(len(mask))]


def padded_rows(keys, values, masks):
    """Every variant padded to the longest head: keys, values [V, Hkv, m, d] and their mask."""
    counts = torch.stack([mask.sum(1) for mask in masks])
    longest = int(counts.max())
    order = torch.stack([(~mask).int().argsort(dim=1, stable=True)[:, :longest] for mask in masks])
    head = torch.arange(len(keys), device=keys.device)[None, :, None]
    filled = torch.arange(longest, device=keys.device) < counts[..., None]
    return keys[head, order], values[head, order], filled[:, :, None]


def ragged_sdpa(query, padded_keys, padded_values, filled, scaling):
    """Decoding over padded rows with a mask, [V, Hq, T, d]."""
    mask = filled.repeat_interleave(query.shape[1] // padded_keys.shape[1], 1)
    return F.scaled_dot_product_attention(
        query, padded_keys, padded_values, attn_mask=mask, scale=scaling, enable_gqa=True
    )
