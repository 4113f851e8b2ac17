"""One method's kept set on one trace, held against the whole cache: what searches for causes stand on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from kvviz.engine.decode import record
from kvviz.engine.measures import answer_attention, token_effects
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trials import Forced, Trials
from kvviz.methods import parse_method
from kvviz.results.causes import PUT_BACK, TAKEN_OUT
from kvviz.results.kept import window_starts
from kvviz.results.verdict import contains_expected

LATER = 16  # tokens past the whole cache's answer that a search reads on


class Ground:
    """Kept sets are bool [L, Hkv, n]; sets of entries are places in the flattened [L, Hkv, n].

    kept, held, lost   what the method kept, what the whole cache holds, and what of that is not kept.
    answer, text, own  the whole cache's answer, its words, and the method's own answer (token ids).
    whole, base        the answer's log-probabilities under the whole cache and under the method's.
    seconds            of one trial that holds about as much as either, by direction.
    steps              those of the answer that write the expected one; None where it is not in there.
    """

    def __init__(
        self, scored: Scored, method: str, budget: float | int, options: dict[str, Any],
        expected: str | None, most: int, cancel: threading.Event | None,
    ):  # fmt: skip
        self.scored, self.trace, self.cancel = scored, scored.trace, cancel
        self.expected, self.most = expected or "", most
        self.selection = select_from(scored, method, budget, **options)
        self.trials = Trials(self.trace, self._readout(method), cancel)
        self.kept = np.stack([m.cpu().numpy() for m in self.selection.mask])
        self.held = self._held()
        self.lost = self.held & ~self.kept
        full, own = self.trials.write([self.held, self.kept], most)
        self.answer, self.own = full.token_ids, own.token_ids
        self.text = self.words(self.answer)
        self.steps = self._expected_steps()
        self.whole, whole_s = self._timed(self.held)
        self.base, base_s = self._timed(self.kept)
        self.seconds = {PUT_BACK: base_s, TAKEN_OUT: whole_s}

    def _timed(self, trial: np.ndarray) -> tuple[Forced, float]:
        started = time.perf_counter()
        return next(self.trials.force([trial], self.answer)), time.perf_counter() - started

    def _readout(self, method: str):
        spec, _ = parse_method(method)
        if spec.readout is None:
            return None
        entries, used = self.selection.entries, self.selection.options
        return lambda mask: spec.readout(self.trace, mask, entries, used)

    def _held(self) -> np.ndarray:
        n = self.trace.n
        seen = np.arange(n) >= window_starts(self.trace.model.info, n)[:, None]
        return np.repeat(seen[:, None], self.kept.shape[1], axis=1)

    def having(self, entries: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        """A kept set (the method's) with these entries in it."""
        trial = (self.kept if base is None else base).copy()
        trial.reshape(-1)[entries] = True
        return trial

    def works(self, base: np.ndarray) -> Callable[[list[np.ndarray]], list[bool]]:
        """Whether sets of entries, put into a kept set, return the answer."""
        return lambda sets: self.return_it(self.having(s, base) for s in sets)

    def return_it(self, trials: Iterable[np.ndarray]) -> list[bool]:
        """Whether each of these kept sets gives the answer."""
        if self.steps is None:
            return list(self.trials.agree(trials, self.answer))
        # An answer that has not come a little after the whole cache's has not come back.
        most = min(self.most, len(self.answer) + LATER)
        return [self.returned(a.token_ids) for a in self.trials.write(trials, most)]

    def gains(self, sets: list[np.ndarray]) -> list[float]:
        """Nats of the answer that sets of entries return."""
        base = self.base.logp.sum()
        return [float(f.logp.sum() - base) for f in self.trials.force(map(self.having, sets), self.answer)]

    def returned(self, token_ids: list[int]) -> bool:
        """Whether this answer counts as the whole cache's come back."""
        if self.steps is None:
            return token_ids == self.answer
        return contains_expected(self.words(token_ids), self.expected)

    def _expected_steps(self) -> np.ndarray | None:
        expected = self.expected
        if not expected.strip() or not contains_expected(self.text, expected):
            return None
        written = [self.decode(self.answer[: i + 1]) for i in range(len(self.answer))]
        end = next(i for i, text in enumerate(written) if contains_expected(text + " ", expected))
        start = max(
            i for i in range(end + 1)
            if contains_expected(self.decode(self.answer[i : end + 1]) + " ", expected)
        )  # fmt: skip
        return np.arange(start, end + 1)

    @cached_property
    def looks(self) -> tuple[np.ndarray, np.ndarray]:
        """What the answer's own queries make of every entry under the whole cache, float32 [L, Hkv, n]: their
        attention, and the output's change without it."""
        probes = record(self.trace, [*self.trials.suffix, *self.answer], self.cancel)
        return answer_attention(self.trace, probes), token_effects(self.trace, probes)

    def words(self, token_ids: list[int]) -> str:
        """An answer as a reader sees it."""
        return self.trace.model.tokenizer.decode(token_ids, skip_special_tokens=True)

    def decode(self, token_ids: list[int]) -> str:
        """Tokens as they are, special ones too."""
        return self.trace.model.tokenizer.decode(token_ids)
