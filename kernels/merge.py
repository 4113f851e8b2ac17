"""Exact merging of attention computed over disjoint sets of keys.

A part is (out, lse): the softmax-weighted mean of its values and the log of its sum of exponentials.
The mean over the union weighs each part by exp(lse_part - lse_union); nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def merge_attention(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge parts over disjoint keys, and learned sink logits, into one attention.

    parts   pairs (out [..., Hq, T, d], lse [..., Hq, T]); lse = -inf marks a part without keys.
    sinks   [Hq] logits of one more column whose value is 0, or None.
    Returns (out, lse) of the union; where nothing is visible out is 0 and lse -inf.
    """
    lses = [lse for _, lse in parts]
    if sinks is not None:
        lses.append(sinks.to(lses[0].dtype)[:, None].expand_as(lses[0]))
    total = lses[0] if len(lses) == 1 else torch.logsumexp(torch.stack(lses), 0)
    finite = torch.where(total == -torch.inf, 0.0, total)
    out = torch.zeros_like(parts[0][0])
    for part, lse in parts:
        weight = torch.exp(lse - finite)[..., None]
        out += torch.where(weight > 0, weight * part, 0.0)  # an empty part may hold anything
    return out, total
