"""Where each model family keeps what we need: layers, output projection, rotary angles, windows.

A family is one entry of `FAMILIES`, keyed by the `model_type` of its configuration. Whatever
differs between families is said there once; the rest of the project sees only `Model` and `Layer`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import Pipeline, PreTrainedModel

from kvviz.brief import brief
from kvviz.errors import ModelError
from kvviz.types import ModelInfo

_HASH_SAMPLES = 65536  # values of each weight that enter Model.weights_hash
_CAPPED_LOGITS = "it caps attention logits, and every score here is built on the plain softmax"
_SHARED_ROW = "it caches one compressed row a token for all heads, so heads cannot evict alone"
_LENGTH_AS_POSITION = "it derives a temperature from the cache's length, wrong after an eviction"


@dataclass(frozen=True)
class Family:
    """How one model family differs. Modules of transformers are `Any`: what they have is a family's own.

    decoder  the module that holds `layers` and `rotary_emb`.
    window   sliding window of a layer, given (text config, attention module); None = all keys.
    rotary   (cos, sin) of a layer, given (rotary module, attention module, x, position ids [1, T]).
    objects  a reason why a particular configuration cannot be served, or None.
    """

    model_type: str
    label: str
    window: Callable[[Any, Any], int | None]
    rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    decoder: Callable[[PreTrainedModel], Any] = lambda hf: hf.model
    objects: Callable[[Any], str | None] = lambda config: None


def _no_window(config: Any, attention: Any) -> None:
    return None


def _window_of_config(config: Any, attention: Any) -> int | None:
    return config.sliding_window  # one window for all layers


def _window_of_layer(config: Any, attention: Any) -> int | None:
    return attention.sliding_window  # None in the full-attention layers


def _rotary_shared(rotary: Any, attention: Any, x, position_ids):
    return rotary(x, position_ids)


def _rotary_of_layer_type(rotary: Any, attention: Any, x, position_ids):
    return rotary(x, position_ids, attention.layer_type)  # sliding and full layers: own RoPE base


def _rotary_half(rotary: Any, attention: Any, x, position_ids):
    # This family stores one angle per pair; attention applies it to both halves of the head.
    cos, sin = rotary(x, position_ids)
    return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def _gemma3_objects(config: Any) -> str | None:
    if config.attn_logit_softcapping:
        return _CAPPED_LOGITS
    if config.use_bidirectional_attention:
        return "its attention looks forward as well, so there is no cache to evict from"
    return None


FAMILIES: tuple[Family, ...] = (
    Family("llama", "Llama", _no_window, _rotary_shared),
    Family("mistral", "Mistral", _window_of_config, _rotary_shared),
    Family("qwen2", "Qwen2 and Qwen2.5", _window_of_layer, _rotary_shared),
    Family("qwen3", "Qwen3", _window_of_layer, _rotary_shared),
    Family("gemma3_text", "Gemma 3", _window_of_layer, _rotary_of_layer_type, objects=_gemma3_objects),
    Family(
        "gemma3",
        "Gemma 3 (with images)",
        _window_of_layer,
        _rotary_of_layer_type,
        decoder=lambda hf: hf.model.language_model,
        objects=_gemma3_objects,
    ),
    Family("phi3", "Phi-3", _window_of_config, _rotary_shared),
    Family("gpt_oss", "GPT-OSS", _window_of_layer, _rotary_half),
)

REFUSED: dict[str, str] = {
    "gemma2": _CAPPED_LOGITS,
    "deepseek_v2": _SHARED_ROW,
    "deepseek_v3": _SHARED_ROW,
    "llama4": _LENGTH_AS_POSITION,
    "llama4_text": _LENGTH_AS_POSITION,
    "gpt2": "it adds learned positions to its embeddings and has no rotary angles",
    "mamba": "it keeps a recurrent state instead of a KV cache",
    "mamba2": "it keeps a recurrent state instead of a KV cache",
    "t5": "it is an encoder-decoder model",
    "bert": "it does not generate text",
}


def family_of(config: Any, id: str) -> Family:
    """The family that serves `config`. Raises ModelError with the reason if there is none."""
    model_type = getattr(config, "model_type", None) or "unnamed"
    family = next((family for family in FAMILIES if family.model_type == model_type), None)
    if family is None:
        reason = REFUSED.get(model_type, "its attention has not been described to kvviz")
    else:
        objection = family.objects(config.get_text_config())
        if objection is None:
            return family
        reason = objection
    served = ", ".join(dict.fromkeys(f.label for f in FAMILIES if "images" not in f.label))
    raise ModelError(
        f"{id} is a {model_type} model, which kvviz cannot serve: {reason}. Served families: {served}."
    )


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer.

    attention  the transformers module, as an attention function receives it.
    window     sliding window w: a query at position i sees keys i - w < j <= i. None = all keys.
    scaling    factor on q.k before the softmax.
    """

    index: int
    attention: Any
    n_query_heads: int
    head_dim: int
    window: int | None
    scaling: float

    @property
    def w_o(self) -> torch.Tensor:
        """Output projection per query head, [Hq, d, D] in the model's dtype, a view of the weights.

        Row-vector convention: head h contributes o_h @ w_o[h]. A bias, where a family has one, is
        the same whatever is evicted and is left out.
        """
        weight = self.attention.o_proj.weight  # [D, Hq * d]
        return weight.T.view(self.n_query_heads, self.head_dim, weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Where its weights lie, and with them its keys, values and all that is computed of them."""
        return self.attention.o_proj.weight.device

    @property
    def sinks(self) -> torch.Tensor | None:
        """Learned sink logits [Hq], one more column in every softmax; None in most families."""
        return getattr(self.attention, "sinks", None)


@dataclass(frozen=True, eq=False)
class Model:
    """A served model. Made by `load_model` or `wrap_model`.

    hf        the transformers model, in eval mode, without gradients.
    lock      held while the attention implementation of `hf` is switched.
    stop_ids  tokens that end an answer: what `hf.generate` stops on (end tokens of its generation
              config) together with the tokenizer's own end token.
    notes     what a person should know about how it was loaded.
    source    the name it was loaded by, "" where it was wrapped.
    """

    hf: PreTrainedModel
    tokenizer: Any
    id: str
    info: ModelInfo
    stop_ids: frozenset[int]
    family: Family
    layers: tuple[Layer, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    source: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    __repr__ = brief

    @property
    def n_layers(self) -> int:
        return self.info.n_layers

    @property
    def n_query_heads(self) -> int:
        return self.info.n_query_heads

    @property
    def n_kv_heads(self) -> int:
        return self.info.n_kv_heads

    @property
    def head_dim(self) -> int:
        return self.info.head_dim

    @property
    def hidden_size(self) -> int:
        return self.info.hidden_size

    @property
    def group(self) -> int:
        """Query heads per KV head, g."""
        return self.info.group

    @property
    def device(self) -> torch.device:
        """Where the input ids go."""
        return next(self.hf.get_input_embeddings().parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def decoder(self) -> Any:
        """The module that holds `layers`, the embedding, the last norm and `rotary_emb`."""
        return self.family.decoder(self.hf)

    def layer(self, index: int) -> Layer:
        return self.layers[index]

    def rotary(self, index: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Angles that layer `index` applies at `positions` (LongTensor [T]).

        Returns (cos, sin), float32 [T, rotary_dim], rotary_dim <= head_dim, on the device of
        `positions`. Applied as x * cos + rotate_half(x) * sin to the first rotary_dim channels,
        where rotate_half(x) is (-second half, first half). Both carry the family's scale s (1 for
        most), so cos^2 + sin^2 = s^2, and un-rotating is (x * cos - rotate_half(x) * sin) / s^2.
        Cast to the model's dtype they are what the layer multiplies with.
        """
        attention = self.layers[index].attention
        x = torch.empty(1, dtype=torch.float32, device=positions.device)  # carries dtype and device
        with torch.no_grad():
            cos, sin = self.family.rotary(self.decoder.rotary_emb, attention, x, positions[None])
        return cos[0], sin[0]

    @cached_property
    def weights_hash(self) -> str:
        """Hex digest that tells two sets of weights apart: names, shapes, dtypes and up to 65,536
        evenly spaced values of each weight."""
        return self.weights_hash_as(None)

    def weights_hash_as(self, dtype: torch.dtype | None) -> str:
        """`weights_hash` as it would be had the same weights been loaded in another dtype."""
        digest = hashlib.sha256()
        for name, weight in self.hf.state_dict().items():
            flat = weight.detach().reshape(-1)
            step = max(1, flat.numel() // _HASH_SAMPLES)
            flat = flat[::step]
            if dtype is not None and flat.is_floating_point():
                flat = flat.to(dtype)
            digest.update(f"{name} {tuple(weight.shape)} {flat.dtype} ".encode())
            digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def wrap_model(
    hf_model: PreTrainedModel, tokenizer: Any, id: str = "model", notes: tuple[str, ...] = ()
) -> Model:
    """Describe a transformers model to kvviz; puts it in eval mode and switches gradients off.

    Raises ModelError, with the reason, for anything that is not a plain model of a served family.
    """
    _check_plain_model(hf_model, tokenizer, id)
    family = family_of(hf_model.config, id)
    config = hf_model.config.get_text_config()
    hf_model.eval().requires_grad_(False)
    # Some families declare a head size other than hidden_size / heads: what is declared goes first.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = tuple(
        Layer(
            index,
            block.self_attn,
            config.num_attention_heads,
            head_dim,
            family.window(config, block.self_attn),
            float(block.self_attn.scaling),
        )
        for index, block in enumerate(family.decoder(hf_model).layers)
    )
    _check_projections(layers, id)
    info = ModelInfo(
        id=id,
        n_layers=len(layers),
        n_query_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden_size=config.hidden_size,
        dtype=str(hf_model.dtype).removeprefix("torch."),
        windows=tuple(layer.window for layer in layers),
        max_tokens=_max_tokens(config),
    )
    return Model(hf_model, tokenizer, id, info, _stop_ids(hf_model, tokenizer), family, layers, tuple(notes))


def _check_plain_model(hf_model: Any, tokenizer: Any, id: str) -> None:
    kind = type(hf_model).__name__
    if isinstance(hf_model, Pipeline):
        raise ModelError(f"{id} is a {kind}; pass its .model and .tokenizer instead.")
    if hasattr(hf_model, "merge_and_unload") or getattr(hf_model, "_hf_peft_config_loaded", False):
        raise ModelError(f"{id} carries an adapter; merge it (merge_and_unload) and pass the result.")
    if hasattr(hf_model, "_orig_mod"):
        raise ModelError(f"{id} is a compiled model; pass the model as it was before torch.compile.")
    if not isinstance(hf_model, PreTrainedModel):
        raise ModelError(f"{id} is a {kind}; kvviz needs a transformers model.")
    if tokenizer is None:
        raise ModelError(f"{id} came without a tokenizer; kvviz needs one to read a document.")
    family_of(hf_model.config, id)
    if hf_model.get_output_embeddings() is None:
        raise ModelError(f"{id} is a {kind}, which has no language-model head to generate text with.")


def _check_projections(layers: tuple[Layer, ...], id: str) -> None:
    for layer in layers:
        weight = getattr(layer.attention.o_proj, "weight", None)
        expected = layer.n_query_heads * layer.head_dim
        if weight is None or weight.shape[-1] != expected or not weight.is_floating_point():
            raise ModelError(
                f"{id} keeps packed (quantised) attention weights; load it in float32 or bfloat16."
            )


def _max_tokens(config: Any) -> int:
    """Longest sequence whose rotary angles do not depend on its own length."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Past this length the family swaps its angles for every position, cached keys included.
        return int(rope["original_max_position_embeddings"])
    return int(config.max_position_embeddings)


def _stop_ids(hf_model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    ends = hf_model.generation_config.eos_token_id if hf_model.generation_config else None
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return frozenset(int(end) for end in [*ends, tokenizer.eos_token_id] if end is not None)
