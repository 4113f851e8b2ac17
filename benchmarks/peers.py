"""`python -m kvviz bench peers`: the same runs with kvviz and, one by one, with kvpress.

Same model, dtype, threads, token ids and number of new tokens, in one run on one machine; only ratios are
worth quoting. kvpress needs an older transformers, so it gets a virtual environment of its own.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import kvviz
from kvviz.engine.trace import Trace
from kvviz.errors import KvvizError
from kvviz.evaluate.needles import needle_text
from kvviz.methods import get_method
from kvviz.settings import settings

METHODS = ("snapkv", "adakv", "criticalkv", "keydiff", "tova", "streaming_llm")
BUDGETS = (0.5, 0.2, 0.05)
NEW_TOKENS = 32
# kvpress leaves transformers unbounded and its hooks fail in version 5.
PEER = ("kvpress==0.5.5", "transformers<5")


def main(
    out: str | None = None, tokens: int = 4000, dtype: str = "float32", peer: bool = True
) -> dict[str, Any]:
    """Measure, print, and write one JSON object to `out`. Returns it."""
    model = kvviz.load_model("smollm2-135m", dtype=dtype)
    case = needle_text(tokens - 60, 0.5, model.tokenizer)
    prompt = kvviz.build_prompt(model, case.document, case.question)
    warm = kvviz.build_prompt(model, "A short text to warm up with. " * 10, "Ready?")
    kvviz.compare(model, warm, METHODS, [0.5], max_new_tokens=2)
    row: dict[str, Any] = {
        "tokens": len(prompt.input_ids),
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    row["plain_forward"] = _plain_forward(model, prompt)
    row["decoding_only"], result = _kvviz(model, prompt, ())
    row["with_measures"], _ = _kvviz(model, prompt, ("kl", "output_error"))
    row["stages"] = result.seconds
    row["prefill_over_plain"] = result.seconds["prefill"] / row["plain_forward"]
    every = [m.id for m in kvviz.list_methods() if m.artefact is None]
    row["scoring_share"] = scoring_shares(model, prompt, every)
    if peer:
        row["kvpress"] = kvpress(model, prompt, dtype)
        total = sum(r["prefill"] + r["decode"] for r in row["kvpress"])
        row["kvpress_total"] = total
        row["ratio_decoding_only"] = total / row["decoding_only"]
        row["ratio_with_measures"] = total / row["with_measures"]
        row["same_tokens"] = _agreement(result, row["kvpress"])
    print(json.dumps({k: v for k, v in row.items() if k != "kvpress"}, indent=2))
    if out:
        Path(out).write_text(json.dumps(row, indent=2))
    return row


def _plain_forward(model, prompt) -> float:
    """Seconds of the model's own forward with its own attention, the best of two."""
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        with torch.no_grad():
            model.hf(prompt.input_ids[None], use_cache=True, logits_to_keep=1)
        best = min(best, time.perf_counter() - started)
    return best


def _kvviz(model, prompt, measures):
    """Seconds of all runs together, prefill included; end tokens are ignored so that work is equal."""
    free = without_stops(model)
    started = time.perf_counter()
    result = kvviz.compare(free, prompt, METHODS, BUDGETS, max_new_tokens=NEW_TOKENS, measures=measures)
    return time.perf_counter() - started, result


def without_stops(model):
    """The model as it answers on and on, so that all runs are equally long."""
    import dataclasses

    return dataclasses.replace(model, stop_ids=frozenset())


def scoring_shares(model, prompt, methods) -> dict[str, float]:
    """Seconds of scoring and selecting one method alone, its own observer or extra pass included, over
    the seconds of the prefill; the best of a few. What is read along with the prompt costs the difference
    between reading with and without it, which can be below 0."""
    needs = sorted(set().union(*(get_method(method).needs for method in methods)))
    reading = {need: float("inf") for need in (None, *needs)}
    for _ in range(2):
        for need in reading:
            read = kvviz.prefill(model, prompt, needs=[need] if need else [])
            reading[need] = min(reading[need], sum(read.seconds.values()))
    trace: Trace = kvviz.prefill(model, prompt, methods=methods)
    shares = {}
    for method in methods:
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            kvviz.select(trace, method, 0.2)
            best = min(best, time.perf_counter() - started)
        observed = sum(reading[need] - reading[None] for need in get_method(method).needs)
        shares[method] = (best + observed) / reading[None]
    return shares


def kvpress(model, prompt, dtype: str) -> list[dict[str, Any]]:
    """Seconds and tokens of every method and budget, run by kvpress one after the other."""
    python = _peer_python()
    with tempfile.TemporaryDirectory() as folder:
        model.hf.save_pretrained(folder)
        _say_rope_theta(Path(folder) / "config.json")
        job = {
            "folder": folder,
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "input_ids": prompt.input_ids.tolist(),
            "methods": METHODS,
            "budgets": BUDGETS,
            "new_tokens": NEW_TOKENS,
        }
        worker = Path(__file__).with_name("kvpress_worker.py")
        done = subprocess.run(
            [python, str(worker)], input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise KvvizError("kvpress did not finish; its message stands above.")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _say_rope_theta(config: Path) -> None:
    """The base of the rotary angles where transformers 4 looks for it; else it takes 10,000."""
    said = json.loads(config.read_text())
    said["rope_theta"] = said["rope_parameters"]["rope_theta"]
    config.write_text(json.dumps(said))


def _peer_python() -> str:
    """Python of the peer's environment; made once in the cache folder, or named by KVVIZ_PEER_PYTHON."""
    given = os.environ.get("KVVIZ_PEER_PYTHON")
    if given:
        return given
    folder = settings().cache / "peers" / "-".join(re.findall(r"[a-z0-9.]+", " ".join(PEER)))
    python, finished = folder / "bin" / "python", folder / "finished"
    if not finished.exists():
        print(f"Installing {' '.join(PEER)} into an environment of its own ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        # The peer gets the same torch, so that the comparison is of methods and not of builds.
        torch_version = f"torch=={torch.__version__.partition('+')[0]}"
        subprocess.run([str(python), "-m", "pip", "install", "-q", torch_version, *PEER], check=True)
        finished.touch()
    return str(python)


def _agreement(result, rows) -> dict[str, str]:
    """How many leading tokens of each answer are the same in both, as a check that the work is alike."""
    shared = {}
    for row in rows:
        variant = result.variant(row["method"], row["budget"])
        same = 0
        for a, b in zip(variant.token_ids, row["tokens"]):
            if a != b:
                break
            same += 1
        shared[f"{row['method']} {row['budget']}"] = f"{same} of {len(row['tokens'])}"
    return shared
