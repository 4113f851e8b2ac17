"""A tiny Llama in a real GGUF file, written in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from tiny import CHATML, make_tokenizer

_LAYER = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
          "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}  # fmt: skip


def write_gguf(path: Path, end: bool = True, template: str | None = CHATML) -> Path:
    """end  whether the file names its end token."""
    vocabulary = json.loads(make_tokenizer().backend_tokenizer.to_str())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(512)
    out.add_embedding_length(64)
    out.add_block_count(2)
    out.add_feed_forward_length(96)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_token_list(tokens)
    out.add_token_types([3 if number < 4 else 1 for number in range(len(tokens))])  # 3: control tokens
    out.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    out.add_bos_token_id(1)
    if end:
        out.add_eos_token_id(3)
    if template:
        out.add_chat_template(template)
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> None:
        out.add_tensor(f"{name}.weight", rng.normal(0, 0.2, shape).astype(np.float32))

    weight("token_embd", len(tokens), 64)
    weight("output", len(tokens), 64)
    weight("output_norm", 64)
    for layer in range(2):
        for name, shape in _LAYER.items():
            weight(f"blk.{layer}.{name}", *shape)
        weight(f"blk.{layer}.attn_norm", 64)
        weight(f"blk.{layer}.ffn_norm", 64)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
