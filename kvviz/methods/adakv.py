"""AdaKV (arXiv 2407.11550): SnapKV's scores, budgets shared among the heads of a layer.

    s as SnapKV;  heads compete: the Hkv (b - P) best context entries of the layer are kept

Every head keeps at least floor(safeguard (b - P)) of its own best (`rule="floor"`, as in kvpress). The
authors' code blends with the uniform split instead (`rule="interpolate"`), rounded here so that totals
stay exact. Defaults 32 and average 7 as this project's SnapKV, so that the two differ in allocation only;
preset `authors`: maximum pooling 7, interpolation; `kvpress`: 64 and
average 5, the floor a share of the whole budget, window inside. Cost: as SnapKV.
"""

from __future__ import annotations

from kvviz.methods.snapkv import ROWS, score
from kvviz.methods.spec import Method

METHOD = Method(
    id="adakv",
    label="AdaKV",
    group="attention",
    idea="SnapKV's scores; heads of a layer compete for one budget.",
    paper="arXiv 2407.11550",
    reads="attention of the last W queries",
    score=score,
    allocation="across_heads",
    rows=ROWS,
    presets={
        "authors": {"window": 32, "pool": 7, "pool_kind": "max", "rule": "interpolate"},
        "kvpress": {
            "window": 64,
            "pool": 5,
            "pool_kind": "avg",
            "protect": 64,
            "rule": "floor",
            "safeguard_of": "budget",
        },
    },
    cost="Hq W n d",
    compare_with="snapkv",
)
