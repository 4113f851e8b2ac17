"""Window pass: log-sum-exp and output of the last W queries against all keys.

    lse_r = log sum_j exp(scaling * q_r . k_j)      over the keys j that row r sees
    out_r = sum_j exp(scaling * q_r . k_j - lse_r) v_j

Row r sits at position start + r and sees j <= start + r, in a sliding layer also j > start + r - window.
A learned sink logit is one more column of the softmax with value 0.
"""

from __future__ import annotations

import torch
from kvviz.kernels.merge import merge_attention

BLOCK_ELEMENTS = 1 << 20  # logits held at once by a twin: 4 MB of float32, well inside a CPU's L3


def accumulator(tensor: torch.Tensor) -> torch.dtype:
    """Twins compute in float32, or in float64 when handed float64 (for tests)."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def key_blocks(n: int, rows: int, first: int) -> list[tuple[int, int]]:
    """Spans (low, high) of keys from `first` to n, so that rows x span stays within BLOCK_ELEMENTS."""
    width = max(64, BLOCK_ELEMENTS // max(1, rows))
    return [(low, min(n, low + width)) for low in range(first, n, width)]


def first_visible(start: int, sliding_window: int | None) -> int:
    """Leading keys that no row sees because they left the sliding window of the first row."""
    return 0 if sliding_window is None else max(0, start - sliding_window + 1)


def block_logits(
    rows: torch.Tensor,
    keys: torch.Tensor,
    low: int,
    high: int,
    start: int,
    sliding_window: int | None,
    exclude: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of all rows against keys low..high, -inf where a row does not see a key.

    rows     [Hkv, g, W, d], already scaled.
    exclude  int64 [Hkv, g, W], a key each row is to leave out, -1 for none.
    Returns  [Hkv, g, W, high - low].
    """
    n_kv_heads, group, window, _ = rows.shape
    block = keys[:, low:high].to(rows.dtype)
    logits = torch.bmm(rows.flatten(1, 2), block.transpose(1, 2))
    logits = logits.view(n_kv_heads, group, window, high - low)
    last = start + window - 1
    late = high - 1 > start
    early = sliding_window is not None and low <= last - sliding_window
    if late or early:
        position = torch.arange(start, last + 1, device=keys.device)[:, None]
        key = torch.arange(low, high, device=keys.device)
        hidden = key > position
        if sliding_window is not None:
            hidden |= key <= position - sliding_window
        logits.masked_fill_(hidden, -torch.inf)
    if exclude is not None:
        inside = (exclude >= low) & (exclude < high)
        head, member, row = inside.nonzero(as_tuple=True)
        logits[head, member, row, exclude[inside] - low] = -torch.inf
    return logits


def window_pass(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    start: int,
    sliding_window: int | None = None,
    sinks: torch.Tensor | None = None,
    exclude: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain torch twin, blocked over keys.

    query    [Hq, W, d], rotated; row r at position start + r.
    keys     [Hkv, n, d]; values [Hkv, n, d]; query head h reads KV head h // (Hq / Hkv).
    scaling  multiplies q . k.
    sinks    [Hq] learned logits or None.
    exclude  int [Hq, W], one key each row leaves out (-1: none); the softmax is over the others.
    Returns  (lse float32 [Hq, W], out float32 [Hq, W, d]); a row that sees nothing has -inf and 0.
    """
    n_query_heads, window, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    rows = (query.to(accumulator(query)) * scaling).view(n_kv_heads, -1, window, head_dim)
    if exclude is not None:
        exclude = exclude.long().view(rows.shape[:3])
    total = None
    for low, high in key_blocks(n, n_query_heads * window, first_visible(start, sliding_window)):
        logits = block_logits(rows, keys, low, high, start, sliding_window, exclude)
        peak = logits.amax(-1, keepdim=True)
        peak = torch.where(peak == -torch.inf, 0.0, peak)
        weight = logits.sub_(peak).exp_()
        mass = weight.sum(-1)
        block_values = values[:, low:high].to(rows.dtype)
        out = torch.bmm(weight.flatten(1, 2), block_values).view(rows.shape)
        out = out / mass.clamp_min(torch.finfo(mass.dtype).tiny)[..., None]
        part = (out.flatten(0, 1), (mass.log() + peak[..., 0]).flatten(0, 1))
        total = part if total is None else merge_attention([total, part])
    if total is None:
        lse = torch.full((n_query_heads, window), -torch.inf, dtype=rows.dtype, device=query.device)
        total = (torch.zeros_like(rows).flatten(0, 1), lse)
    if sinks is not None:
        total = merge_attention([total], sinks)
    out, lse = total
    return lse, out
