"""Ingredients of a mix: what a run stores of every entry, for methods that are tried out before they are written.

Each is float64 over a layer's visible rows, made of the three digits that a stored run holds
(`three_digits`): a mix of stored numbers and a method file that reads the cache itself rank the same
numbers. float64, so that powers round alike however a tensor lies in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import reduce_group

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def attention(layer: LayerView, window: int) -> torch.Tensor:
    """Mean attention of the last `window` queries, and over the query heads of the group: [Hkv, n]."""
    return three_digits(reduce_group(layer.attention_mean(window), layer)).double()


def value_size(layer: LayerView) -> torch.Tensor:
    """||v||_2: [Hkv, n]."""
    return three_digits(layer.values.float().norm(dim=-1)).double()


def key_norm(layer: LayerView) -> torch.Tensor:
    """||k||_2, which the rotary position does not change: [Hkv, n]. Never 0, so that any power is a number."""
    return three_digits(layer.keys.float().norm(dim=-1)).double().clamp_min(1e-6)


def recency(layer: LayerView) -> torch.Tensor:
    """(j + 1) / n of the token at position j: [n], from nearly 0 to 1."""
    return positions(layer.first_position, layer.trace.n).to(layer.keys.device)


def positions(first: int, n: int) -> torch.Tensor:
    """(j + 1) / n for j from `first` on, float64 [n - first]."""
    return torch.arange(first + 1, n + 1, dtype=torch.float64) / n


def three_digits(numbers: torch.Tensor) -> torch.Tensor:
    """float32 of which 11 bits of the mantissa stay, as `Comparison.save(rounded=True)` stores it; for finite
    numbers from 0 on."""
    bits = numbers.float().contiguous().view(torch.int32)
    return ((bits + 0x800) & -0x1000).view(torch.float32)
