"""Which of the lost entries mattered: found by putting them back, and by taking them out of the whole cache.

    found = kvviz.causes(model, prompt, "snapkv", 0.1, expected="58213", by=("head", "passage"))
    found.to_frame()                       # nats returned by each head, by each passage
    kvviz.smallest_rescue(model, prompt, "snapkv", 0.1, expected="58213").entries

Every number is an experiment: the entries really are in the cache that decodes, or really are not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvviz.engine import would_do
from kvviz.engine.changes import drawn, pushed_out, worth
from kvviz.engine.rescue import Search, is_minimal, smallest
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.steps import Steps, heard, result_of
from kvviz.engine.trace import needs_of, prefill_events
from kvviz.engine.trials import Trials
from kvviz.engine.units import Unit, trials_needed, units
from kvviz.errors import Cancelled, InputError
from kvviz.methods import parse_method
from kvviz.models import Model
from kvviz.results.causes import PUT_BACK, TAKEN_OUT, Causes, Controls, Effect, Rescue, WouldDo
from kvviz.results.kept import window_starts
from kvviz.results.passages import Passage, passages
from kvviz.results.verdict import contains_expected
from kvviz.types import Event, Prompt

WOULD_DO_TRIALS = would_do.MOST_TRIALS
LATER = 16  # tokens past the whole cache's answer that a search reads on
N_CONTROLS = 20  # random sets beside a rescue
SEED = 0


def causes_stream(
    model: Model,
    prompt: Prompt,
    method: str,
    budget: float | int,
    *,
    by: Sequence[str] = ("head", "passage"),
    directions: Sequence[str] = (PUT_BACK, TAKEN_OUT),
    passage: str = "sentence",
    expected: str | None = None,
    max_new_tokens: int = 64,
    rescue: bool = False,
    would_do: bool = False,
    would_do_trials: int = WOULD_DO_TRIALS,
    options: dict[str, Any] | None = None,
    scored: Scored | None = None,
    before: Causes | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Event]:
    """`causes` as an iterator of events; the last one carries the result, also after a stop (None where the
    prompt was not read to its end)."""
    for kind in by:
        units(kind, (0, 0, 0), ())
    if wrong := [d for d in directions if d not in (PUT_BACK, TAKEN_OUT)]:
        raise InputError(f"A direction is {PUT_BACK} or {TAKEN_OUT}, not {wrong[0]!r}.")
    if before is not None and (before.method, before.budget) != (method, budget):
        raise InputError("What was found before is of another method or budget.")
    ask = _Ask(method, budget, options or {}, tuple(by), tuple(directions), expected, max_new_tokens,
               rescue, would_do_trials if would_do else 0)  # fmt: skip
    return _events(model, prompt, ask, passages(prompt, passage), scored, before, cancel)


def causes(
    model: Model,
    prompt: Prompt,
    method: str,
    budget: float | int,
    *,
    events: Callable[[Event], None] | None = None,
    **further: Any,
) -> Causes:
    """What one method's lost entries did to the answer.

    by          of "head", "layer", "passage", "token", "passage-head".
    passage     what a passage is: "sentence", "line" or "paragraph" of the document.
    rescue      also search the smallest rescue;  would_do  also the smallest cache that gives the answer, in
                at most `would_do_trials` trials.
    scored      an earlier reading of the same prompt, with what was scored of it.
    before      an earlier result for the same method, budget and prompt: what it holds is not tried again.
    events      is called with every `Event`; set `cancel` to stop: what is finished comes back.
    """
    stream = causes_stream(model, prompt, method, budget, **further)
    return result_of(stream if events is None else heard(stream, events))


def smallest_rescue(
    model: Model, prompt: Prompt, method: str, budget: float | int, **further: Any
) -> Rescue | None:
    """The fewest entries found that, put back, return the answer; None where nothing was lost."""
    return causes(model, prompt, method, budget, by=(), rescue=True, **further).rescue


@dataclass(frozen=True)
class _Ask:
    """What is asked of one method's kept set. would_do: trials of that search, 0 for none."""

    method: str
    budget: float | int
    options: dict[str, Any]
    by: tuple[str, ...]
    directions: tuple[str, ...]
    expected: str | None
    most: int
    rescue: bool
    would_do: int


def _events(
    model: Model, prompt: Prompt, ask: _Ask, pieces: list[Passage], scored: Scored | None,
    before: Causes | None, cancel: threading.Event | None,
) -> Iterator[Event]:  # fmt: skip
    if scored is None:
        methods = [ask.method, *(would_do.METHODS if ask.would_do else ())]
        try:
            needs = needs_of(methods, {ask.method: ask.options})
            scored = Scored((yield from prefill_events(model, prompt, needs, cancel)))
        except Cancelled as stop:
            yield Event("done", str(stop), 1, 1, 0.0)
            return
    yield from _Experiment(scored, ask, pieces, cancel).events(before)


class _Experiment:
    """One method's kept set on one trace, and everything that is tried with it."""

    def __init__(
        self, scored: Scored, ask: _Ask, pieces: list[Passage], cancel: threading.Event | None
    ):
        self.scored, self.trace, self.cancel = scored, scored.trace, cancel
        self.ask, self.pieces = ask, pieces
        self.selection = select_from(scored, ask.method, ask.budget, **ask.options)
        self.trials = Trials(self.trace, self._readout(ask.method), cancel)
        self.kept = np.stack([m.cpu().numpy() for m in self.selection.mask])
        self.held = self._held()  # what the whole cache holds
        self.lost = self.held & ~self.kept
        self.started = time.perf_counter()

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

    def events(self, before: Causes | None) -> Iterator[Event]:
        full, own = self.trials.write([self.held, self.kept], self.ask.most)
        self.answer, self.text = full.token_ids, self._words(full.token_ids)
        self.steps = self._expected_steps()
        self.whole, self.base = self.trials.force([self.held, self.kept], self.answer)
        gap = self.whole.logp - self.base.logp
        found = Causes(
            method=self.ask.method,
            budget=self.ask.budget,
            answer=self.text,
            tokens=[self._decode([t]) for t in self.answer],
            method_text=self._words(own.token_ids),
            gap=float(gap.sum()),
            expected_gap=None if self.steps is None else float(gap[self.steps].sum()),
            kl=float(self.base.kl.mean()),
            n=self.trace.n,
        )
        if before is not None:
            found.put_back, found.taken_out = list(before.put_back), list(before.taken_out)
            found.rescue, found.would_do = before.rescue, before.would_do
        self.own_works = self._returned(own.token_ids)
        try:
            yield from self._all_effects(found)
            if self.ask.rescue and found.rescue is None:
                yield from self._rescue(found)
            if self.ask.would_do and found.would_do is None:
                yield from self._would_do(found)
        except Cancelled:
            found.stopped = True
            found.notes.append("Stopped. What was finished is shown.")
        found.trials, found.seconds = self.trials.count, time.perf_counter() - self.started
        yield Event("done", "Done", 1, 1, 0.0, result=found, scored=self.scored)

    # -- effects ------------------------------------------------------------------------------------

    def _all_effects(self, found: Causes) -> Iterator[Event]:
        """Every unit in every direction; how many there are is said before the first."""
        most = trials_needed(self.ask.by, self.ask.directions, self.kept.shape, self.pieces)
        counted, started = self.trials.count, time.perf_counter()
        if most:
            yield Event("cause", f"{most:,} caches to try", 0, most)
        for direction in self.ask.directions:
            for kind in self.ask.by:
                for message in self._effects(found, direction, kind):
                    done = self.trials.count - counted
                    left = (time.perf_counter() - started) / max(done, 1) * max(0, most - done)
                    yield Event("cause", message, done, most, left)

    def _effects(self, found: Causes, direction: str, kind: str) -> Iterator[str]:
        rows = getattr(found, direction)
        tried = {e.place for e in rows}
        todo = [u for u in units(kind, self.kept.shape, self.pieces) if u.name not in tried]
        changed = []
        for unit in todo:
            there = self.lost if direction == PUT_BACK else self.held
            changed.append(int(there[unit.place].sum()))
        what = "Putting back" if direction == PUT_BACK else "Taking out"
        results = self.trials.force(
            (self._trial(direction, u) for u, size in zip(todo, changed) if size), self.answer
        )
        for done, (unit, size) in enumerate(zip(todo, changed), 1):
            trial = next(results) if size else (self.base if direction == PUT_BACK else self.whole)
            rows.append(self._effect(direction, unit, size, trial))
            if done % 8 == 0 or done == len(todo):
                yield f"{what} {kind} by {kind}, {done:,} of {len(todo):,}"

    def _trial(self, direction: str, unit: Unit) -> np.ndarray:
        trial = (self.kept if direction == PUT_BACK else self.held).copy()
        trial[unit.place] = self.held[unit.place] if direction == PUT_BACK else False
        return trial

    def _effect(self, direction: str, unit: Unit, size: int, trial) -> Effect:
        change = trial.logp - self.base.logp if direction == PUT_BACK else self.whole.logp - trial.logp
        return Effect(
            unit=unit.kind,
            entries=size,
            effect=float(change.sum()),
            kl=float(trial.kl.mean()),
            expected=None if self.steps is None else float(change[self.steps].sum()),
            layer=unit.layer,
            head=unit.head,
            passage=unit.passage,
            token=unit.token,
        )

    # -- rescue -------------------------------------------------------------------------------------

    def _rescue(self, found: Causes) -> Iterator[Event]:
        if self.own_works:
            found.notes.append("Nothing to rescue: this cache gives the answer already.")
            return
        started, before = time.perf_counter(), self.trials.count
        yield Event("cause", "Searching the smallest rescue", 0, 0)
        search = Search(self._works(self.kept), self._gains)
        everything = np.flatnonzero(self.lost)
        ended = False
        for order in ([self._by_passage, self._by_head], [self._by_head, self._by_passage]):
            rounds = Steps(smallest(search, everything, order))
            for _ in rounds:
                size = "" if search.best is None else f": {len(search.best):,} entries"
                yield Event("cause", f"Smallest rescue so far{size}", search.asked)
            ended = rounds.result or ended
        best = search.best
        if best is None:
            found.notes.append("Nothing returns the answer, not even all that was lost.")
            return
        necessary = is_minimal(search, best) if ended else [False] * len(best)
        text = self._words(next(self.trials.write([self._with(best)], self.ask.most)).token_ids)
        gain = next(self.trials.force([self._with(best)], self.answer)).logp.sum() - self.base.logp.sum()
        yield Event("cause", f"{N_CONTROLS} random sets of {len(best)} entries beside it", 0, 0)
        controls, same = self._controls(best)
        found.rescue = Rescue(
            entries=[(int(i), int(h), int(t)) for i, h, t in zip(*np.unravel_index(best, self.kept.shape))],
            of=int(self.held.sum()),
            text=text,
            verdict="right" if self.steps is not None else "same tokens",
            necessary=necessary,
            effect=float(gain),
            same_size=same,
            controls=controls,
            minimal=ended and all(necessary),
            trials=self.trials.count - before,
            seconds=time.perf_counter() - started,
        )

    def _with(self, entries: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        trial = (self.kept if base is None else base).copy()
        trial.reshape(-1)[entries] = True
        return trial

    def _works(self, base: np.ndarray) -> Callable[[list[np.ndarray]], list[bool]]:
        if self.steps is None:
            return self._same(base)
        # An answer that has not come a little after the whole cache's has not come back.
        most = min(self.ask.most, len(self.answer) + LATER)
        return lambda sets: [
            self._returned(a.token_ids)
            for a in self.trials.write((self._with(s, base) for s in sets), most)
        ]

    def _gains(self, sets: list[np.ndarray]) -> list[float]:
        return [float(f.logp.sum()) for f in self.trials.force(map(self._with, sets), self.answer)]

    def _by_passage(self, entries: np.ndarray) -> list[np.ndarray]:
        token = entries % self.kept.shape[-1]
        parts = (entries[(token >= p.start) & (token < p.end)] for p in self.pieces)
        return [part for part in parts if len(part)]

    def _by_head(self, entries: np.ndarray) -> list[np.ndarray]:
        head = entries // self.kept.shape[-1]
        return [entries[head == h] for h in np.unique(head)]

    def _controls(self, best: np.ndarray) -> tuple[Controls, bool]:
        """(random sets in the same heads, whether the rescue itself works at the same size)."""
        rng, rescue = np.random.default_rng(SEED), self._with(best, np.zeros_like(self.kept))
        free = self.lost & ~rescue
        sets = [np.flatnonzero(drawn(rescue.sum(-1), free, rng)) for _ in range(N_CONTROLS)]
        added = self._works(self.kept)(sets)
        swapped = [self._returned(a.token_ids) for a in self.trials.write(
            (self._with(s, self._room_for(s)) for s in [best, *sets]), self.ask.most)]  # fmt: skip
        return Controls(added, swapped[1:]), swapped[0]

    def _room_for(self, entries: np.ndarray) -> np.ndarray:
        """The kept set less as many worst-scored, unprotected entries of each head as are to be put in."""
        counts = self._with(entries, np.zeros_like(self.kept)).sum(-1)
        fixed = np.broadcast_to(np.asarray(self.selection.protected), self.kept.shape)
        scores = np.stack([np.asarray(row, np.float32) for row in self.selection.scores])
        return pushed_out(self.kept, counts, fixed, worth(scores))

    # -- the cache that would do --------------------------------------------------------------------

    def _would_do(self, found: Causes) -> Iterator[Event]:
        started = time.perf_counter()
        yield Event("cause", "Searching the smallest cache that gives the answer", 0, self.ask.would_do)
        plain = Trials(self.trace, None, self.cancel)  # these are kept sets of no method
        sets = would_do.kept_sets(self.scored)
        sets[found.key] = self.kept
        if found.rescue is not None:
            entries = tuple(np.array(found.rescue.entries).T)
            sets["the rescue"] = self._with(np.ravel_multi_index(entries, self.kept.shape))
        empty = np.zeros_like(self.kept)
        search = Search(
            lambda tried: list(plain.agree((self._with(s, empty) for s in tried), self.answer)),
            self._gains,
            self.ask.would_do,
        )
        orders = would_do.orders(self.trace, self.answer, self.held, self.cancel)
        rounds = Steps(would_do.smallest_cache(search, orders, sets))
        for what in rounds:
            size = "" if search.best is None else f": {len(search.best):,} entries"
            yield Event("cause", f"Smallest cache {what}{size}", search.asked, self.ask.would_do)
        begin, ended = rounds.result
        if search.best is None:
            found.notes.append("Not even the whole cache gave its answer again: no smaller one was sought.")
            return
        best = self._with(search.best, empty)
        entry = 2 * self.trace.model.head_dim * self.trace.keys[0].element_size()
        said = "none of its entries can be spared alone" if ended else "the search ended out of trials"
        found.would_do = WouldDo(
            mask=best,
            start=begin,
            text=self._words(next(plain.write([best], self.ask.most)).token_ids),
            bytes=int(best.sum()) * entry,
            kl=float(next(plain.force([best], self.answer)).kl.mean()),
            held={name: float((mask & best).sum() / best.sum()) for name, mask in sets.items()},
            minimal=ended,
            trials=search.asked,
            most=self.ask.would_do,
            seconds=time.perf_counter() - started,
            notes=[f"The smallest cache found, not the smallest there is: {said}."],
        )
        self.trials.count += plain.count

    def _same(self, base: np.ndarray) -> Callable[[list[np.ndarray]], list[bool]]:
        return lambda sets: list(self.trials.agree((self._with(s, base) for s in sets), self.answer))

    # -- words --------------------------------------------------------------------------------------

    def _returned(self, token_ids: list[int]) -> bool:
        """Whether this answer counts as the full cache's come back."""
        if self.steps is None:
            return token_ids == self.answer
        return contains_expected(self._words(token_ids), self.ask.expected or "")

    def _expected_steps(self) -> np.ndarray | None:
        """Steps of the full answer that write the expected one; None where it is not in there."""
        expected = self.ask.expected or ""
        if not expected.strip() or not contains_expected(self.text, expected):
            return None
        written = [self._decode(self.answer[: i + 1]) for i in range(len(self.answer))]
        end = next(i for i, text in enumerate(written) if contains_expected(text + " ", expected))
        start = max(
            i for i in range(end + 1)
            if contains_expected(self._decode(self.answer[i : end + 1]) + " ", expected)
        )  # fmt: skip
        return np.arange(start, end + 1)

    def _words(self, token_ids: list[int]) -> str:
        return self.trace.model.tokenizer.decode(token_ids, skip_special_tokens=True)

    def _decode(self, token_ids: list[int]) -> str:
        return self.trace.model.tokenizer.decode(token_ids)
