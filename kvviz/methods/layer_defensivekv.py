"""LayerDefensiveKV (arXiv 2510.13334, ICLR 2026): DefensiveKV's scores, all layers in one ranking.

    s and stage 1 as DefensiveKV;  the L Hkv (b - P) best context entries of the model are kept

Scores are compared across layers as they are; tokens of stage 1 count as much as the best of their
layer. All layers are held until the end of the prompt.
Cost: as DefensiveKV.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvviz.engine.budgets import NORMALISE
from kvviz.methods import defensivekv
from kvviz.methods.defensivekv import DIFFERS, ROWS
from kvviz.methods.spec import Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

def score(layer: LayerView, options: Options) -> Scores:
    return replace(defensivekv.score(layer, options), lifted=True)


METHOD = Method(
    id="layer_defensivekv",
    label="LayerDefensiveKV",
    group="attention and values",
    idea="DefensiveKV's scores in one ranking over all layers and heads.",
    paper="arXiv 2510.13334",
    reads="attention of the last W queries, values, W_O",
    score=score,
    allocation="global",
    rows=(*ROWS, NORMALISE.having(False)),
    cost="Hq W n d + Hq n d D",
    differs=DIFFERS,
    compare_with="snapkv",
)
