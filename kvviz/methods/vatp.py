"""VATP (arXiv 2406.12335): attention times the size of the value.

    s_j = (mean over the group of S_j) ||v_j||_1

S is an attention score: `base="window"`, the mean over the last W queries (default), or `base="h2o"`,
the accumulated attention of all queries. The first 20 tokens are
kept whatever they score, since the values of attention sinks are tiny [reconstructed, as is the mean
over the group]. No pooling. Cost: Hq W n d.
"""

from kvviz.errors import InputError
from kvviz.methods.layer import LayerView
from kvviz.methods.parts import pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores


def score(layer: LayerView, options: Options) -> Scores:
    if options["base"] == "h2o":
        attention = layer.extra("column_sums")[:, layer.first_position :]
    elif options["base"] == "window":
        attention = layer.attention_mean(options["window"])
    else:
        raise InputError(f"VATP: base is one of window, h2o, not {options['base']!r}.")
    sizes = layer.values[:, : layer.context].float().norm(1, dim=-1)
    raw = reduce_group(attention[:, : layer.context], layer, options["group"]) * sizes
    return Scores(pool(raw, options), raw=raw)


METHOD = Method(
    id="vatp",
    label="VATP",
    idea="Attention times the size of the value.",
    paper="arXiv 2406.12335",
    reads="attention of the last W queries, values",
    score=score,
    needs_by={("base", "h2o"): frozenset({"column_sums"})},
    options={
        "window": 32,
        "pool": 7,
        "pool_kind": "none",
        "group": "mean",
        "sinks": 20,
        "base": "window",
    },
    cost="Hq W n d",
    reconstructed="the first 20 tokens kept, the window of the default base, the mean over the group",
    compare_with="snapkv",
)
