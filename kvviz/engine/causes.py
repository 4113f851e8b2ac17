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

from kvviz.engine.rescue import Search, is_minimal, joined, smallest, whittled
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trace import needs_of, prefill
from kvviz.engine.trials import Trials
from kvviz.errors import Cancelled, InputError
from kvviz.methods import parse_method
from kvviz.models import Model
from kvviz.results.causes import PUT_BACK, TAKEN_OUT, UNITS, Causes, Controls, Effect, Rescue, WouldDo
from kvviz.results.kept import window_starts
from kvviz.results.passages import Passage, passages
from kvviz.results.verdict import contains_expected
from kvviz.types import Event, Prompt

LATER = 16  # tokens past the whole cache's answer that a search reads on
N_CONTROLS = 20  # random sets beside a rescue
SEED = 0
WOULD_DO_TRIALS = 1500
# Where the search for the cache that would do begins: budgets of each method that are tried at once.
WOULD_DO_BUDGETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
WOULD_DO_METHODS = ("snapkv", "tova", "keydiff", "streaming_llm", "criticalkv", "dropkv", "laprox")


@dataclass(frozen=True)
class Unit:
    """A block of entries that is put back or taken out together; `place` indexes [L, Hkv, n]."""

    kind: str
    place: tuple[slice, slice, slice]
    layer: int | None = None
    head: int | None = None
    passage: Passage | None = None
    token: int | None = None


def units(kind: str, shape: tuple[int, int, int], pieces: Sequence[Passage]) -> list[Unit]:
    """All units of one kind: every (layer, KV head), layer, passage, token, or passage in one head."""
    layers, heads, n = shape
    all_ = slice(None)
    if kind == "layer":
        return [Unit(kind, (slice(i, i + 1), all_, all_), layer=i) for i in range(layers)]
    if kind == "passage":
        return [Unit(kind, (all_, all_, slice(p.start, p.end)), passage=p) for p in pieces]
    if kind == "token":
        return [Unit(kind, (all_, all_, slice(t, t + 1)), token=t) for t in range(n)]
    every = [(i, h) for i in range(layers) for h in range(heads)]
    if kind == "head":
        return [Unit(kind, (slice(i, i + 1), slice(h, h + 1), all_), layer=i, head=h) for i, h in every]
    if kind == "passage-head":
        return [
            Unit(kind, (slice(i, i + 1), slice(h, h + 1), slice(p.start, p.end)), i, h, p)
            for p in pieces
            for i, h in every
        ]
    raise InputError(f"Causes are found by {', '.join(UNITS)}, not by {kind!r}.")


def _place(unit: Unit) -> tuple:
    """What tells a unit from all others, as `Effect.place`."""
    start = None if unit.passage is None else unit.passage.start
    return unit.kind, unit.layer, unit.head, start, unit.token


def causes(
    model: Model,
    prompt: Prompt,
    method: str,
    budget: float | int,
    *,
    events: Callable[[Event], None] | None = None,
    **further: Any,
) -> Causes:
    """What one method's lost entries did to the answer. `further` as in `causes_stream`."""
    result = None
    for event in causes_stream(model, prompt, method, budget, **further):
        result = event.result
        if events:
            events(event)
    return result


def smallest_rescue(
    model: Model, prompt: Prompt, method: str, budget: float | int, **further: Any
) -> Rescue | None:
    """The fewest entries found that, put back, return the answer; None where nothing was lost."""
    return causes(model, prompt, method, budget, by=(), rescue=True, **further).rescue


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
    options: dict[str, Any] | None = None,
    scored: Scored | None = None,
    before: Causes | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Event]:
    """The same as an iterator of events; the last one carries the `Causes`, also after a stop.

    by          of "head", "layer", "passage", "token", "passage-head".
    passage     what a passage is: "sentence", "line" or "paragraph" of the document.
    rescue      also search the smallest rescue;  would_do  also the smallest cache that gives the answer.
    scored      an earlier reading of the same prompt, with what was scored of it.
    before      an earlier result for the same method, budget and prompt: what it holds is not tried again.
    """
    for kind in by:
        units(kind, (0, 0, 0), ())
    if wrong := [d for d in directions if d not in (PUT_BACK, TAKEN_OUT)]:
        raise InputError(f"A direction is {PUT_BACK} or {TAKEN_OUT}, not {wrong[0]!r}.")
    pieces = passages(prompt, passage)
    methods = [method, *(WOULD_DO_METHODS if would_do else ())]
    if scored is None:
        needs = needs_of(methods, {method: options or {}})
        scored = Scored(prefill(model, prompt, needs=needs, cancel=cancel))
    tried = _Experiment(scored, method, budget, options or {}, pieces, expected, max_new_tokens, cancel)
    return tried.events(by, directions, rescue, would_do, before)


class _Experiment:
    """One method's kept set on one trace, and everything that is tried with it."""

    def __init__(self, scored, method, budget, options, pieces, expected, most, cancel):
        self.scored, self.trace = scored, scored.trace
        self.pieces, self.expected, self.most = pieces, expected, most
        self.method, self.budget = method, budget
        self.selection = select_from(scored, method, budget, **options)
        self.trials = Trials(self.trace, self._readout(method), cancel)
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

    def events(self, by, directions, rescue, would_do, before) -> Iterator[Event]:
        full, own = self.trials.write([self.held, self.kept], self.most)
        self.answer, self.text = full.token_ids, self._words(full.token_ids)
        self.steps = self._expected_steps()
        self.whole, self.base = self.trials.force([self.held, self.kept], self.answer)
        gap = self.whole.logp - self.base.logp
        found = Causes(
            method=self.method,
            budget=self.budget,
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
        self.own_works = self._returned(own.token_ids)
        try:
            for direction in directions:
                for kind in by:
                    yield from self._effects(found, direction, kind)
            if rescue:
                yield from self._rescue(found)
            if would_do:
                yield from self._would_do(found)
        except Cancelled:
            found.stopped = True
            found.notes.append("Stopped. What was finished is shown.")
        found.trials, found.seconds = self.trials.count, time.perf_counter() - self.started
        yield Event("done", "Done", 1, 1, 0.0, result=found, scored=self.scored)

    # -- effects ------------------------------------------------------------------------------------

    def _effects(self, found: Causes, direction: str, kind: str) -> Iterator[Event]:
        rows = getattr(found, direction)
        tried = {e.place for e in rows}
        todo = [u for u in units(kind, self.kept.shape, self.pieces) if _place(u) not in tried]
        changed = []
        for unit in todo:
            there = self.lost if direction == PUT_BACK else self.held
            changed.append(int(there[unit.place].sum()))
        started = time.perf_counter()
        what = "Putting back" if direction == PUT_BACK else "Taking out"
        results = self.trials.force(
            (self._trial(direction, u) for u, size in zip(todo, changed) if size), self.answer
        )
        for done, (unit, size) in enumerate(zip(todo, changed), 1):
            trial = next(results) if size else (self.base if direction == PUT_BACK else self.whole)
            rows.append(self._effect(direction, unit, size, trial))
            if done % 8 == 0 or done == len(todo):
                left = (time.perf_counter() - started) / done * (len(todo) - done)
                message = f"{what} {kind} by {kind}, {done:,} of {len(todo):,}"
                yield Event("cause", message, done, len(todo), left)

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
            ended = smallest(search, everything, order) or ended
            yield Event("cause", f"Smallest rescue so far: {len(search.best):,} entries", 0, 0)
        best = search.best
        necessary = is_minimal(search, best) if ended else [False] * len(best)
        text = self._words(next(self.trials.write([self._with(best)], self.most)).token_ids)
        gain = next(self.trials.force([self._with(best)], self.answer)).logp.sum() - self.base.logp.sum()
        yield Event("cause", f"{N_CONTROLS} random sets of {len(best)} entries beside it", 0, 0)
        controls, same = self._controls(best)
        found.rescue = Rescue(
            entries=[tuple(int(x) for x in e) for e in zip(*np.unravel_index(best, self.kept.shape))],
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
        most = min(self.most, len(self.answer) + LATER)
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
        n, rng = self.kept.shape[-1], np.random.default_rng(SEED)
        head = best // n
        free = self.lost.reshape(-1).copy()
        free[best] = False
        drawn = []
        for _ in range(N_CONTROLS):
            parts = []
            for h in np.unique(head):
                places = h * n + np.flatnonzero(free[h * n : (h + 1) * n])
                count = min(int((head == h).sum()), len(places))
                parts.append(rng.choice(places, count, replace=False))
            drawn.append(joined(parts))
        added = self._works(self.kept)(drawn)
        swapped = [self._returned(a.token_ids) for a in self.trials.write(
            (self._with(s, self._room_for(s)) for s in [best, *drawn]), self.most)]  # fmt: skip
        return Controls(added, swapped[1:]), swapped[0]

    def _room_for(self, entries: np.ndarray) -> np.ndarray:
        """The kept set less as many worst-scored, unprotected entries of each head as are to be put in."""
        n, base = self.kept.shape[-1], self.kept.copy()
        protected = np.broadcast_to(np.asarray(self.selection.protected), base.shape)
        for h, count in zip(*np.unique(entries // n, return_counts=True)):
            layer, kv = divmod(int(h), base.shape[1])
            scores = np.asarray(self.selection.scores[layer][kv], np.float32)
            order = np.where(np.isnan(scores), np.arange(n, dtype=np.float32), scores)
            out = np.flatnonzero(base[layer, kv] & ~protected[layer, kv])
            base[layer, kv, out[np.argsort(order[out], kind="stable")[:count]]] = False
        return base

    # -- the cache that would do --------------------------------------------------------------------

    def _would_do(self, found: Causes) -> Iterator[Event]:
        started, before = time.perf_counter(), self.trials.count
        yield Event("cause", "Searching the smallest cache that gives the answer", 0, 0)
        starts = {f"{self.method}@{self.budget}": self.kept}
        for method in WOULD_DO_METHODS:
            for share in WOULD_DO_BUDGETS:
                sel = select_from(self.scored, method, share)
                starts[f"{method}@{share}"] = np.stack([m.cpu().numpy() for m in sel.mask])
        if found.rescue is not None:
            places = tuple(np.array(found.rescue.entries).T)
            starts["the rescue"] = self._with(np.ravel_multi_index(places, self.kept.shape))
        order = sorted(starts, key=lambda name: int(starts[name].sum()))
        empty = np.zeros_like(self.kept)
        works = self._same(empty)
        begin = None
        for at in range(0, len(order), 16):  # from the smallest on, until one works
            names = order[at : at + 16]
            answers = works([np.flatnonzero(starts[name]) for name in names])
            begin = next((name for name, yes in zip(names, answers) if yes), None)
            yield Event("cause", f"Caches tried as a start: {at + len(names)}", at + len(names), len(order))
            if begin is not None:
                break
        if begin is None:
            found.notes.append("No cache among the starts of the search gives the full cache's answer.")
            return
        search = Search(works, self._gains, most=WOULD_DO_TRIALS)
        splits = [self._by_passage, self._by_head, self._by_passage_head]
        ended = whittled(search, np.flatnonzero(starts[begin]), splits)
        best = self._with(search.best, empty)
        text = self._words(next(self.trials.write([best], self.most)).token_ids)
        kl = float(next(self.trials.force([best], self.answer)).kl.mean())
        held = {name: float((mask & best).sum() / best.sum()) for name, mask in starts.items()}
        entry = 2 * self.trace.model.head_dim * self.trace.keys[0].element_size()
        found.would_do = WouldDo(
            best, begin, text, int(best.sum()) * entry, kl, held, ended, self.trials.count - before,
            WOULD_DO_TRIALS, time.perf_counter() - started,
        )  # fmt: skip

    def _same(self, base: np.ndarray) -> Callable[[list[np.ndarray]], list[bool]]:
        return lambda sets: list(self.trials.agree((self._with(s, base) for s in sets), self.answer))

    def _by_passage_head(self, entries: np.ndarray) -> list[np.ndarray]:
        return [part for piece in self._by_passage(entries) for part in self._by_head(piece)]

    # -- words --------------------------------------------------------------------------------------

    def _returned(self, token_ids: list[int]) -> bool:
        """Whether this answer counts as the full cache's come back."""
        if self.steps is None:
            return token_ids == self.answer
        return contains_expected(self._words(token_ids), self.expected)

    def _expected_steps(self) -> np.ndarray | None:
        """Steps of the full answer that write the expected one; None where it is not in there."""
        if not (self.expected or "").strip() or not contains_expected(self.text, self.expected):
            return None
        written = [self._decode(self.answer[: i + 1]) for i in range(len(self.answer))]
        end = next(i for i, text in enumerate(written) if contains_expected(text + " ", self.expected))
        start = max(
            i for i in range(end + 1)
            if contains_expected(self._decode(self.answer[i : end + 1]) + " ", self.expected)
        )  # fmt: skip
        return np.arange(start, end + 1)

    def _words(self, token_ids: list[int]) -> str:
        return self.trace.model.tokenizer.decode(token_ids, skip_special_tokens=True)

    def _decode(self, token_ids: list[int]) -> str:
        return self.trace.model.tokenizer.decode(token_ids)
