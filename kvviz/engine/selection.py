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

from kvviz.engine.budgets import ALLOCATORS, Candidates, allocate
from kvviz.engine.ranking import rank
from kvviz.engine.trace import Trace
from kvviz.identity import Budget
from kvviz.methods import Method, parse_method
from kvviz.methods.layer import LayerView
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


@dataclass(frozen=True)
class LayerAccount:
    """One layer's share of the bargain: rows visible, kept, protected at either end."""

    rows: int  # n_l, candidates in all
    entries: int  # b_l = min(b, n_l)
    recent: int  # W', the latest rows, kept by rule
    sinks: int  # the first rows, kept by rule

    @property
    def context(self) -> int:
        """Rows before the protected recent ones."""
        return self.rows - self.recent

    @property
    def budget(self) -> int:
        """Context entries to be chosen by score, per head on average."""
        return self.entries - self.recent - self.sinks


def protected_counts(method: Method, options: Mapping[str, Any], b: int) -> tuple[int, int]:
    """(W', sinks) protected at budget b: at most half the budget is recent tokens, sinks fit the rest."""
    sinks = options.get("sinks", 0)
    if options["protect"] is not None:
        recent = min(options["protect"], b)
    elif method.protect is not None:
        kept = method.protect(b, options)
        kept, sinks = kept if isinstance(kept, tuple) else (kept, sinks)
        recent = min(kept, b)
    elif "window" in options:
        recent = min(options["window"], max(1, b // 2))
    else:
        recent = 0
    return recent, max(0, min(sinks, b - recent))


def accounts(trace: Trace, method: Method, options: Mapping[str, Any], b: int) -> list[LayerAccount]:
    """The account of every layer. In a sliding layer only the rows still visible are candidates."""
    if method.charge is not None and b < trace.n:
        b = max(1, b - method.charge(trace.model, options, b))
    recent, sinks = protected_counts(method, options, b)
    out = []
    for index in range(trace.model.n_layers):
        rows = trace.rows(index)
        entries = min(b, rows)
        w = min(recent, entries)
        whole = rows == trace.n  # a sliding layer no longer holds the first tokens
        out.append(LayerAccount(rows, entries, w, min(sinks, entries - w) if whole else 0))
    return out


def score_layers(
    trace: Trace, method: Method, options: Mapping[str, Any], contexts: list[int]
) -> list[Scores]:
    """Scores of every layer for its leading `contexts[l]` rows; kept with the trace for the next budget."""
    for index in range(trace.model.n_layers):
        score_layer(trace, index, [(method, options, contexts)])
    return trace.memo[_key(method, options, contexts)]


def score_layer(trace: Trace, index: int, wanted: list[tuple[Method, Mapping[str, Any], list[int]]]) -> None:
    """Score one layer for several methods at once, so that they share its window attention.

    A layer that was scored before is left as it is, so work that was stopped half way can go on.
    """
    memo: dict[Any, torch.Tensor] = {}
    for method, options, contexts in wanted:
        rows = trace.memo.setdefault(_key(method, options, contexts), [None] * trace.model.n_layers)
        if rows[index] is None:
            rows[index] = method.score(LayerView(trace, index, contexts[index], memo), options)


def _key(method: Method, options: Mapping[str, Any], contexts: list[int]) -> tuple:
    """Scores depend on the method, its scoring options and where the context ends, on nothing else."""
    return ("scores", method.id, method.scoring_options(options), tuple(contexts))


def label_of(method: Method, options: Mapping[str, Any]) -> str:
    """What a person reads: "SnapKV", or "SnapKV with global" where the allocation is not its own."""
    if options["allocation"] == method.allocation:
        return method.label
    return f"{method.label} with {ALLOCATORS[options['allocation']].label}"


def select(trace: Trace, method: str, budget: float | int, **options: Any) -> Selection:
    """What `method` keeps of `trace` at `budget` (a share of n, or entries per KV head).

    options are the method's own (see `list_methods`), `allocation`, `protect` and `preset`. The result
    keeps exactly L * Hkv * b entries (in a sliding layer b is at most the rows still visible). Raises
    InputError for an unknown method, option or budget, NeedError where the trace lacks something.
    """
    started = time.perf_counter()
    spec, inline = parse_method(method)
    resolved = spec.resolve({**inline, **options})
    missing = spec.needs_with(resolved) - set(trace.extras)
    if missing:
        trace.extra(sorted(missing)[0], 0)
    asked = Budget.parse(budget)
    b = asked.of(trace.n)
    rows = accounts(trace, spec, resolved, b)
    scores = score_layers(trace, spec, resolved, [a.context for a in rows])
    counts = _context_counts(trace, rows, scores, resolved)
    picked = _pick_all(trace, rows, scores, counts, resolved)
    readout = None
    if spec.readout is not None and b < trace.n:
        readout = spec.readout(trace, picked["mask"], b, resolved)
    notes = list(_notes(trace, spec, resolved, b, rows, int(picked["budgets"].sum())))
    notes += [] if readout is None else readout.notes
    return Selection(
        method=method,
        label=label_of(spec, resolved),
        budget=asked.value,
        entries=b,
        options=resolved,
        scope=ALLOCATORS[resolved["allocation"]].scope,
        notes=notes,
        seconds=time.perf_counter() - started,
        readout=readout,
        **picked,
    )


def _context_counts(trace: Trace, rows: list[LayerAccount], scores: list[Scores], options):
    """Context entries of every head, list of int64 [Hkv]; protected sinks are not candidates."""
    candidates = [
        Candidates(
            torch.nan_to_num(s.values[:, a.sinks :], nan=float("-inf")),
            _first(a, s),
            a.budget,
            s.weight,
            trace.n - a.rows + a.sinks,
            a.recent + a.sinks,
        )
        for a, s in zip(rows, scores)
    ]
    return allocate(options["allocation"], candidates, options)


def _pick_all(trace, rows, scores, counts, options) -> dict[str, Any]:
    layers, hkv, n = trace.model.n_layers, trace.model.n_kv_heads, trace.n
    stage = torch.zeros(layers, hkv, n, dtype=torch.int8)
    cutoff = torch.full((layers, hkv), float("nan"))
    protected = torch.zeros(layers, hkv, n, dtype=torch.bool)
    two_stage = scores[0].second is not None
    ranks = _ranks(trace, rows, scores)
    for index, (a, s, count) in enumerate(zip(rows, scores, counts)):
        begin = n - a.rows  # where this layer's visible rows start
        lo, hi = begin + a.sinks, begin + a.context
        protected[index, :, begin:lo] = True
        protected[index, :, hi:] = True
        deciding = (s.second if two_stage else s.values)[:, a.sinks :].cpu()
        deciding = torch.nan_to_num(deciding, nan=float("-inf"))
        k = count[:, None]
        if two_stage:
            k1 = stage_counts(count, options["stage1"])[:, None]
            passed = ranks[index] < k1
            kept = rank(deciding, passed) < k
        elif s.first is not None:
            passed = _first(a, s).cpu()
            kept = ranks[index] < k
        else:
            passed, kept = None, ranks[index] < k
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
        **_wide_scores(trace, rows, scores),
        "budgets": mask.sum(-1),
        "protected": protected,
        "stage": stage,
        "cutoff": cutoff,
    }


def stage_counts(counts: torch.Tensor, share: float) -> torch.Tensor:
    """floor(share * count) of every head, exact: 0.13 of 900 is 117."""
    exact = Fraction(str(share))
    return torch.tensor([math.floor(exact * count) for count in counts.tolist()], dtype=torch.int64)


def _first(account: LayerAccount, scores: Scores) -> torch.Tensor | None:
    """The candidates that go before all others at this budget, bool [Hkv, C]; None where there are none."""
    first = scores.goes_first(account.budget)
    return None if first is None else first[:, account.sinks :]


def _ranks(trace: Trace, rows: list[LayerAccount], scores: list[Scores]) -> list[torch.Tensor]:
    """Place of every candidate in its head, by the first-stage score; kept for the next budget."""
    capped = tuple(a.budget for a in rows) if scores[0].turn is not None else ()
    key = ("ranks", id(scores), tuple(a.sinks for a in rows), capped)
    if key not in trace.memo:
        trace.memo[key] = [
            rank(
                torch.nan_to_num(s.values[:, a.sinks :], nan=float("-inf")),
                _first(a, s) if s.second is None else None,
            )
            for a, s in zip(rows, scores)
        ]
    return trace.memo[key]


def _wide_scores(trace: Trace, rows: list[LayerAccount], scores: list[Scores]) -> dict[str, Any]:
    """Scores over all n tokens, as a selection shows them; shared by all budgets with the same context."""
    key = ("wide", id(scores), tuple(a.sinks for a in rows))
    if key not in trace.memo:
        wide = [[], [], []]
        for a, s in zip(rows, scores):
            decides = s.values if s.second is None else s.second
            for out, part in zip(wide, (decides, s.values if s.raw is None else s.raw, s.values)):
                out.append(_widen(part, trace.n, a))
        two_stage = scores[0].second is not None
        trace.memo[key] = {
            "scores": wide[0],
            "scores_raw": wide[0] if scores[0].raw is None and not two_stage else wide[1],
            "first_scores": wide[2] if two_stage else None,
        }
    return trace.memo[key]


def _widen(scores: torch.Tensor, n: int, a: LayerAccount) -> torch.Tensor:
    """Context scores to all n tokens, NaN where there is none: float32 [Hkv, n]."""
    out = torch.full((scores.shape[0], n), float("nan"))
    begin = n - a.rows
    out[:, begin + a.sinks : begin + a.context] = scores[:, a.sinks :].float().cpu()
    return out


def _notes(trace: Trace, spec: Method, options, b: int, rows: list[LayerAccount], kept: int):
    if b == trace.n:
        yield f"{spec.label} kept everything at this budget: nothing was evicted."
    window = options.get("window")
    if window is not None and window > trace.n:
        yield f"The observation window was cut from {window} to the {trace.n} tokens there are."
    if window is not None and rows[0].recent < min(window, trace.n):
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
