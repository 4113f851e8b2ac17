"""CriticalKV over AdaKV's head budgets (arXiv 2502.03805).

    head budgets B_h by AdaKV's rule on the base scores (same safeguard)
    inside each head: stage 1 the floor(stage1 B_h) best by s, stage 2 by (s + epsilon) nu

Compared with its own base, AdaKV. Paper settings window 32, pooling 7 [reconstructed].
Cost: as CriticalKV.
"""

from __future__ import annotations

from kvviz.methods.criticalkv import KVPRESS, ROWS, score
from kvviz.methods.spec import Method

METHOD = Method(
    id="critical_adakv",
    label="CriticalAdaKV",
    group="attention and values",
    idea="CriticalKV inside the head budgets that AdaKV gives.",
    paper="arXiv 2502.03805",
    reads="attention of the last W queries, values, W_O",
    score=score,
    allocation="across_heads",
    rows=ROWS,
    presets={"kvpress": {**KVPRESS, "safeguard_of": "budget"}},
    cost="Hq W n d + Hq n d D",
    reconstructed="the paper's window 32 and pooling 7; the printed form of the bound",
    differs="window tokens are kept by rule, where kvpress may lose some at small budgets",
    compare_with="adakv",
)
