"""Compaction on a GPU: one program copies one block of kept rows, keys and values together.

Where each row comes from is worked out by the twin's layout, a few operations on the mask; the copy is
what moves the bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from kvviz.kernels.device import Build, Device, as_rows, build, pad
from kvviz.kernels.gather import block_layout

ROWS = 32  # rows a program copies at once


@triton.jit
def gather_kernel(
    key_ptr,
    value_ptr,
    position_ptr,  # int32 [N, block], -1 = empty slot
    owner_ptr,  # int32 [N], variant * Hkv + KV head
    kept_key_ptr,  # [N, block, d]
    kept_value_ptr,
    block,
    heads,
    key_head_stride,
    key_stride,
    value_head_stride,
    value_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here = slot < block
    column = tl.arange(0, BLOCK_D)
    inside = (column < HEAD_DIM)[None, :]
    head = (tl.load(owner_ptr + index) % heads).to(tl.int64)
    position = tl.load(position_ptr + index * block + slot, mask=here, other=-1)
    filled = (position >= 0)[:, None] & inside
    row = position.to(tl.int64)[:, None]
    target = (index * block + slot)[:, None] * HEAD_DIM + column[None, :]
    keys = tl.load(
        key_ptr + head * key_head_stride + row * key_stride + column[None, :], mask=filled, other=0.0
    )
    values = tl.load(
        value_ptr + head * value_head_stride + row * value_stride + column[None, :], mask=filled, other=0.0
    )
    tl.store(kept_key_ptr + target, keys, mask=here[:, None] & inside)
    tl.store(kept_value_ptr + target, values, mask=here[:, None] & inside)


def gather_rows(keys, values, mask, block=128):
    """As the twin in `gather`."""
    keys, values = as_rows(keys), as_rows(values)
    positions, owner = block_layout(mask, block)
    heads, _, head_dim = keys.shape
    kept_keys = keys.new_empty(len(owner), block, head_dim)
    kept_values = values.new_empty(len(owner), block, head_dim)
    if len(owner):
        gather_kernel[(len(owner), triton.cdiv(block, ROWS))](
            keys,
            values,
            positions,
            owner,
            kept_keys,
            kept_values,
            block,
            heads,
            *keys.stride()[:2],
            *values.stride()[:2],
            HEAD_DIM=head_dim,
            BLOCK_N=ROWS,
            BLOCK_D=pad(head_dim),
            num_warps=4,
        )
    return kept_keys, kept_values, positions, owner


def builds(device: Device, dtype: str, head_dim: int) -> list[Build]:
    """What to compile ahead of time for one device, dtype and head size."""
    pointers = dict.fromkeys(("key_ptr", "value_ptr", "kept_key_ptr", "kept_value_ptr"), dtype)
    pointers |= {"position_ptr": "i32", "owner_ptr": "i32"}
    shape = {"HEAD_DIM": head_dim, "BLOCK_D": pad(head_dim)}
    sizes = {"BLOCK_N": ROWS, "num_warps": 4}
    return [build("gather_rows", gather_kernel, device, dtype, pointers, shape, sizes)]
