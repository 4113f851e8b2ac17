"""CompressKV (arXiv 2508.02401, 2606.24467): what the layer's semantic retrieval heads attend to.

    s_j = mean over the chosen heads h of avgpool_5( sum_{i in window} p^h_ij ),   the same for every KV head

Semantic retrieval heads are those whose attention lies on a whole needle sentence at the steps that
produce its words (`kvviz.calibrate.compresskv`, multiplicity of repeated tokens as in the authors' code);
each layer uses its `heads` best, 4 by default: of 9 heads that is 44 percent, of the authors' 32 it was
12.5, so 1 and 2 are worth trying on small models. Window 8, inside the budget. Layer budgets (allocation
"calibrated"): floor min(32, b), cap 3 b, the rest in proportion to each layer's measured output error
when only 32 entries a head are kept; totals repaired exactly. Each head reads the keys of its own group.
Cost: heads W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.errors import InputError
from kvviz.lazy import torch
from kvviz.methods.parts import POOL, POOL_KIND, WINDOW, pool
from kvviz.methods.spec import ArtefactSpec, Method, Options, Scores
from kvviz.options import WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView
    from kvviz.models import Model


def chosen_heads(scores: torch.Tensor, count: int) -> list[int]:
    """The `count` heads of a layer with the highest retrieval score [Hq]; ties to the lower head."""
    if count > len(scores):
        raise InputError(_too_many(len(scores), count))
    return scores.sort(descending=True, stable=True).indices[:count].tolist()


def score(layer: LayerView, options: Options) -> Scores:
    learned = layer.artefact("compresskv")
    heads = chosen_heads(learned["heads"][layer.index], options["heads"])
    window = min(options["window"], layer.trace.n)
    rows = layer.attention_mean(options["window"])[heads][:, : layer.context] * window
    values = pool(rows, options).mean(0)
    return Scores(
        values.expand(layer.n_kv_heads, -1),
        raw=rows.mean(0).expand(layer.n_kv_heads, -1),
        weight=float(learned["layer_errors"][layer.index]),
    )


def _too_many(most: int, wanted: int) -> str:
    return f"CompressKV: heads is at most {most} in this model, not {wanted}."


def _fits(model: Model, options: Options) -> str:
    most, wanted = model.n_query_heads, options["heads"]
    return _too_many(most, wanted) if wanted > most else ""


HEADS = Option("heads", 4, WHOLE, "How many retrieval heads of a layer are asked.", 1, 1024)

METHOD = Method(
    id="compresskv",
    label="CompressKV",
    group="learned",
    idea="Keeps what a few retrieval heads, found beforehand, attend to; more where a layer suffers most.",
    paper="arXiv 2508.02401, 2606.24467",
    reads="attention of the last W queries in chosen heads",
    score=score,
    allocation="calibrated",
    rows=(WINDOW.having(8), POOL.having(5), POOL_KIND, HEADS),
    artefact=ArtefactSpec(
        "compresskv",
        lambda info: {"heads": (info.n_layers, info.n_query_heads), "layer_errors": (info.n_layers,)},
        steps=24,
        step_word="needle prompts",
    ),
    claims=True,
    fits=_fits,
    cost="heads W n d; one calibration a model",
    compare_with="snapkv",
)
