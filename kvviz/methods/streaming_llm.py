"""StreamingLLM (arXiv 2309.17453): attention sinks and the most recent tokens.

    keep j < sinks, then the latest positions

The paper re-rotates keys to their place in the cache; here, as in kvpress, keys keep their true
positions. Nothing but positions is read. Cost: none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import SINKS
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    position = torch.arange(layer.context, dtype=torch.float32, device=layer.keys.device)
    return Scores(position.expand(layer.n_kv_heads, -1))


METHOD = Method(
    id="streaming_llm",
    label="StreamingLLM",
    group="position",
    idea="Keeps the first tokens (attention sinks) and the most recent ones.",
    paper="arXiv 2309.17453",
    reads="positions",
    score=score,
    rows=(SINKS,),
    cost="none",
    decodes=True,
    protect=lambda rows, b, options: 1,  # the latest token; the others follow by their score
)
