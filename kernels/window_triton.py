"""Window pass on a GPU: flash-style over key tiles, split over keys, splits merged exactly.

One program holds BLOCK_M of the g * W query rows of a KV head and walks one split of the keys with a
running maximum, mass and output, so K and V are read once for the whole group. A second kernel merges
the splits and adds the sink logit. Logits are kept in base 2: exp2 is what the hardware has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from kvviz.kernels.device import LOG2E, WIDE_HEAD, Build, Device, as_rows, build, pad, splits_for
from kvviz.kernels.window import first_visible


@triton.jit
def product(a, b, accumulator, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """a @ b + accumulator in float32."""
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def product_of_float32(a, b, accumulator, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """a @ b + accumulator for float32 a and a b of any dtype: a 16-bit b gets a in two 16-bit parts,
    whose sum carries float32's digits as far as they matter (2^-16 relative)."""
    if b.dtype == tl.float32:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)
    high = a.to(b.dtype)
    low = (a - high.to(tl.float32)).to(b.dtype)
    accumulator = product(low, b, accumulator, PRECISION, UPCAST)
    return product(high, b, accumulator, PRECISION, UPCAST)


@triton.jit
def window_tile(
    query,  # [BLOCK_M, BLOCK_D]
    peak,  # [BLOCK_M] running maximum, base 2
    mass,  # [BLOCK_M]
    total,  # [BLOCK_M, BLOCK_D]
    position,  # [BLOCK_M] of the query rows
    excluded,  # [BLOCK_M] key a row leaves out
    key_head,  # pointer to this head's keys
    value_head,
    low,
    n,
    key_stride,
    value_stride,
    scale,
    sliding_window,
    MASKED: tl.constexpr,
    SLIDING: tl.constexpr,
    EXCLUDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    key = low + tl.arange(0, BLOCK_N)
    there = key < n
    row = key.to(tl.int64)
    keys = tl.load(  # [BLOCK_D, BLOCK_N]
        key_head + row[None, :] * key_stride + column[:, None],
        mask=there[None, :] & inside[:, None],
        other=0.0,
    )
    logits = tl.zeros([query.shape[0], BLOCK_N], tl.float32)
    logits = product(query, keys, logits, PRECISION, UPCAST) * scale
    if MASKED:
        visible = (key[None, :] <= position[:, None]) & there[None, :]
        if SLIDING:
            visible &= key[None, :] > position[:, None] - sliding_window
        logits = tl.where(visible, logits, float("-inf"))
    if EXCLUDE:
        logits = tl.where(key[None, :] == excluded[:, None], float("-inf"), logits)
    new_peak = tl.maximum(peak, tl.max(logits, 1))
    finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row that has seen nothing yet
    weight = tl.exp2(logits - finite[:, None])
    decay = tl.exp2(peak - finite)
    values = tl.load(  # [BLOCK_N, BLOCK_D]
        value_head + row[:, None] * value_stride + column[None, :],
        mask=there[:, None] & inside[None, :],
        other=0.0,
    )
    mass = mass * decay + tl.sum(weight, 1)
    total = product_of_float32(weight, values, total * decay[:, None], PRECISION, UPCAST)
    return new_peak, mass, total


@triton.jit
def window_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    exclude_ptr,  # int32 [Hq, W]
    lse_ptr,  # float32 [splits, Hq, W], natural log
    out_ptr,  # float32 [splits, Hq, W, d]
    n,
    first,
    start,
    window,
    group,
    split_keys,  # a multiple of BLOCK_N
    sliding_window,
    scale,  # scaling * log2(e)
    query_head_stride,
    query_row_stride,
    key_head_stride,
    key_stride,
    value_head_stride,
    value_stride,
    SLIDING: tl.constexpr,
    EXCLUDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    rows = group * window
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    here = row < rows
    head = kv_head * group + row // window
    position = start + row % window
    column = tl.arange(0, BLOCK_D)
    tile = here[:, None] & (column < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr
        + head[:, None] * query_head_stride
        + (row % window).to(tl.int64)[:, None] * query_row_stride
        + column[None, :],
        mask=tile,
        other=0.0,
    )
    low = first + split * split_keys
    high = tl.minimum(low + split_keys, n)
    flat = kv_head * rows + row  # = head * window + row of the window
    excluded = tl.full([BLOCK_M], -1, tl.int32)
    if EXCLUDE:
        excluded = tl.load(exclude_ptr + flat, mask=here, other=-1)
        high = tl.where(tl.max(excluded, 0) < 0, low, high)  # nothing to leave out, nothing to do
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    key_head = key_ptr + kv_head * key_head_stride
    value_head = value_ptr + kv_head * value_head_stride
    # Tiles that every row sees in full need no mask; a sliding window leaves few tiles anyway.
    plain = low
    if not SLIDING:
        plain = low + tl.maximum(tl.minimum(high, start + 1) - low, 0) // BLOCK_N * BLOCK_N
        for at in tl.range(low, plain, BLOCK_N):
            peak, mass, total = window_tile(
                query, peak, mass, total, position, excluded, key_head, value_head, at, n,
                key_stride, value_stride, scale, sliding_window,
                False, SLIDING, EXCLUDE, HEAD_DIM, BLOCK_N, BLOCK_D, PRECISION, UPCAST,
            )  # fmt: skip
    for at in tl.range(plain, high, BLOCK_N):
        peak, mass, total = window_tile(
            query, peak, mass, total, position, excluded, key_head, value_head, at, n,
            key_stride, value_stride, scale, sliding_window,
            True, SLIDING, EXCLUDE, HEAD_DIM, BLOCK_N, BLOCK_D, PRECISION, UPCAST,
        )  # fmt: skip
    seen = mass > 0
    lse = tl.where(seen, (peak + tl.log2(tl.where(seen, mass, 1.0))) * 0.6931471805599453, float("-inf"))
    total = total / tl.where(seen, mass, 1.0)[:, None]
    all_rows = tl.num_programs(1).to(tl.int64) * rows
    tl.store(lse_ptr + split * all_rows + flat, lse, mask=here)
    target = out_ptr + (split * all_rows + flat)[:, None] * HEAD_DIM + column[None, :]
    tl.store(target, total, mask=tile)


@triton.jit
def merge_kernel(
    part_lse_ptr,  # float32 [splits, rows]
    part_out_ptr,  # float32 [splits, rows, d]
    sink_ptr,  # float32 [Hq]
    lse_ptr,  # float32 [rows]
    out_ptr,  # float32 [rows, d]
    splits,
    rows,
    window,
    SINKS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    peak = tl.full([], float("-inf"), tl.float32)
    part = row
    for _ in tl.range(0, splits):
        peak = tl.maximum(peak, tl.load(part_lse_ptr + part))
        part += rows
    if SINKS:
        sink = tl.load(sink_ptr + row // window)
        peak = tl.maximum(peak, sink)
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    mass = tl.zeros([], tl.float32)
    if SINKS:
        mass += tl.exp(sink - finite)
    total = tl.zeros([BLOCK_D], tl.float32)
    part = row
    for _ in tl.range(0, splits):
        weight = tl.exp(tl.load(part_lse_ptr + part) - finite)
        mass += weight
        total += weight * tl.load(part_out_ptr + part * HEAD_DIM + column, mask=inside, other=0.0)
        part += rows
    seen = mass > 0
    safe = tl.where(seen, mass, 1.0)
    tl.store(lse_ptr + row, tl.where(seen, finite + tl.log(safe), float("-inf")))
    tl.store(out_ptr + row * HEAD_DIM + column, total / safe, mask=inside)


def tiles(device: Device, itemsize: int, head_dim: int, rows: int) -> dict[str, int]:
    """Tile sizes that neither spill registers nor overrun shared memory (a test compiles them all)."""
    wide = head_dim > WIDE_HEAD
    if not device.tensor_cores or (wide and itemsize == 4):
        return {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 8 if wide else 4, "num_stages": 1}
    hopper = device.tiled_as >= 90
    if itemsize == 4:
        most, keys, stages = (64 if head_dim <= 64 else 16), 32, 1
    elif wide:
        most, keys, stages = (128 if hopper else 64), 32, 2
    else:
        most, keys, stages = 128, 32, 3
    block = min(most, pad(rows))
    if hopper and not wide and itemsize == 2 and block == 128:
        keys = 64
    warps = 8 if block == 128 or (wide and not hopper) else 4
    return {"BLOCK_M": block, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}


def window_pass(
    query, keys, values, scaling, start, sliding_window=None, sinks=None, exclude=None, splits=None
):
    """As the twin in `window`; `splits` forces the number of key splits."""
    n_query_heads, window, head_dim = query.shape
    n_kv_heads, n, _ = keys.shape
    query, keys, values = as_rows(query), as_rows(keys), as_rows(values)
    group = n_query_heads // n_kv_heads
    device = Device.of(query)
    sizes = tiles(device, query.element_size(), head_dim, group * window)
    first = min(first_visible(start, sliding_window), n)
    row_tiles = triton.cdiv(group * window, sizes["BLOCK_M"])
    splits, split_keys = splits_for(
        device, n - first, sizes["BLOCK_N"], row_tiles * n_kv_heads, forced=splits
    )
    part_lse = query.new_empty(splits, n_query_heads, window, dtype=torch.float32)
    part_out = query.new_empty(splits, n_query_heads, window, head_dim, dtype=torch.float32)
    if exclude is not None:
        exclude = exclude.to(torch.int32).contiguous()
    window_kernel[(row_tiles, n_kv_heads, splits)](
        query,
        keys,
        values,
        exclude,
        part_lse,
        part_out,
        n,
        first,
        start,
        window,
        group,
        split_keys,
        sliding_window or 0,
        scaling * LOG2E,
        *query.stride()[:2],
        *keys.stride()[:2],
        *values.stride()[:2],
        SLIDING=sliding_window is not None,
        EXCLUDE=exclude is not None,
        HEAD_DIM=head_dim,
        BLOCK_D=pad(head_dim),
        **device.dot(query.dtype, head_dim),
        **sizes,
    )
    lse = query.new_empty(n_query_heads, window, dtype=torch.float32)
    out = query.new_empty(n_query_heads, window, head_dim, dtype=torch.float32)
    merge_kernel[(n_query_heads * window,)](
        part_lse,
        part_out,
        None if sinks is None else sinks.float().contiguous(),
        lse,
        out,
        splits,
        n_query_heads * window,
        window,
        SINKS=sinks is not None,
        HEAD_DIM=head_dim,
        BLOCK_D=pad(head_dim),
        num_warps=1 if head_dim <= WIDE_HEAD else 2,
    )
    return lse, out


def builds(device: Device, dtype: str, head_dim: int) -> list[Build]:
    """What to compile ahead of time for one device, dtype and head size, worst case each."""
    itemsize = 4 if dtype == "fp32" else 2
    shape = {"HEAD_DIM": head_dim, "BLOCK_D": pad(head_dim)}
    pointers = {"query_ptr": dtype, "key_ptr": dtype, "value_ptr": dtype, "exclude_ptr": "i32"}
    found = []
    seen = set()
    for rows in (128, 64, 16):
        sizes = tiles(device, itemsize, head_dim, rows)
        if sizes["BLOCK_M"] in seen:
            continue
        seen.add(sizes["BLOCK_M"])
        for sliding in (False, True):
            constants = {"SLIDING": sliding, "EXCLUDE": True} | shape
            found.append(build("window_pass", window_kernel, device, dtype, pointers, constants, sizes))
    sizes = {"num_warps": 1 if head_dim <= WIDE_HEAD else 2}
    merge = build("merge_splits", merge_kernel, device, dtype, {}, {"SINKS": True} | shape, sizes)
    return [*found, merge]
