"""Attention of many queries on a prompt's rows, in the forms the project needs: outputs, weights, and parts
over some of the rows, which `kernels.merge_attention` joins with each other and with learned sinks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvviz.kernels.merge import merge_attention
from kvviz.kernels.product import project

_ROWS = 512
_ROWS_AT_HAND = 128
_WEIGHTS_AT_HAND = 1 << 22  # 16 MB of float32
_WEIGHTS_IN_CACHE = 1 << 19  # 2 MB: they are read over and over


def causal_attention(query, keys, values, layer, offset: int, by_rows: bool = False) -> torch.Tensor:
    """Causal attention of T queries [Hq, T, d], of which row r sees keys up to offset + r -> [Hq, T, d].

    keys and values are [Hkv, offset + T, d]. Sliding windows and learned sink logits are honoured.
    by_rows: with the weights at hand, where that is faster; see `products`.
    """
    t, total = query.shape[1], keys.shape[1]
    if layer.sinks is not None or by_rows:
        return attention_by_rows(query, keys, values, layer, offset)
    sliding = layer.window is not None and layer.window < total
    if not offset and not sliding:
        return _sdpa(query, keys, values, layer, None)
    if not sliding and has_parts(query):
        # What all rows see and what the later ones see, without a mask: a quarter faster than with one.
        seen, seen_lse = fused_part(query, keys[:, :offset], values[:, :offset], layer, False)
        own, own_lse = fused_part(query, keys[:, offset:], values[:, offset:], layer, True)
        lse = torch.logaddexp(seen_lse, own_lse)  # both see something, so that they merge in place
        seen.mul_((seen_lse - lse).exp_()[..., None])
        return seen.addcmul_(own, (own_lse - lse).exp_()[..., None]).to(query.dtype)
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
    if query.device.type == "cpu":
        grouped, keys, values = _grouped(query, keys, values)
        return F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scaling
        ).flatten(0, 1)
    return F.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=layer.scaling,
        enable_gqa=True,
    )[0]


def _grouped(query, keys, values):
    """A batch of the KV heads, [Hkv, g, T, d] and twice [Hkv, g, m, d]: views, no head is copied."""
    group = len(query) // len(keys)
    wide = (x[:, None].expand(-1, group, -1, -1) for x in (keys, values))
    return query.unflatten(0, (-1, group)), *wide


def has_parts(query: torch.Tensor) -> bool:
    """Whether `fused_part` can be used for these queries."""
    return _flash is not None and query.device.type == "cpu"


def fused_part(query, keys, values, layer, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A part to be merged, by torch's fused attention: float32 out [Hq, T, d] and lse [Hq, T].

    query [Hq, T, d]; keys, values [Hkv, m, d], of which all are seen, or, causal, the first r + 1 by row r.
    """
    grouped, keys, values = _grouped(query, keys, values)
    out, lse = _flash(grouped, keys, values, is_causal=causal, scale=layer.scaling)
    return out.flatten(0, 1).float(), lse.flatten(0, 1)


def _find_flash():
    """torch's fused attention on a CPU, which also gives the logarithm of the sums; None without it.

    An operation without promises: it is held to a known result before it is trusted.
    """
    operation = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    try:
        zeros, values = torch.zeros(1, 2, 1, 8), torch.arange(48.0).view(1, 2, 3, 8)
        out, lse = operation(zeros, torch.zeros_like(values), values, is_causal=False, scale=1.0)
        known = torch.allclose(out, values.mean(2, True)) and torch.allclose(lse, torch.tensor(3.0).log())
        return operation if known and lse.shape == (1, 2, 1) else None
    except (TypeError, RuntimeError, ValueError):
        return None


_flash = _find_flash()


def attention_by_rows(query, keys, values, layer, offset: int, sums=None) -> torch.Tensor:
    """The same as `causal_attention` with the weights at hand, by blocks of queries in float32.

    sums  float32 [Hq, offset + T]: every query's weights are added to it, which costs far less here than
          in a pass of its own. Learned sink logits join the softmax.
    """
    heads, t, d = query.shape
    group = heads // keys.shape[0]
    out = torch.empty_like(query)
    keys, columns = keys.float(), values.float().transpose(1, 2)  # [Hkv, d, n]
    begin = 0
    while begin < t:
        # Enough rows for the products, few enough that their weights stay in a core's cache.
        fit = _WEIGHTS_AT_HAND // (group * (offset + begin + _ROWS_AT_HAND))
        end = min(t, begin + max(8, min(_ROWS_AT_HAND, fit)))
        last = offset + end
        first = 0 if layer.window is None else max(0, offset + begin - layer.window + 1)
        for head, own in enumerate(keys):
            mine = slice(head * group, (head + 1) * group)
            rows = query[mine, begin:end].float().flatten(0, 1) * layer.scaling
            logits = project(rows, own[first:last]).view(group, end - begin, -1)
            hide(logits, offset + begin, first, last, layer.window)
            p = _softmax(logits, None if layer.sinks is None else layer.sinks[mine])
            part = project(p.flatten(0, 1), columns[head, :, first:last])
            out[mine, begin:end] = part.view(group, -1, d).to(out.dtype)
            if sums is not None:
                sums[mine, first:last] += p.sum(1)
        begin = end
    return out


def rows_attention(
    rows: torch.Tensor, keys: torch.Tensor, layer, first: int, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention weights of query rows [Hq, R, d] at positions first ..: float32 [Hq, R, n].

    positions  true positions of the keys, [n] or [Hkv, n], where they are not 0 .. n - 1. A query that
               sees none of the keys gives zeros.

    Learned sink logits join the softmax as one more column, which is dropped.
    """
    group, r, total = len(rows) // len(keys), rows.shape[1], keys.shape[1]
    logits = torch.empty(len(rows), r, total, dtype=torch.float32, device=rows.device)
    for head, own in enumerate(keys.float()):
        mine = slice(head * group, (head + 1) * group)
        grouped = rows[mine].float().flatten(0, 1) * layer.scaling
        logits[mine] = project(grouped, own).view(group, r, total)
    if positions is None:
        hide(logits, first, 0, total, layer.window)
        return _softmax(logits, layer.sinks)
    at = torch.arange(first, first + r, device=rows.device)[:, None]
    where = positions.expand(len(keys), -1)[:, None, None]  # [Hkv, 1, 1, n]
    hidden = where > at
    if layer.window is not None:
        hidden |= where <= at - layer.window
    logits.unflatten(0, (len(keys), group)).masked_fill_(hidden, -torch.inf)
    return _softmax(logits, layer.sinks).nan_to_num_()


def partial(query, keys, values, layer, hidden=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention on some of the keys: float32 out [.., Hq, T, d] and lse [.., Hq, T], to be merged.

    query [.., Hq, T, d]; keys, values [.., Hkv, m, d]; hidden bool, broadcast to [.., Hkv, g, T, m]: what a
    query does not see. Learned sinks join where the parts are merged.
    """
    hkv, m = keys.shape[-3:-1]
    t, d = query.shape[-2:]
    grouped = query.float().unflatten(-3, (hkv, -1)).flatten(-3, -2) * layer.scaling  # [.., Hkv, g * T, d]
    logits = grouped @ keys.float().transpose(-1, -2)
    if hidden is not None:
        logits = logits.unflatten(-2, (-1, t)).masked_fill(hidden, -torch.inf).flatten(-3, -2)
    out, lse = weighed(logits, values.float())
    return out.unflatten(-2, (-1, t)).flatten(-4, -3), lse.unflatten(-1, (-1, t)).flatten(-3, -2)


def hidden_attention(query, keys, values, layer, hidden) -> torch.Tensor:
    """Attention on all keys but those hidden, with learned sinks: float32 [.., Hq, T, d]; see `partial`."""
    return merge_attention([partial(query, keys, values, layer, hidden)], layer.sinks)[0]


def masked_attention(query, keys, values, layer, bias, positions) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of many variants on the same rows, each on those of its own: float32 out [V, Hq, T, d] and
    lse [V, Hq, T], to be merged. Where nothing is seen lse is -inf, and out anything.

    query [V, Hq, T, d] at true positions [T]; keys, values [Hkv, n, d], the tokens 0 .. n - 1, all before the
    queries; bias float32 [Hkv, V, n], 0 where a variant holds a row and -inf where it does not.
    """
    variants, _, t, d = query.shape
    hkv, n = keys.shape[:2]
    # One product a head: the rows of all variants, [Hkv, V, g * T, d].
    rows = (query.float() * layer.scaling).reshape(variants, hkv, -1, d).transpose(0, 1).contiguous()
    out, lse = torch.empty_like(rows), rows.new_empty(rows.shape[:3])
    gone = None
    if layer.window is not None:
        gone = torch.arange(n, device=query.device) <= positions[:, None] - layer.window  # [T, n]
    fit = max(1, _WEIGHTS_IN_CACHE // (rows.shape[2] * n))
    for head in range(hkv):
        own, columns = keys[head].float(), values[head].float().T
        for begin in range(0, variants, fit):
            mine = slice(begin, begin + fit)
            logits = project(rows[head, mine].flatten(0, 1), own).unflatten(0, (-1, rows.shape[2]))
            logits += bias[head, mine, None]
            if gone is not None:
                logits.unflatten(1, (-1, t)).masked_fill_(gone, -torch.inf)
            peak = logits.amax(-1)
            weight = torch.softmax(logits, -1, out=logits)
            # The largest weight is 1 / sum exp(logit - peak), so its log completes the log-sum-exp.
            lse[head, mine] = torch.where(peak == -torch.inf, -torch.inf, peak - weight.amax(-1).log())
            out[head, mine] = project(weight.flatten(0, 1), columns).view(-1, *rows.shape[2:])
    return out.transpose(0, 1).reshape(query.shape), lse.transpose(0, 1).reshape(query.shape[:3])


def weighed(logits: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The part (out [.., R, d], lse [.., R]) of logits [.., R, m] on values [.., m, d].

    A row that sees nothing has lse -inf, and any output.
    """
    lse = logits.logsumexp(-1)
    return (logits - lse[..., None]).exp() @ values, lse


def hide(logits: torch.Tensor, start: int, first: int, last: int, window: int | None) -> None:
    """Set what queries start .. do not see of keys first .. last - 1 to -inf, in place: [.., T, keys]."""
    # Without a sliding window every query sees the keys before `start`.
    low = first if window is not None else min(last, max(first, start))
    seen = visible(start, start + logits.shape[-2], low, last, window, logits.device)
    logits[..., low - first :].masked_fill_(~seen, -torch.inf)


def _softmax(logits: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Over the keys; one learned logit a head joins and is dropped again: [heads, T, keys]."""
    if sinks is None:
        return logits.softmax(-1)
    column = sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)
    return torch.cat([logits, column], -1).softmax(-1)[..., :-1]


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
