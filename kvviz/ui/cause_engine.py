"""The engine behind Cause and the fork: what was lost is put back, a forced token is gone on from."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvviz.engine.ask import Ask
from kvviz.identity import MethodRef
from kvviz.results.comparison import FULL, Comparison, Variant
from kvviz.results.mix import MIX
from kvviz.results.verdict import judge
from kvviz.types import Event

CONTROLLED = ("window", "pool", "pool_kind", "group")  # what a controlled run sets for every method


def find_events(
    model: Any, prompt: Any, c: Comparison, v: Variant, held: Any, cancel: threading.Event | None
) -> Iterator[Event]:
    """Events of a search for what one answer's lost entries did; the last carries the run with it, and with
    the fork of the answers at this budget where the run has none."""
    from kvviz.engine.causes import causes_stream
    from kvviz.engine.forks import fork

    ask = Ask.of_settings(c.settings)
    options = dict(ask.options.get(v.method, {}))
    if ask.controlled:
        options |= {name: v.options[name] for name in CONTROLLED if name in v.options}
    events = causes_stream(
        model, prompt, v.method, v.budget, expected=c.expected, max_new_tokens=ask.max_new_tokens,
        rescue=True, options=options, scored=held, before=c.causes.get(v.key), cancel=cancel,
    )  # fmt: skip
    for event in events:
        if event.result is not None:
            found, more = event.result, c.with_causes(event.result)
            if not found.stopped and (c.fork is None or v.key not in c.fork.paths):
                beside = [x for x in c.variants if x.budget == v.budget and x.selection is not None]
                masks = {x.key: x.packed.kept.mask() for x in beside}
                made = fork(event.scored.trace, masks, ask.max_new_tokens, cancel)
                paths = made.paths if c.fork is None else {**made.paths, **c.fork.paths}
                more = dataclasses.replace(more, fork=dataclasses.replace(made, paths=paths))
            event = dataclasses.replace(event, result=more)
        yield event


def branch_events(
    model: Any, prompt: Any, c: Comparison, key: str, step: int, index: int, held: Any,
    cancel: threading.Event | None,
) -> Iterator[Event]:  # fmt: skip
    """The answer of one cache that is made to say its `index`-th likeliest token at `step`: the last event
    carries the run with it in settings["branches"]."""
    from kvviz.engine.forks import TOP, branch
    from kvviz.engine.scoring import Scored
    from kvviz.engine.trace import needs_of, prefill
    from kvviz.engine.trials import Trials
    from kvviz.methods import parse_method

    v = next((x for x in c.variants if x.key == key), c.full)
    method = [] if MethodRef.parse(v.method).id in (FULL, MIX) else [v.method]
    if held is None:
        yield Event("prefill", "Reading the document")
        held = Scored(prefill(model, prompt, needs=needs_of(method), cancel=cancel))
    trace, readout = held.trace, None
    if method:
        spec, _ = parse_method(v.method)
        if spec.readout is not None:
            readout = lambda mask: spec.readout(trace, mask, v.entries, v.options)  # noqa: E731
    mask = c.whole.kept.mask() if v is c.full else v.packed.kept.mask()
    yield Event("decode", "Going on from the chosen token", scored=held)
    trials = Trials(trace, readout, cancel)
    ids, _ = next(trials.follow([mask], [list(v.token_ids)], TOP))
    token = int(ids[step][index])
    most = max(1, Ask.of_settings(c.settings).max_new_tokens - step - 1)
    forced = [*list(v.token_ids)[:step], token]
    _, text = branch(trace, np.ascontiguousarray(mask), forced, most, readout)
    word = model.tokenizer.decode([token])
    said = dataclasses.replace(c.full, text=text, finished="length")
    row = {"key": FULL if v is c.full else key, "step": step, "token": word, "text": text,
           "verdict": judge(said, c.expected)}  # fmt: skip
    settings = {**c.settings, "branches": [*(c.settings.get("branches") or []), row]}
    yield Event("done", "Done", 1, 1, 0.0, result=dataclasses.replace(c, settings=settings), scored=held)
