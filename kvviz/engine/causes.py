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

from kvviz.engine import rescue as rescues
from kvviz.engine import would_do as would_dos
from kvviz.engine.ground import Ground
from kvviz.engine.scoring import Scored
from kvviz.engine.steps import heard, result_of
from kvviz.engine.trace import needs_of, prefill_events
from kvviz.engine.units import Unit, trials_needed, units
from kvviz.errors import Cancelled, InputError
from kvviz.models import Model
from kvviz.results.causes import PUT_BACK, TAKEN_OUT, Causes, Effect, Rescue
from kvviz.results.passages import Passage, passages
from kvviz.results.times import RESCUE_TRIALS
from kvviz.types import Event, Prompt


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
    rescue_trials: int = rescues.MOST_TRIALS,
    would_do: bool = False,
    would_do_trials: int = would_dos.MOST_TRIALS,
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
    if min(rescue_trials, would_do_trials) < 1:
        raise InputError("A search takes at least one trial.")
    if before is not None and (before.method, before.budget) != (method, budget):
        raise InputError("What was found before is of another method or budget.")
    ask = _Ask(method, budget, options or {}, tuple(by), tuple(directions), expected, max_new_tokens,
               rescue_trials if rescue else 0, would_do_trials if would_do else 0)  # fmt: skip
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
    rescue      also search the smallest rescue, in at most `rescue_trials` trials.
    would_do    also search the smallest cache that gives the answer, in at most `would_do_trials` trials.
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
    """What is asked of one method's kept set. rescue, would_do: trials of these searches, 0 for none."""

    method: str
    budget: float | int
    options: dict[str, Any]
    by: tuple[str, ...]
    directions: tuple[str, ...]
    expected: str | None
    most: int
    rescue: int
    would_do: int


def _events(
    model: Model, prompt: Prompt, ask: _Ask, pieces: list[Passage], scored: Scored | None,
    before: Causes | None, cancel: threading.Event | None,
) -> Iterator[Event]:  # fmt: skip
    try:
        if scored is None:
            methods = [ask.method, *(would_dos.METHODS if ask.would_do else ())]
            needs = needs_of(methods, {ask.method: ask.options})
            scored = Scored((yield from prefill_events(model, prompt, needs, cancel)))
        started = time.perf_counter()
        ground = Ground(scored, ask.method, ask.budget, ask.options, ask.expected, ask.most, cancel)
    except Cancelled as stop:
        yield Event("done", str(stop), 1, 1, 0.0)
        return
    found = _begun(ground, ask, before)
    try:
        yield from _Effects(ground, ask, pieces).find(found)
        if ask.rescue and (found.rescue is None or found.rescue.stopped):
            yield from rescues.find(ground, found, pieces, ask.rescue)
        if ask.would_do and found.would_do is None:
            yield from would_dos.find(ground, found, ask.would_do)
    except Cancelled:
        found.stopped = True
        found.notes.append("Stopped. What was finished is shown.")
    found.trials, found.seconds = ground.trials.count, time.perf_counter() - started
    yield Event("done", "Done", 1, 1, 0.0, result=found, scored=ground.scored)


def _begun(ground: Ground, ask: _Ask, before: Causes | None) -> Causes:
    """What is known before any trial: both answers, how far apart, and what an earlier search found."""
    gap = ground.whole.logp - ground.base.logp
    found = Causes(
        method=ask.method,
        budget=ask.budget,
        answer=ground.text,
        tokens=[ground.decode([t]) for t in ground.answer],
        method_text=ground.words(ground.own),
        gap=float(gap.sum()),
        expected_gap=None if ground.steps is None else float(gap[ground.steps].sum()),
        kl=float(ground.base.kl.mean()),
        n=ground.trace.n,
    )
    if before is not None:
        found.put_back, found.taken_out = list(before.put_back), list(before.taken_out)
        found.rescue, found.would_do = before.rescue, before.would_do
    return found


class _Effects:
    """Every unit put back, and taken out."""

    def __init__(self, ground: Ground, ask: _Ask, pieces: list[Passage]):
        self.ground, self.ask, self.pieces = ground, ask, pieces

    def find(self, found: Causes) -> Iterator[Event]:
        """Every unit in every direction; how many there are is said before the first."""
        ask, trials = self.ask, self.ground.trials
        shape = self.ground.kept.shape
        todo = {way: trials_needed(ask.by, [way], shape, self.pieces) for way in ask.directions}
        most, begun = sum(todo.values()), trials.count
        if not most:
            return
        pace = _Pace(self.ground.seconds, todo, min(ask.rescue, RESCUE_TRIALS))
        yield Event("cause", f"{most:,} caches to try", 0, most, pace.left())
        for direction in ask.directions:
            for kind in ask.by:
                for message in self._of(found, direction, kind):
                    pace.did(direction, trials.count - begun)
                    yield Event("cause", message, trials.count - begun, most, pace.left())

    def _of(self, found: Causes, direction: str, kind: str) -> Iterator[str]:
        ground, rows = self.ground, getattr(found, direction)
        tried = {e.place for e in rows}
        todo = [u for u in units(kind, ground.kept.shape, self.pieces) if u.name not in tried]
        there = ground.lost if direction == PUT_BACK else ground.held
        changed = [int(there[unit.place].sum()) for unit in todo]
        what = "Putting back" if direction == PUT_BACK else "Taking out"
        results = ground.trials.force(
            (self._trial(direction, u) for u, size in zip(todo, changed) if size), ground.answer
        )
        for done, (unit, size) in enumerate(zip(todo, changed), 1):
            trial = next(results) if size else (ground.base if direction == PUT_BACK else ground.whole)
            rows.append(self._effect(direction, unit, size, trial))
            if done % 8 == 0 or done == len(todo):
                yield f"{what} {kind} by {kind}, {done:,} of {len(todo):,}"

    def _trial(self, direction: str, unit: Unit) -> np.ndarray:
        ground = self.ground
        trial = (ground.kept if direction == PUT_BACK else ground.held).copy()
        trial[unit.place] = ground.held[unit.place] if direction == PUT_BACK else False
        return trial

    def _effect(self, direction: str, unit: Unit, size: int, trial) -> Effect:
        ground = self.ground
        back = direction == PUT_BACK
        change = trial.logp - ground.base.logp if back else ground.whole.logp - trial.logp
        return Effect(
            unit=unit.kind,
            entries=size,
            effect=float(change.sum()),
            kl=float(trial.kl.mean()),
            expected=None if ground.steps is None else float(change[ground.steps].sum()),
            layer=unit.layer,
            head=unit.head,
            passage=unit.passage,
            token=unit.token,
        )


class _Pace:
    """How long the rest takes at the pace measured so far.

    each  {direction: seconds of one trial}, a first guess: side by side they take less.
    todo  {direction: trials};  later  trials of a search that comes after them.
    """

    def __init__(self, each: dict[str, float], todo: dict[str, int], later: int):
        self.each, self.todo, self.later = dict(each), dict(todo), later
        self.spent, self.done = dict.fromkeys(todo, 0.0), dict.fromkeys(todo, 0)
        self.last = time.perf_counter()

    def did(self, direction: str, all_done: int) -> None:
        """So many trials are done in all, the last of them in this direction."""
        now = time.perf_counter()
        self.spent[direction] += now - self.last
        self.done[direction] += all_done - sum(self.done.values())
        self.last = now
        if self.done[direction]:
            measured = self.spent[direction] / self.done[direction]
            faster = measured / self.each[direction]
            untried = [way for way, done in self.done.items() if not done]
            self.each |= {way: self.each[way] * faster for way in untried}
            self.each[direction] = measured

    def left(self) -> float:
        """Seconds."""
        rest = sum(self.each[way] * max(0, n - self.done[way]) for way, n in self.todo.items())
        return rest + self.later * self.each[PUT_BACK]
