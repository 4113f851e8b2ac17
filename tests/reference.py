"""Slow references written from the definitions, and prompts of any length; shared by the engine's tests.

The masked model is the plain transformers model (a second copy, equal weights) whose attention is written
out here: softmax over all keys of which, for queries after the prompt, the evicted ones are hidden at their
true positions, for each layer and KV head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from tiny import make_hf
from transformers import AttentionInterface

from kvviz.engine.trace import Trace, prefill
from kvviz.methods import list_methods
from kvviz.models import Model
from kvviz.types import QUESTION_AGNOSTIC, QUESTION_AWARE, Prompt

METHOD_IDS = [method.id for method in list_methods() if method.artefact is None]
NEEDS = ("column_sums", "hidden", "query_stats", "repeat")


def window_of(config, index: int) -> int | None:
    """Sliding window of a layer as the configuration states it."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return config.sliding_window if kinds[index] == "sliding_attention" else None
    return config.sliding_window if config.model_type in ("mistral", "phi3") else None


@dataclass
class _Hidden:
    """What the masked model may not see: keep[l] bool [B, Hkv, n] for queries at positions >= n."""

    n: int = 0
    keep: list[torch.Tensor] | None = None
    rows: dict[int, tuple] = field(default_factory=dict)  # layer -> (q, k, v, weights) of the last pass


_hidden = _Hidden()


def _masked_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    index, group = module.layer_idx, query.shape[1] // key.shape[1]
    total, offset = key.shape[2], key.shape[2] - query.shape[2]
    position = torch.arange(offset, total)[:, None]
    column = torch.arange(total)
    seen = column <= position
    window = window_of(module.config, index)
    if window is not None:
        seen = seen & (column > position - window)
    seen = seen.expand(key.shape[0], key.shape[1], -1, -1).clone()
    if _hidden.keep is not None:
        kept = _hidden.keep[index]
        if kept.dim() == 4:  # [B, Hkv, N, N]: who sees whom, query by query
            seen &= kept[:, :, offset:total, :total]
        else:
            seen[:, :, max(0, _hidden.n - offset) :, : _hidden.n] &= kept[:, :, None, :]
    seen = seen.repeat_interleave(group, 1)
    keys, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = query @ keys.transpose(2, 3) * (module.scaling if scaling is None else scaling)
    logits = logits.masked_fill(~seen, float("-inf"))
    sinks = getattr(module, "sinks", None)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(len(logits), -1, logits.shape[2], 1)
        weights = torch.cat([logits, column], -1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    _hidden.rows[index] = (query, key, value, weights)
    return (weights @ values).transpose(1, 2).contiguous(), weights


AttentionInterface.register("kvviz_test_masked", _masked_attention)


@cache
def masked_model(family: str):
    """A copy of the tiny model of `family` that attends as written above."""
    hf = make_hf(family)
    hf.config._attn_implementation = "kvviz_test_masked"
    return hf.requires_grad_(False)


@torch.no_grad()
def masked_logits(hf, input_ids: torch.Tensor, n: int, keep: list[torch.Tensor] | None) -> torch.Tensor:
    """Logits [B, N, vocabulary] of whole sequences [B, N]; keep: list over layers of bool [B, Hkv, n], or
    [B, Hkv, N, N] where what is seen changes from query to query."""
    _hidden.n, _hidden.keep = n, keep
    try:
        return hf(input_ids=input_ids, use_cache=False).logits
    finally:
        _hidden.keep = None


def attention_rows(family: str, input_ids: torch.Tensor) -> list[tuple]:
    """(q [Hq, N, d], k, v [Hkv, N, d], attention weights [Hq, N, N]) of every layer of the plain model."""
    _hidden.rows = {}
    masked_logits(masked_model(family), input_ids[None], 0, None)
    return [tuple(side[0] for side in _hidden.rows[i]) for i in range(len(_hidden.rows))]


def masks_of(selections) -> list[torch.Tensor]:
    """Kept masks of several selections as the masked model takes them."""
    return [torch.stack(rows) for rows in zip(*(s.mask for s in selections))]


def prompt_of(model: Model, n: int, suffix: int = 0, seed: int = 0) -> Prompt:
    """A prompt of n random tokens under compression and `suffix` more after them."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.hf.config.get_text_config().vocab_size
    ids = torch.randint(4, vocabulary, (n + suffix,), generator=generator)
    tokens = [model.tokenizer.decode([i]) for i in ids.tolist()]
    ends = torch.tensor([0, *map(len, tokens)]).cumsum(0).tolist()
    return Prompt(
        input_ids=ids,
        n_compressible=n,
        tokens=tokens,
        offsets=[*zip(ends[:n], ends[1 : n + 1]), *([None] * suffix)],
        document="".join(tokens[:n]),
        question="".join(tokens[n:]) or "?",
        system=None,
        protocol=QUESTION_AGNOSTIC if suffix else QUESTION_AWARE,
        document_span=(0, n),
        question_span=(n, n + suffix),
    )


def with_suffix(prompt: Prompt, token_ids: list[int]) -> Prompt:
    """The same document with other tokens after it."""
    n = prompt.n_compressible
    ids = torch.cat([prompt.input_ids[:n], torch.tensor(token_ids)])
    return Prompt(
        ids, n, prompt.tokens[:n] + ["?"] * len(token_ids), prompt.offsets[:n] + [None] * len(token_ids),
        prompt.document, "?", None, QUESTION_AGNOSTIC, (0, n), (n, n + len(token_ids)),
    )  # fmt: skip


def trace_of(model: Model, n: int, suffix: int = 0, seed: int = 0) -> Trace:
    """A trace that carries what every method needs."""
    return prefill(model, prompt_of(model, n, suffix, seed), needs=NEEDS)


def sparse_masks(model: Model, n: int, seed: int = 0) -> list[torch.Tensor]:
    """Kept masks with a different number of rows in every head; one head and one whole layer hold none."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for layer in range(model.n_layers):
        share = torch.linspace(0.1, 0.8, model.n_kv_heads)[:, None]
        masks.append(torch.rand(model.n_kv_heads, n, generator=generator) < share)
        if layer == 0:
            masks[0][0] = False
    masks[-1][:] = False
    return masks
