"""LayerDefensiveKV (arXiv 2510.13334, ICLR 2026): DefensiveKV's scores, all layers in one ranking.

    s and stage 1 as DefensiveKV;  the L Hkv (b - P) best context entries of the model are kept

Scores are compared across layers as they are. All layers are held until the end of the prompt.
Cost: as DefensiveKV.
"""

from __future__ import annotations

from kvviz.engine.budgets import NORMALISE
from kvviz.methods.defensivekv import ROWS, score
from kvviz.methods.spec import Method

METHOD = Method(
    id="layer_defensivekv",
    label="LayerDefensiveKV",
    idea="DefensiveKV's scores in one ranking over all layers and heads.",
    paper="arXiv 2510.13334",
    reads="attention of the last W queries, values, W_O",
    score=score,
    allocation="global",
    rows=(*ROWS, NORMALISE.having(False)),
    cost="Hq W n d + Hq n d D",
    compare_with="snapkv",
)
