"""A made-up but complete comparison of any size, for measuring the page without a model.

Scores are drawn at random with a sink at the start and a needle in the middle; kept sets are the highest
scores of each head, so that maps, cards and errors have the shapes of a real run.
"""

from __future__ import annotations

import numpy as np

from kvviz.results.comparison import Comparison
from kvviz.types import Mark, ModelInfo, Prompt, Selection, Variant

STOPS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
LABELS = {"snapkv": "SnapKV", "dropkv": "DropKV"}
WORDS = ("the", "keeper", "of", "the", "lighthouse", "wrote", "oil", "and", "salt", "into", "his", "ledger")
WINDOW, ANSWER = 32, "The code is 58213."


def synthetic(
    n: int, layers: int = 30, query_heads: int = 9, kv_heads: int = 3, budgets: tuple[float, ...] = (0.2, 0.1)
) -> Comparison:
    """A comparison of two methods on a text of n tokens, with everything the page's views need."""
    rng = np.random.default_rng(0)
    model = ModelInfo("synthetic", layers, query_heads, kv_heads, 64, 64 * query_heads, "float32",
                      (None,) * layers, 4 * n)  # fmt: skip
    prompt, needle = _prompt(n, rng)
    full = Variant("full", "Full cache", 1.0, n, {}, None, [1, 2, 3], ["The", " code", " is"], ANSWER,
                   "length", bytes=layers * kv_heads * n * 512, tokens_kept=float(n))  # fmt: skip
    c = Comparison(
        model, prompt, {"title": f"{n:,} tokens", "max_new_tokens": 24}, full, [], full.bytes,
        [Mark("M1", *needle, "58213", "made up")], "58213", STOPS,
    )  # fmt: skip
    for index, method in enumerate(LABELS):
        scores = rng.gamma(0.3, 1.0, (layers, kv_heads, n)).astype(np.float32)
        scores[:, :, :4] += 20
        scores[:, :, needle[0] : needle[1]] *= 2 + 3 * index
        scores[:, :, n - WINDOW :] = np.nan
        order = np.argsort(np.nan_to_num(-scores, nan=-np.inf), axis=-1, kind="stable")
        c.scores[method] = scores
        kept, rule, errors = [], [], []
        for stop in STOPS:
            mask, protected = _masks(order, stop)
            kept.append(np.packbits(mask.reshape(-1, n), axis=-1))
            rule.append(np.packbits(protected.reshape(-1, n), axis=-1))
            errors.append(_error(rng, stop, model))
        c.kept_bits[method], c.protected_bits[method] = np.stack(kept), np.stack(rule)
        c.stop_entries[method] = np.array([int(stop * n) for stop in STOPS])
        c.stop_errors[method] = np.stack(errors)
        c.variants += [_variant(rng, method, b, order, scores, model) for b in budgets]
    attention = rng.gamma(0.2, 1e-3, (layers, kv_heads, n)).astype(np.float32)
    c.lenses = {"attention": attention, "effect": attention * rng.random(attention.shape, dtype=np.float32)}
    return c


def _prompt(n: int, rng: np.random.Generator) -> tuple[Prompt, tuple[int, int]]:
    question = ["\n", "What", " is", " the", " code", "?"]
    words = [" " + WORDS[i] for i in rng.integers(0, len(WORDS), n - len(question))]
    words[40::60] = ["\n"] * len(words[40::60])
    at = int(0.4 * len(words))
    words[at : at + 5] = [" 5", "8", "2", "1", "3"]
    ends = np.cumsum([len(word) for word in words])
    offsets = [(int(end) - len(word), int(end)) for word, end in zip(words, ends)]
    tokens = [*words, *question]
    prompt = Prompt(
        np.arange(n), n, tokens, [*offsets, *([None] * len(question))], "".join(words), "What is the code?",
        None, "question-aware", (0, len(words)), (len(words), n),
    )  # fmt: skip
    return prompt, (at, at + 5)


def _masks(order: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """(kept, kept by rule) of the highest scores and the window, bool [L, Hkv, n]."""
    n = order.shape[-1]
    entries = max(1, int(share * n))
    recent = min(WINDOW, max(1, entries // 2))
    mask = np.zeros(order.shape, bool)
    np.put_along_axis(mask, order[..., : entries - recent], True, axis=-1)
    protected = np.zeros(order.shape, bool)
    protected[..., n - recent :] = True
    return mask | protected, protected


def _error(rng: np.random.Generator, share: float, model: ModelInfo) -> np.ndarray:
    shape = model.n_layers, model.n_query_heads
    return (0.02 / share * (share < 1) * rng.lognormal(0, 1, shape)).astype(np.float32)


def _variant(rng, method: str, budget: float, order, scores, model: ModelInfo) -> Variant:
    mask, protected = _masks(order, budget)
    stage = np.where(protected, 3, mask).astype(np.int8)
    lowest = np.where(mask & ~protected & np.isfinite(scores), scores, np.inf).min(-1)
    n, text = order.shape[-1], ANSWER if method == "dropkv" else "The code is 1947."
    selection = Selection(
        method, LABELS[method], budget, int(budget * n), {"window": WINDOW, "pool": 1, "pool_kind": "none"},
        list(mask), list(scores), list(scores), mask.sum(-1).astype(np.int64), protected, stage,
        lowest.astype(np.float32), "head",
    )  # fmt: skip
    error = _error(rng, budget, model)
    return Variant(
        method, LABELS[method], budget, selection.entries, selection.options, selection, [1, 2, 4],
        ["The", " code", " was"], text, "length", kl=rng.gamma(1, 0.1, 3).astype(np.float32),
        output_error=error, output_error_l1=error, layer_error=error.mean(-1),
        bytes=int(mask.sum()) * 512, tokens_kept=float(selection.entries), first_difference=2,
    )  # fmt: skip
