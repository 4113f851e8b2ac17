"""`python -m kvviz bench causes`: what finding causes costs beside decoding, in one run.

A prompt of about 1,000 tokens and the full cache's answer (17 tokens): the time to put all KV heads back one
by one, as a multiple of decoding those tokens for 18 variants; and the seconds of the smallest rescue.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kvviz
from kvviz.engine.causes import causes
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trace import needs_of, prefill
from kvviz.engine.trials import Trials
from kvviz.engine.units import units
from kvviz.evaluate.needles import needle_cases

METHODS = ("snapkv", "criticalkv", "dropkv", "laprox", "keydiff", "streaming_llm")
BUDGETS = (0.2, 0.1, 0.05)
TOKENS, NEW_TOKENS, REPEATS = 1000, 17, 3
MOST_RATIO, MOST_SECONDS = 8, 60  # to be reached


def main(out: str | None = None) -> dict[str, Any]:
    """Measure, print, write to `out` as JSON."""
    model = kvviz.load_model("smollm2-135m", dtype="float32")
    (case,) = needle_cases(TOKENS, (0.1,), model.tokenizer, (0,), 0)
    prompt = kvviz.build_prompt(model, case.document, case.question)
    scored = Scored(prefill(model, prompt, needs=needs_of(METHODS)))
    kept = [_mask(scored, method, budget) for method in METHODS for budget in BUDGETS]
    trials = Trials(scored.trace)
    whole = np.ones_like(kept[0])
    (answer,) = trials.write([whole], NEW_TOKENS)
    base = _mask(scored, "snapkv", 0.1)
    back = []
    for unit in units("head", whole.shape, ()):
        back.append(base.copy())
        back[-1][unit.place] = True
    decoding, putting = [], []
    for _ in range(REPEATS):  # side by side, so that a busy machine slows both
        decoding.append(_seconds(lambda: list(trials.write(kept, len(answer.token_ids)))))
        putting.append(_seconds(lambda: list(trials.force(back, answer.token_ids))))
    ratio = statistics.median(b / a for a, b in zip(decoding, putting))
    rescue = _seconds(lambda: causes(
        model, prompt, "snapkv", 0.1, by=(), rescue=True, expected=case.expected, max_new_tokens=NEW_TOKENS,
        scored=scored,
    ))  # fmt: skip
    row = {
        "tokens": prompt.n_compressible,
        "answer tokens": len(answer.token_ids),
        "threads": torch.get_num_threads(),
        f"{len(kept)} variants decoded, s": round(statistics.median(decoding), 2),
        f"{len(back)} heads put back, s": round(statistics.median(putting), 2),
        f"ratio (at most {MOST_RATIO})": round(ratio, 2),
        f"rescue, s (at most {MOST_SECONDS})": round(rescue, 1),
    }
    for name, value in row.items():
        print(f"{name:>28}  {value}")
    if out:
        Path(out).write_text(json.dumps(row, indent=2))
    return row


def _mask(scored: Scored, method: str, budget: float) -> np.ndarray:
    return torch.stack([row.cpu() for row in select_from(scored, method, budget).mask]).numpy()


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
