"""DuoAttention (arXiv 2410.10819): retrieval heads keep everything, streaming heads almost nothing.

    head (l, h) keeps its whole context as long as the budget lasts, in the order of its gate alpha_{l,h};
    every other head keeps the first `sinks` and the last `recent` tokens

Gates are learned by distillation (`kvviz.calibrate.duoattention`); heads whose gate ended equal, mostly
at 0, go by the mean of the gate over training. Defaults are the deployed ones, 64 sinks and 256 recent
tokens; where these exceed half the budget both shrink in proportion to fit it. Whole heads cannot meet a
budget exactly: the total comes as near as it can from below, and the notes say it. Cost: none when
selecting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.methods.parts import SINKS
from kvviz.methods.spec import ArtefactSpec, Method, Options, Scores
from kvviz.options import WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def streaming_tokens(b: int, options: Options) -> tuple[int, int]:
    """(recent, sinks) that every head keeps at budget b: at most b // 2 together, at least 1 recent."""
    sinks, recent = options["sinks"], options["recent"]
    half, total = b // 2, sinks + recent
    if total > half:
        sinks = half * sinks // total
        recent = half - sinks
    return max(1, recent), sinks


def score(layer: LayerView, options: Options) -> Scores:
    learned = layer.artefact("duoattention")
    # Gates lie in [0, 1]; their mean over training only decides between equal ones.
    gates = learned["gates"][layer.index] + 1e-4 * learned["path"][layer.index]
    return Scores(gates.to(layer.keys.device)[:, None].expand(-1, layer.context))


RECENT = Option("recent", 256, WHOLE, "Last tokens that are kept by rule.", 1, 4096)

METHOD = Method(
    id="duoattention",
    label="DuoAttention",
    group="learned",
    idea="Whole heads: retrieval heads, found beforehand, keep all, the others sinks and recent tokens.",
    paper="arXiv 2410.10819",
    reads="nothing of the prompt",
    score=score,
    allocation="whole_heads",
    rows=(SINKS.having(64), RECENT),
    artefact=ArtefactSpec(
        "duoattention",
        lambda info: dict.fromkeys(("gates", "path"), (info.n_layers, info.n_kv_heads)),
        steps=150,
        step_word="training steps",
    ),
    gates=True,
    cost="none; one calibration a model",
    compare_with="streaming_llm",
    protect=lambda rows, b, options: streaming_tokens(b, options),
)
