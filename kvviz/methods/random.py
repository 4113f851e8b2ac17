"""Random: the control that every method must beat.

    s_j ~ U(0, 1), independent for every entry

Nothing is protected, sinks included. One seed gives a different pattern in every layer and head.
Cost: none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    seed = (options["seed"] * 100_003 + layer.index) % 2**63
    generator = torch.Generator().manual_seed(seed)
    # Drawn for all n rows and then cut, so that the pattern does not move with the context's length.
    values = torch.rand(layer.n_kv_heads, layer.n, generator=generator)
    return Scores(values[:, : layer.context].to(layer.keys.device))


METHOD = Method(
    id="random",
    label="Random",
    group="controls",
    idea="Keeps entries at random: the control.",
    paper="none (control)",
    reads="nothing",
    score=score,
    rows=(Option("seed", 0, WHOLE, "Another number, another pattern."),),
    cost="none",
)
