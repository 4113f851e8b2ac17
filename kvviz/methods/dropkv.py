"""DropKV (NeurIPS 2026, code AozhongZhang/DropKV): the squared error of dropping one token.

    s_j = pool( mean over the group of sum_{i in window} (p_ij / (1 - p_ij + epsilon))^2 ||v_j - o_i||^2 )

Each term is the exact squared change of query i's output when j alone is dropped (epsilon apart); the
projection W_O is left out. Choosing the best set is NP-hard; the paper proves single scores to be
within a constant factor when the errors of the dropped tokens lie in a cone [reconstructed].

Three published settings differ: `paper` (8 queries, maximum pooling 11, over the context
[reconstructed]), `authors` (8, average 11, over all tokens), `kvpress` (32, average 7, over all
tokens). In the authors' code p is rounded to the model's dtype first, which moves attention sinks by
orders of magnitude (in bfloat16 a p above 0.998 becomes 1, and its weight 1e12): `match_dtype` does
the same; without it all is float32. Cost: 4 Hq W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods import removal
from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, NUMBER, SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    if options["match_dtype"]:
        per_head = _rounded(layer, options)
    else:
        per_head = layer.window_scores("dropkv", options["window"], options["epsilon"])
    raw = reduce_group(per_head, layer, options["group"])
    if options["pool_over"] == "context":
        raw = raw[:, : layer.context]
    return Scores(pool(raw, options)[:, : layer.context], raw=raw[:, : layer.context])


def _rounded(layer: LayerView, options: Options) -> torch.Tensor:
    """The scores with p in the model's dtype before it is weighed, float32 [Hq, n]."""
    heads = []
    for rows in layer.window_rows(options["window"]):
        p = rows.others.scatter(-1, rows.top[:, None], rows.lead[:, None]).to(layer.keys.dtype).float()
        weights = (p / (1 - p + options["epsilon"])).square()
        heads.append(removal.weighted_distances(weights, rows))
    return torch.stack(heads)[:, layer.first_position :]


POOL_OVER = Option(
    "pool_over",
    "context",
    CHOICE,
    "Whether tokens of the window take part in pooling.",
    choices=("context", "all"),
)
EPSILON = Option("epsilon", 1e-6, NUMBER, "Keeps 1 - p above zero.", 0, 1)
MATCH_DTYPE = Option("match_dtype", False, SWITCH, "Round p to the model's dtype first, as the authors do.")

METHOD = Method(
    id="dropkv",
    label="DropKV",
    group="attention and values",
    idea="The exact squared change of the recent queries' outputs when one token is dropped.",
    paper="NeurIPS 2026 (code AozhongZhang/DropKV)",
    reads="attention of the last W queries, values",
    score=score,
    rows=(
        WINDOW.having(8), POOL.having(11), POOL_KIND.having("max"), POOL_OVER, GROUP, EPSILON, MATCH_DTYPE,
    ),
    presets={
        "paper": {"window": 8, "pool": 11, "pool_kind": "max", "pool_over": "context"},
        "authors": {"window": 8, "pool": 11, "pool_kind": "avg", "pool_over": "all", "protect": 8},
        "kvpress": {"window": 32, "pool": 7, "pool_kind": "avg", "pool_over": "all", "protect": 32},
    },
    cost="4 Hq W n d",
    reconstructed="the paper's maximum pooling (its code averages); the exact cone condition",
    compare_with="snapkv",
)
