"""Knorm (arXiv 2406.11430): keys of small norm are attended most.

    s_j = -||k_j||_2

RoPE preserves the norm, so the rotated keys of the cache serve. No window, no sinks protected. The paper
also leaves the first layers whole [reconstructed]; that is not done here. In models that normalise keys
(Qwen3, Gemma 3) the norms are nearly constant and the ranking means little. Cost: n d per KV head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    return Scores(-layer.keys[:, : layer.context].float().norm(dim=-1))


METHOD = Method(
    id="knorm",
    label="Knorm",
    group="keys",
    idea="Keeps keys of small norm.",
    paper="arXiv 2406.11430",
    reads="keys",
    score=score,
    cost="n d per KV head",
    decodes=True,
)
