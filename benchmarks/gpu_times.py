"""Timings on a GPU: kernels beside their baselines, and a prefill with scoring, selection, decoding.

Times are medians of CUDA events after warm-up, with the L2 cache flushed before each run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import gpu_definitions as plain
from kvviz import kernels
from kvviz.kernels import ragged

COMPILED_AT = 32768  # torch.compile takes seconds a function: shown at one length
BUDGETS = (0.5, 0.2, 0.05)
METHODS = ("snapkv", "laprox", "criticalkv", "dropkv", "caote")


@dataclass(frozen=True)
class Random:
    """Normal tensors on a device, in a dtype."""

    device: str
    dtype: torch.dtype

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def copy_bandwidth() -> float:
    """GB/s of a device-to-device copy of 1 GiB, bytes read plus bytes written."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    milliseconds, _ = measure(lambda: target.copy_(source))
    return 2 * source.numel() * 4 / milliseconds / 1e6


def measure(run: Callable[[], Any], repeats: int = 15, flush: bool = True) -> tuple[float, float]:
    """(median milliseconds, peak MB above what was allocated before)."""
    run()
    if not torch.cuda.is_available():  # rehearsal on a CPU: the numbers mean nothing there
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3, 0.0
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    scrap = torch.empty(1 << 26, device="cuda") if flush else None  # 256 MB, more than any L2
    held = torch.cuda.memory_allocated() - before
    times = []
    for _ in range(repeats):
        if scrap is not None:
            scrap.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
        if sum(times) > 2000:
            break
    peak = torch.cuda.max_memory_allocated() - before - held
    return statistics.median(times), peak / 1e6


def kernel_times(device: str, lengths, heads, copy_gb_s: float) -> Iterator[dict]:
    """One row an operation, length and implementation, bfloat16; bytes are the fewest that must move."""
    for n in lengths:
        for operation, moved, runs in [*_prompt_cases(device, n, heads), *_cache_cases(device, n, heads)]:
            yield from _timed(operation, n, moved, runs, copy_gb_s)


Case = tuple[str, int, dict[str, Callable[[], Any] | None]]  # operation, bytes, implementations


def _prompt_cases(device: str, n: int, heads) -> list[Case]:
    """What runs once a prompt: the two sweeps over the cache, and the norms."""
    query_heads, kv_heads, d, rows, hidden = heads
    make = Random(device, torch.bfloat16)
    x = (make(query_heads, rows, d), make(kv_heads, n, d), make(kv_heads, n, d), d**-0.5, n - rows)
    values, w_o = x[2], make(query_heads, d, hidden) * 0.02
    both = 2 * values.numel() * 2  # keys and values read once
    found = kernels.window_pass(*x)

    def score(kind: str, found=None):
        return kernels.score_pass(*x[:3], *(found or kernels.window_pass(*x)), *x[3:], kind)

    def norm_case(order: int) -> Case:
        runs = {
            "kernel": lambda: kernels.value_norms(values, w_o, order),
            "plain torch": lambda: plain.norms_definition(values, w_o, order),
        }
        return f"value_norms order {order}", both // 2 + w_o.numel() * 2, runs

    window_runs = {
        "kernel": lambda: kernels.window_pass(*x),
        "plain torch": lambda: plain.window_definition(*x),
        "SDPA": lambda: plain.window_sdpa(*x),
        "torch.compile": _compiled(plain.window_definition, n, *x),
    }
    dropkv_runs = {
        "kernel": lambda: score("dropkv"),
        "plain torch": lambda: plain.dropkv_definition(*x),
        "torch.compile": _compiled(plain.dropkv_definition, n, *x),
    }
    snapkv_runs = {
        "kernel": lambda: score("mean"),
        "plain torch": lambda: plain.snapkv_definition(*x),
        "torch.compile": _compiled(plain.snapkv_definition, n, *x),
    }
    return [
        ("window_pass", both, window_runs),
        ("score_pass dropkv alone", both, {"kernel": lambda: score("dropkv", found)}),
        ("window_pass and score_pass dropkv", 2 * both, dropkv_runs),
        ("window_pass and score_pass mean", 3 * both // 2, snapkv_runs),
        norm_case(1),
        norm_case(2),
    ]


def _cache_cases(device: str, n: int, heads) -> list[Case]:
    """What builds and reads the ragged cache: 18 variants at three budgets, one token."""
    query_heads, kv_heads, d, _, _ = heads
    make = Random(device, torch.bfloat16)
    keys, values = make(kv_heads, n, d), make(kv_heads, n, d)
    masks = [torch.rand(kv_heads, n, device=device) < share for share in BUDGETS for _ in range(6)]
    blocks = kernels.gather_rows(keys, values, torch.cat(masks), 128)
    query = make(len(masks), query_heads, 1, d)
    at = torch.full((len(masks), 1), n, device=device)
    rest = (*blocks[2:], kv_heads, d**-0.5, at)
    entry = 2 * d * 2  # bytes of one key and one value
    padded = plain.padded_rows(keys, values, masks) if n <= COMPILED_AT else None
    gather_runs = {
        "kernel": lambda: kernels.gather_rows(keys, values, masks[0]),
        "plain torch": lambda: plain.gather_definition(keys, values, masks[0]),
    }
    ragged_runs = {
        "kernel": lambda: kernels.ragged_attention(query, *blocks[:2], *rest),
        "plain torch": lambda: ragged.ragged_attention(query, *blocks[:2], *rest),
        "SDPA on padded rows": padded and (lambda: plain.ragged_sdpa(query, *padded, d**-0.5)),
    }
    return [
        ("gather_rows", 2 * int(masks[0].sum()) * entry, gather_runs),
        (f"ragged_attention {len(masks)} variants", sum(int(m.sum()) for m in masks) * entry, ragged_runs),
    ]


def _timed(operation: str, n: int, moved: int, runs: dict, copy_gb_s: float) -> Iterator[dict]:
    kernel = None
    for implementation, run in runs.items():
        if run is None:
            continue
        row: dict[str, Any] = {"operation": operation, "n": n, "implementation": implementation}
        try:
            row["ms"], row["peak_mb"] = measure(run)
        except torch.OutOfMemoryError:
            yield row | {"ms": None, "note": "out of memory"}
            continue
        row["gb_s"] = moved / row["ms"] / 1e6
        if copy_gb_s:
            row["share_of_copy"] = row["gb_s"] / copy_gb_s
        kernel = row["ms"] if implementation == "kernel" else kernel
        yield row | {"times_the_kernel": row["ms"] / kernel}


def _compiled(function: Callable, n: int, *args: Any) -> Callable[[], Any] | None:
    if n != COMPILED_AT:
        return None
    compiled = torch.compile(function, dynamic=False)
    return lambda: compiled(*args)


def end_to_end(lengths, device: str, layers: int, heads) -> Iterator[dict]:
    """Prefill, each method's scoring and selection, one decoding step: a Llama cut to a few layers."""
    from kvviz.engine.cache import build_cache
    from kvviz.engine.decode import Wave
    from kvviz.engine.selection import select
    from kvviz.engine.trace import prefill

    on_gpu = device == "cuda"
    model = _random_model(device, layers, heads)
    for n in lengths:
        prompt = _random_prompt(n)
        prefill(model, _random_prompt(min(n, 1024)), methods=METHODS)  # warm-up
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0
        trace, prefilled = _clocked(lambda: prefill(model, prompt, methods=METHODS), on_gpu)  # noqa: B023
        peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
        sizes = {"cache_mb": trace.bytes / 1e6, "peak_mb": peak / 1e6}
        yield {"stage": "prefill", "n": n, "layers": layers, "seconds": prefilled, **sizes}
        selections: list[Any] = [None]
        for method in METHODS:
            for _ in range(2):  # the first time builds kernels
                selection, seconds = _clocked(lambda: select(trace, method, 0.2), on_gpu)  # noqa: B023
            selections.append(selection)
            row = {"stage": f"score and select {method}", "n": n, "seconds": seconds}
            yield row | {"share_of_prefill": seconds / prefilled}
        cache, seconds = _clocked(lambda: build_cache(trace, selections), on_gpu)  # noqa: B023
        yield {"stage": "gather", "n": n, "seconds": seconds, "variants": len(selections)}
        wave = Wave(model, cache, 64)
        token = torch.ones(len(selections), 1, dtype=torch.int64, device=device)
        steps = [_clocked(lambda: wave.feed(token, 1), on_gpu)[1] for _ in range(12)]  # noqa: B023
        seconds = statistics.median(steps[4:])
        yield {"stage": "decode one token", "n": n, "seconds": seconds, "variants": len(selections)}


def _clocked(run: Callable[[], Any], on_gpu: bool) -> tuple[Any, float]:
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if on_gpu:
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def _random_model(device: str, layers: int, heads):
    """A Llama with random weights: times do not depend on what it says."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from kvviz.models import wrap_model

    query_heads, kv_heads, d, _, hidden = heads
    config = AutoConfig.for_model(
        "llama",
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=7 * hidden // 2,
        num_hidden_layers=layers,
        num_attention_heads=query_heads,
        num_key_value_heads=kv_heads,
        head_dim=d,
        max_position_embeddings=1 << 18,
    )
    with torch.device(device):
        hf = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return wrap_model(hf.to(device), SimpleNamespace(eos_token_id=None), "random-llama")


def _random_prompt(n: int):
    from kvviz.types import QUESTION_AWARE, Prompt

    ids = torch.randint(1, 32000, (n,), generator=torch.Generator().manual_seed(n))
    return Prompt(ids, n, [""] * n, [None] * n, "", "", None, QUESTION_AWARE, (0, n), (n, n))
