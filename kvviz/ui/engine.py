"""The engine as the page uses it: models, a lent GPU, traces that are kept for the next run."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kvviz.errors import Cancelled
from kvviz.settings import settings
from kvviz.ui.asks import Request
from kvviz.ui.traces import Traces


def lent() -> bool:
    """Whether a GPU is lent by the call, in a process of its own (an event cannot follow into it)."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def on_gpu(fn: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Ask for a GPU around `fn` where one is lent by the call; elsewhere `fn` itself."""
    if not lent():
        return fn
    import spaces

    return spaces.GPU(duration=90)(fn)


_MODELS: dict[tuple[str, str], Any] = {}  # of the process: a lent GPU works in a fork that sees them


@on_gpu
def _compare(
    key: tuple[str, str], ask: Request, cancel: Any, traces: Traces | None
) -> Iterator[Any]:
    import kvviz
    from kvviz.engine.trace import needs_of

    model = _MODELS[key]
    prompt = kvviz.build_prompt(
        model, document=ask.document, question=ask.question, system=ask.system,
        protocol=ask.protocol, limits=settings(),
    )  # fmt: skip
    held = traces.find(model, prompt, needs_of(ask.methods, ask.options)) if traces is not None else None
    events = kvviz.compare_stream(
        model, prompt, ask=ask.plain, cancel=cancel, scored=held, limits=settings()
    )
    yield from _kept(events, traces)


@on_gpu
def _try(
    key: tuple[str, str], comparison: Any, variant: Any, edits: list[Any], same_size: bool,
    cancel: Any, traces: Traces | None,
) -> Iterator[Any]:  # fmt: skip
    from kvviz.engine.experiment import try_edits_stream
    from kvviz.engine.trace import needs_of

    model = _MODELS[key]
    needs = needs_of([variant.method])
    held = traces.find(model, comparison.prompt, needs) if traces is not None else None
    events = try_edits_stream(
        model, comparison, variant.method, variant.budget, edits, same_size, scored=held, cancel=cancel
    )
    yield from _kept(events, traces)


def _kept(events: Iterator[Any], traces: Traces | None) -> Iterator[Any]:
    """Events without their trace, which stays here (and could not leave the process of a lent GPU)."""
    for event in events:
        if event.scored is not None:
            if traces is not None:
                traces.keep(event.scored)
            event = dataclasses.replace(event, scored=None)
        yield event


class Engine:
    """The real engine, imported when it is first needed: the page opens without torch."""

    def __init__(self, keep: int = 1):
        self._models = _MODELS
        self._keep, self._lock = keep, threading.Lock()
        # A lent GPU works in a process that is gone afterwards, and its traces with it.
        self.traces = None if lent() else Traces(settings().reuse_bytes)

    def methods(self) -> list[Any]:
        """Specs of the methods on offer."""
        import kvviz

        return list(kvviz.list_methods())

    def allocations(self) -> dict[str, str]:
        """{allocator: label} that a method may be given in place of its own."""
        from kvviz.engine.budgets import ALLOCATORS

        return {name: allocator.label for name, allocator in ALLOCATORS.items()}

    def loaded(self, model_id: str, dtype: str) -> bool:
        """Whether this model is in memory, ready for Run."""
        return (model_id, dtype) in self._models

    def model(self, ask: Request, progress: Callable[[str, float | None], None]) -> Any:
        """The loaded model, fetched and converted first where it has to be."""
        import kvviz

        key = (ask.model, ask.dtype)
        with self._lock:
            if key not in self._models:
                while len(self._models) >= self._keep:
                    gone = self._models.pop(next(iter(self._models)))
                    if self.traces is not None:
                        self.traces.forget(gone)
                self._models[key] = kvviz.load_model(
                    ask.model, dtype=ask.dtype, progress=progress
                )
            return self._models[key]

    def unavailable(self, model_id: str, dtype: str) -> dict[str, str]:
        """{method: why it cannot run on this model}; empty until the model has been loaded."""
        model = self._models.get((model_id, dtype))
        if model is None:
            return {}
        reasons = {spec.id: spec.available(model) for spec in self.methods()}
        return {method: reason for method, reason in reasons.items() if reason}

    def calibrate(
        self, ask: Request, name: str, cancel: threading.Event,
        progress: Callable[[str, float | None], None],
    ) -> Iterator[Any]:  # fmt: skip
        """Make the calibrated file `name` for a model; the last event carries a sentence."""
        from kvviz.calibrate import calibrate
        from kvviz.types import Event

        calibrate(name, self.model(ask, progress), progress=progress, cancel=cancel)
        yield Event("done", "Done", 1, 1, 0.0, result="Calibrated. It can be chosen now.")

    def stream(
        self,
        ask: Request,
        cancel: threading.Event,
        progress: Callable[[str, float | None], None],
    ) -> Iterator[Any]:
        """Events of one comparison; the last one carries the result."""
        self.model(ask, progress)
        if cancel.is_set():
            raise Cancelled("Stopped.")
        yield from _compare(
            (ask.model, ask.dtype), ask, None if lent() else cancel, self.traces
        )

    def experiment(
        self, ask: Request, comparison: Any, variant: Any, edits: list[Any], same_size: bool,
        cancel: threading.Event, progress: Callable[[str, float | None], None],
    ) -> Iterator[Any]:  # fmt: skip
        """Decode an edited cache and its random controls; the last event carries their comparison."""
        self.model(ask, progress)
        stop = None if lent() else cancel
        yield from _try(
            (ask.model, ask.dtype), comparison, variant, edits, same_size, stop, self.traces
        )
