"""Measures: what an eviction did, from the definition.

Output error is layer-local: at every layer the full run's own queries attend to the kept prompt rows and
to all later rows, renormalised, and the change of each head's contribution o W_O is measured. What drifts
from layer to layer is what KL shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvviz.engine.attention import hide, weighed
from kvviz.engine.decode import Cut, Probes
from kvviz.engine.trace import Trace
from kvviz.kernels import merge_attention

_FAR = 60  # a logit that rose so far may leave what float32 holds


def kl_divergence(full: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(full || other) in nats along the last axis of two logit tensors, float64; never below 0.

    With d = other - full, less its mean under full, it is log(sum p e^d): exact also where next to nothing
    changed, and one exponential a logit.
    """
    p, apart = full.softmax(-1), other - full
    apart -= (p * apart).sum(-1, keepdim=True)
    if apart.max() < _FAR:
        return (p * apart.expm1_()).sum(-1).double().log1p().clamp_min(0)
    log_p, log_q = full.double().log_softmax(-1), other.double().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)


def first_difference(full: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first generated token that differs, None where the answers are the same."""
    for index, (a, b) in enumerate(zip(full, other)):
        if a != b:
            return index
    return None if len(full) == len(other) else min(len(full), len(other))


@dataclass
class OutputError:
    """Relative change of outputs, mean over the probe queries. l2 float32 [L, Hq]; layer [L]."""

    l2: np.ndarray
    layer: np.ndarray


Part = tuple[torch.Tensor, torch.Tensor]  # attention over some rows: output, log-sum-exp

# Attention left of a query's, below which float32 no longer tells what remains: it is normalised anew.
_NOTHING = 1e-30


class _LayerProbe:
    """One layer's probe queries: unnormalised attention on prompt and tail, and the full output.

    Rows are [Hkv, g * T]: the query heads of a KV head one after another. Learned sinks are part of the tail.
    """

    def __init__(self, trace: Trace, probes: Probes, index: int):
        layer = trace.model.layer(index)
        self.keys, self.values = trace.keys[index].float(), trace.values[index].float()
        hkv, n = self.keys.shape[:2]
        query = probes.queries[index].float()
        tail_keys, self.tail_values = (side.float() for side in probes.tail[index])
        t, s = query.shape[1], tail_keys.shape[1]
        self.group, self.sinks = query.shape[0] // hkv, layer.sinks
        self.positions = torch.arange(n + s - t, n + s, device=query.device)  # of the T queries
        rows = query.unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling  # [Hkv, g * T, d]
        self.on_prompt = rows @ self.keys.transpose(1, 2)  # logits [Hkv, g * T, n]
        self.on_tail = rows @ tail_keys.transpose(1, 2)  # [Hkv, g * T, S]
        for logits, first in ((self.on_prompt, 0), (self.on_tail, n)):
            last = first + logits.shape[-1]
            hide(logits.unflatten(1, (-1, t)), n + s - t, first, last, layer.window)
        self.tail = self._with_sinks(*weighed(self.on_tail, self.tail_values))
        tail_out, tail_lse = self.tail
        top = torch.maximum(self.on_prompt.amax(-1), tail_lse)
        self.p = (self.on_prompt - top[..., None]).exp()  # [Hkv, g * T, n]
        self.tail_mass = (tail_lse - top).exp()  # [Hkv, g * T]
        self.tail_out = self.tail_mass[..., None] * tail_out  # [Hkv, g * T, d]
        self.mass = self.p.sum(-1) + self.tail_mass
        self.full = (self.p @ self.values + self.tail_out) / self.mass[..., None]
        self.w_o = layer.w_o.float()

    def heads(self, out: torch.Tensor) -> torch.Tensor:
        """[Hkv, g * T, ..] -> [Hq, T, ..]."""
        return out.unflatten(1, (self.group, -1)).flatten(0, 1)

    def _with_sinks(self, out: torch.Tensor, lse: torch.Tensor) -> Part:
        """A part [Hkv, g * T] with the learned sinks in it."""
        if self.sinks is None:
            return out, lse
        merged = merge_attention([(self.heads(out), self.heads(lse))], self.sinks)
        out, lse = (side.unflatten(0, (len(self.keys), -1)).flatten(1, 2) for side in merged)
        return out, lse

    def kept(self, mask: torch.Tensor, cuts: Sequence[tuple[int, torch.Tensor]] = ()) -> torch.Tensor:
        """Output with only the kept prompt rows, [Hkv, g * T, d]. mask bool [Hkv, n].

        cuts  in order: queries from that tail row on see only the rows held then, at true positions
              [Hkv, m], and what came after.
        """
        out, mass = self.tail_out.clone(), self.tail_mass.clone()
        for head, kept in enumerate(mask):
            index = kept.nonzero()[:, 0]
            p = self.p[head].index_select(1, index)
            out[head] += p @ self.values[head].index_select(0, index)
            mass[head] += p.sum(-1)
        out = out / mass[..., None].clamp_min(_NOTHING)
        if mass.min() < _NOTHING:
            for head, kept in enumerate(mask):
                faint = (mass[head] < _NOTHING).nonzero()[:, 0]
                index = kept.nonzero()[:, 0]
                logits = self.on_prompt[head, faint].index_select(1, index)
                out[head, faint] = self._beside_tail(head, faint, logits, self.values[head, index])
        for fed, positions in cuts:
            late = (self.positions >= self.keys.shape[1] + fed).repeat(self.group).nonzero()[:, 0]
            held = [self._after(head, late, fed, rows) for head, rows in enumerate(positions.to(late.device))]
            out[:, late] = self._with_sinks(*map(torch.stack, zip(*held)))[0]
        return out

    def _after(self, head: int, rows: torch.Tensor, fed: int, held: torch.Tensor) -> Part:
        """Attention of queries that see the rows at positions `held`, and what came after `fed`."""
        n, s = self.keys.shape[1], self.tail_values.shape[1]
        tail = torch.arange(s, device=held.device) >= fed
        tail[held[held >= n] - n] = True
        index = held[held < n]
        on_tail = self.on_tail[head, rows].masked_fill(~tail, -torch.inf)
        logits = torch.cat([self.on_prompt[head, rows].index_select(1, index), on_tail], -1)
        return weighed(logits, torch.cat([self.values[head, index], self.tail_values[head]]))

    def _beside_tail(self, head: int, rows: torch.Tensor, logits, values) -> torch.Tensor:
        """Output of some queries on prompt rows and the tail, from their logits: right however little
        attention that is of what they paid."""
        tail_out, tail_lse = self.tail
        out, _ = merge_attention([weighed(logits, values), (tail_out[head, rows], tail_lse[head, rows])])
        return out

    def without(self, head: int, rows: torch.Tensor, leader: torch.Tensor) -> torch.Tensor:
        """Output of some rows of a KV head without one prompt row each, [R, d]."""
        logits = self.on_prompt[head, rows].scatter(1, leader[:, None], -torch.inf)
        return self._beside_tail(head, rows, logits, self.values[head])


def output_errors(
    trace: Trace,
    probes: Probes,
    masks: Sequence[Sequence[torch.Tensor]],
    readouts: Sequence[Any] | None = None,
    cuts: Sequence[Sequence[Cut]] | None = None,
) -> Iterable[tuple[int, list[OutputError]]]:
    """The errors of several kept sets (each a list over layers of bool [Hkv, n]), layer by layer.

    readouts  one a kept set, or None: what the method adds to the kept entries' output.
    cuts      what each kept set lost later, in order: its errors are those of what it holds at each query.

    Yields (layers done, errors so far) after each layer, so that a long run can show progress and stop;
    the last item holds the complete result.
    """
    layers, hq = trace.model.n_layers, trace.model.n_query_heads
    results = [OutputError(np.zeros((layers, hq), np.float32), np.zeros(layers, np.float32)) for _ in masks]
    for index in range(layers):
        probe = _LayerProbe(trace, probes, index)
        full = probe.heads(probe.full) @ probe.w_o  # [Hq, T, D]
        full_l2, full_layer = full.norm(dim=-1), full.sum(0).norm(dim=-1)
        nothing = [None] * len(masks)
        for result, mask, readout, later in zip(results, masks, readouts or nothing, cuts or nothing):
            at = [(fed, positions[index]) for fed, positions in later or ()]
            kept = probe.kept(mask[index].to(probe.keys.device), at)
            change = probe.heads(kept - probe.full)
            if readout is not None:
                change = change + readout.read(index, probes.queries[index], probe.positions)
            change = change @ probe.w_o
            result.l2[index] = _ratio(change.norm(dim=-1), full_l2)
            result.layer[index] = _ratio(change.sum(0).norm(dim=-1), full_layer)
        yield index + 1, results


def _ratio(change: torch.Tensor, full: torch.Tensor) -> np.ndarray:
    return (change / full.clamp_min(1e-12)).mean(-1).cpu().numpy()


def answer_attention(trace: Trace, probes: Probes) -> np.ndarray:
    """Attention of the answer's queries on each token of the prompt, float32 [L, Hkv, n].

    Mean over probe queries and the head's query group; what goes to later tokens counts in each sum.
    """
    found = np.zeros((trace.model.n_layers, trace.model.n_kv_heads, trace.n), np.float32)
    for index in range(trace.model.n_layers):
        probe = _LayerProbe(trace, probes, index)
        found[index] = (probe.p / probe.mass[..., None]).mean(1).cpu().numpy()
    return found


def token_effects(trace: Trace, probes: Probes) -> np.ndarray:
    """Exact relative change of a head's contribution if one entry alone is removed: float32 [L, Hkv, n].

    p / (1 - p) ||(o - v) W_O|| / ||o W_O||, mean over probe queries and the head's query group. For the
    largest p of a query this is p ||(o' - v) W_O||, o' the output without the token, since o - v would
    cancel where p is near 1.
    """
    model = trace.model
    effects = np.zeros((model.n_layers, model.n_kv_heads, trace.n), np.float32)
    for index in range(model.n_layers):
        probe = _LayerProbe(trace, probes, index)
        gram = probe.w_o @ probe.w_o.transpose(1, 2)  # [Hq, d, d]: ||x W_O||^2 = x G x
        full = probe.heads(probe.full)
        for head in range(model.n_query_heads):
            effect = _removal(probe, head, full[head], gram[head])
            effects[index, head // probe.group] += effect.cpu().numpy() / probe.group
    return effects


def _removal(probe: _LayerProbe, head: int, o, gram) -> torch.Tensor:
    """Mean over queries of the relative effect of removing each row -> [n]. o [T, d], one query head's."""
    kv, member = divmod(head, probe.group)
    t = len(probe.positions)
    rows = slice(member * t, (member + 1) * t)
    p, values = probe.p[kv, rows], probe.values[kv]  # [T, n], unnormalised
    tail, tail_out = probe.tail_mass[kv, rows], probe.tail_out[kv, rows]
    og, vg = o @ gram, values @ gram
    size = (og * o).sum(-1).clamp_min(1e-24)  # ||o W||^2, [T]
    square = (size[:, None] - 2 * og @ values.T + (vg * values).sum(-1)).clamp_min(0)
    left = (tail + p.sum(-1))[:, None] - p  # what remains without the row; exact unless it dominates
    row = torch.arange(len(p), device=p.device)
    top = p.argmax(-1)
    others = p.clone()
    others[row, top] = 0
    rest = others.sum(-1) + tail
    left[row, top] = rest + p[row, top]
    out = (others @ values + tail_out) / rest.clamp_min(_NOTHING)[:, None]
    if rest.min() < _NOTHING:
        faint = (rest < _NOTHING).nonzero()[:, 0]
        out[faint] = probe.without(kv, faint + rows.start, top[faint])
    gap = out - values[top]
    square[row, top] = ((gap @ gram) * gap).sum(-1).clamp_min(0)
    return (p / left.clamp_min(1e-30) * (square / size[:, None]).sqrt()).mean(0)
