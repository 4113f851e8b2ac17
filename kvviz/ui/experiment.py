"""Change what was kept by hand, with random changes of the same size as controls."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvviz.comparison import Comparison
from kvviz.errors import Cancelled, InputError
from kvviz.types import Selection, Variant
from kvviz.ui.selection import whole

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Edit:
    """Pin or evict tokens start to end in all layers and heads, one layer, or one head."""

    kind: str
    start: int
    end: int
    layer: int | None = None
    head: int | None = None


def edits_of(raw: Any, c: Comparison) -> list[Edit]:
    """Edits as a browser sends them, each checked; InputError where none is left."""
    found = []
    for item in raw[:50] if isinstance(raw, list) else []:
        if not isinstance(item, dict) or item.get("kind") not in ("pin", "evict"):
            continue
        tok = item.get("tok")
        if not isinstance(tok, list) or len(tok) != 2:
            continue
        start, end = whole(tok[0], 0, c.n - 1), whole(tok[1], 1, c.n)
        if start is None or end is None or end <= start:
            continue
        layer = whole(item.get("layer"), 0, c.model.n_layers - 1)
        head = whole(item.get("head"), 0, c.model.n_kv_heads - 1)
        found.append(Edit(item["kind"], start, end, layer, head))
    if not found:
        raise InputError("Choose tokens, then pin or evict them.")
    return found


def wanted(edits: list[Edit], shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(pinned, evicted) as bool [L, Hkv, n]; a later edit overrules an earlier one."""
    pinned, evicted = np.zeros(shape, bool), np.zeros(shape, bool)
    for edit in edits:
        rows = slice(None) if edit.layer is None else slice(edit.layer, edit.layer + 1)
        heads = slice(None) if edit.head is None else slice(edit.head, edit.head + 1)
        place = (rows, heads, slice(edit.start, edit.end))
        pinned[place], evicted[place] = edit.kind == "pin", edit.kind == "evict"
    return pinned, evicted


def edited(
    kept: np.ndarray,
    protected: np.ndarray,
    scores: np.ndarray,
    pinned: np.ndarray,
    evicted: np.ndarray,
    same_size: bool,
) -> np.ndarray:
    """The mask after an edit, all arrays [L, Hkv, n].

    same_size  pinning pushes out the lowest-scoring kept entries of the same head (never protected
               or pinned ones), evicting lets in the highest-scoring dropped ones.
    """
    mask = (kept | pinned) & ~evicted
    if not same_size:
        return mask
    order = np.where(np.isnan(scores), -np.inf, scores)
    for layer, head in np.ndindex(mask.shape[:2]):
        row = mask[layer, head]
        extra = int(row.sum()) - int(kept[layer, head].sum())
        if extra > 0:
            free = np.flatnonzero(row & ~pinned[layer, head] & ~protected[layer, head])
            lowest = free[np.argsort(order[layer, head, free], kind="stable")[:extra]]
            row[lowest] = False
        elif extra < 0:
            free = np.flatnonzero(~row & ~evicted[layer, head])
            free = free[np.isfinite(scores[layer, head, free])]
            row[free[np.argsort(-order[layer, head, free], kind="stable")[:-extra]]] = True
    return mask


def control(
    kept: np.ndarray, protected: np.ndarray, pinned: np.ndarray, evicted: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """As many changes in the same heads, at random unprotected places outside the edit."""
    rng = np.random.default_rng(seed)
    other_pins, other_cuts = np.zeros_like(pinned), np.zeros_like(evicted)
    touched = (pinned | evicted).any(axis=(0, 1))
    for layer, head in np.ndindex(kept.shape[:2]):
        now, free = kept[layer, head], ~protected[layer, head] & ~touched
        for new, pool, out in (
            (pinned[layer, head] & ~now, free & ~now, other_pins),
            (evicted[layer, head] & now, free & now, other_cuts),
        ):
            places = np.flatnonzero(pool)
            count = min(int(new.sum()), len(places))
            out[layer, head, rng.choice(places, count, replace=False)] = True
    return other_pins, other_cuts


def masks(variant: Variant, edits: list[Edit], same_size: bool) -> list[np.ndarray]:
    """The edited mask and one for each control."""
    s = variant.selection
    kept = np.stack([np.asarray(m) for m in s.mask])
    protected = np.broadcast_to(np.asarray(s.protected), kept.shape)
    scores = np.stack([np.asarray(x) for x in s.scores]).astype(np.float32)
    if not np.isfinite(scores).any():  # a method that goes by position: the newest count as best
        scores = np.broadcast_to(np.arange(kept.shape[-1], dtype=np.float32), kept.shape)
    pinned, evicted = wanted(edits, kept.shape)
    changes = [(pinned, evicted)]
    changes += [control(kept, protected, pinned, evicted, seed) for seed in SEEDS]
    return [edited(kept, protected, scores, p, e, same_size) for p, e in changes]


def run(
    model: Any, c: Comparison, variant: Variant, edits: list[Edit], same_size: bool,
    max_new_tokens: int, cancel: threading.Event,
) -> Iterator[tuple[str, float | None] | list[Variant]]:  # fmt: skip
    """Yields (message, fraction) while it works, at last the edited answer and its controls."""
    import torch

    import kvviz
    from kvviz.cache import build_cache
    from kvviz.decode import Answer, Sampling, Wave, feed_same, generate
    from kvviz.measures import first_difference, kl_divergence

    yield "Reading the document again", None
    trace = kvviz.prefill(model, c.prompt, methods=[], cancel=cancel)
    chosen = [_selection(variant, mask) for mask in masks(variant, edits, same_size)]
    cache = build_cache(trace, [None, *chosen])
    suffix = c.prompt.input_ids[c.n :].tolist()
    wave = Wave(model, cache, len(suffix) + max_new_tokens, cancel)
    first = trace.last_logits.expand(wave.size, -1) if not suffix else None
    if suffix:
        for logits in feed_same(wave, suffix, every=False):
            first = logits[:, -1]
    answers = [Answer() for _ in range(wave.size)]
    steps = generate(wave, first, max_new_tokens, model.stop_ids, Sampling(0.0, 1.0, 0), answers)
    for step, _ in enumerate(steps, 1):
        if cancel.is_set():
            raise Cancelled("Stopped.")
        yield "Writing the answer and three controls", step / max_new_tokens
    yield "Comparing next-token distributions", None
    wave.truncate(len(suffix))
    rows = [kl_divergence(first[0], first)[:, None]]
    full = list(answers[0].token_ids)
    for logits in feed_same(wave, full, every=True):
        rows += [kl_divergence(logits[0, t], logits[:, t])[:, None] for t in range(logits.shape[1])]
    kl = torch.cat(rows[: len(full)], 1).float().cpu().numpy()
    found = []
    for index, (selection, answer) in enumerate(zip(chosen, answers[1:]), 1):
        ids = list(answer.token_ids)
        found.append(
            dataclasses.replace(
                variant, selection=selection, token_ids=ids, kl=kl[index],
                tokens=[model.tokenizer.decode([t]) for t in ids],
                text=model.tokenizer.decode(ids, skip_special_tokens=True),
                finished=answer.finished or "length", output_error=None, output_error_l1=None,
                layer_error=None, bytes=cache.bytes[index],
                tokens_kept=float(selection.budgets.float().mean()),
                first_difference=first_difference(full, ids), evictions=[], notes=[],
            )
        )  # fmt: skip
    yield found


def _selection(variant: Variant, mask: np.ndarray) -> Selection:
    import torch

    rows = [torch.from_numpy(np.ascontiguousarray(layer)) for layer in mask]
    stage = np.where(mask, np.asarray(variant.selection.stage), 0)
    stage = np.where(mask & (stage == 0), 1, stage).astype(np.int8)
    return dataclasses.replace(
        variant.selection, mask=rows, budgets=torch.from_numpy(mask.sum(-1).astype(np.int64)),
        stage=torch.from_numpy(stage), notes=["Changed by hand."],
    )  # fmt: skip


def report(c: Comparison, before: Variant, found: list[Variant], edits: list[Edit]) -> dict[str, Any]:
    """What the page shows: answers in one row, and one sentence that claims no more than they do."""
    from kvviz.comparison import mean_kl
    from kvviz.figures import text
    from kvviz.figures.answers import verdict

    def row(name: str, v: Variant) -> dict[str, Any]:
        kept = np.stack([np.asarray(m) for m in v.selection.mask])
        mark = c.marks[0] if c.marks else None
        held = int(kept[:, :, mark.start : mark.end].all(axis=-1).sum()) if mark else None
        total = kept.shape[0] * kept.shape[1]
        return {
            "name": name,
            "text": v.text,
            "verdict": verdict(v.text, c.expected),
            "kl": text.kl(mean_kl(v.kl, c.prompt.protocol)),
            "held": f"{mark.name} in {held} of {total}" if mark else "",
        }

    names = ["After the edit", *(f"Random control {seed}" for seed in SEEDS)]
    rows = [row("Before", before), *(row(n, v) for n, v in zip(names, found))]
    return {"rows": rows, "sentence": sentence(c, before, found, edits)}


def sentence(c: Comparison, before: Variant, found: list[Variant], edits: list[Edit]) -> str:
    """The outcome beside its controls; the only place where a change may be called a change."""
    from kvviz.figures.answers import verdict

    pinning = all(edit.kind == "pin" for edit in edits)
    what = _what(c, edits)
    doing = "pinning" if pinning else "evicting" if edits[0].kind == "evict" else "editing"
    noun = "pins" if pinning else "evictions" if doing == "evicting" else "edits"
    if not c.expected:
        same = [v.token_ids == c.full.token_ids for v in found]
        said = "is the full cache's, token for token" if same[0] else "differs from the full cache's"
        return (
            f"After {doing} {what}, the answer {said}; with random {noun} it was the same as the "
            f"full cache's in {sum(same[1:])} of 3."
        )
    right = [verdict(v.text, c.expected) == "right" for v in found]
    was = verdict(before.text, c.expected) == "right"
    by_chance = sum(right[1:])
    if pinning and not right[0] and not was:
        return f"Pinning {what} did not bring the answer back: what was lost lies elsewhere."
    state = "contains" if right[0] else "no longer contains" if was else "does not contain"
    text = (
        f"After {doing} {what}, the answer {state} '{c.expected}'; "
        f"with random {noun} it did in {by_chance} of 3."
    )
    if was and right[0]:
        text += " It did before the edit as well."
    elif right[0] and by_chance == 3:
        text += f" Random {noun} do it as well, so this does not single out {what}."
    return text


def _what(c: Comparison, edits: list[Edit]) -> str:
    first = edits[0]
    name = next((m.name for m in c.marks if (m.start, m.end) == (first.start, first.end)), "")
    name = name or (
        f"token {first.start}" if first.end - first.start == 1
        else f"tokens {first.start} to {first.end - 1}"
    )  # fmt: skip
    more = f" and {len(edits) - 1} more" if len(edits) > 1 else ""
    if first.layer is None:
        where = "all heads"
    elif first.head is None:
        where = f"layer {first.layer}"
    else:
        where = f"layer {first.layer}, KV head {first.head}"
    return f"{name}{more} in {where}"
