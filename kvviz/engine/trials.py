"""Trials: many kept sets of one prompt, each decoded on a cache that holds exactly its entries.

A trial is a bool array [L, Hkv, n], True = kept. Trials run together in waves that fit the memory for caches;
how they are spread over waves changes nothing. Layers, heads and tokens count from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from kvviz.engine.cache import batches, build_cache, masked_cache
from kvviz.engine.decode import Answer, Wave, first_logits, forced, generate
from kvviz.engine.measures import kl_divergence
from kvviz.engine.trace import Trace
from kvviz.errors import Cancelled

LOOK = 4  # answer tokens read at once where only agreement is asked for
DENSE = 1 / 3  # of all rows: gathering more of them costs more than looking at all
WIDEST = 64  # trials decoded side by side: more rows than this gain nothing on a CPU


@dataclass(frozen=True)
class Kept:
    """What one trial's cache holds: mask, a list over layers of bool [Hkv, n]; readout as in Selection."""

    mask: list[torch.Tensor]
    readout: Any = None


@dataclass(frozen=True)
class Forced:
    """One trial, teacher-forced on an answer of T tokens.

    logp  float64 [T], log-probability of each answer token in nats;  kl  float64 [T], KL(full || trial).
    """

    logp: np.ndarray
    kl: np.ndarray


class Trials:
    """Decodes trials on one trace.

    readout  of a kept set, for a method that adds to the attention output of what it kept; None elsewhere.
    """

    def __init__(
        self,
        trace: Trace,
        readout: Callable[[list[torch.Tensor]], Any] | None = None,
        cancel: threading.Event | None = None,
    ):
        self.trace, self.readout, self.cancel = trace, readout, cancel
        self.suffix = trace.prompt.input_ids[trace.n :].tolist()  # a question that comes later
        self.count = 0  # trials decoded so far
        self._whole: tuple[tuple[int, ...], torch.Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, Hkv, n)."""
        return self.trace.model.n_layers, self.trace.model.n_kv_heads, self.trace.n

    def force(self, trials: Iterable[np.ndarray], answer: Sequence[int]) -> Iterator[Forced]:
        """Each trial fed the same answer, in the order given. KL is against the whole cache."""
        full = self._whole_logits(answer)
        targets = torch.as_tensor(list(answer))[:, None]
        for wave, size in self._waves(trials, len(answer)):
            found = np.empty((2, size, len(answer)))  # log-probabilities, divergences
            for step, logits in self._forced_logits(wave, answer):
                here = slice(step, step + logits.shape[1])
                wanted = targets[here].to(logits.device)
                for row, own in enumerate(logits):  # one by one: a trial's logits stay in the cache
                    said = own.gather(-1, wanted)[:, 0] - own.logsumexp(-1)
                    found[0, row, here] = said.cpu()
                    found[1, row, here] = kl_divergence(full[here], own).cpu()
            self.count += size
            for logp, kl in zip(*found):
                yield Forced(logp, kl)

    def follow(
        self, trials: Sequence[np.ndarray], answers: Sequence[Sequence[int]], top: int = 10
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each trial fed an answer of its own: (token ids, probabilities) of the `top` likeliest next tokens
        at each of its T steps, int64 and float64 [T, top], likeliest first."""
        at = 0
        for wave, size in self._waves(trials, max(map(len, answers))):
            own = answers[at : at + size]
            longest = max(map(len, own))
            fed = torch.tensor([[*a, *[a[-1]] * (longest - len(a))] for a in map(list, own)])
            rows = [self._first(wave)[:, None]]
            if longest > 1:
                rows.append(wave.feed(fed[:, :-1].to(self.trace.model.device)))
            p, ids = torch.cat(rows, 1).double().softmax(-1).topk(top, -1)
            for i, answer in enumerate(own):
                yield ids[i, : len(answer)].cpu().numpy(), p[i, : len(answer)].cpu().numpy()
            self.count += size
            at += size

    def ranks(
        self, trials: Sequence[np.ndarray], answer: Sequence[int]
    ) -> Iterator[list[tuple[float, int]]]:
        """Each trial fed the same answer: (probability, rank from 1) of each of its tokens."""
        targets = torch.as_tensor(list(answer))
        for wave, size in self._waves(trials, len(answer)):
            rows = []
            for step, logits in self._forced_logits(wave, answer):
                wanted = targets[step : step + logits.shape[1]].to(logits.device).expand(size, -1)[..., None]
                p = logits.double().softmax(-1)
                own = p.gather(-1, wanted)
                rows.append(torch.cat([own, 1 + (p > own).sum(-1, keepdim=True)], -1))
            self.count += size
            for row in torch.cat(rows, 1).tolist():
                yield [(share, int(rank)) for share, rank in row]

    def agree(self, trials: Iterable[np.ndarray], answer: Sequence[int]) -> Iterator[bool]:
        """Whether each trial's own greedy answer is this one, token for token.

        It is where every token of the answer is the likeliest after those before it. They are read a few at a
        time, and trials that are out go on no further.
        """
        answer = list(answer)
        for batch in self._batches(trials):
            rows = list(range(len(batch)))  # still in
            wave, _ = self._wave(batch, len(answer))
            logits, at = self._first(wave)[:, None], 0
            while True:
                wanted = torch.tensor(answer[at : at + logits.shape[1]], device=logits.device)
                same = (logits.argmax(-1) == wanted).all(-1)
                rows = [row for row, yes in zip(rows, same.tolist()) if yes]
                at += logits.shape[1]
                if not rows or at == len(answer):
                    break
                if not same.all():
                    wave = self._narrowed(wave, same.nonzero()[:, 0], [batch[row] for row in rows])
                fed = torch.tensor(answer[at - 1 : at - 1 + LOOK][: len(answer) - at], device=logits.device)
                logits = wave.feed(fed.expand(len(rows), -1))
            self.count += len(batch)
            yield from (row in rows for row in range(len(batch)))

    def _narrowed(self, wave: Wave, rows: torch.Tensor, trials: list[np.ndarray]) -> Wave:
        """The wave of these of its trials alone, with what they were fed."""
        own, _ = self._wave(trials, wave.capacity - len(self.suffix))
        for sides, old in zip(own.tail, wave.tail):
            for side, before in zip(sides, old):
                side[:, :, : wave.length] = before[rows, :, : wave.length]
        own.length = wave.length
        return own

    def write(self, trials: Iterable[np.ndarray], max_new_tokens: int) -> Iterator[Answer]:
        """Each trial's own greedy answer, in the order given."""
        for wave, size in self._waves(trials, max_new_tokens):
            answers = [Answer() for _ in range(size)]
            first = self._first(wave)
            for _ in generate(wave, first, max_new_tokens, self.trace.model.stop_ids, answers=answers):
                self._alive()
            self.count += size
            yield from answers

    def _batches(self, trials: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Trials in their order, alike ones together."""
        for dense, alike in groupby(trials, self._is_dense):
            size = (lambda trial: 0) if dense else (lambda trial: int(trial.sum()))
            yield from batches(self.trace, alike, size, WIDEST)

    def _is_dense(self, trial: np.ndarray) -> bool:
        """Whether it holds so much that its rows are better masked where they lie than gathered."""
        return self.readout is None and trial.sum() > DENSE * trial.size

    def _waves(self, trials: Iterable[np.ndarray], length: int) -> Iterator[tuple[Wave, int]]:
        for batch in self._batches(trials):
            yield self._wave(batch, length)

    def _wave(self, trials: list[np.ndarray], length: int) -> tuple[Wave, int]:
        self._alive()
        masks = torch.from_numpy(np.stack(trials))
        if self._is_dense(trials[0]):
            cache = masked_cache(self.trace, masks)
        else:
            kept = []
            for trial, mask in zip(trials, map(list, masks)):
                kept.append(Kept(mask, self.readout(mask) if self.readout and not trial.all() else None))
            cache = build_cache(self.trace, kept)
        return Wave(self.trace.model, cache, len(self.suffix) + length, self.cancel), len(trials)

    def _first(self, wave: Wave) -> torch.Tensor:
        """What predicts the first new token, [V, vocabulary]."""
        return first_logits(wave, self.suffix, self.trace.last_logits)

    def _forced_logits(self, wave: Wave, answer: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """(step of the first row, logits [V, T', vocabulary]) until every answer token is predicted."""
        return forced(wave, self._first(wave), list(answer)[:-1])

    def _whole_logits(self, answer: Sequence[int]) -> torch.Tensor:
        """Logits of the whole cache at every answer token, [T, vocabulary]; those of one answer are kept."""
        answer = tuple(answer)
        if self._whole is None or self._whole[0] != answer:
            cache = build_cache(self.trace, [None])
            wave = Wave(self.trace.model, cache, len(self.suffix) + len(answer), self.cancel)
            self._whole = answer, torch.cat([rows[0] for _, rows in self._forced_logits(wave, answer)])
        return self._whole[1]

    def _alive(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped.")
