"""Change what was kept by hand and decode again, beside random changes of the same size as controls.

    edited = try_edits(model, result, "snapkv", 0.2, [Edit("pin", 412, 417)])
    edited.variants[0].text      # with tokens 412 to 416 pinned
    edited.variants[1:]          # the controls

Only such a pair may be read as cause and effect: what the controls do as well was not the edit's doing.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvviz.engine.ask import MEASURES, Ask
from kvviz.engine.changes import drawn, pushed_out, worth
from kvviz.engine.run import compare_stream
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import Selection
from kvviz.engine.steps import called_as, result_of
from kvviz.engine.trace import Trace, needs_of, prefill_events
from kvviz.errors import InputError
from kvviz.identity import MethodRef
from kvviz.methods import Method, parse_method
from kvviz.models import Model
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.kept import window_starts
from kvviz.types import Event, ModelInfo

SEEDS = (0, 1, 2)  # of the controls


@dataclass(frozen=True)
class Edit:
    """Pin or evict tokens start to end (exclusive) in all layers and heads, one layer, or one head.

    kind  "pin" or "evict"; layer and head None = all.
    """

    kind: str
    start: int
    end: int
    layer: int | None = None
    head: int | None = None


def try_edits_stream(
    model: Model,
    comparison: Comparison,
    method: str,
    budget: float | int,
    edits: Sequence[Edit],
    same_size: bool = True,
    *,
    trace: Trace | None = None,
    scored: Scored[Trace] | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Event]:
    """`try_edits` as an iterator of events; the last one carries the result.

    What is to be tried is checked at the call.
    """
    variant = comparison.variant(method, budget)
    if variant is None or variant.selection is None:
        raise InputError("Choose a method and a budget that were decoded, then try again.")
    check_edits(edits, comparison.model, comparison.n)
    if scored is None and trace is not None:
        scored = Scored(trace)
    return _tried(model, comparison, variant, edits, same_size, scored, cancel)


@called_as(try_edits_stream)
def try_edits(stream: Iterator[Event]) -> Comparison:
    """The comparison of one edited kept set: variants[0] is the edit, the others are its controls.

    same_size  the cache keeps its size: pinning pushes out the lowest-scoring kept entries of the same
               head, evicting lets in the highest-scoring dropped ones. Else it grows or shrinks.
    trace      of the same prompt, so that nothing is read again (with what the method needs); `scored` is
               one with its scores.
    """
    return result_of(stream)


def _tried(
    model: Model,
    c: Comparison,
    variant: Variant,
    edits: Sequence[Edit],
    same_size: bool,
    scored: Scored[Trace] | None,
    cancel: threading.Event | None,
) -> Iterator[Event]:
    prompt = dataclasses.replace(c.prompt, input_ids=torch.as_tensor(c.prompt.input_ids))
    base = str(MethodRef.parse(variant.method).base)
    spec, _ = parse_method(base)
    if scored is None:
        needs = needs_of([base], {base: _options(c, base)}) if spec.readout else frozenset()
        trace = yield from prefill_events(model, prompt, needs, cancel)
        scored = Scored(trace)
    ask = Ask.of_settings(c.settings).of(methods=(), budgets=(), controlled=False, evict_every=None)
    yield from compare_stream(
        model,
        prompt,
        ask=dataclasses.replace(ask, expected=c.expected, measures=MEASURES, lenses=False),
        selections=edited_selections(scored.trace, spec, variant, edits, same_size),
        scored=scored,
        cancel=cancel,
    )


def _options(c: Comparison, method: str) -> dict[str, Any]:
    return dict((c.settings.get("methods") or {}).get(method, {}).get("used") or {})


def check_edits(edits: Sequence[Edit], model: ModelInfo, n: int) -> None:
    """InputError where an edit names something this run does not have."""
    if not edits:
        raise InputError("Choose tokens, then pin or evict them.")
    for edit in edits:
        if edit.kind not in ("pin", "evict"):
            raise InputError(f"An edit pins or evicts; {edit.kind!r} is neither.")
        if not 0 <= edit.start < edit.end <= n:
            raise InputError(f"Choose tokens between 0 and {n - 1}.")
        if edit.layer is not None and not 0 <= edit.layer < model.n_layers:
            raise InputError(f"There is no layer {edit.layer}; the last one is {model.n_layers - 1}.")
        if edit.head is not None and not 0 <= edit.head < model.n_kv_heads:
            raise InputError(f"There is no KV head {edit.head}; the last one is {model.n_kv_heads - 1}.")


def edited_selections(
    trace: Trace, spec: Method, variant: Variant, edits: Sequence[Edit], same_size: bool
) -> list[Selection]:
    """The edited selection and one for each control, ready to be decoded."""
    old = variant.packed
    ref = MethodRef.parse(variant.method)
    names = [("edit", f"{variant.label} + edit")]
    names += [(f"control{seed}", f"Random control {seed}") for seed in SEEDS]
    out = []
    for (name, label), mask in zip(names, edited_masks(variant, edits, same_size, trace.model.info)):
        rows = [torch.from_numpy(np.ascontiguousarray(layer)) for layer in mask]
        stage = np.where(mask, 0 if old.stage is None else old.stage, 0)
        stage = np.where(mask & (stage == 0), 1, stage).astype(np.int8)
        readout = None
        if spec.readout is not None:  # what was evicted differs now, and so does what it left behind
            readout = spec.readout(trace, rows, variant.entries, old.options)
        out.append(
            Selection(
                method=str(ref.changed(name)),
                label=label,
                budget=old.budget,
                entries=old.entries,
                options=old.options,
                mask=rows,
                scores=_tensors(old.need_scores()),
                scores_raw=_tensors(old.need_scores() if old.scores_raw is None else old.scores_raw),
                budgets=torch.from_numpy(mask.sum(-1).astype(np.int64)),
                protected=torch.from_numpy(old.protected),
                stage=torch.from_numpy(stage),
                cutoff=torch.as_tensor(old.cutoff),
                scope=old.scope,
                notes=["Changed by hand."],
                first_scores=None if old.first_scores is None else _tensors(old.first_scores),
                seconds=old.seconds,
                readout=readout,
            )
        )
    return out


def _tensors(rows: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.as_tensor(row) for row in rows]


def edited_masks(
    variant: Variant, edits: Sequence[Edit], same_size: bool, model: ModelInfo
) -> list[np.ndarray]:
    """bool [L, Hkv, n]: the edited mask, then one for each control."""
    point = variant.packed
    kept, protected = point.kept.mask(), point.kept.protected()
    scores = worth(np.stack(point.need_scores()).astype(np.float32))
    held = np.arange(kept.shape[-1]) >= window_starts(model, kept.shape[-1])[:, None]
    pinned, evicted = _wanted(edits, kept.shape)
    pinned &= held[:, None]
    changes = [(pinned, evicted)]
    changes += [_control(kept, protected, pinned, evicted, held, seed) for seed in SEEDS]
    return [_edited(kept, protected, scores, p, e, same_size) for p, e in changes]


def _wanted(edits: Sequence[Edit], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(pinned, evicted); a later edit overrules an earlier one."""
    pinned, evicted = np.zeros(shape, bool), np.zeros(shape, bool)
    for edit in edits:
        rows = slice(None) if edit.layer is None else slice(edit.layer, edit.layer + 1)
        heads = slice(None) if edit.head is None else slice(edit.head, edit.head + 1)
        place = (rows, heads, slice(edit.start, edit.end))
        pinned[place], evicted[place] = edit.kind == "pin", edit.kind == "evict"
    return pinned, evicted


def _edited(
    kept: np.ndarray,
    protected: np.ndarray,
    scores: np.ndarray,
    pinned: np.ndarray,
    evicted: np.ndarray,
    same_size: bool,
) -> np.ndarray:
    """The mask after an edit. Neither protected nor pinned entries are pushed out."""
    mask = (kept | pinned) & ~evicted
    if not same_size:
        return mask
    extra = mask.sum(-1) - kept.sum(-1)
    mask = pushed_out(mask, extra, pinned | protected, scores)
    for place in zip(*np.nonzero(extra < 0)):
        free = np.flatnonzero(~mask[place] & ~evicted[place] & np.isfinite(scores[place]))
        mask[place][free[np.argsort(-scores[place][free], kind="stable")[: -extra[place]]]] = True
    return mask


def _control(kept, protected, pinned, evicted, held, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As many changes in the same heads, at random unprotected places outside the edit."""
    rng = np.random.default_rng(seed)
    free = ~protected & ~(pinned | evicted).any(axis=(0, 1)) & held[:, None]
    pins = drawn((pinned & ~kept).sum(-1), free & ~kept, rng)
    return pins, drawn((evicted & kept).sum(-1), free & kept, rng)
