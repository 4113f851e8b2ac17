"""TOVA (arXiv 2401.06104): what the last token attends to, agreed on by the whole layer.

    s_j = mean over all query heads of p_{n-1, j}

Every KV head gets the same ranking and the last token is kept. The paper evicts one token a decoding
step; at the end of the prompt one cut is made. Cost: Hq n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    values = layer.attention(1)[:, 0, : layer.context].mean(0)
    return Scores(values.expand(layer.n_kv_heads, -1))


# Called the window once; but what scores is always one query.
RECENT = Option(
    "recent", 1, WHOLE, "Last tokens that are kept by rule.", 1, 4096, scoring=False, formerly="window"
)

METHOD = Method(
    id="tova",
    label="TOVA",
    group="attention",
    idea="Keeps what the last token attends to, the same tokens in every head of a layer.",
    paper="arXiv 2401.06104",
    reads="attention of the last query",
    score=score,
    rows=(RECENT,),
    cost="Hq n d",
    decodes=True,
    protect=lambda rows, b, options: options["recent"],
)
