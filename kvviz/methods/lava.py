"""LAVa (arXiv 2509.09754): one score that compares heads and layers alike.

    s_j = max over the group of pool( mean_{i in window} p_ij ) max_k ||v_k||_1
    e_l = - sum q log q / log(Hkv C),   q = the layer's scores divided by their sum

The largest value norm of a head (over the context) scales all its scores, so heads of a layer can
compete; layers get budgets in proportion to their entropy e_l. The authors re-budget and evict again
after every layer, to hold less at once; the final shares are the same and are given at once here.
A layer's heads get
(1 - safeguard) of what they hold of its best plus safeguard of the even split, as in the authors' code,
rounded here so that totals stay exact. Window 32, maximum pooling 7. Cost: Hq W n d.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvviz.engine.budgets import RULE
from kvviz.lazy import torch
from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    attention = layer.attention_mean(options["window"])[:, : layer.context]
    sizes = layer.values[:, : layer.context].float().norm(1, dim=-1)  # [Hkv, C]
    largest = sizes.amax(-1, keepdim=True) if layer.context else sizes.new_zeros(len(sizes), 1)
    values = reduce_group(pool(attention, options), layer, options["group"]) * largest
    raw = reduce_group(attention, layer, options["group"]) * largest
    return Scores(values, raw=raw, weight=entropy(values))


def entropy(scores: torch.Tensor) -> float:
    """Entropy of the scores as shares of their sum, from 0 (one entry has all) to 1 (all equal)."""
    if scores.numel() < 2:
        return 1.0
    shares = scores.flatten() / scores.sum().clamp_min(torch.finfo(scores.dtype).tiny)
    return -float(torch.xlogy(shares, shares).sum()) / math.log(scores.numel())


METHOD = Method(
    id="lava",
    label="LAVa",
    group="attention and values",
    idea="Attention scaled by a head's largest value; layers with even scores get more.",
    paper="arXiv 2509.09754",
    reads="attention of the last W queries, values",
    score=score,
    allocation="entropy_heads",
    rows=(WINDOW, POOL, POOL_KIND.having("max"), GROUP.having("max"), RULE.having("interpolate")),
    claims=True,
    cost="Hq W n d",
    differs="the even share is of a layer's final budget; the code keeps its first one (a misspelt name)",
    compare_with="snapkv",
)
