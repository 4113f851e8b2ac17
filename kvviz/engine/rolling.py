"""Eviction while decoding: every few new tokens each cache is brought back to its budget.

The method itself decides, by the same `select` as after the prompt, on the rows the cache still holds:
kept prompt rows and everything fed since. Counts are exact; positions stay those of the tokens seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kvviz import kernels
from kvviz.engine.cache import Blocks
from kvviz.engine.decode import Wave
from kvviz.engine.selection import Selection, select
from kvviz.engine.trace import MAX_WINDOW, Trace, block_rows
from kvviz.errors import InputError
from kvviz.methods import parse_method


@dataclass
class HeldTrace(Trace):
    """The rows one cache holds, seen as a trace: n counts rows held; positions [L][Hkv, n] are true."""

    positions: list[torch.Tensor] = None
    seen: int = 0  # tokens seen; the last query is at position seen - 1

    contiguous: ClassVar[bool] = False

    def rows(self, index: int) -> int:
        return self.n

    def seen_by(self, index: int) -> torch.Tensor:
        return (self.seen - self.positions[index]).float()

    def window_attention(self, index: int, window: int) -> torch.Tensor:
        """Attention of the last W queries on the rows held, float32 [Hq, W, n], causal by true position."""
        return self._attention(index, self.window(index, window))

    def _attention(self, index: int, query: torch.Tensor) -> torch.Tensor:
        layer, keys = self.model.layer(index), self.keys[index].float()
        hkv, w = keys.shape[0], query.shape[1]
        rows = query.float().unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling
        logits = (rows @ keys.transpose(1, 2)).unflatten(1, (-1, w))  # [Hkv, g, W, n]
        at = torch.arange(self.seen - w, self.seen, device=keys.device)[:, None]
        later = self.positions[index][:, None, None, :] > at
        logits = logits.masked_fill(later, float("-inf")).flatten(0, 1)
        if layer.sinks is not None:
            sinks = layer.sinks.float()[:, None, None].expand(-1, w, 1)
            return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        # An early query may see none of the rows that are left.
        return torch.nan_to_num(logits.softmax(-1))


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


class Rolling:
    """Watches a wave and cuts its caches back every `every` new tokens.

    lead     tokens fed before the first generated one (a question that comes later).
    records  for each variant a list of {"step": generated tokens fed, "dropped": counts [L][Hkv], "tokens":
             dropped positions a layer}.
    """

    def __init__(
        self, trace: Trace, wave: Wave, selections: Sequence[Selection | None], every: int, lead: int = 0
    ):
        self.trace, self.wave, self.every, self.lead = trace, wave, every, lead
        self.selections = list(selections)
        self.last_cut = 0
        self.records: list[list[dict[str, Any]]] = [[] for _ in selections]
        layers = range(trace.model.n_layers)
        self.queries = [trace.queries[i].expand(wave.size, -1, -1, -1) for i in layers]
        self.fresh = 0  # queries fed since the last cut
        self.sums = [self._first_sums(s) for s in selections]
        wave.watcher = self

    def _first_sums(self, selection: Selection | None) -> list[torch.Tensor] | None:
        """Accumulated attention of the kept rows at the end of the prompt, [Hq, b] a layer (H2O)."""
        if selection is None or "column_sums" not in parse_method(selection.method)[0].needs:
            return None
        out = []
        for index, mask in enumerate(selection.mask):
            sums = self.trace.extra("column_sums", index)
            group = sums.shape[0] // mask.shape[0]
            rows = mask.to(sums.device).repeat_interleave(group, 0)
            out.append(sums[rows].view(sums.shape[0], -1))
        return out

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
        held = [self._held(i) if s is not None else None for i, s in enumerate(self.selections)]
        masks = [
            select(h, s.method, s.entries, **s.options).mask if h is not None else None
            for h, s in zip(held, self.selections)
        ]
        for variant, (h, mask) in enumerate(zip(held, masks)):
            if h is None:
                continue
            dropped = [p.masked_select(~m).tolist() for p, m in zip(h.positions, mask)]
            self.records[variant].append(
                {
                    "step": self.wave.length - self.lead,
                    "dropped": [(~m).sum(-1).tolist() for m in mask],
                    "tokens": [sorted(set(d)) for d in dropped],
                }
            )
            self.wave.tail_from[variant] = self.wave.length
            if self.sums[variant] is not None:
                self.sums[variant] = [
                    s[m.repeat_interleave(s.shape[0] // m.shape[0], 0)].view(s.shape[0], -1)
                    for s, m in zip(h.extras["column_sums"], mask)
                ]
        for index in range(self.trace.model.n_layers):
            self._store(index, held, masks)

    def _held(self, variant: int) -> HeldTrace:
        model, wave = self.trace.model, self.wave
        keys, values, positions = [], [], []
        for index in range(model.n_layers):
            k, v, p = self._rows(index, variant)
            keys.append(k)
            values.append(v)
            positions.append(p)
        held = HeldTrace(
            model=model,
            prompt=self.trace.prompt,
            n=keys[0].shape[1],
            keys=keys,
            values=values,
            queries=[q[variant][:, -MAX_WINDOW:] for q in self.queries],
            last_logits=self.trace.last_logits,
            needs=frozenset(),
            extras={},
            padded=([], []),
            positions=positions,
            seen=wave.next_position,
        )
        if self.sums[variant] is not None:
            held.extras["column_sums"] = self._grown_sums(held, variant)
        return held

    def _grown_sums(self, held: HeldTrace, variant: int) -> list[torch.Tensor]:
        """Accumulated attention of the rows held, with the queries since the last cut added."""
        out = []
        for index, before in enumerate(self.sums[variant]):
            query = self.queries[index][variant][:, -self.fresh :]
            p = held._attention(index, query).sum(1)  # [Hq, n]
            p[:, : before.shape[1]] += before
            out.append(p)
        return out

    def _rows(self, index: int, variant: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Everything one cache holds in a layer: keys, values [Hkv, m, d], true positions [Hkv, m]."""
        blocks = next(b for b in self.wave.cache.layers[index] if b.first <= variant < b.first + b.count)
        hkv = self.trace.model.n_kv_heads
        mine = blocks.owner // hkv == variant - blocks.first
        positions = blocks.positions[mine].flatten()
        filled = positions >= 0
        d = blocks.keys.shape[-1]
        shape = (hkv, -1, d)  # every head holds the same number: allocation is uniform
        tail_keys, tail_values = self.wave.tail_rows(index, variant)
        start = self.wave.tail_from[variant]
        later = torch.arange(self.wave.cache.n + start, self.wave.next_position, device=positions.device)
        return (
            torch.cat([blocks.keys[mine].view(-1, d)[filled].view(shape), tail_keys[:, start:]], 1),
            torch.cat([blocks.values[mine].view(-1, d)[filled].view(shape), tail_values[:, start:]], 1),
            torch.cat([positions[filled].view(hkv, -1), later.expand(hkv, -1)], 1),
        )

    def _store(self, index: int, held: list, masks: list) -> None:
        """Fresh blocks for the cut variants of a layer; the whole cache, if it is there, stays."""
        parts, owners = [], []
        stay = [b for b in self.wave.cache.layers[index] if self.selections[b.first] is None]
        first = sum(b.count for b in stay)
        for variant in range(first, self.wave.size):
            h, mask = held[variant], masks[variant][index]
            rows = kernels.gather_rows(
                h.keys[index], h.values[index], mask.to(h.keys[index].device), block_rows(self.trace.n)
            )
            true = self._true_positions(rows[2], rows[3], h.positions[index])
            parts.append((rows[0], rows[1], true))
            owners.append(rows[3] + (variant - first) * mask.shape[0])
        merged = [torch.cat([p[k] for p in parts]) for k in range(3)]
        fresh = Blocks(first, self.wave.size - first, *merged, torch.cat(owners))
        self.wave.cache.layers[index] = [*stay, fresh]

    @staticmethod
    def _true_positions(slots: torch.Tensor, head: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """gather_rows numbers rows as it found them; put their true positions in their place."""
        true = positions.to(torch.int32)[head.long()].gather(1, slots.clamp_min(0).long())
        return torch.where(slots < 0, -1, true).to(torch.int32)
