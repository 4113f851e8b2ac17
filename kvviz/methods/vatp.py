"""VATP (arXiv 2406.12335): attention times the size of the value.

    s_j = (mean over the group of S_j) ||v_j||_1

S is an attention score: `base="window"`, the mean over the last W queries (default), or `base="h2o"`,
the accumulated attention of all queries. The first 20 tokens are
kept whatever they score, since the values of attention sinks are tiny [reconstructed, as is the mean
over the group]. No pooling. Cost: Hq W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import GROUP, POOL, POOL_KIND, SINKS, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    if options["base"] == "h2o":
        attention = layer.extra("column_sums")[:, layer.first_position :]
    else:
        attention = layer.attention_mean(options["window"])
    sizes = layer.values[:, : layer.context].float().norm(1, dim=-1)
    raw = reduce_group(attention[:, : layer.context], layer, options["group"]) * sizes
    return Scores(pool(raw, options), raw=raw)


BASE = Option("base", "window", CHOICE, "Whose attention is read.", choices=("window", "h2o"))

METHOD = Method(
    id="vatp",
    label="VATP",
    group="attention and values",
    idea="Attention times the size of the value.",
    paper="arXiv 2406.12335",
    reads="attention of the last W queries, values",
    score=score,
    needs_by={("base", "h2o"): frozenset({"column_sums"})},
    rows=(WINDOW, POOL, POOL_KIND.having("none"), GROUP, SINKS.having(20), BASE),
    cost="Hq W n d",
    reconstructed="the first 20 tokens kept, the window of the default base, the mean over the group",
    compare_with="snapkv",
)
