"""`python -m kvviz bench growth`: how time and memory grow with prompt length and number of variants.

Fits t = a x^e to each column and reports e, so that a quadratic step or a leak shows as a number.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import kvviz
from kvviz.engine.selection import select
from kvviz.evaluate.needles import needle_text

LENGTHS = (500, 1000, 2000, 4000, 8000)
VARIANTS = (1, 3, 6, 12, 18, 36)
METHODS = ("snapkv", "adakv", "criticalkv", "keydiff", "tova", "streaming_llm")
BUDGETS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
NEW_TOKENS = 16


def main(out: str | None = None) -> dict[str, Any]:
    """Measure both tables, print them, write them to `out` as JSON."""
    model = kvviz.load_model("smollm2-135m", dtype="float32")
    row = {"length": by_length(model), "variants": by_variants(model)}
    for name, table in row.items():
        print(f"\n{name}")
        columns = list(table["rows"][0])
        print("  ".join(f"{c:>14}" for c in columns))
        for line in table["rows"]:
            print("  ".join(f"{line[c]:>14,.4g}" for c in columns))
        print("exponents: " + ", ".join(f"{k} {v:.2f}" for k, v in table["exponents"].items()))
    if out:
        Path(out).write_text(json.dumps(row, indent=2))
    return row


def by_length(model) -> dict[str, Any]:
    """One budget, six methods: seconds of each stage and memory against the prompt's length."""
    rows = []
    for n in LENGTHS:
        case = needle_text(n - 45, 0.5, model.tokenizer)
        prompt = kvviz.build_prompt(model, case.document, case.question)
        trace = kvviz.prefill(model, prompt, methods=METHODS)
        started = time.perf_counter()
        for method in METHODS:
            select(trace, method, 0.2)
        scoring = time.perf_counter() - started
        with Peak() as peak:
            c = kvviz.compare(model, prompt, METHODS, [0.2], NEW_TOKENS, measures=(), trace=trace)
        own = sum(v.bytes for v in c.variants)
        rows.append(
            {
                "n": len(prompt.input_ids),
                "prefill_s": trace.seconds["prefill"],
                "scoring_s": scoring,
                "decode_s": c.seconds["decode"],
                "full_mb": c.bytes_full / 1e6,
                "variants_mb": own / 1e6,
                "peak_over_mb": max(0.0, peak.bytes - own) / 1e6,
            }
        )
        del trace, c
        gc.collect()
    return {"rows": rows, "exponents": exponents(rows, "n")}


def by_variants(model, tokens: int = 2000) -> dict[str, Any]:
    """Decoding seconds against the number of variants decoded together."""
    case = needle_text(tokens, 0.5, model.tokenizer)
    prompt = kvviz.build_prompt(model, case.document, case.question)
    trace = kvviz.prefill(model, prompt, methods=METHODS)
    rows = []
    for count in VARIANTS:
        methods = METHODS[: min(count, len(METHODS))]
        budgets = BUDGETS[: max(1, count // len(methods))]
        c = kvviz.compare(model, prompt, methods, budgets, NEW_TOKENS, measures=(), trace=trace)
        rows.append(
            {
                "variants": len(c.variants),
                "decode_s": c.seconds["decode"],
                "mb": sum(v.bytes for v in c.variants) / 1e6,
            }
        )
    return {"rows": rows, "exponents": exponents(rows, "variants")}


def exponents(rows: list[dict[str, float]], x: str) -> dict[str, float]:
    """Slope of log y against log x for every other column."""
    xs = np.log([row[x] for row in rows])
    return {
        key: float(np.polyfit(xs, np.log([max(row[key], 1e-9) for row in rows]), 1)[0])
        for key in rows[0]
        if key != x
    }


class Peak:
    """Largest resident memory above that at the start, sampled every few milliseconds: `bytes`."""

    def __enter__(self) -> Peak:
        gc.collect()
        self.process, self.bytes, self._stop = psutil.Process(), 0, threading.Event()
        self.start = self.process.memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, self.process.memory_info().rss - self.start)

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
