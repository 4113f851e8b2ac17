"""Ingredients of a mix: what a run stores of every entry, for methods that are tried out first.

Each is float64 over a layer's visible rows, made of the three digits that a stored run holds
(`three_digits`): a mix of stored numbers and a method file that reads the cache itself rank the same
numbers. float64 and on the CPU, so that they round alike on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import reduce_group

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def attention(layer: LayerView, window: int) -> torch.Tensor:
    """Mean attention of the last `window` queries, and over the query heads of the group: [Hkv, n]."""
    return _plain(reduce_group(layer.attention_mean(window), layer))


def value_size(layer: LayerView) -> torch.Tensor:
    """||v||_2: [Hkv, n]."""
    return _plain(layer.values.float().norm(dim=-1))


def key_norm(layer: LayerView) -> torch.Tensor:
    """||k||_2, which the rotary position does not change: [Hkv, n]; never 0."""
    return never_zero(_plain(layer.keys.float().norm(dim=-1)))


def recency(layer: LayerView) -> torch.Tensor:
    """(j + 1) / n of the token at position j: [n], from nearly 0 to 1."""
    return positions(layer.first_position, layer.trace.n)


def positions(first: int, n: int) -> torch.Tensor:
    """(j + 1) / n for j from `first` on, float64 [n - first]."""
    return torch.arange(first + 1, n + 1, dtype=torch.float64) / n


def never_zero(numbers: torch.Tensor) -> torch.Tensor:
    """At least 1e-6, of which every power is a number."""
    return numbers.clamp_min(1e-6)


def _plain(numbers: torch.Tensor) -> torch.Tensor:
    return three_digits(numbers).double().cpu()


def three_digits(numbers: torch.Tensor) -> torch.Tensor:
    """float32 of which 11 bits of the mantissa stay, as `Comparison.save(rounded=True)` stores it; for finite
    numbers from 0 on."""
    bits = numbers.float().contiguous().view(torch.int32)
    return ((bits + 0x800) & -0x1000).view(torch.float32)
