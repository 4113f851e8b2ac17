"""`python -m kvviz bench sweep`: a sweep against kvpress doing the same runs one by one, and its memory.

50 items of 1,000 tokens x 6 methods x 3 budgets. Both sides do the first items, in turn so that a busy
machine is as busy for both, and seconds an item are extrapolated. kvviz goes through the sweep's own runner:
cells written, answers judged, each item also asked without its document; kvpress only answers.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import kvviz
from benchmarks.peers import BUDGETS, METHODS, NEW_TOKENS, kvpress, without_stops
from kvviz.engine.ask import Ask
from kvviz.evaluate.cells import Study
from kvviz.evaluate.items import Item
from kvviz.evaluate.sweep import run_sweep
from kvviz.evaluate.tasks import TASKS
from kvviz.evaluate.workers import Bench

MODEL = "smollm2-135m"
ITEMS, TOKENS = 50, 1000
MEASURED = 2  # items done on both sides
FLAT = 200  # items of the memory's part


def main(out: str | None = None, peer: bool = True) -> dict[str, Any]:
    """Measure both parts, print them, write them to `out` as JSON."""
    model = kvviz.load_model(MODEL, dtype="float32")
    row = {"threads": torch.get_num_threads(), "memory": memory(model)}
    if peer:
        row["speed"] = speed(without_stops(model))
    print(json.dumps(row, indent=2))
    if out:
        Path(out).write_text(json.dumps(row, indent=2))
    return row


def speed(model) -> dict[str, Any]:
    """Seconds an item of both, and how many times longer kvpress takes for all items."""
    items = TASKS["niah_single_2"](model.tokenizer, tokens=TOKENS, count=MEASURED + 1)
    items = [dataclasses.replace(i, meta={**i.meta, "max_new_tokens": NEW_TOKENS}) for i in items]
    ours: dict[str, list[float]] = {"none": [], "kl,output_error": []}
    theirs, runs = [], len(METHODS) * len(BUDGETS)
    for measures in ours:  # the first item warms up
        _sweep(model, items[:1], measures)
    for item in items[1:]:
        prompt = kvviz.build_prompt(model, item.document, item.question)
        theirs.append(sum(r["prefill"] + r["decode"] for r in kvpress(model, prompt, "float32")))
        for measures, seconds in ours.items():
            seconds.append(_sweep(model, [item], measures))
    return {
        "items": ITEMS, "measured": MEASURED, "runs_an_item": runs, "new_tokens": NEW_TOKENS,
        "kvpress_seconds": float(np.mean(theirs)) * ITEMS,
        "kvviz_seconds": {measures: float(np.mean(s)) * ITEMS for measures, s in ours.items()},
        "ratio": {measures: sum(theirs) / sum(s) for measures, s in ours.items()},
        "each": {"kvpress": theirs, **ours},
    }  # fmt: skip


def _sweep(model, items: list[Item], measures: str) -> float:
    """Seconds of a sweep over these items, table and all, the model loaded already."""
    study = Study(Ask(METHODS, BUDGETS, NEW_TOKENS, measures))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        outcome = run_sweep([MODEL], items, study, Path(folder), bench=_bench(model, study))
        seconds = time.perf_counter() - started
    assert not outcome.failed, "an item failed"
    return seconds


def _bench(model, study: Study) -> Bench:
    bench = Bench(study)
    bench.name, bench.model = MODEL, model
    return bench


def memory(model) -> dict[str, Any]:
    """Memory of the process over many short items: MB after each fifth part, and MB an item of a line through
    all but the first fifth."""
    items = [
        Item(f"i{n}", "t", f"The number of room {n} is {n * 7919 % 90000}. " * 6, "What is its number?")
        for n in range(FLAT)
    ]
    study = Study(Ask(("snapkv", "criticalkv"), (0.5,), 2))
    process, used = psutil.Process(), []

    def say(done: int, total: int, left: float | None) -> None:
        gc.collect()
        used.append(process.memory_info().rss / 1e6)

    with tempfile.TemporaryDirectory() as folder:
        run_sweep([MODEL], items, study, Path(folder), bench=_bench(model, study), say=say)
    settled = used[FLAT // 5 :]
    slope = np.polyfit(range(len(settled)), settled, 1)[0]
    return {
        "items": FLAT, "megabytes": [round(used[n]) for n in range(FLAT // 5, FLAT + 1, FLAT // 5)],
        "megabytes_an_item": round(float(slope), 4),
    }  # fmt: skip
