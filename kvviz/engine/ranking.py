"""The order of entries: score descending, then earlier position."""

from __future__ import annotations

from kvviz.lazy import torch

_POSITION_BITS = 29  # with the score's 32 and one for the tier they make a signed integer of 64


def rank(scores: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
    """Place of every entry within its head, 0 = best: int64 [Hkv, C].

    Score descending, then earlier position; entries marked `first` go before all others.
    """
    # One integer an entry: tier, score, position from the highest bits down. NumPy sorts whole numbers
    # several times faster than torch sorts floats stably with their indices.
    bits = (scores.detach().cpu().float() + 0.0).view(torch.int32)  # + 0.0: -0.0 ties with 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the same order as the floats', as integers
    key = ~ascending.long()
    if first is not None:
        key += (~first.cpu()).long() << 32
    count = key.shape[-1]
    key = (key << _POSITION_BITS) | torch.arange(count)
    key.numpy().sort(axis=-1)
    order = key & ((1 << _POSITION_BITS) - 1)
    places = torch.empty_like(order)
    return places.scatter_(-1, order, torch.arange(count).expand_as(order))
