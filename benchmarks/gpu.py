"""`python -m kvviz bench gpu`: is every kernel right on this GPU, how fast is it, what share is scoring.

Three parts under one deadline: correctness of every kernel against its twin in float64; kernel times
beside plain torch, SDPA and torch.compile from 4k to 128k tokens; a prefill with scoring, selection and
decoding. Times are medians of CUDA events after warm-up, with the L2 cache flushed before each run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_times import Random, copy_bandwidth, end_to_end, kernel_times
from kvviz import kernels
from kvviz.errors import KvvizError
from kvviz.kernels import gather, norms, ragged, score, window

# Seconds after the start by which each part ends, finished or not: 8 minutes in all, with room to start.
ENDS = {"correctness": 180.0, "kernels": 320.0, "end_to_end": 440.0}
LENGTHS = (4096, 16384, 32768, 65536, 131072)
PREFILLS = (4096, 32768, 131072)
HEADS = (32, 8, 128, 32, 4096)  # Hq, Hkv, d, W, D: an 8-billion-parameter Llama
LAYERS = 8  # of its 32


@dataclass
class Report:
    """What main writes as JSON."""

    device: str
    torch: str
    copy_gb_s: float = 0.0
    correctness: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    end_to_end: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main(out: str | None = None) -> Report:
    """Run what fits the deadline, print it, write JSON to `out`. KvvizError where a kernel is wrong."""
    if not torch.cuda.is_available():
        raise KvvizError("This machine has no CUDA GPU, so there is nothing to measure; run it on one.")
    started = time.monotonic()
    report = Report(torch.cuda.get_device_name(), torch.__version__)
    kernel_wish = os.environ.get("KVVIZ_KERNELS")
    os.environ["KVVIZ_KERNELS"] = "triton"
    try:
        report.copy_gb_s = copy_bandwidth()
        print(f"{report.device}, torch {report.torch}, copy {report.copy_gb_s:.0f} GB/s")
        parts = [
            ("correctness", lambda: correctness("cuda")),
            ("kernels", lambda: kernel_times("cuda", LENGTHS, HEADS, report.copy_gb_s)),
            ("end_to_end", lambda: end_to_end(PREFILLS, "cuda", LAYERS, HEADS)),
        ]
        for name, rows in parts:
            for row in rows():
                getattr(report, name).append(row)
                print("  ".join(f"{k} {_short(v)}" for k, v in row.items()), flush=True)
                if time.monotonic() - started > ENDS[name]:
                    report.skipped.append(f"the rest of {name}: out of time")
                    print(report.skipped[-1])
                    break
    finally:
        if kernel_wish is None:
            os.environ.pop("KVVIZ_KERNELS")
        else:
            os.environ["KVVIZ_KERNELS"] = kernel_wish
        report.seconds = time.monotonic() - started
        if out:
            Path(out).write_text(json.dumps(asdict(report), indent=1) + "\n")
    wrong = sorted({row["operation"] for row in report.correctness if not row["right"]})
    if wrong:
        raise KvvizError(f"Wrong on this GPU: {', '.join(wrong)}. KVVIZ_KERNELS=torch avoids the kernels.")
    print(f"All {len(report.correctness)} checks right, {report.seconds:.0f} s in all")
    print("\n".join(proven(report)))
    return report


def proven(report: Report) -> list[str]:
    """What the numbers show, in sentences, and what they leave open. Weights are random ones."""
    said = []
    for row in report.kernels:
        if row.get("implementation") == "plain torch":
            faster = f"{row['times_the_kernel']:.1f} times faster than plain torch"
            said.append(f"{row['operation']} at {row.get('n', 0):,} tokens: {faster}.")
    shares = [row["share_of_prefill"] for row in report.end_to_end if "share_of_prefill" in row]
    if shares:
        of = f"{max(shares):.1%} of the reading ({len(shares)} cases)"
        said.append(f"Scoring and selecting one method takes at most {of}.")
    steps = [row for row in report.end_to_end if row["stage"] == "decode one token"]
    said += [
        f"{row['variants']} answers at {row['n']:,} tokens: {1e3 * row['seconds']:.1f} ms for one of each."
        for row in steps
    ]
    said += [f"Not measured: {what}." for what in report.skipped]
    return said


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of what is expected; infinite when infinities or NaN differ."""
    got, expected = got.double(), expected.double()
    finite = expected.isfinite()
    if got.isnan().any() or not torch.equal(got[~finite], expected[~finite]):
        return float("inf")
    size = expected[finite].square().sum().sqrt()
    gap = (got - expected)[finite].square().sum().sqrt()
    return float(gap / size) if size > 0 else float(gap)


# name, Hq, Hkv, W, n, d, sliding window, sinks


# name, Hq, Hkv, W, n, d, sliding window, sinks
SHAPES = (
    ("one key", 4, 1, 1, 1, 64, None, False),
    ("awkward", 21, 3, 5, 1000, 80, None, False),
    ("small model", 9, 3, 32, 4000, 64, None, False),
    ("large model", 32, 8, 32, 5000, 128, None, False),
    ("sliding, sinks", 64, 8, 32, 3000, 64, 128, True),
    ("wide heads", 8, 4, 32, 2000, 256, 512, False),
    ("odd heads", 16, 1, 64, 777, 96, None, True),
)


def correctness(device: str, shapes=SHAPES, dtypes=("float32", "float16", "bfloat16")) -> Iterator[dict]:
    """Every kernel on fresh random inputs against its twin in float64."""
    tolerance = 1e-4  # products split in parts are good to about 1e-5
    for name, query_heads, kv_heads, rows, n, d, sliding, with_sinks in shapes:
        for dtype in dtypes:
            make = Random(device, getattr(torch, dtype))
            query, keys, values = make(query_heads, rows, d), make(kv_heads, n, d), make(kv_heads, n, d)
            keys[:, 0] = query.view(kv_heads, -1, d).float().mean(1).to(keys.dtype) * 8  # a strong key
            sinks = make(query_heads).float() if with_sinks else None
            wide = [t.double() for t in (query, keys, values)]
            place = (d**-0.5, n - rows)
            lse, out = kernels.window_pass(query, keys, values, *place, sliding, sinks)
            true_lse, true_out = window.window_pass(*wide, *place, sliding, sinks)
            errors = {
                "window_pass": max(relative_error(lse, true_lse), relative_error(out, true_out)),
            }
            for kind in score.KINDS:
                rest = (*place, kind, sliding, sinks)
                got = kernels.score_pass(query, keys, values, lse, out, *rest)
                errors[f"score_pass {kind}"] = relative_error(
                    got, score.score_pass(*wide, true_lse, true_out, *rest)
                )
            w_o = make(query_heads, d, 200)
            for order in (1, 2):
                errors[f"value_norms {order}"] = relative_error(
                    kernels.value_norms(values, w_o, order), norms.value_norms(wide[2], w_o.double(), order)
                )
            mask = torch.rand(kv_heads, n, device=device) < 0.3
            got = kernels.gather_rows(keys, values, mask, 32)
            expected = gather.gather_rows(keys, values, mask, 32)
            same = all(torch.equal(a, b) for a, b in zip(got, expected))
            errors["gather_rows"] = 0.0 if same else float("inf")
            errors["ragged_attention"] = _ragged_error(make, keys, values, query_heads, sliding)
            for operation, error in errors.items():
                row = {"operation": operation, "shape": name, "dtype": dtype, "error": error}
                yield row | {"right": error <= tolerance, "ran": kernels.last_used()[operation.split()[0]]}


def _ragged_error(make: Random, keys, values, query_heads: int, sliding) -> float:
    kv_heads, n, d = keys.shape
    masks = [torch.rand(kv_heads, n, device=keys.device) < share for share in (1.0, 0.3, 0.02, 0.0)]
    blocks = kernels.gather_rows(keys, values, torch.cat(masks), 16)
    query = make(len(masks), query_heads, 2, d)
    at = torch.arange(n, n + 2, device=keys.device).expand(len(masks), -1)
    rest = (*blocks[2:], kv_heads, d**-0.5, at, sliding)
    out, lse = kernels.ragged_attention(query, *blocks[:2], *rest)
    wide = [t.double() for t in (query, *blocks[:2])]
    true_out, true_lse = ragged.ragged_attention(*wide, *rest)
    return max(relative_error(out, true_out), relative_error(lse, true_lse))
