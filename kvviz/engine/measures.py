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

from kvviz.engine.decode import Cut, Probes
from kvviz.engine.trace import Trace


def kl_divergence(full: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(full || other) in nats along the last axis of two logit tensors; never below 0."""
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


# Attention left of a query's, below which float32 no longer tells what remains: it is normalised anew.
_NOTHING = 1e-30


class _LayerProbe:
    """One layer's probe queries: unnormalised attention on prompt and tail, and the full output."""

    def __init__(self, trace: Trace, probes: Probes, index: int):
        layer = trace.model.layer(index)
        self.keys, self.values = trace.keys[index].float(), trace.values[index].float()
        hkv, n = self.keys.shape[:2]
        query = probes.queries[index].float()
        tail_keys, tail_values = (side.float() for side in probes.tail[index])
        t, s = query.shape[1], tail_keys.shape[1]
        self.group, self.t = query.shape[0] // hkv, t
        rows = query.unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling  # [Hkv, g * T, d]
        on_prompt = rows @ self.keys.transpose(1, 2)  # [Hkv, g * T, n]
        on_tail = rows @ tail_keys.transpose(1, 2)
        self.positions = torch.arange(n + s - t, n + s, device=query.device)  # of the T queries
        position = self.positions.repeat(self.group)[:, None]
        tail_position = torch.arange(n, n + s, device=query.device)
        on_tail = on_tail.masked_fill(tail_position > position, float("-inf"))
        if layer.window is not None:
            on_tail = on_tail.masked_fill(tail_position <= position - layer.window, float("-inf"))
            seen = torch.arange(n, device=query.device)
            on_prompt = on_prompt.masked_fill(seen <= position - layer.window, float("-inf"))
        top = torch.maximum(on_prompt.amax(-1), on_tail.amax(-1))
        rest, sinks = torch.zeros((), device=query.device), on_tail[..., :0]
        if layer.sinks is not None:
            sinks = layer.sinks.float().view(hkv, -1, 1).expand(-1, -1, t).flatten(1)
            top = torch.maximum(top, sinks)
            rest, sinks = (sinks - top).exp(), sinks[..., None]
        self.p = (on_prompt - top[..., None]).exp()  # [Hkv, g * T, n]
        self.tail_p = (on_tail - top[..., None]).exp()
        self.tail_mass = self.tail_p.sum(-1) + rest  # [Hkv, g * T]
        self.tail_values = tail_values
        self.tail_out = self.tail_p @ tail_values  # [Hkv, g * T, d]
        self.logits = on_prompt, on_tail, sinks  # [Hkv, g * T, n], [.., S], [.., 1] or [.., 0]
        self.mass = self.p.sum(-1) + self.tail_mass
        self.full = (self.p @ self.values + self.tail_out) / self.mass[..., None]
        self.w_o = layer.w_o.float()

    def heads(self, out: torch.Tensor) -> torch.Tensor:
        """[Hkv, g * T, d] -> [Hq, T, d]."""
        return out.unflatten(1, (self.group, self.t)).flatten(0, 1)

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
                out[head, faint] = self._normalised(head, faint, kept.nonzero()[:, 0])
        for fed, positions in cuts:
            late = (self.positions >= self.keys.shape[1] + fed).repeat(self.group).nonzero()[:, 0]
            for head, held in enumerate(positions.to(late.device)):
                out[head, late] = self._after(head, late, fed, held)
        return out

    def _after(self, head: int, rows: torch.Tensor, fed: int, held: torch.Tensor) -> torch.Tensor:
        """Output of queries that see the rows at positions `held`, and of the tail what came after `fed`."""
        n, s = self.keys.shape[1], self.tail_values.shape[1]
        tail = torch.arange(s, device=held.device) >= fed
        tail[held[held >= n] - n] = True
        return self._normalised(head, rows, held[held < n], tail)

    def _normalised(self, head: int, rows, index, tail=None) -> torch.Tensor:
        """Output of some queries on the prompt rows `index` [m] and the marked ones of the tail (None: all),
        from their logits: right however little attention that is of what they paid."""
        prompt, later, sinks = (side[head, rows] for side in self.logits)
        if tail is not None:
            later = later.masked_fill(~tail, float("-inf"))
        return self._softmax(head, prompt.index_select(1, index), self.values[head, index], later, sinks)

    def _softmax(self, head: int, prompt, values, later, sinks) -> torch.Tensor:
        """Output from logits on prompt rows [R, m] with `values` [m, d], on the tail and the learned sink."""
        p = torch.cat([prompt, later, sinks], -1).softmax(-1).nan_to_num()  # NaN: a row that sees nothing
        m, s = prompt.shape[1], later.shape[1]
        return p[:, :m] @ values + p[:, m : m + s] @ self.tail_values[head]

    def without(self, head: int, rows: torch.Tensor, leader: torch.Tensor) -> torch.Tensor:
        """Output of some rows of a KV head without one prompt row each, [R, d]."""
        prompt, later, sinks = (side[head, rows] for side in self.logits)
        prompt = prompt.scatter(1, leader[:, None], float("-inf"))
        return self._softmax(head, prompt, self.values[head], later, sinks)


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
    rows = slice(member * probe.t, (member + 1) * probe.t)
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
