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
    with torch._C.DisableTorchFunction():  # no linear layer in there: `_FewRows` need not look at each call
        return attend(module.layer_idx, query, key, value).transpose(1, 2).contiguous(), None


def _mask(*args, **kwargs):
    """Our attention needs no mask; a plain forward in another thread gets the one it would have had."""
    return sdpa_mask(*args, **kwargs) if _ATTEND.get() is None else None


class _FewRows(TorchFunctionMode):
    """Linear layers of a CPU model on few rows, as in decoding, go where they are fastest.

    The BLAS that torch calls in float32 is far from the memory's speed there (measured on an AMD with
    AVX-512: 2 to 6 times slower than oneDNN between 1 and 64 rows). Only what this thread calls while
    the mode is open is seen; the model is not touched.
    """

    MOST = 128

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs:
            rows, weight, *bias = args
            if rows.numel() <= self.MOST * rows.shape[-1] and can_use_onednn(rows, weight):
                product = project(rows, weight)
                return product if not bias or bias[0] is None else product.add_(bias[0])
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
            with nullcontext() if gradients or model.device.type != "cpu" else _FewRows():
                return model.hf(
                    input_ids=input_ids.to(model.device),
                    position_ids=positions.to(model.device),
                    use_cache=False,
                    logits_to_keep=logits_to_keep,
                ).logits
        finally:
            config._attn_implementation = before
            _ATTEND.reset(token)
