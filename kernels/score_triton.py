"""Score pass on a GPU: each program takes a tile of keys, loads its K and V once, and walks the window's
rows of every query head in the group; nothing of size W x n leaves the chip.

Keys are the rows of the products (K Q^T, V O^T), so that a key's sum over the window stays within one
thread group. A key with most of a row's mass is left out of the sweep and its index written down; the
window pass without those keys then gives the rest of those rows, and a last small kernel adds their
scores. Programs of that second pass whose rows have no such key return at once.

Pooling and the group's reduction stay outside: the scores are g / (2 d) of K and V at most, about 2
percent of the traffic, and a maximum over the group must wait for the scores added last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from kvviz.kernels.device import LOG2E, WIDE_HEAD, Build, Device, as_rows, build, pad, score_fits
from kvviz.kernels.score import DOMINANT
from kvviz.kernels.window_triton import product
from kvviz.kernels.window_triton import window_pass as triton_window_pass

LONGEST_WINDOW = 128  # rows the last kernel holds at once


@triton.jit
def score_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    lse_ptr,  # float32 [Hq, W], natural log
    out_ptr,  # float32 [Hq, W, d]
    dominant_ptr,  # int32 [Hq, W], -1 on entry
    score_ptr,  # float32 [Hq, n]
    n,
    start,
    window,
    group,
    sliding_window,
    scale,  # scaling * log2(e)
    epsilon,
    threshold,
    query_head_stride,
    query_row_stride,
    key_head_stride,
    key_stride,
    value_head_stride,
    value_stride,
    KIND: tl.constexpr,
    SLIDING: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    kv_head = tl.program_id(1).to(tl.int64)
    key = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = key < n
    at = key.to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    tile = there[:, None] & inside[None, :]
    keys = tl.load(
        key_ptr + kv_head * key_head_stride + at[:, None] * key_stride + column[None, :], mask=tile, other=0.0
    )
    if KIND == "dropkv" or KIND == "caote":
        values = tl.load(
            value_ptr + kv_head * value_head_stride + at[:, None] * value_stride + column[None, :],
            mask=tile,
            other=0.0,
        )
        wide = values.to(tl.float32)
        value_square = tl.sum(wide * wide, 1)
    blocks = (window + BLOCK_M - 1) // BLOCK_M
    score = tl.zeros([BLOCK_N], tl.float32)
    for step in tl.range(0, group * blocks):  # one flat loop, so that loads run ahead across heads
        head = kv_head * group + step // blocks
        low = step % blocks * BLOCK_M
        row = low + tl.arange(0, BLOCK_M)
        here = row < window
        turned = inside[:, None] & here[None, :]  # [BLOCK_D, BLOCK_M]
        query = tl.load(
            query_ptr
            + head * query_head_stride
            + row.to(tl.int64)[None, :] * query_row_stride
            + column[:, None],
            mask=turned,
            other=0.0,
        )
        logits = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        logits = product(keys, query, logits, PRECISION, UPCAST) * scale
        visible = (key[:, None] <= start + row[None, :]) & here[None, :] & there[:, None]
        if SLIDING:
            visible &= key[:, None] > start + row[None, :] - sliding_window
        flat = head * window + row
        lse = tl.load(lse_ptr + flat, mask=here, other=0.0) * 1.4426950408889634
        # Logits first: a row that sees nothing has lse = -inf, and no visible key either.
        share = tl.exp2(tl.where(visible, logits - lse[None, :], float("-inf")))  # p
        if KIND == "mean":
            score += tl.sum(share, 1)
        elif KIND == "square":
            score += tl.sum(share * share, 1)
        else:
            dominant = share > threshold
            tl.store(
                dominant_ptr + flat[None, :] + tl.zeros([BLOCK_N, 1], tl.int64),
                key[:, None] + tl.zeros([1, BLOCK_M], tl.int32),
                mask=dominant,
            )
            share = tl.where(dominant, 0.0, share)
            out = tl.load(
                out_ptr + flat[None, :] * HEAD_DIM + column[:, None], mask=turned, other=0.0
            )  # [BLOCK_D, BLOCK_M]
            cross = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            if values.dtype == tl.float32:
                cross = tl.dot(values, out, cross, input_precision=PRECISION)
            else:  # two 16-bit parts carry float32's digits
                high = out.to(values.dtype)
                rest = (out - high.to(tl.float32)).to(values.dtype)
                cross = product(values, rest, cross, PRECISION, UPCAST)
                cross = product(values, high, cross, PRECISION, UPCAST)
            distance = value_square[:, None] + tl.sum(out * out, 0)[None, :] - 2 * cross
            distance = tl.maximum(distance, 0.0)
            if KIND == "dropkv":
                weight = share / (1 - share + epsilon)
                score += tl.sum(weight * weight * distance, 1)
            else:
                score += tl.sum(share / (1 - share) * tl.sqrt(distance), 1)
        last = tl.zeros([BLOCK_N], tl.int32) + low + BLOCK_M >= window
        total = score / window if KIND == "mean" else score
        tl.store(score_ptr + head * n + at, total, mask=there & last)
        score = tl.where(last, 0.0, score)


@triton.jit
def dominant_kernel(
    value_ptr,
    lse_ptr,  # float32 [Hq, W]
    rest_lse_ptr,  # float32 [Hq, W], without the dominant key
    rest_ptr,  # float32 [Hq, W, d], likewise
    dominant_ptr,  # int32 [Hq, W]
    score_ptr,  # float32 [Hq, n]
    n,
    window,
    group,
    epsilon,
    value_head_stride,
    value_stride,
    KIND: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK_W)
    here = row < window
    key = tl.load(dominant_ptr + head * window + row, mask=here, other=-1)
    if tl.max(key, 0) >= 0:
        lse = tl.load(lse_ptr + head * window + row, mask=here, other=0.0)
        rest_lse = tl.load(rest_lse_ptr + head * window + row, mask=here, other=float("-inf"))
        found = (key >= 0) & (rest_lse != float("-inf"))
        square = tl.zeros([BLOCK_W], tl.float32)
        value_head = value_ptr + head // group * value_head_stride
        for low in tl.static_range(0, HEAD_DIM, BLOCK_D):
            column = low + tl.arange(0, BLOCK_D)
            tile = found[:, None] & (column < HEAD_DIM)[None, :]
            values = tl.load(
                value_head + key.to(tl.int64)[:, None] * value_stride + column[None, :], mask=tile, other=0.0
            )
            rest = tl.load(
                rest_ptr + (head * window + row)[:, None] * HEAD_DIM + column[None, :], mask=tile, other=0.0
            )
            gap = values.to(tl.float32) - rest
            square += tl.sum(gap * gap, 1)
        mass = tl.exp(tl.where(found, rest_lse, 0.0) - tl.where(found, lse, 0.0))  # 1 - p
        if KIND == "caote":
            score = (1 - mass) * tl.sqrt(square)
        else:
            weight = (1 - mass) * mass / (mass + epsilon)
            score = weight * weight * square
        score = tl.where(found, score, 0.0)
        # Rows may share their key: the first of them adds for all, so the order of sums is fixed.
        other = tl.load(dominant_ptr + head * window + row, mask=here, other=-1)
        same = key[:, None] == other[None, :]  # [this row, the others]
        total = tl.sum(tl.where(same, score[None, :], 0.0), 1)
        earliest = tl.min(tl.where(same, row[None, :], BLOCK_W), 1)
        adds = (key >= 0) & (earliest == row)
        target = score_ptr + head * n + key
        tl.store(target, tl.load(target, mask=adds, other=0.0) + total, mask=adds)


def tiles(device: Device, itemsize: int, head_dim: int, window: int) -> dict[str, int]:
    """Tile sizes that neither spill registers nor overrun shared memory (a test compiles them all)."""
    wide = head_dim > WIDE_HEAD
    rows = min(32, pad(window))
    if not device.tensor_cores:
        return {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
    if itemsize == 4:
        roomy = device.tiled_as in (80, 90) and not wide  # 163 KB of shared memory or more
        keys = 64 if head_dim <= 64 or roomy else 32
        return {"BLOCK_M": 16, "BLOCK_N": keys, "num_warps": 4, "num_stages": 1}
    if wide:
        return {"BLOCK_M": 16, "BLOCK_N": 64, "num_warps": 8, "num_stages": 1}
    if device.tiled_as in (86, 89):
        return {"BLOCK_M": rows, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": rows, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}


def score_pass(
    query,
    keys,
    values,
    lse,
    out,
    scaling,
    start,
    kind,
    sliding_window=None,
    sinks=None,
    epsilon=1e-6,
    splits=None,
):
    """As the twin in `score`; `splits` forces the key splits of the second pass."""
    n_query_heads, window, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    query, keys, values = as_rows(query), as_rows(keys), as_rows(values)
    lse, out = lse.float().contiguous(), out.float().contiguous()
    group = n_query_heads // n_kv_heads
    device = Device.of(query)
    sizes = tiles(device, query.element_size(), head_dim, window)
    scores = query.new_empty(n_query_heads, n, dtype=torch.float32)
    dominant = query.new_full((n_query_heads, window), -1, dtype=torch.int32)
    score_kernel[(triton.cdiv(n, sizes["BLOCK_N"]), n_kv_heads)](
        query,
        keys,
        values,
        lse,
        out,
        dominant,
        scores,
        n,
        start,
        window,
        group,
        sliding_window or 0,
        scaling * LOG2E,
        epsilon,
        DOMINANT,
        *query.stride()[:2],
        *keys.stride()[:2],
        *values.stride()[:2],
        KIND=kind,
        SLIDING=sliding_window is not None,
        HEAD_DIM=head_dim,
        BLOCK_D=pad(head_dim),
        **device.dot(query.dtype, head_dim),
        **sizes,
    )
    if kind in ("dropkv", "caote"):
        rest_lse, rest = triton_window_pass(
            query, keys, values, scaling, start, sliding_window, sinks, dominant, splits
        )
        dominant_kernel[(n_query_heads,)](
            values,
            lse,
            rest_lse,
            rest,
            dominant,
            scores,
            n,
            window,
            group,
            epsilon,
            *values.stride()[:2],
            KIND=kind,
            HEAD_DIM=head_dim,
            BLOCK_W=pad(window),
            BLOCK_D=16,
            num_warps=8,
        )
    return scores


def builds(device: Device, dtype: str, head_dim: int) -> list[Build]:
    """What to compile ahead of time for one device, dtype and head size, worst case each."""
    itemsize = 4 if dtype == "fp32" else 2
    pointers = {"query_ptr": dtype, "key_ptr": dtype, "value_ptr": dtype, "dominant_ptr": "i32"}
    shape = {"HEAD_DIM": head_dim, "BLOCK_D": pad(head_dim)}
    found = []
    for kind in ("mean", "square", "dropkv", "caote"):
        if not score_fits(device, kind, itemsize, head_dim):
            continue
        constants = {"KIND": kind, "SLIDING": kind == "dropkv"} | shape
        sizes = tiles(device, itemsize, head_dim, 64)
        found.append(build("score_pass", score_kernel, device, dtype, pointers, constants, sizes))
    last = {"KIND": "dropkv", "HEAD_DIM": head_dim, "BLOCK_D": 16, "BLOCK_W": LONGEST_WINDOW}
    return [*found, build("dominant", dominant_kernel, device, dtype, pointers, last, {"num_warps": 8})]
