"""SnapKV (arXiv 2404.14469): what the last W queries attend to.

    s_j = mean over the group of pool( mean_{i in window} p_ij ),   p = softmax over all keys, causal

The window itself is kept. Defaults are the field's later common setting, window 32 and average pooling 7;
presets `paper` (window 16, maximum pooling 7 [reconstructed]), `kvpress` (64, average 5, the
whole window kept). Original
caches are per query head; with grouped queries one score per KV head is used, as in kvpress.
Cost: Hq W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    raw = layer.attention_mean(options["window"])[:, : layer.context]
    return Scores(
        reduce_group(pool(raw, options), layer, options["group"]),
        raw=reduce_group(raw, layer, options["group"]),
    )


ROWS = (WINDOW, POOL, POOL_KIND, GROUP)

METHOD = Method(
    id="snapkv",
    label="SnapKV",
    group="attention",
    idea="Keeps what the last queries of the prompt attend to.",
    paper="arXiv 2404.14469",
    reads="attention of the last W queries",
    score=score,
    rows=ROWS,
    presets={
        "paper": {"window": 16, "pool": 7, "pool_kind": "max"},
        "kvpress": {"window": 64, "pool": 5, "pool_kind": "avg", "protect": 64},
    },
    cost="Hq W n d",
    decodes=True,
)
