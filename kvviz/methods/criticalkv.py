"""CriticalKV (arXiv 2502.03805): bound the change of the head's output, in two stages.

    nu_j = mean over the group of ||v_j W_O^h||_1
    stage 1: the floor(stage1 (b - W')) best by the base score s (SnapKV's)
    stage 2: fill up by (s_j + epsilon) nu_j

With A_j = p_j nu_j, the L1 change of the output is at most sum A - (2 - 1/sigma) sum_kept A, where sigma
is the attention mass kept: stage 1 is there to push sigma above 1/2, so that keeping a large A helps.
kvpress also multiplies the window's forced scores and so may lose window tokens where stage 1 does not
hold them all; here protected tokens are kept by rule, also in preset `kvpress`, whose stage 1 is half of
the whole budget, window inside (`stage1_of`). Paper settings window 32, pooling 7 [reconstructed]. Cost:
Hq n d D for nu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import reduce_group
from kvviz.methods.snapkv import ROWS as BASE_ROWS
from kvviz.methods.snapkv import score as base_score
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, NUMBER, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    base = base_score(layer, options)
    nu = reduce_group(layer.value_norms(1), layer)[:, : layer.context]
    return Scores(base.values, raw=base.raw, second=(base.values + options["epsilon"]) * nu)


STAGE1 = Option(
    "stage1", 0.5, NUMBER, "Share of the context's budget that goes by attention alone.", 0, 1, scoring=False
)
EPSILON = Option("epsilon", 1e-4, NUMBER, "Added to the attention before it is multiplied.", 0, 1)
STAGE1_OF = Option(
    "stage1_of",
    "context",
    CHOICE,
    "What stage 1 is a share of: the context's budget, or all of it with what is kept by rule inside.",
    choices=("context", "budget"),
    scoring=False,
)
ROWS = (*BASE_ROWS, STAGE1, STAGE1_OF, EPSILON)
KVPRESS = {"window": 64, "pool": 5, "pool_kind": "avg", "protect": 64, "stage1_of": "budget"}

METHOD = Method(
    id="criticalkv",
    label="CriticalKV",
    group="attention and values",
    idea="Half by attention, half by attention times the size of the projected value.",
    paper="arXiv 2502.03805",
    reads="attention of the last W queries, values, W_O",
    score=score,
    rows=ROWS,
    presets={"kvpress": KVPRESS},
    cost="Hq W n d + Hq n d D",
    reconstructed="the paper's window 32 and pooling 7; the printed form of the bound",
    differs="window tokens are kept by rule, where kvpress may lose some at small budgets",
    compare_with="snapkv",
)
