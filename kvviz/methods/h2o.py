"""H2O (arXiv 2306.14048): heavy hitters, the tokens that all queries together attended to most.

    s_j = mean over the group of sum_{i >= j} p_ij

Half of the budget goes to the most recent tokens and half to the heavy hitters [reconstructed]. The
sum favours early tokens, which more queries can see; `normalised` divides by the number of queries
that see j, as in kvpress. The paper evicts greedily while decoding; at the end of the prompt one cut
is made. Presets `kvcache_factory` (64 recent tokens), `kvpress` (normalised, nothing recent).
Cost: the attention of all queries, Hq n^2 d, by blocks of rows while the prompt is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    sums = layer.extra("column_sums")[:, layer.first_position :]
    if options["normalised"]:
        seen_by = layer.seen_by()
        sums = sums / (seen_by if seen_by.dim() == 1 else seen_by.repeat_interleave(layer.group, 0))
    return Scores(reduce_group(sums[:, : layer.context], layer))


NORMALISED = Option("normalised", False, SWITCH, "Divide by how many queries could see the token.")

METHOD = Method(
    id="h2o",
    label="H2O",
    group="attention",
    idea="Keeps what all queries together attended to most, and the recent half.",
    paper="arXiv 2306.14048",
    reads="attention of all queries",
    score=score,
    needs=frozenset({"column_sums"}),
    rows=(NORMALISED,),
    presets={
        "kvcache_factory": {"protect": 64},
        "kvpress": {"normalised": True, "protect": 0},
    },
    cost="Hq n^2 d while reading",
    reconstructed="the split into half recent and half heavy hitters",
    decodes=True,
    protect=lambda rows, b, options: b // 2,
)
