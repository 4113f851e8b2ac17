"""Q-Filters (arXiv 2503.02812): how far a key points in the direction that queries share.

    s_j = -< f, k_j >,   f one filter per KV head, k rotated

Calibration [reconstructed]: the group's rotated queries over calibration texts are stacked; their first
right singular vector u, oriented so that the mean of <q, u> is positive, is the shared direction, and
f = -u. Published filters have this orientation, hence the minus sign; `kvviz.calibrate.qfilters` checks
it against real attention and records the outcome. Nothing is protected. Cost: Hkv n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.spec import ArtefactSpec, Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    filters = layer.artefact("qfilters")["filters"][layer.index].to(layer.keys.device)
    keys = layer.keys[:, : layer.context].float()
    return Scores(-torch.einsum("hd,hnd->hn", filters, keys))


METHOD = Method(
    id="qfilters",
    label="Q-Filters",
    group="learned",
    idea="Keeps keys that point where queries usually point, found beforehand; reads no attention.",
    paper="arXiv 2503.02812",
    reads="keys",
    score=score,
    artefact=ArtefactSpec(
        "qfilters",
        lambda info: {"filters": (info.n_layers, info.n_kv_heads, info.head_dim)},
        steps=16,
        step_word="pieces of text",
    ),
    cost="Hkv n d; one calibration a model",
    reconstructed="the calibration of the filters",
    compare_with="knorm",
)
