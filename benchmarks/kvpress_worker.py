"""The peer's half of `bench peers`; runs in kvpress's own virtual environment and imports nothing of kvviz.

Reads a job (JSON) from standard input, writes seconds and answers (JSON) to standard output. Every run is
what a kvpress user would do: compress while prefilling, then decode greedily, one run at a time.
"""

import json
import sys
import time

import torch
from kvpress import (
    AdaKVPress,
    CriticalKVPress,
    KeyDiffPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from transformers import AutoModelForCausalLM, DynamicCache


def press_of(method: str, ratio: float):
    """The kvpress counterpart of a method, at the share removed."""
    snapkv = SnapKVPress(window_size=32, kernel_size=7)
    press = {
        "snapkv": snapkv,
        "adakv": AdaKVPress(snapkv),
        "criticalkv": CriticalKVPress(snapkv),
        "keydiff": KeyDiffPress(),
        "tova": TOVAPress(),
        "streaming_llm": StreamingLLMPress(n_sink=4),
    }[method]
    press.compression_ratio = ratio
    return press


@torch.no_grad()
def run(model, ids: torch.Tensor, press, new_tokens: int) -> tuple[float, float, list[int]]:
    """(prefill seconds, decoding seconds, tokens) of one run; no early stop, so that work is equal."""
    cache = DynamicCache()
    started = time.perf_counter()
    with press(model):
        logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
    read = time.perf_counter()
    tokens = [int(logits[0, -1].argmax())]
    for step in range(new_tokens - 1):
        position = torch.tensor([[ids.shape[1] + step]])
        logits = model(torch.tensor([[tokens[-1]]]), past_key_values=cache, position_ids=position).logits
        tokens.append(int(logits[0, -1].argmax()))
    return read - started, time.perf_counter() - read, tokens


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=getattr(torch, job["dtype"])).eval()
    ids = torch.tensor([job["input_ids"]])
    run(model, ids[:, :64], press_of("keydiff", 0.5), 2)  # warm-up
    rows = []
    for method in job["methods"]:
        for share in job["budgets"]:
            prefill, decode, tokens = run(model, ids, press_of(method, 1 - share), job["new_tokens"])
            rows.append(
                {"method": method, "budget": share, "prefill": prefill, "decode": decode, "tokens": tokens}
            )
            print(f"kvpress {method} {share}: {prefill + decode:.1f} s", file=sys.stderr, flush=True)
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
