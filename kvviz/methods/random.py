"""Random: the control that every method must beat.

    s_j ~ U(0, 1), independent for every entry

Nothing is protected, sinks included. One seed gives a different pattern in every layer and head.
Cost: none.
"""

import torch

from kvviz.methods.layer import LayerView
from kvviz.methods.spec import Method, Options, Scores


def score(layer: LayerView, options: Options) -> Scores:
    generator = torch.Generator().manual_seed(options["seed"] * 100_003 + layer.index)
    # Drawn for all n rows and then cut, so that the pattern does not move with the context's length.
    values = torch.rand(layer.n_kv_heads, layer.n, generator=generator)
    return Scores(values[:, : layer.context].to(layer.keys.device))


METHOD = Method(
    id="random",
    label="Random",
    idea="Keeps entries at random: the control.",
    paper="none (control)",
    reads="nothing",
    score=score,
    options={"seed": 0},
    cost="none",
)
