"""Scores of a trace: what every method said so far, kept as a value of its own beside the trace.

`score(trace, wanted)` makes one; it grows with what later budgets, methods and runs ask for. Scores depend
on the method, its scoring options, where the context ends and the calibrated file, on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from kvviz.engine.ranking import rank
from kvviz.engine.trace import storage_bytes
from kvviz.methods import Method, artefacts
from kvviz.methods.layer import LayerView, Rows
from kvviz.methods.own import scores_of
from kvviz.methods.spec import Scores

Options = Mapping[str, Any]
RowsT = TypeVar("RowsT", bound=Rows)


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


def protected_counts(trace: Rows, method: Method, options: Options, b: int) -> tuple[int, int]:
    """(W', sinks) protected at budget b: at most half the budget is recent tokens, sinks fit the rest."""
    sinks = options.get("sinks", 0)
    if options["protect"] is not None:
        recent = min(options["protect"], b)
    elif method.protect is not None:
        kept = method.protect(trace, b, options)
        kept, sinks = kept if isinstance(kept, tuple) else (kept, sinks)
        recent = min(kept, b)
    elif "window" in options:
        recent = min(options["window"], max(1, b // 2))
    else:
        recent = 0
    return recent, max(0, min(sinks, b - recent))


def accounts(trace: Rows, method: Method, options: Options, b: int) -> list[LayerAccount]:
    """The account of every layer. In a sliding layer only the rows still visible are candidates."""
    if method.charge is not None and b < trace.n:
        b = max(1, b - method.charge(trace.model, options, b))
    recent, sinks = protected_counts(trace, method, options, b)
    out = []
    for index in range(trace.model.n_layers):
        rows = trace.rows(index)
        entries = min(b, rows)
        w = min(recent, entries)
        whole = rows == trace.n  # a sliding layer no longer holds the first tokens
        out.append(LayerAccount(rows, entries, w, min(sinks, entries - w) if whole else 0))
    return out


@dataclass(frozen=True)
class Wanted:
    """A method with its options, and the account of every layer at the budget asked for."""

    method: Method
    options: Options
    rows: list[LayerAccount]

    @classmethod
    def at(cls, trace: Rows, method: Method, options: Options, b: int) -> Wanted:
        """What a budget of b entries per KV head wants scored."""
        return cls(method, options, accounts(trace, method, options, b))


@dataclass(eq=False)
class MethodScores:
    """One method's scores of all layers for one context, and what was derived from them.

    layers  one `Scores` a layer, in order, as far as layers were scored.
    """

    layers: list[Scores] = field(default_factory=list)
    _ranks: dict[tuple, list[torch.Tensor]] = field(default_factory=dict)
    _wide: dict[tuple, dict[str, Any]] = field(default_factory=dict)

    def ranks(self, rows: Sequence[LayerAccount]) -> list[torch.Tensor]:
        """Place of every candidate in its head, by the first-stage score; kept for the next budget."""
        capped = tuple(a.budget for a in rows) if self.layers[0].turn is not None else ()
        key = (tuple(a.sinks for a in rows), capped)
        if key not in self._ranks:
            self._ranks[key] = [
                rank(
                    torch.nan_to_num(s.values[:, a.sinks :], nan=float("-inf")),
                    goes_first(a, s) if s.second is None else None,
                )
                for a, s in zip(rows, self.layers)
            ]
        return self._ranks[key]

    def wide(self, rows: Sequence[LayerAccount], n: int) -> dict[str, Any]:
        """Scores over all n tokens, as a selection shows them; shared by budgets with the same context."""
        key = tuple(a.sinks for a in rows)
        if key not in self._wide:
            parts: tuple[list[torch.Tensor], ...] = ([], [], [])
            for a, s in zip(rows, self.layers):
                decides = s.values if s.second is None else s.second
                for out, part in zip(parts, (decides, s.values if s.raw is None else s.raw, s.values)):
                    out.append(_widen(part, n, a))
            two_stage = self.layers[0].second is not None
            self._wide[key] = {
                "scores": parts[0],
                "scores_raw": parts[0] if self.layers[0].raw is None and not two_stage else parts[1],
                "first_scores": parts[2] if two_stage else None,
            }
        return self._wide[key]


class Scored(Generic[RowsT]):
    """A trace with the scores made of it so far.

    Pass it on (`select_from`, `compare(scored=...)`) and nothing that was scored is scored again.
    """

    def __init__(self, trace: RowsT):
        self.trace = trace
        self._held: dict[tuple, MethodScores] = {}

    @property
    def bytes(self) -> int:
        """Storage kept alive: the trace's, the scores' and what was derived from them."""
        return storage_bytes(self.trace, self._held)

    def of(self, want: Wanted) -> MethodScores:
        """The scores of every layer; what has not been scored yet is scored now."""
        for _ in self.add([want]):
            pass
        return self._held[self._key(want)]

    def add(self, wanted: Sequence[Wanted], alive: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Score what is missing layer by layer, so that all methods share a layer's window attention.

        Yields the layers done. alive() is called before each method's turn and may raise to stop; what
        was scored by then stays.
        """
        asked = {self._key(want): want for want in wanted}
        layers = self.trace.model.n_layers
        for key in asked:
            self._held.setdefault(key, MethodScores())
        for index in range(layers):
            shared: dict[Any, torch.Tensor] = {}
            for key, want in asked.items():
                held = self._held[key].layers
                if len(held) == index:
                    alive()
                    view = LayerView(self.trace, index, want.rows[index].context, shared)
                    held.append(scores_of(want.method, view, want.options))
            yield index + 1

    def _key(self, want: Wanted) -> tuple:
        method, options = want.method, want.options
        contexts = tuple(a.context for a in want.rows)
        file = _file_of(self.trace.model, method)
        return method.id, method.score, method.scoring_options(options), contexts, file


def score(trace: RowsT, wanted: Sequence[Wanted]) -> Scored[RowsT]:
    """Score a trace for several methods and budgets at once."""
    scored = Scored(trace)
    for _ in scored.add(wanted):
        pass
    return scored


def goes_first(account: LayerAccount, scores: Scores) -> torch.Tensor | None:
    """The candidates that go before all others at this budget, bool [Hkv, C]; None where there are none."""
    first = scores.goes_first(account.budget)
    return None if first is None else first[:, account.sinks :]


def _file_of(model, method: Method) -> str:
    """SHA-256 of the calibrated tensors a method uses, "" where it uses none."""
    if method.artefact is None:
        return ""
    used = artefacts.load(model, method.artefact.name)
    return used.about.get("sha256") or artefacts.digest(used.tensors)


def _widen(scores: torch.Tensor, n: int, a: LayerAccount) -> torch.Tensor:
    """Context scores to all n tokens, NaN where there is none: float32 [Hkv, n]."""
    out = torch.full((scores.shape[0], n), float("nan"))
    begin = n - a.rows
    out[:, begin + a.sinks : begin + a.context] = scores[:, a.sinks :].float().cpu()
    return out
