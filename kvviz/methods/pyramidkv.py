"""PyramidKV (arXiv 2406.02069): SnapKV's scores, more budget for lower layers.

    s as SnapKV;  budget of layer l falls linearly from the first layer to the last

The last layer gets (b - P) / beta context entries, the first one what keeps the mean at b - P; heads
of a layer share alike. Where kvpress falls back to equal budgets at strong compression (its window
would not fit in the last layer), the pyramid is kept here, because the window is accounted apart; preset
`kvpress` counts the window in and falls back like it.
Defaults window 64, average pooling 5, beta 20, as in both public codes. Cost: as SnapKV.
"""

from __future__ import annotations

from kvviz.engine.budgets import BETA
from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW
from kvviz.methods.snapkv import score
from kvviz.methods.spec import Method

METHOD = Method(
    id="pyramidkv",
    label="PyramidKV",
    group="attention",
    idea="SnapKV's scores; lower layers keep more than higher ones.",
    paper="arXiv 2406.02069",
    reads="attention of the last W queries",
    score=score,
    allocation="pyramid",
    rows=(WINDOW.having(64), POOL.having(5), POOL_KIND, GROUP, BETA),
    presets={"kvpress": {"window": 64, "pool": 5, "pool_kind": "avg", "protect": 64, "pyramid_of": "budget"}},
    cost="Hq W n d",
    compare_with="snapkv",
)
