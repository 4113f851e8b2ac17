"""KeyDiff (arXiv 2504.15364): keep the keys that differ most from the average direction.

    anchor = mean_j k_j / ||k_j||,   s_j = -cos(k_j, anchor)

Per KV head, over all n keys; the anchor is not normalised again before the mean. No query is read.
The paper applies it block by block while prefilling; here it is applied once to the whole prompt.
Cost: 2 n d per KV head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    keys = layer.keys.float()
    anchor = torch.nn.functional.normalize(keys, dim=-1).mean(1, keepdim=True)
    return Scores(-torch.cosine_similarity(keys[:, : layer.context], anchor, dim=-1))


METHOD = Method(
    id="keydiff",
    label="KeyDiff",
    group="keys",
    idea="Keeps keys whose direction differs from the average key.",
    paper="arXiv 2504.15364",
    reads="keys",
    score=score,
    cost="2 n d per KV head",
    decodes=True,
)
