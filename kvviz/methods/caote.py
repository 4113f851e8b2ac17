"""CAOTE (arXiv 2504.14051): the exact change of the output when one token goes.

    c_j = alpha_j / (1 - alpha_j) ||o - v_j||_2,   o = sum alpha_j v_j,   alpha sums to 1

alpha is the attention score of a base method, `base`: "snapkv" (mean over the last W queries),
"tova" (the last query, mean over all heads), "h2o" (accumulated over all queries), or
"queries" (each of the last W queries has its own alpha and its own c; their mean counts). With
`fast` (FastCAOTE) the plain mean of the values stands for o. Scored per query head, then the mean
over the group [reconstructed]; no pooling. The paper evicts one token a decoding step and scores
again; at the end of the prompt one cut is made. Cost: 2 Hq n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods import removal
from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

BASE = Option(
    "base",
    "snapkv",
    CHOICE,
    "Whose attention score alpha is.",
    choices=("snapkv", "tova", "h2o", "queries"),
)
FAST = Option("fast", False, SWITCH, "The plain mean of the values stands for the output (FastCAOTE).")


def score(layer: LayerView, options: Options) -> Scores:
    if options["base"] == "queries":
        queries = layer.queries(options["window"]).shape[1]
        per_head = layer.window_scores("caote", options["window"]) / queries
    else:
        heads = enumerate(_alpha(layer, options))
        per_head = torch.stack(
            [_errors(alpha, layer.values[head // layer.group], options["fast"]) for head, alpha in heads]
        )
    per_head = per_head[:, : layer.context]
    return Scores(
        reduce_group(pool(per_head, options), layer, options["group"]),
        raw=reduce_group(per_head, layer, options["group"]),
    )


def _alpha(layer: LayerView, options: Options) -> torch.Tensor:
    """The base method's attention, one distribution a query head: [Hq, n]."""
    if options["base"] == "h2o":
        alpha = layer.extra("column_sums")[:, layer.first_position :]
    elif options["base"] == "tova":
        last = layer.attention(1)[:, 0]
        alpha = last.mean(0, keepdim=True).expand_as(last)
    else:
        alpha = layer.attention_mean(options["window"])
    return alpha / alpha.sum(-1, keepdim=True)


def _errors(alpha: torch.Tensor, values: torch.Tensor, fast: bool) -> torch.Tensor:
    rows = removal.rows_of(alpha[None], values)
    if not fast:
        return removal.removals(rows)
    distances = rows.values.norm(dim=-1)  # values minus their mean
    leaders = rows.lead / rows.rest.clamp_min(1e-30) * distances[rows.top]
    return rows.add_leaders((rows.others / (1 - rows.others) * distances).sum(0), leaders)


def _conflict(options: Options) -> str:
    alone = options["fast"] and options["base"] == "queries"
    return "fast goes with base snapkv, tova or h2o." if alone else ""


METHOD = Method(
    id="caote",
    label="CAOTE",
    group="attention and values",
    idea="The exact change of the output when one token goes.",
    paper="arXiv 2504.14051",
    reads="attention of the last W queries, values",
    score=score,
    needs_by={("base", "h2o"): frozenset({"column_sums"})},
    rows=(WINDOW, POOL, POOL_KIND.having("none"), GROUP, BASE, FAST),
    conflict=_conflict,
    cost="Hq W n d + 2 Hq n d",
    reconstructed="the mean over the group",
    compare_with="snapkv",
)
