"""Decoding: many variants advance together.

Linear layers run batched over the variants (the model's own code); attention runs over each variant's own
ragged prompt entries and its own generated rows, merged exactly. Positions are tokens seen, never rows
stored.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from kvviz import kernels
from kvviz.engine.attention import partial, visible
from kvviz.engine.cache import Blocks, PromptCache, build_cache, gathered, joined, joined_rows
from kvviz.engine.forward import forward
from kvviz.engine.trace import Trace
from kvviz.errors import Cancelled
from kvviz.models import Model

_STEP_LOGITS = 64 * 2**20  # logits values held at once when several tokens are fed

# Rows that some cache holds from a moment on, of one answer: (tail rows fed before, list over layers of true
# positions [Hkv, m]); later rows are held as well.
Cut = tuple[int, list[torch.Tensor]]


@dataclass(frozen=True)
class Probes:
    """Queries of the full run at which errors are measured, and the rows that come after the prompt.

    queries  list over layers of [Hq, T, d], rotated; tail  list over layers of (keys, values)
    [Hkv, S, d]. Query t is the row S - T + t of the tail: it sees the prompt and the tail up to itself.
    """

    queries: list[torch.Tensor]
    tail: list[tuple[torch.Tensor, torch.Tensor]]


class Watcher(Protocol):
    """Looks on while a wave decodes, and cuts its caches.

    room  tokens until the next cut;  cuts  for each variant what it holds from each cut on.
    """

    cuts: list[list[Cut]]

    @property
    def room(self) -> int: ...

    def saw(self, index: int, query: torch.Tensor) -> None:
        """The queries of one layer, [V, Hq, T, d]."""

    def fed(self, tokens: int) -> None:
        """Called after every pass with the tokens it fed."""


class Wave:
    """Variants decoded together on one prompt cache.

    The rows fed after the prompt (question, answer) form the *tail*: dense, the same length for all
    variants of the wave. `evict` drops rows that a variant holds; the cache it was made from stays as it is.
    """

    def __init__(
        self, model: Model, cache: PromptCache, capacity: int, cancel: threading.Event | None = None
    ):
        self.model, self.cache, self.cancel = model, cache, cancel
        self.size = len(cache.bytes)
        self.length = 0  # rows in the tail
        self.capacity = capacity
        shape = (self.size, model.n_kv_heads, capacity, model.head_dim)
        rows = [blocks[0].keys for blocks in cache.layers]  # the tail lies where the layer's rows lie
        self.tail = [(k.new_zeros(shape), k.new_zeros(shape)) for k in rows]
        self.layers = [list(blocks) for blocks in cache.layers]  # all but history and tail
        self.history: list[Blocks] = []  # by layer, what was remembered of earlier turns
        self.seen = [cache.n] * self.size  # tokens that each variant saw before its tail
        self.tail_from = [0] * self.size  # tail rows before it are no longer in a variant's tail
        self.writing = [True] * self.size  # False: its answer is complete, what it is fed is filler
        self.watcher: Watcher | None = None  # of eviction while decoding
        self._recorded: list[list[torch.Tensor]] = []  # queries of variant 0, by layer, once asked for

    @property
    def next_position(self) -> int:
        """True position of the next token: tokens seen so far."""
        return self.cache.n + self.length

    def feed(self, tokens: torch.Tensor, keep: int = 0) -> torch.Tensor:
        """Run tokens [V, T] after what was fed so far; float32 logits [V, keep or T, vocabulary]."""
        v, t = tokens.shape
        positions = torch.tensor(self.seen)[:, None] + torch.arange(self.length, self.length + t)
        self._positions = positions.to(self.model.device)
        logits = forward(self.model, tokens, positions, self._attend, keep)
        self.length += t
        if self.watcher is not None:
            self.watcher.fed(t)
        return logits.float()

    def truncate(self, length: int) -> None:
        """Forget tail rows from `length` on, so that other tokens can be fed instead."""
        self.length = min(self.length, length)

    def remember(self, lengths: Sequence[int]) -> None:
        """Move the first `lengths[v]` tail rows of each variant into its history, at their true positions;
        the tail begins anew. What lies behind them in the tail was filler."""
        lengths_ = torch.tensor(lengths)
        self.history = [
            joined_rows(
                self.history[index] if self.history else None,
                keys[:, :, : self.length], values[:, :, : self.length], self.seen, lengths_, self.cache.block,
            )
            for index, (keys, values) in enumerate(self.tail)
        ]  # fmt: skip
        self.seen = [seen + length for seen, length in zip(self.seen, lengths)]
        self.length = 0

    def tail_rows(self, index: int, variant: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one variant's tail, [Hkv, length, d]."""
        keys, values = self.tail[index]
        return keys[variant, :, : self.length], values[variant, :, : self.length]

    def rows(self, index: int, variant: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All that one variant holds in a layer: keys, values [Hkv, m, d], true positions [Hkv, m].

        Every head must hold the same number of rows (uniform allocation).
        """
        blocks = next(b for b in self._blocks(index) if b.first <= variant < b.first + b.count)
        mine = blocks.of(variant, self.model.n_kv_heads)
        positions = mine.positions.flatten()
        filled = positions >= 0
        d = mine.keys.shape[-1]
        shape = (self.model.n_kv_heads, -1, d)
        tail_keys, tail_values = self.tail_rows(index, variant)
        start = self.tail_from[variant]
        later = torch.arange(self.cache.n + start, self.next_position, device=positions.device)
        return (
            torch.cat([mine.keys.view(-1, d)[filled].view(shape), tail_keys[:, start:]], 1),
            torch.cat([mine.values.view(-1, d)[filled].view(shape), tail_values[:, start:]], 1),
            torch.cat([positions[filled].view(shape[:2]), later.expand(shape[0], -1)], 1),
        )

    def evict(self, masks: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Drop what these variants hold, but for {variant: list over layers of bool [Hkv, m]} of `rows`.

        Their tails begin anew after it.
        """
        heads = self.model.n_kv_heads
        for index, layer in enumerate(self.layers):
            for number, blocks in enumerate(self._blocks(index)):
                variants = range(blocks.first, blocks.first + blocks.count)
                if any(v in masks for v in variants):
                    parts = [
                        gathered(*self.rows(index, v), masks[v][index], v, self.cache.block)
                        if v in masks
                        else blocks.of(v, heads)
                        for v in variants
                    ]
                    layer[number] = joined(parts, heads)
        for variant in masks:
            self.tail_from[variant] = self.length

    def _blocks(self, index: int) -> list[Blocks]:
        """The rows of one layer, of a cache that was gathered."""
        return [rows for rows in self.layers[index] if isinstance(rows, Blocks)]

    def record(self) -> None:
        """From now on keep the queries of variant 0, for `probes`."""
        self._recorded = [[] for _ in self.layers]

    def probes(self) -> Probes:
        """The queries of variant 0 since `record`, and its tail."""
        return Probes(
            [torch.cat(queries, 1) for queries in self._recorded],
            [(keys.clone(), values.clone()) for keys, values in map(self.tail_rows, range(len(self.layers)))],
        )

    def check_cancel(self) -> None:
        """Raise Cancelled where the run was stopped."""
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped while decoding.")

    def _attend(self, index: int, query, key, value) -> torch.Tensor:
        self.check_cancel()
        layer = self.model.layer(index)
        t = query.shape[2]
        keys, values = self.tail[index]
        end = self.length + t
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        if self.watcher is not None:
            self.watcher.saw(index, query)
        if self._recorded:
            self._recorded[index].append(query[0].clone())
        at, heads = self._positions.to(query.device), self.model.n_kv_heads
        parts = [rows.attend(query, layer, heads, at) for rows in self.layers[index]]
        outs, sums = zip(*parts)
        prompt = parts[0] if len(parts) == 1 else (torch.cat(outs), torch.cat(sums))
        begin = torch.tensor(self.tail_from, device=query.device) if any(self.tail_from) else None
        tail = tail_attention(query, keys[:, :, :end], values[:, :, :end], layer, begin)
        parts = [prompt, tail]
        if self.history:
            b = self.history[index]
            parts.append(kernels.ragged_attention(
                query, b.keys, b.values, b.positions, b.owner, self.model.n_kv_heads, layer.scaling,
                self._positions, layer.window,
            ))  # fmt: skip
        out, _ = kernels.merge_attention(parts, layer.sinks)
        for variant, readout in self.cache.readouts.items():
            out[variant] += readout.read(index, query[variant], at[variant])
        return out.to(query.dtype)


def tail_attention(query, keys, values, layer, begin=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the last T of S tail rows on the tail: float32 out [V, Hq, T, d], lse [V, Hq, T].

    query [V, Hq, T, d]; keys, values [V, Hkv, S, d]; the rows are consecutive positions. begin [V]:
    first tail row that each variant still holds there (None: all).
    """
    t, s = query.shape[2], keys.shape[2]
    hidden = None
    if t > 1 or layer.window is not None or begin is not None:
        hidden = ~visible(s - t, s, 0, s, layer.window, query.device)
        if begin is not None:
            column = torch.arange(s, device=query.device)
            hidden = hidden | (column < begin[:, None, None, None, None])
    return partial(query, keys, values, layer, hidden)


@dataclass
class Answer:
    """Tokens generated by one variant so far; the end token is among them."""

    token_ids: list[int] = field(default_factory=list)
    finished: str = ""  # "stop token", "length" or "" while running


@dataclass(frozen=True)
class Sampling:
    """Greedy at temperature 0; otherwise softmax at `temperature` cut to the `top_p` mass."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


def generate(
    wave: Wave,
    first_logits: torch.Tensor,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    sampling: Sampling = Sampling(),
    answers: list[Answer] | None = None,
) -> Generator[list[Answer], None, None]:
    """Decode all variants of a wave, one token a step; yields the answers after every step.

    first_logits  [V, vocabulary], what predicts each variant's first token.
    """
    answers = answers if answers is not None else [Answer() for _ in range(wave.size)]
    generators = [torch.Generator().manual_seed(sampling.seed) for _ in answers]
    logits = first_logits
    for step in range(max_new_tokens):
        tokens = _choose(logits, sampling, generators)
        for answer, token in zip(answers, tokens.tolist()):
            if answer.finished:
                continue
            answer.token_ids.append(token)
            if token in stop_ids:
                answer.finished = "stop token"
            elif step == max_new_tokens - 1:
                answer.finished = "length"
        wave.writing = [not answer.finished for answer in answers]
        yield answers
        if all(answer.finished for answer in answers):
            return
        logits = wave.feed(tokens[:, None], 1)[:, -1]


def _choose(logits: torch.Tensor, sampling: Sampling, generators: list[torch.Generator]) -> torch.Tensor:
    """Next token of every variant, int64 [V]. Each variant draws from its own generator, same seed."""
    if sampling.temperature <= 0:
        return logits.argmax(-1)
    p = (logits.float() / sampling.temperature).softmax(-1).cpu()
    ordered, ids = p.sort(-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0  # the first token always stays
    drawn = [torch.multinomial(row, 1, generator=g) for row, g in zip(ordered, generators)]
    return ids.gather(-1, torch.stack(drawn)).squeeze(-1).to(logits.device)


def feed_same(wave: Wave, token_ids: Sequence[int], every: bool) -> Generator[torch.Tensor, None, None]:
    """Feed the same tokens to every variant, in pieces whose logits fit memory.

    Yields float32 logits [V, T', vocabulary] of each piece; without `every`, only the last token's.
    """
    if not len(token_ids):
        return
    vocabulary = wave.model.hf.config.get_text_config().vocab_size
    piece = max(1, min(512, _STEP_LOGITS // (vocabulary * wave.size))) if every else 512
    start = 0
    while start < len(token_ids):
        # A cut of decode-time eviction falls between two pieces, where it would have fallen step by step.
        room = piece if wave.watcher is None else min(piece, wave.watcher.room)
        tokens = torch.as_tensor(token_ids[start : start + room], device=wave.model.device)
        yield wave.feed(tokens.expand(wave.size, -1), 0 if every else 1)
        start += room


def first_logits(wave: Wave, question: Sequence[int], last_logits: torch.Tensor) -> torch.Tensor:
    """What predicts each variant's first new token, [V, vocabulary]: the prompt's `last_logits`, or those
    behind a question that comes later, fed here."""
    last = last_logits.expand(wave.size, -1)
    for logits in feed_same(wave, question, every=False):
        last = logits[:, -1]
    return last


def forced(
    wave: Wave, first: torch.Tensor, token_ids: Sequence[int]
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Feed the same answer to every variant; yields (step, logits [V, T', vocabulary] that predict its tokens
    from there on). `first` is what predicts the first one."""
    yield 0, first[:, None]
    step = 1
    for logits in feed_same(wave, token_ids, every=True):
        yield step, logits
        step += logits.shape[1]


def record(trace: Trace, token_ids: Sequence[int], cancel: threading.Event | None = None) -> Probes:
    """The whole cache's own queries at tokens that are fed after the prompt, and their rows."""
    wave = Wave(trace.model, build_cache(trace, [None]), len(token_ids), cancel)
    wave.record()
    for _ in feed_same(wave, token_ids, every=False):
        pass
    return wave.probes()
