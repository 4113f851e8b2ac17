"""One forward pass of the model with attention of our own.

The model's own code runs, and calls back `attend(layer, query, key, value)` where it would call its
attention. This goes through transformers' attention interface for the length of one call: the choice is
put back afterwards, and no hook or attribute stays on the model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvviz.engine.products import FEW, Products, products_of
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
    with torch._C.DisableTorchFunction():  # no linear layer in there: `_Linear` need not look at each call
        return attend(module.layer_idx, query, key, value).transpose(1, 2).contiguous(), None


def _mask(*args, **kwargs):
    """Our attention needs no mask; a plain forward in another thread gets the one it would have had."""
    return sdpa_mask(*args, **kwargs) if _ATTEND.get() is None else None


class _Linear(TorchFunctionMode):
    """Linear layers of a CPU model go where `products` found them fastest, with their rows in one piece.

    On rows that are not (the last of each sequence, before the output layer) torch multiplies one sequence
    after the other, in bfloat16 with a copy of the weight for each: gigabytes where the vocabulary is large.

    Only what this thread calls while the mode is open is seen; the model is not touched.
    """

    def __init__(self, products: Products):
        super().__init__()
        self.products = products

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs:
            rows, weight, *bias = args
            rows = rows.contiguous()
            few = rows.numel() <= FEW * rows.shape[-1]
            if (*weight.shape, few) in self.products.onednn and can_use_onednn(rows, weight):
                product = project(rows, weight)
                return product if not bias or bias[0] is None else product.add_(bias[0])
            return func(rows, weight, *bias)
        return func(*args, **(kwargs or {}))


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
            with nullcontext() if plain else _Linear(products_of(model)):
                return model.hf(
                    input_ids=input_ids.to(model.device),
                    position_ids=positions.to(model.device),
                    use_cache=False,
                    logits_to_keep=logits_to_keep,
                ).logits
        finally:
            config._attn_implementation = before
            _ATTEND.reset(token)
