"""Pieces of formulas that methods share, with the options they read: the observation window, pooling along
tokens, joining the query heads of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvviz.lazy import torch
from kvviz.options import CHOICE, WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

MAX_WINDOW = 128  # queries a trace always holds, so that no method needs a reading of its own

WINDOW = Option("window", 32, WHOLE, "The last queries of the prompt that score.", 1, MAX_WINDOW)
POOL = Option("pool", 7, WHOLE, "Width of the pooling along tokens.", 1, 1023)
POOL_KIND = Option(
    "pool_kind", "avg", CHOICE, "How neighbouring tokens are pooled.", choices=("avg", "max", "none")
)
GROUP = Option(
    "group", "mean", CHOICE, "How the query heads of a group become one.", choices=("mean", "max", "sum")
)
SINKS = Option("sinks", 4, WHOLE, "First tokens that are kept by rule.", 0, 4096)


def pool(scores: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    """Pool along the last axis, stride 1, same length: [..., C] -> [..., C].

    Average pooling pads with zeros and always divides by the kernel (edges are damped, as in the
    papers' code); maximum pooling pads with -inf.
    """
    size, kind = options["pool"], options["pool_kind"]
    length = scores.shape[-1]
    if kind == "none" or size <= 1 or length == 0:
        return scores
    if kind == "avg" and scores.device.type == "cpu":
        return _average(scores, size)
    flat = scores.reshape(1, -1, length)
    pooling = torch.nn.functional.avg_pool1d if kind == "avg" else torch.nn.functional.max_pool1d
    return pooling(flat, size, stride=1, padding=size // 2)[..., :length].reshape(scores.shape)


def _average(scores: torch.Tensor, size: int) -> torch.Tensor:
    """`avg_pool1d` by adding shifted rows, in the same order: its own loop on a CPU is not vectorised."""
    length, total = scores.shape[-1], torch.zeros_like(scores)
    for shift in range(max(-(size // 2), 1 - length), min(size - size // 2, length)):
        low, high = max(0, -shift), min(length, length - shift)  # the entries that have one at i + shift
        if low < high:
            total[..., low:high] += scores[..., low + shift : high + shift]
    return total.div_(size)


def reduce_group(per_head: torch.Tensor, layer: LayerView, how: str = "mean") -> torch.Tensor:
    """[Hq, ...] -> [Hkv, ...]: the query heads of a group become one score for their KV head."""
    grouped = per_head.unflatten(0, (layer.n_kv_heads, layer.group))
    if how == "max":
        return grouped.amax(1)
    return grouped.sum(1) if how == "sum" else grouped.mean(1)


