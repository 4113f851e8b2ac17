"""Tiny random models of every served family and a byte-level tokenizer, built in milliseconds.

Weights are scaled so that attention is neither uniform nor one-hot, and head size and hidden size
are independent where a family allows it. Seeds are fixed: two builds are equal.
"""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from kvviz.models import Model, wrap_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = [
    "The keeper of the lighthouse wrote the weather and the code in the ledger every evening.",
    "What is the code of the door? The answer is in the document, and the number is 58213.",
]


def make_tokenizer(
    template: str | None = CHATML, adds_bos: bool = False, bos: str | None = "<s>"
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of about 320 entries; adds_bos: put `<s>` in front by itself."""
    specials = ["<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    return tokenizer


def make_config(family: str, **changes):
    """The configuration of a tiny model of `family`, with `changes` on top."""
    common = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    own = {
        "llama": {},
        "mistral": {"sliding_window": 24},
        "qwen2": {},
        "qwen3": {"head_dim": 16, "hidden_size": 48},
        "gemma3": {
            "head_dim": 16,
            "hidden_size": 48,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "phi3": {},
        "gpt_oss": {
            "head_dim": 16,
            "hidden_size": 48,
            "sliding_window": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    }
    model_type = {"gemma3": "gemma3_text"}.get(family, family)
    return AutoConfig.for_model(model_type, **{**common, **own.get(family, {}), **changes})


def make_hf(family: str, seed: int = 0, **changes):
    """A transformers model of `family` with fixed random weights, float32, on the CPU."""
    hf = AutoModelForCausalLM.from_config(make_config(family, **changes), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in hf.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "embed" in name:
            weight.data = 0.5 * noise
        elif "q_norm" in name or "k_norm" in name:  # unit norms alone give nearly uniform attention
            weight.data += 0.7 + 0.1 * noise
        elif weight.dim() == 1 and "norm" in name:  # also keeps Gemma's 1 + weight near 1
            weight.data += 0.1 * noise
        else:
            weight.data = 0.2 * noise
    return hf.eval()


def make_model(family: str = "llama", seed: int = 0, tokenizer=None, **changes) -> Model:
    """A tiny `Model` of `family`, id "tiny-<family>"."""
    tokenizer = make_tokenizer() if tokenizer is None else tokenizer
    return wrap_model(make_hf(family, seed, **changes), tokenizer, f"tiny-{family}")
