"""Selection: scores + budgets + protected tokens -> what is kept, with exact counts.

The only place that ranks. Protected tokens are a boolean mask, never a large score. Order everywhere:
score descending, then earlier position, then lower KV head, then lower layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from kvviz.brief import brief
from kvviz.engine.budgets import ALLOCATORS, allocate
from kvviz.engine.counts import Candidates
from kvviz.engine.ranking import rank
from kvviz.engine.scoring import LayerAccount, MethodScores, Scored, Wanted, goes_first
from kvviz.identity import Budget
from kvviz.methods import Method, parse_method
from kvviz.methods.layer import Rows
from kvviz.methods.spec import Scores


@dataclass(frozen=True)
class Selection:
    """What one method keeps of a trace at one budget.

    mask       list over layers of bool [Hkv, n], True = kept.
    scores     list over layers of float32 [Hkv, n]; NaN where the method gives no score (protected
               tokens, tokens outside a sliding window).
    scores_raw the same before pooling.
    budgets    int64 [L, Hkv], entries kept by each head.
    protected  bool [L, Hkv, n], kept by rule rather than by score.
    stage      int8 [L, Hkv, n]: 0 evicted, 1 and 2 the stage that kept the entry, 3 protected.
    cutoff     float32 [L, Hkv]: the lowest score that was still kept by score, NaN where none was.
    scope      what an entry competed with: "head", "layer" or "all".
    first_scores   for two-stage methods the scores of stage 1 (float32 [Hkv, n] a layer), else None.
    readout    what the method adds to the kept entries' attention output (`kvviz.methods.spec.Readout`),
               None for all methods that only evict.
    """

    method: str
    label: str
    budget: float | int  # as it was asked for
    entries: int  # b, entries per KV head on average
    options: dict[str, Any]
    mask: list[torch.Tensor]
    scores: list[torch.Tensor]
    scores_raw: list[torch.Tensor]
    budgets: torch.Tensor
    protected: torch.Tensor
    stage: torch.Tensor
    cutoff: torch.Tensor
    scope: str
    notes: list[str] = field(default_factory=list)
    first_scores: list[torch.Tensor] | None = None
    seconds: float = 0.0
    readout: Any = None

    __repr__ = brief


def label_of(method: Method, options: Mapping[str, Any]) -> str:
    """What a person reads: "SnapKV", or "SnapKV with global" where the allocation is not its own."""
    if options["allocation"] == method.allocation:
        return method.label
    return f"{method.label} with {ALLOCATORS[options['allocation']].label}"


def select(trace: Rows, method: str, budget: float | int, **options: Any) -> Selection:
    """What `method` keeps of `trace` at `budget` (a share of n, or entries per KV head).

    options are the method's own (see `list_methods`), `allocation`, `protect` and `preset`. The result
    keeps exactly L * Hkv * b entries (in a sliding layer b is at most the rows still visible). Raises
    InputError for an unknown method, option or budget, NeedError where the trace lacks something.
    Scores are made anew; `select_from` takes those of earlier calls.
    """
    return select_from(Scored(trace), method, budget, **options)


def select_from(scored: Scored, method: str, budget: float | int, **options: Any) -> Selection:
    """The same from scores that are kept: budgets that share their context are scored once."""
    started = time.perf_counter()
    trace = scored.trace
    spec, inline = parse_method(method)
    resolved = spec.resolve({**inline, **options})
    for need in sorted(spec.needs_with(resolved)):
        trace.extra(need, 0)  # says what is missing before anything is scored
    asked = Budget.parse(budget)
    b = asked.of(trace.n)
    want = Wanted.at(trace, spec, resolved, b)
    return selected(trace, want, scored.of(want), asked, method, started)


def selected(
    trace: Rows, want: Wanted, scores: MethodScores, asked: Budget, name: str, started: float
) -> Selection:
    """What these scores keep at a budget, by the rules of `want`; `started` is when its seconds began."""
    spec, resolved, rows = want.method, want.options, want.rows
    b = asked.of(trace.n)
    counts = _context_counts(trace.n, rows, scores.layers, resolved)
    picked = _pick_all(trace, rows, scores, counts, resolved)
    readout = None
    if spec.readout is not None and b < trace.n:
        readout = spec.readout(trace, picked["mask"], b, resolved)
    notes = list(_notes(trace, spec, resolved, b, rows, int(picked["budgets"].sum())))
    if scores.layers[0].first is not None and b < trace.n and not (picked["stage"] == 2).any():
        notes.append("Stage 1 alone fills this budget: the scores decided nothing beyond it.")
    notes += [] if readout is None else readout.notes
    return Selection(
        method=name,
        label=label_of(spec, resolved),
        budget=asked.value,
        entries=b,
        options=dict(resolved),
        scope=ALLOCATORS[resolved["allocation"]].scope,
        notes=notes,
        seconds=time.perf_counter() - started,
        readout=readout,
        **picked,
    )


def _context_counts(n: int, rows: list[LayerAccount], scores: list[Scores], options):
    """Context entries of every head, list of int64 [Hkv]; protected sinks are not candidates."""
    candidates = [
        Candidates(
            _lifted(a, s),
            None if s.lifted else goes_first(a, s),
            a.budget,
            s.weight,
            n - a.rows + a.sinks,
            a.recent + a.sinks,
        )
        for a, s in zip(rows, scores)
    ]
    return allocate(options["allocation"], candidates, options)


def _lifted(a: LayerAccount, s: Scores) -> torch.Tensor:
    """The candidates' scores, [Hkv, C]; those of stage 1 are the layer's best where they are `lifted`."""
    values = torch.nan_to_num(s.values[:, a.sinks :], nan=float("-inf"))
    first = goes_first(a, s)
    if first is None or not s.lifted or not values.numel():
        return values
    return torch.where(first, values.max(), values)


def _pick_all(trace: Rows, rows, scores: MethodScores, counts, options) -> dict[str, Any]:
    layers, hkv, n = trace.model.n_layers, trace.model.n_kv_heads, trace.n
    stage = torch.zeros(layers, hkv, n, dtype=torch.int8)
    cutoff = torch.full((layers, hkv), float("nan"))
    protected = torch.zeros(layers, hkv, n, dtype=torch.bool)
    ranks = scores.ranks(rows)
    for index, (a, s, count) in enumerate(zip(rows, scores.layers, counts)):
        begin = n - a.rows  # where this layer's visible rows start
        lo, hi = begin + a.sinks, begin + a.context
        protected[index, :, begin:lo] = True
        protected[index, :, hi:] = True
        deciding = (s.values if s.second is None else s.second)[:, a.sinks :].cpu()
        deciding = torch.nan_to_num(deciding, nan=float("-inf"))
        k = count[:, None]
        passed = goes_first(a, s)
        if s.second is not None:
            inside = a.recent + a.sinks if options["stage1_of"] == "budget" else 0
            k1 = stage_counts(count, options["stage1"], inside)[:, None]
            passed = ranks[index] < k1
            kept = rank(deciding, passed) < k
        else:
            kept = ranks[index] < k
            passed = None if passed is None else passed.cpu()
        codes = kept.to(torch.int8)
        if passed is not None:
            codes = torch.where(passed, codes, codes * 2)  # 1: passed stage 1, 2: chosen after it
        stage[index, :, lo:hi] = codes
        by_score = kept if passed is None else kept & ~passed
        worst = deciding.masked_fill(~by_score, float("inf")).amin(-1) if hi > lo else cutoff[index]
        cutoff[index] = torch.where(torch.isinf(worst), torch.nan, worst)
    stage.masked_fill_(protected, 3)
    mask = stage > 0
    return {
        "mask": list(mask),
        **scores.wide(rows, n),
        "budgets": mask.sum(-1),
        "protected": protected,
        "stage": stage,
        "cutoff": cutoff,
    }


def stage_counts(counts: torch.Tensor, share: float, inside: int = 0) -> torch.Tensor:
    """floor(share * count) of every head, exact: 0.13 of 900 is 117. `inside` entries, kept by rule, are
    part of what is shared and of stage 1."""
    exact = Fraction(str(share))
    found = [max(0, math.floor(exact * (count + inside)) - inside) for count in counts.tolist()]
    return torch.tensor(found, dtype=torch.int64)


def _notes(trace: Rows, spec: Method, options, b: int, rows: list[LayerAccount], kept: int):
    if b == trace.n:
        yield f"{spec.label} kept everything at this budget: nothing was evicted."
    window = options.get("window")
    if window is not None and window > trace.n:
        yield f"The observation window was cut from {window} to the {trace.n} tokens there are."
    if window is not None and options["protect"] is None and rows[0].recent < min(window, trace.n):
        yield (
            f"Of the window's {min(window, trace.n)} tokens the last {rows[0].recent} are protected: "
            "more would leave too little of this budget."
        )
    heads = len(rows) * trace.model.n_kv_heads
    if not ALLOCATORS[options["allocation"]].exact:
        total = trace.model.n_kv_heads * sum(a.entries for a in rows)
        yield (
            f"Heads are kept whole or reduced to {rows[0].sinks} sinks and {rows[0].recent} recent tokens: "
            f"{kept:,} of the {total:,} entries that the budget allows are kept ({kept / heads:,.1f} "
            f"a KV head instead of {total / heads:,.1f})."
        )
    short = [i for i, a in enumerate(rows) if a.rows < trace.n]
    if short:
        held = min(rows[i].rows for i in short)
        yield (
            f"{len(short)} of {len(rows)} layers slide: only the last {held} tokens are held there, "
            "and the budget is at most that."
        )
    if spec.reconstructed:
        yield f"Reconstructed: {spec.reconstructed}."
    if caution := spec.caution(trace, b, options):
        yield caution
    if spec.differs:
        yield f"{spec.label} differs from the public code: {spec.differs}."
