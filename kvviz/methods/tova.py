"""TOVA (arXiv 2401.06104): what the last token attends to, agreed on by the whole layer.

    s_j = mean over all query heads of p_{n-1, j}

Every KV head gets the same ranking and the last token is kept. The paper evicts one token a decoding
step; at the end of the prompt one cut is made. Cost: Hq n d.
"""

from kvviz.methods.layer import LayerView
from kvviz.methods.spec import Method, Options, Scores


def score(layer: LayerView, options: Options) -> Scores:
    values = layer.attention(1)[:, 0, : layer.context].mean(0)
    return Scores(values.expand(layer.n_kv_heads, -1))


METHOD = Method(
    id="tova",
    label="TOVA",
    idea="Keeps what the last token attends to, the same tokens in every head of a layer.",
    paper="arXiv 2401.06104",
    reads="attention of the last query",
    score=score,
    options={"window": 1},
    cost="Hq n d",
    decodes=True,
)
