"""Ragged attention on a GPU: the flat blocks are cut into equal chunks whoever owns them.

A chunk is one program's work, so long and short owners load the device evenly and the launch needs no
count from the device. Within its chunk a program walks owner after owner and writes a partial (output,
log-sum-exp) for each. Owners never decrease, so chunk + owner is a slot that no other pair takes, and
an owner's partials are found again from its first and last block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from kvviz.kernels.device import LOG2E, WIDE_HEAD, Build, Device, build, pad
from kvviz.kernels.window_triton import product, product_of_float32

LARGEST_CHUNK = 2048  # rows


@triton.jit
def ragged_kernel(
    query_ptr,  # [V, Hq, T, d] contiguous = [owners, g * T, d]
    key_ptr,  # [N * B, d]
    value_ptr,
    position_ptr,  # int32 [N * B]
    owner_ptr,  # int32 [N]
    first_ptr,  # int32 [owners + 1], first block of each owner
    query_position_ptr,  # int64 [V, T]
    lse_ptr,  # float32 [slots, g * T], natural log
    out_ptr,  # float32 [slots, g * T, d]
    n_blocks,
    block,
    chunk,  # blocks a program walks
    rows,  # g * T
    steps,  # T
    n_kv_heads,
    sliding_window,
    scale,  # scaling * log2(e)
    SLIDING: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    index = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    here = row < rows
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    tile = here[:, None] & inside[None, :]
    at_block = index * chunk
    last = tl.minimum(at_block + chunk, n_blocks)
    while at_block < last:
        owner = tl.load(owner_ptr + at_block)
        end = tl.minimum(last, tl.load(first_ptr + owner + 1))
        flat = owner.to(tl.int64) * rows + row
        query = tl.load(query_ptr + flat[:, None] * HEAD_DIM + column[None, :], mask=tile, other=0.0)
        horizon = tl.zeros([BLOCK_M], tl.int64)
        if SLIDING:
            variant = owner // n_kv_heads
            now = tl.load(query_position_ptr + variant * steps + row % steps, mask=here, other=0)
            horizon = now - sliding_window
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        mass = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        stop = end.to(tl.int64) * block
        for low in tl.range(at_block.to(tl.int64) * block, stop, BLOCK_N):
            slot = low + tl.arange(0, BLOCK_N)
            there = slot < stop
            position = tl.load(position_ptr + slot, mask=there, other=-1)
            keys = tl.load(  # [BLOCK_D, BLOCK_N]
                key_ptr + slot[None, :] * HEAD_DIM + column[:, None],
                mask=there[None, :] & inside[:, None],
                other=0.0,
            )
            logits = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            logits = product(query, keys, logits, PRECISION, UPCAST) * scale
            visible = (position >= 0)[None, :] & here[:, None]
            if SLIDING:
                visible &= position[None, :] > horizon[:, None]
            logits = tl.where(visible, logits, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(logits, 1))
            finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp2(logits - finite[:, None])
            decay = tl.exp2(peak - finite)
            values = tl.load(  # [BLOCK_N, BLOCK_D]
                value_ptr + slot[:, None] * HEAD_DIM + column[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            mass = mass * decay + tl.sum(weight, 1)
            total = product_of_float32(weight, values, total * decay[:, None], PRECISION, UPCAST)
            peak = new_peak
        seen = mass > 0
        safe = tl.where(seen, mass, 1.0)
        lse = tl.where(seen, (peak + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
        part = (index + owner).to(tl.int64) * rows + row
        tl.store(lse_ptr + part, lse, mask=here)
        tl.store(out_ptr + part[:, None] * HEAD_DIM + column[None, :], total / safe[:, None], mask=tile)
        at_block = end


@triton.jit
def merge_chunks_kernel(
    part_lse_ptr,  # float32 [slots, g * T]
    part_out_ptr,  # float32 [slots, g * T, d]
    first_ptr,  # int32 [owners + 1]
    lse_ptr,  # float32 [owners, g * T]
    out_ptr,  # float32 [owners, g * T, d]
    chunk,
    rows,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    owner = tl.program_id(0)
    row = tl.program_id(1)
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    first = tl.load(first_ptr + owner)
    beyond = tl.load(first_ptr + owner + 1)
    low = first // chunk
    high = tl.where(beyond > first, (beyond - 1) // chunk + 1, low)
    peak = tl.full([], float("-inf"), tl.float32)
    part = (low + owner).to(tl.int64) * rows + row
    for _ in tl.range(low, high):
        peak = tl.maximum(peak, tl.load(part_lse_ptr + part))
        part += rows
    finite = tl.where(peak == float("-inf"), 0.0, peak)
    mass = tl.zeros([], tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)
    part = (low + owner).to(tl.int64) * rows + row
    for _ in tl.range(low, high):
        weight = tl.exp(tl.load(part_lse_ptr + part) - finite)
        mass += weight
        total += weight * tl.load(part_out_ptr + part * HEAD_DIM + column, mask=inside, other=0.0)
        part += rows
    seen = mass > 0
    safe = tl.where(seen, mass, 1.0)
    target = owner.to(tl.int64) * rows + row
    tl.store(lse_ptr + target, tl.where(seen, finite + tl.log(safe), float("-inf")))
    tl.store(out_ptr + target * HEAD_DIM + column, total / safe, mask=inside)


def tiles(device: Device, itemsize: int, head_dim: int, rows: int) -> dict[str, int]:
    """Tile sizes that neither spill registers nor overrun shared memory (a test compiles them all)."""
    wide = head_dim > WIDE_HEAD
    if not device.tensor_cores or (wide and itemsize == 4):
        return {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
    if itemsize == 4:
        most, slots = (32 if head_dim <= 64 else 16), 32
    else:
        most, slots = (32, 32) if wide else (64, 64)
    if device.capability >= 120 and not wide and itemsize == 2:
        most = 32  # it spills with 64, unlike Ada
    stages = 3 if itemsize == 2 and not wide and device.tiled_as in (80, 90) else 2
    return {"BLOCK_M": min(most, pad(rows)), "BLOCK_N": slots, "num_warps": 4, "num_stages": stages}


def ragged_attention(
    query,
    keys,
    values,
    positions,
    owner,
    n_kv_heads,
    scaling,
    query_positions,
    sliding_window=None,
    chunk=None,
):
    """As the twin in `ragged`; `chunk` forces the blocks a program walks."""
    variants, n_query_heads, steps, head_dim = query.shape
    n_blocks, block, _ = keys.shape
    owners, rows = variants * n_kv_heads, n_query_heads // n_kv_heads * steps
    device = Device.of(query)
    query, keys, values = query.to(keys.dtype).contiguous(), keys.contiguous(), values.contiguous()
    sizes = tiles(device, keys.element_size(), head_dim, rows)
    if chunk is None:
        fair = -(-n_blocks // (4 * device.multiprocessors))
        chunk = max(1, min(fair, LARGEST_CHUNK // block), -(-sizes["BLOCK_N"] // block))
    chunks = -(-n_blocks // chunk)
    row_tiles = triton.cdiv(rows, sizes["BLOCK_M"])
    owner = owner.to(torch.int32).contiguous()
    every = torch.arange(owners + 1, dtype=torch.int32, device=owner.device)
    first = torch.searchsorted(owner, every, out_int32=True)
    part_lse = query.new_empty(chunks + owners, rows, dtype=torch.float32)
    part_out = query.new_empty(chunks + owners, rows, head_dim, dtype=torch.float32)
    if n_blocks:
        ragged_kernel[(chunks, row_tiles)](
            query,
            keys,
            values,
            positions.contiguous(),
            owner,
            first,
            query_positions.contiguous(),
            part_lse,
            part_out,
            n_blocks,
            block,
            chunk,
            rows,
            steps,
            n_kv_heads,
            sliding_window or 0,
            scaling * LOG2E,
            SLIDING=sliding_window is not None,
            HEAD_DIM=head_dim,
            BLOCK_D=pad(head_dim),
            **device.dot(keys.dtype, head_dim),
            **sizes,
        )
    lse = query.new_empty(variants, n_query_heads, steps, dtype=torch.float32)
    out = query.new_empty(variants, n_query_heads, steps, head_dim, dtype=torch.float32)
    merge_chunks_kernel[(owners, rows)](
        part_lse,
        part_out,
        first,
        lse,
        out,
        chunk,
        rows,
        HEAD_DIM=head_dim,
        BLOCK_D=pad(head_dim),
        num_warps=1 if head_dim <= WIDE_HEAD else 2,
    )
    return out, lse


def builds(device: Device, dtype: str, head_dim: int) -> list[Build]:
    """What to compile ahead of time for one device, dtype and head size: one step, and many at once."""
    itemsize = 4 if dtype == "fp32" else 2
    pointers = {"query_ptr": dtype, "key_ptr": dtype, "value_ptr": dtype, "query_position_ptr": "i64"}
    pointers |= {"position_ptr": "i32", "owner_ptr": "i32", "first_ptr": "i32"}
    shape = {"HEAD_DIM": head_dim, "BLOCK_D": pad(head_dim)}
    found = [
        build(
            "ragged_attention",
            ragged_kernel,
            device,
            dtype,
            pointers,
            {"SLIDING": sliding} | shape,
            tiles(device, itemsize, head_dim, rows),
        )
        for rows, sliding in ((4, False), (128, True))
    ]
    sizes = {"num_warps": 1 if head_dim <= WIDE_HEAD else 2}
    return [*found, build("merge_chunks", merge_chunks_kernel, device, dtype, pointers, shape, sizes)]
