"""One forward pass of the model with attention of our own.

The model's own code runs, and calls back `attend(layer, query, key, value)` where it would call its
attention. This goes through transformers' attention interface for the length of one call: the choice is
put back afterwards, and no hook or attribute stays on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvviz.engine.products import FEW, linear_layers, products_of
from kvviz.kernels.product import can_use_onednn, project
from kvviz.models import Model

# attend(layer index, query [B, Hq, T, d], key [B, Hkv, T, d], value [B, Hkv, T, d]) -> [B, Hq, T, d].
# Keys and values are those of the T new tokens only; rotation is already applied.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_ATTEND: ContextVar[Attend | None] = ContextVar("kvviz_attend", default=None)
_NAME = "kvviz"


def _attention(module, query, key, value, attention_mask, **kwargs):
    attend = _ATTEND.get()
    if attend is None:  # another thread runs the same model while our choice is set
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return attend(module.layer_idx, query, key, value).transpose(1, 2).contiguous(), None


def _mask(*args, **kwargs):
    """Our attention needs no mask; a plain forward in another thread gets the one it would have had."""
    return sdpa_mask(*args, **kwargs) if _ATTEND.get() is None else None


@contextmanager
def _linear_layers(model: Model) -> Iterator[None]:
    """While open, linear layers of a CPU model go where `products` found them fastest, with their rows in one
    piece.

    On rows that are not (the last of each sequence, before the output layer) torch multiplies one sequence
    after the other, in bfloat16 with a copy of the weight for each: gigabytes where the vocabulary is large.

    Each layer gets a `forward` of its own for that long; another thread that comes meanwhile gets the same
    results. (To watch every operation instead costs a tenth of a decoding step.)
    """
    onednn = products_of(model).onednn
    layers = [layer for layer in linear_layers(model) if "forward" not in layer.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = partial(_linear, layer, onednn)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _linear(layer: torch.nn.Linear, onednn: frozenset, rows: torch.Tensor) -> torch.Tensor:
    rows, weight, bias = rows.contiguous(), layer.weight, layer.bias
    few = rows.numel() <= FEW * rows.shape[-1]
    if (*weight.shape, few) in onednn and can_use_onednn(rows, weight):
        product = project(rows, weight)
        return product if bias is None else product.add_(bias)
    return F.linear(rows, weight, bias)


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _mask)


def forward(
    model: Model,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    attend: Attend,
    logits_to_keep: int = 0,
    gradients: bool = False,
) -> torch.Tensor:
    """Logits [B, T', V] for token ids [B, T] at true positions [B, T]; T' = logits_to_keep, 0 = all T.

    gradients  let them flow through what `attend` computes (calibration); the weights stay frozen.
    """
    config = model.hf.config
    with model.lock, torch.set_grad_enabled(gradients):
        before = config._attn_implementation
        token = _ATTEND.set(attend)
        try:
            config._attn_implementation = _NAME
            plain = gradients or model.device.type != "cpu"
            with nullcontext() if plain else _linear_layers(model):
                return model.hf(
                    input_ids=input_ids.to(model.device),
                    position_ids=positions.to(model.device),
                    use_cache=False,
                    logits_to_keep=logits_to_keep,
                ).logits
        finally:
            config._attn_implementation = before
            _ATTEND.reset(token)
