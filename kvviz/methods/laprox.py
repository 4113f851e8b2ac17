"""LaProx (arXiv 2605.07234): attention times projected value as a product of two matrices.

    pi_j = ( sum_{i in window} p_ij^2 )^(1/2) ||v_j W_O^h||_2
    s_j  = mean over the group of pool(pi_j)

A head adds A (V W_O) to the layer's output; pi_j is the size of the rank-1 term of token j in that
product. One ranking over all layers and heads, each layer's scores divided by their sum. The norms
are taken from v G v^T with G = W_O W_O^T. Window 32, average pooling 7. No public code is known:
formula and defaults come from a third party who read the paper; the mean over the group after scoring
and the window inside the budget are decisions here [reconstructed]. Cost: Hq W n d + Hq n d^2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    columns = layer.window_scores("square", options["window"]).sqrt()
    per_head = (columns * layer.value_norms(2))[:, : layer.context]
    return Scores(
        reduce_group(pool(per_head, options), layer, options["group"]),
        raw=reduce_group(per_head, layer, options["group"]),
    )


METHOD = Method(
    id="laprox",
    label="LaProx",
    group="attention and values",
    idea="Size of a token's own term in the layer's output, compared across the whole model.",
    paper="arXiv 2605.07234",
    reads="attention of the last W queries, values, W_O",
    score=score,
    allocation="global",
    rows=(WINDOW, POOL, POOL_KIND, GROUP),
    cost="Hq W n d + Hq n d^2",
    reconstructed="the mean over the group after scoring; the window inside the budget",
    compare_with="snapkv",
)
