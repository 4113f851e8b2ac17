"""Reading a text through the frozen model, with every layer's queries, keys and inputs shown."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvviz.engine.attention import causal_attention
from kvviz.engine.forward import forward
from kvviz.engine.observers import watch_inputs
from kvviz.types import QUESTION_AGNOSTIC, Prompt

# see(layer, hidden [n, D], query [Hq, n, d], key [Hkv, n, d]): rotated, in the model's dtype
See = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


def read_through(model, ids: torch.Tensor, see: See) -> None:
    """One forward pass over token ids [n]."""
    inputs: dict[int, torch.Tensor] = {}

    def attend(index, query, key, value):
        see(index, inputs.pop(index), query[0], key[0])
        return causal_attention(query[0], key[0], value[0], model.layer(index), 0)[None]

    with watch_inputs(model, lambda index, hidden: inputs.__setitem__(index, hidden[0])):
        forward(model, ids[None].to(model.device), torch.arange(len(ids))[None], attend, logits_to_keep=1)


def plain_prompt(model, ids: torch.Tensor, n: int) -> Prompt:
    """Token ids as a prompt of which the first n are compressible and the rest come later."""
    tokens = [model.tokenizer.decode([t]) for t in ids.tolist()]
    return Prompt(
        input_ids=ids,
        n_compressible=n,
        tokens=tokens,
        offsets=[None] * len(ids),
        document="",
        question="",
        system=None,
        protocol=QUESTION_AGNOSTIC,
        document_span=(0, n),
        question_span=(n, len(ids)),
    )
