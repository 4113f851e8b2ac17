"""CAKE (ICLR 2025): attention and how much it varies; layers with scattered attention get more.

    s_j = mean over the group of pool( mean_i p_ij + gamma var_i p_ij ),   i in window
    P_l = H^(1 / tau1) V^(1 / tau2)
    H   = - sum over heads, window rows and context of p log(p + 1e-10)
    V   = sum over heads and context of var_i p_ij

H is a sum, not a mean, and p is not renormalised over the context; variances have W - 1 below. Layers
get budgets in proportion to P_l. Window 32, average pooling 5, gamma 200. The authors tune tau1 and
tau2 per model and budget and use 1 and 1 for others; the presets are theirs. Cost: Hq W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import GROUP, POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import NUMBER, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    mean = layer.attention_mean(options["window"])[:, : layer.context]
    entropy, variance, window = 0.0, torch.zeros_like(mean), 1
    for head, rows in enumerate(layer.attention_by_head(options["window"])):
        p, window = rows[:, : layer.context], len(rows)
        entropy -= float((p * (p + 1e-10).log_()).sum())
        if window > 1:
            variance[head] = (p - mean[head]).square_().sum(0) / (window - 1)
    per_head = mean + options["gamma"] * variance
    spread = float(variance.sum()) if window > 1 else 1.0  # one row has no variance: H decides
    weight = max(entropy, 0.0) ** (1 / options["tau1"]) * spread ** (1 / options["tau2"])
    return Scores(
        reduce_group(pool(per_head, options), layer, options["group"]),
        raw=reduce_group(per_head, layer, options["group"]),
        weight=weight,
    )


GAMMA = Option("gamma", 200.0, NUMBER, "Weight of the variance over the window's rows.", 0, 1_000_000)
TAU1 = Option("tau1", 1.0, NUMBER, "Temperature of a layer's entropy in its claim.", 0.1, 10)
TAU2 = Option("tau2", 1.0, NUMBER, "Temperature of a layer's variance in its claim.", 0.1, 10)

METHOD = Method(
    id="cake",
    label="CAKE",
    group="attention",
    idea="Attention plus its variance; layers whose attention is scattered get more.",
    paper="ICLR 2025 (code antgroup/cakekv)",
    reads="attention of the last W queries",
    score=score,
    allocation="entropy",
    rows=(WINDOW, POOL.having(5), POOL_KIND, GROUP, GAMMA, TAU1, TAU2),
    claims=True,
    presets={
        "llama31-8b-1024": {"tau1": 1.6, "tau2": 0.4},
        "llama31-8b-128": {"tau1": 1.6, "tau2": 0.6},
        "mistral-7b-1024": {"tau1": 0.8, "tau2": 0.5},
        "mistral-7b-128": {"tau1": 1.0, "tau2": 0.8},
        "qwen25-7b-1024": {"tau1": 1.5, "tau2": 0.6},
        "qwen25-7b-128": {"tau1": 0.4, "tau2": 0.6},
    },
    cost="Hq W n d",
    compare_with="snapkv",
)
