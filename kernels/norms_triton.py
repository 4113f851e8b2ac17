"""Projected value norms on a GPU: a tile of values stays on the chip while W_O streams by in tiles.

Each tile of v W is folded into the norm as soon as it is computed. Order 2 runs the same loop against
the Gram matrix, with v W^T W v as the thing to sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from kvviz.kernels.device import WIDE_HEAD, Build, Device, as_rows, build, pad
from kvviz.kernels.window_triton import product


@triton.jit
def norms_kernel(
    value_ptr,
    weight_ptr,  # W_O [Hq, d, D], or the float32 Gram matrices [Hq, d, d]
    norm_ptr,  # float32 [Hq, n]
    n,
    hidden,
    group,
    value_head_stride,
    value_stride,
    weight_head_stride,
    weight_stride,
    ORDER: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = token < n
    column = tl.arange(0, BLOCK_D)
    inside = column < HEAD_DIM
    value_head = value_ptr + head // group * value_head_stride + token[:, None] * value_stride
    values = tl.load(value_head + column[None, :], mask=there[:, None] & inside[None, :], other=0.0)
    if ORDER == 2:
        values = values.to(tl.float32)  # the Gram matrix squares small weights: 16 bits lose them
    weight_head = weight_ptr + head * weight_head_stride + column.to(tl.int64)[:, None] * weight_stride
    norm = tl.zeros([BLOCK_N], tl.float32)
    for low in tl.range(0, hidden, BLOCK_H):
        target = low + tl.arange(0, BLOCK_H)
        ahead = target < hidden
        weight = tl.load(weight_head + target[None, :], mask=inside[:, None] & ahead[None, :], other=0.0)
        projected = tl.zeros([BLOCK_N, BLOCK_H], tl.float32)
        projected = product(values, weight, projected, PRECISION, UPCAST)
        if ORDER == 2:
            again = tl.load(value_head + target[None, :], mask=there[:, None] & ahead[None, :], other=0.0)
            norm += tl.sum(projected * again.to(tl.float32), 1)
        else:
            norm += tl.sum(tl.abs(projected), 1)
    if ORDER == 2:
        norm = tl.sqrt(tl.maximum(norm, 0.0))
    tl.store(norm_ptr + head * n + token, norm, mask=there)


def tiles(device: Device, itemsize: int, head_dim: int, order: int) -> dict[str, int]:
    """Tile sizes that neither spill registers nor overrun shared memory (a test compiles them all)."""
    wide = head_dim > WIDE_HEAD
    exact = itemsize == 4 or order == 2
    if not device.tensor_cores or (wide and exact):
        return {"BLOCK_N": 32, "BLOCK_H": 32, "num_warps": 8, "num_stages": 1}
    if exact:
        hidden = 32 if device.tiled_as >= 90 else 16
        return {"BLOCK_N": 64, "BLOCK_H": hidden, "num_warps": 4, "num_stages": 1}
    if wide:
        return {"BLOCK_N": 64, "BLOCK_H": 64, "num_warps": 8, "num_stages": 2}
    if device.tiled_as in (86, 89):
        return {"BLOCK_N": 128, "BLOCK_H": 64, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_N": 128, "BLOCK_H": 128, "num_warps": 8, "num_stages": 3}


def value_norms(values, w_o, order=1):
    """As the twin in `norms`."""
    n_kv_heads, n, head_dim = values.shape
    n_query_heads = len(w_o)
    device = Device.of(values)
    if order == 2:
        wide = w_o.float()
        weight = torch.bmm(wide, wide.transpose(1, 2))
    else:
        weight = as_rows(w_o.to(values.dtype))
    values = as_rows(values)
    sizes = tiles(device, values.element_size(), head_dim, order)
    norms = values.new_empty(n_query_heads, n, dtype=torch.float32)
    norms_kernel[(triton.cdiv(n, sizes["BLOCK_N"]), n_query_heads)](
        values,
        weight,
        norms,
        n,
        weight.shape[-1],
        n_query_heads // n_kv_heads,
        *values.stride()[:2],
        *weight.stride()[:2],
        ORDER=order,
        HEAD_DIM=head_dim,
        BLOCK_D=pad(head_dim),
        **device.dot(torch.float32 if order == 2 else values.dtype, head_dim),
        **sizes,
    )
    return norms


def builds(device: Device, dtype: str, head_dim: int) -> list[Build]:
    """What to compile ahead of time for one device, dtype and head size."""
    itemsize = 4 if dtype == "fp32" else 2
    found = []
    for order in (1, 2):
        constants = {"ORDER": order, "HEAD_DIM": head_dim, "BLOCK_D": pad(head_dim)}
        constants |= device.dot("fp32" if order == 2 else dtype, head_dim)
        pointers = {"value_ptr": dtype, "weight_ptr": dtype if order == 1 else "fp32"}
        sizes = tiles(device, itemsize, head_dim, order)
        found.append(build("value_norms", norms_kernel, device, dtype, pointers, constants, sizes))
    return found
