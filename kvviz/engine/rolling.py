"""Eviction while decoding: every few new tokens each cache is brought back to its budget.

The method itself decides, by the same `select` as after the prompt, on the rows the cache still holds:
kept prompt rows and everything fed since. Counts are exact; positions stay those of the tokens seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch

from kvviz.engine.attention import rows_attention
from kvviz.engine.decode import Cut, Wave
from kvviz.engine.selection import select
from kvviz.engine.trace import MAX_WINDOW, Trace, last_queries
from kvviz.errors import InputError
from kvviz.methods import parse_method
from kvviz.models import Model


@dataclass(frozen=True, eq=False)
class Held:
    """The rows that one cache holds, as methods score them (`kvviz.methods.layer.Rows`).

    keys, values  lists over layers of [Hkv, n, d]; positions [Hkv, n] a layer, true ones, ascending.
    queries       list over layers of [Hq, W, d]: the last rotated queries; the newest is at `seen` - 1.
    sums          accumulated attention [Hq, n] a layer, None where the method asks for none.
    """

    model: Model
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    positions: list[torch.Tensor]
    queries: list[torch.Tensor]
    seen: int
    sums: list[torch.Tensor] | None = None
    contiguous: ClassVar[bool] = False

    @property
    def n(self) -> int:
        return self.keys[0].shape[1]

    def rows(self, index: int) -> int:
        return self.n

    def visible(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def seen_by(self, index: int) -> torch.Tensor:
        return (self.seen - self.positions[index]).float()

    def window(self, index: int, window: int) -> torch.Tensor:
        return last_queries(self.queries[index], min(window, self.n))

    def window_attention(self, index: int, window: int) -> torch.Tensor:
        return self.attention(index, self.window(index, window))

    def attention(self, index: int, query: torch.Tensor) -> torch.Tensor:
        """Attention of the last T queries [Hq, T, d] on the rows held, float32 [Hq, T, n], causal by true
        position; zeros for an early query that may see none of the rows that are left."""
        layer, first = self.model.layer(index), self.seen - query.shape[1]
        return rows_attention(query, self.keys[index], layer, first, self.positions[index])

    def extra(self, need: str, index: int) -> torch.Tensor:
        if need != "column_sums" or self.sums is None:
            raise AssertionError(f"a cache that is cut while generating does not carry {need}")
        return self.sums[index]


def check_rolling(model, names: Sequence[str], options: Sequence[dict[str, Any]]) -> None:
    """InputError where a method or model cannot evict while decoding, with the reason."""
    if any(layer.window is not None for layer in model.layers):
        raise InputError(
            f"{model.id} has sliding layers, which drop old rows by themselves; evicting while decoding is "
            "not offered for it."
        )
    for name, used in zip(names, options):
        method, _ = parse_method(name)
        if not method.decodes:
            raise InputError(
                f"{method.label} is defined at the end of the prompt only; it cannot evict while decoding."
            )
        if used["allocation"] != "uniform":
            raise InputError(f"{method.label} evicts while decoding with the uniform allocation only.")


class Rule(Protocol):
    """What a cache was made by, and what it held then: as in `Selection`."""

    @property
    def method(self) -> str: ...
    @property
    def entries(self) -> int: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def mask(self) -> list[torch.Tensor]: ...


class Rolling:
    """Watches a wave and cuts its caches back every `every` new tokens.

    lead     tokens fed before the first generated one (a question that comes later).
    records  for each variant a list of {"phase": "question" or "answer", "step": tokens of it fed, "dropped":
             counts [L][Hkv], "tokens": dropped positions a layer}.
    cuts     for each variant what it holds from each cut on (`engine.decode.Cut`).
    """

    def __init__(
        self, trace: Trace, wave: Wave, selections: Sequence[Rule | None], every: int, lead: int = 0
    ):
        self.wave, self.every, self.lead = wave, every, lead
        self.selections = list(selections)
        self.last_cut = 0
        self.records: list[list[dict[str, Any]]] = [[] for _ in selections]
        self.cuts: list[list[Cut]] = [[] for _ in selections]
        layers = range(trace.model.n_layers)
        self.queries = [trace.queries[i].expand(wave.size, -1, -1, -1) for i in layers]
        self.fresh = 0  # queries fed since the last cut
        self.sums = [_first_sums(trace, s) for s in selections]
        wave.watcher = self

    @property
    def room(self) -> int:
        """Tokens until the next cut."""
        return self.every - (self.wave.length - self.last_cut)

    def saw(self, index: int, query: torch.Tensor) -> None:
        """Remember the queries of one layer, [V, Hq, T, d]: the window, and all since the last cut."""
        keep = max(MAX_WINDOW, self.fresh + query.shape[2])
        self.queries[index] = torch.cat([self.queries[index], query], 2)[:, :, -keep:]

    def fed(self, tokens: int) -> None:
        """Called after every pass; cuts when `every` new tokens have come."""
        self.fresh += tokens
        if self.wave.length - self.last_cut >= self.every:
            self._cut()
            self.last_cut, self.fresh = self.wave.length, 0

    def _cut(self) -> None:
        """Cut every variant that still writes; the others are fed filler, and no one sees what they hold."""
        masks = {}
        for variant, selection in enumerate(self.selections):
            if selection is not None and self.wave.writing[variant]:
                self.wave.check_cancel()
                masks[variant] = self._chosen(variant, selection)
        self.wave.evict(masks)

    def _chosen(self, variant: int, selection: Rule) -> list[torch.Tensor]:
        """What a variant keeps of what it holds; writes the record."""
        held = self.held(variant)
        mask = select(held, selection.method, selection.entries, **selection.options).mask
        dropped = [p.masked_select(~m.to(p.device)).tolist() for p, m in zip(held.positions, mask)]
        asking = self.wave.length <= self.lead
        self.records[variant].append(
            {
                "phase": "question" if asking else "answer",
                "step": self.wave.length - (0 if asking else self.lead),
                "dropped": [(~m).sum(-1).tolist() for m in mask],
                "tokens": [sorted(set(d)) for d in dropped],
            }
        )
        kept = [p[m.to(p.device)].view(len(p), -1) for p, m in zip(held.positions, mask)]
        self.cuts[variant].append((self.wave.length, kept))
        if held.sums is not None:
            self.sums[variant] = [
                s[m.to(s.device).repeat_interleave(s.shape[0] // m.shape[0], 0)].view(s.shape[0], -1)
                for s, m in zip(held.sums, mask)
            ]
        return mask

    def held(self, variant: int) -> Held:
        """What the cache of one variant holds now."""
        layers = range(self.wave.model.n_layers)
        keys, values, positions = zip(*(self.wave.rows(index, variant) for index in layers))
        held = Held(
            model=self.wave.model,
            keys=list(keys),
            values=list(values),
            positions=list(positions),
            queries=[q[variant][:, -MAX_WINDOW:] for q in self.queries],
            seen=self.wave.next_position,
        )
        sums = self.sums[variant]
        return held if sums is None else replace(held, sums=self._grown_sums(held, variant, sums))

    def _grown_sums(self, held: Held, variant: int, sums: list[torch.Tensor]) -> list[torch.Tensor]:
        """Accumulated attention of the rows held, with the queries since the last cut added."""
        out = []
        for index, before in enumerate(sums):
            p = held.attention(index, self.queries[index][variant][:, -self.fresh :]).sum(1)  # [Hq, n]
            p[:, : before.shape[1]] += before
            out.append(p)
        return out


def _first_sums(trace: Trace, selection: Rule | None) -> list[torch.Tensor] | None:
    """Accumulated attention of the kept rows at the end of the prompt, [Hq, b] a layer (H2O)."""
    if selection is None or "column_sums" not in parse_method(selection.method)[0].needs:
        return None
    out = []
    for index, mask in enumerate(selection.mask):
        sums = trace.extra("column_sums", index)
        group = sums.shape[0] // mask.shape[0]
        rows = mask.to(sums.device).repeat_interleave(group, 0)
        out.append(sums[rows].view(sums.shape[0], -1))
    return out
