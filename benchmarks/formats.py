"""`python -m kvviz bench formats`: what bfloat16 costs in fidelity and saves in time, against float32.

The documents and questions that come with kvviz, six methods at 10 %. Beside the difference that the number
format makes to the whole cache stands the difference that eviction makes: an effect is worth reading where it
is well above that of the format.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import kvviz
from benchmarks.peers import METHODS
from kvviz.engine.measures import kl_divergence
from kvviz.evaluate.items import read_items
from kvviz.evaluate.judging import judged
from kvviz.resources import asset
from kvviz.results.statistics import bootstrap_mean

FORMATS = ("float32", "bfloat16")
BUDGET, NEW_TOKENS = 0.1, 24


def main(out: str | None = None, count: int | None = None) -> dict[str, Any]:
    """Measure the first `count` questions (None: all), print, write to `out` as JSON."""
    models = [kvviz.load_model("smollm2-135m", dtype=name) for name in FORMATS]
    items = read_items(asset("documents"))[:count]
    seconds: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)
    by_method: dict[str, dict[str, list[float]]] = {m: defaultdict(list) for m in METHODS}
    for number, item in enumerate(items):
        prompt = kvviz.build_prompt(models[0], item.document, item.question)
        runs = []
        for name, model in zip(FORMATS, models):
            if not number:
                kvviz.compare(model, prompt, METHODS, [BUDGET], max_new_tokens=2)  # warms up
            started = time.perf_counter()
            runs.append(kvviz.compare(model, prompt, METHODS, [BUDGET], max_new_tokens=NEW_TOKENS))
            seconds[name].append(time.perf_counter() - started)
        answer = runs[0].full.token_ids
        first, second = (_logits(model, prompt, answer) for model in models)
        whole["kl"].append(float(kl_divergence(first, second).mean()))
        whole["next token the same"].append(float((first.argmax(-1) == second.argmax(-1)).float().mean()))
        alike = answer == runs[1].full.token_ids
        whole["answer the same"].append(float(alike))
        for name, run in zip(FORMATS, runs):
            whole[f"right, {name}"].append(float(judged(item, run.full.text)[0] == "right"))
        for method in METHODS:
            row, pair = by_method[method], [run.variant(method, BUDGET) for run in runs]
            a, b = (v.packed.kept for v in pair)
            row["kept by both, of all kept by either"].append(a.overlap(b))
            row["verdict the same"].append(float(len({judged(item, v.text)[0] for v in pair}) == 1))
            for name, v in zip(FORMATS, pair):
                # KL is taken along the whole cache's own answer: of another answer it is another quantity.
                kl = float(v.kl.mean()) if alike else math.nan
                row[f"kl where that answer is the same, {name}"].append(kl)
                row[f"output error, {name}"].append(float(v.output_error.mean()))
    clusters = [item.document for item in items]
    row = {
        "items": len(items), "budget": BUDGET, "threads": torch.get_num_threads(),
        "seconds an item": {name: round(statistics.median(s), 2) for name, s in seconds.items()},
        "times as fast": round(statistics.median(a / b for a, b in zip(*seconds.values())), 2),
        "whole cache": _means(whole, clusters),
        "methods": {method: _means(row, clusters) for method, row in by_method.items()},
    }  # fmt: skip
    print(json.dumps(row, indent=2))
    if out:
        Path(out).write_text(json.dumps(row, indent=2))
    return row


def _logits(model, prompt, answer: list[int]) -> torch.Tensor:
    """What the model's own forward gives for the tokens of this answer, float32 [T, vocabulary]."""
    ids = torch.cat([prompt.input_ids, torch.tensor(answer)])[None]
    with torch.no_grad():
        return model.hf(ids, logits_to_keep=len(answer) + 1).logits[0, :-1].float()


def _means(columns: dict[str, list[float]], clusters: list[str]) -> dict[str, str]:
    """Every mean, with its interval over documents where there are enough of them."""
    said = {}
    for name, values in columns.items():
        there = [(v, c) for v, c in zip(values, clusters) if not math.isnan(v)]
        mean = bootstrap_mean(*zip(*there))
        said[name] = f"{mean.value:.4f}"
        if not math.isnan(mean.low):
            said[name] += f" ({mean.low:.4f} to {mean.high:.4f})"
    return said
