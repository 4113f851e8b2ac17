"""Runs the engine for the page: one stream of small status dicts a browser can show.

The engine lives in a worker thread, so that loading a model reports its progress too and Stop is
heard at once. Errors of a user end as one sentence in the last status; nothing else is lost.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
import queue
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvviz.errors import Cancelled, InputError, KvvizError
from kvviz.settings import settings
from kvviz.ui.traces import Traces

STAGES = {
    "load": "Getting the model ready",
    "prefill": "Reading the document",
    "score": "Scoring",
    "decode": "Writing the answers",
    "measure": "Measuring",
}
_NUMBERS = list(STAGES)


@dataclass(frozen=True)
class Request:
    """What a visitor asks for, checked by `request`."""

    document: str
    question: str
    methods: list[str]
    budgets: list[float]
    model: str = "smollm2-135m"
    dtype: str = "auto"
    protocol: str = "question-aware"
    expected: str | None = None
    system: str | None = None
    max_new_tokens: int = 48
    window: int = 32
    seed: int = 0
    evict_every: int | None = None
    controlled: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    lenses: bool = True  # also what the views need at every stop of the slider
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def budgets(value: Any) -> list[float]:
    """Shares from "50, 20%, 5" or ["50%", "20%"]: percent of the document's cache that is kept."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[,;\s]+", str(value or ""))
    found: list[float] = []
    for part in parts:
        text = str(part).strip().removesuffix("%").strip()
        if not text:
            continue
        try:
            share = float(text) / 100
        except ValueError:
            share = -1.0
        if not 0.01 - 1e-9 <= share <= 1:
            raise InputError("A budget lies between 1% and 100%.")
        if round(share, 6) not in found:
            found.append(round(share, 6))
    if not found:
        raise InputError("Choose at least one budget between 1% and 100%.")
    return sorted(found, reverse=True)


def request(**fields: Any) -> Request:
    """A checked request; InputError with one sentence where a field cannot be used."""
    document = str(fields.get("document") or "")
    question = str(fields.get("question") or "").strip()
    named = [*(fields.get("methods") or []), *(fields.get("variants") or [])]
    methods = list(dict.fromkeys(str(m).strip() for m in named))
    if not document.strip():
        raise InputError("Paste or upload a document first.")
    if not question:
        raise InputError("Ask a question about the document.")
    if not methods:
        raise InputError("Choose at least one method.")
    return Request(
        document=document,
        question=question,
        methods=methods,
        budgets=budgets(fields.get("budgets")),
        model=str(fields.get("model") or "smollm2-135m").strip(),
        dtype=str(fields.get("dtype") or "auto"),
        protocol=str(fields.get("protocol") or "question-aware"),
        expected=str(fields.get("expected") or "").strip() or None,
        system=str(fields.get("system") or "").strip() or None,
        max_new_tokens=int(fields.get("max_new_tokens") or 48),
        window=int(fields.get("window") or 32),
        seed=int(fields.get("seed") or 0),
        evict_every=int(fields.get("evict_every") or 0) or None,
        controlled=bool(fields.get("controlled")),
        temperature=float(fields.get("temperature") or 0),
        top_p=float(fields.get("top_p") or 1),
        options=dict(fields.get("options") or {}),
    )


def _lent() -> bool:
    """Whether a GPU is lent by the call, in a process of its own (an event cannot follow into it)."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def on_gpu(fn: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Ask for a GPU around `fn` where one is lent by the call; elsewhere `fn` itself."""
    if not _lent():
        return fn
    import spaces

    return spaces.GPU(duration=90)(fn)


_MODELS: dict[tuple[str, str], Any] = {}  # of the process: a lent GPU works in a fork that sees them


@on_gpu
def _compare(
    key: tuple[str, str], ask: Request, options: dict, cancel: Any, traces: Traces | None
) -> Iterator[Any]:
    import kvviz
    from kvviz.trace import needs_of

    model = _MODELS[key]
    prompt = kvviz.build_prompt(
        model, document=ask.document, question=ask.question, system=ask.system,
        protocol=ask.protocol,
    )  # fmt: skip
    held = traces.find(model, prompt, needs_of(ask.methods, options)) if traces is not None else None
    events = kvviz.compare_stream(
        model, prompt, methods=ask.methods, budgets=ask.budgets,
        max_new_tokens=ask.max_new_tokens, measures=("kl", "output_error"), options=options,
        expected=ask.expected, seed=ask.seed, temperature=ask.temperature, top_p=ask.top_p,
        controlled=ask.controlled, evict_every=ask.evict_every, cancel=cancel, lenses=ask.lenses,
        trace=held,
    )  # fmt: skip
    yield from _kept(events, traces)


@on_gpu
def _try(
    key: tuple[str, str], comparison: Any, variant: Any, edits: list[Any], same_size: bool,
    cancel: Any, traces: Traces | None,
) -> Iterator[Any]:  # fmt: skip
    from kvviz.experiment import try_edits_stream
    from kvviz.trace import needs_of

    model = _MODELS[key]
    needs = needs_of([variant.method])
    held = traces.find(model, comparison.prompt, needs) if traces is not None else None
    events = try_edits_stream(
        model, comparison, variant.method, variant.budget, edits, same_size, trace=held, cancel=cancel
    )
    yield from _kept(events, traces)


def _kept(events: Iterator[Any], traces: Traces | None) -> Iterator[Any]:
    """Events without their trace, which stays here (and could not leave the process of a lent GPU)."""
    for event in events:
        if event.trace is not None:
            if traces is not None:
                traces.keep(event.trace)
            event = dataclasses.replace(event, trace=None)
        yield event


class Engine:
    """The real engine, imported when it is first needed: the page opens without torch."""

    def __init__(self, keep: int = 1):
        self._models = _MODELS
        self._keep, self._lock = keep, threading.Lock()
        # A lent GPU works in a process that is gone afterwards, and its traces with it.
        self.traces = None if _lent() else Traces(settings().reuse_bytes)

    def methods(self) -> list[Any]:
        """Specs of the methods on offer."""
        import kvviz

        return list(kvviz.list_methods())

    def allocations(self) -> dict[str, str]:
        """{allocator: label} that a method may be given in place of its own."""
        from kvviz.budgets import ALLOCATORS

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
            (ask.model, ask.dtype), ask, self._options(ask), None if _lent() else cancel, self.traces
        )

    def _options(self, ask: Request) -> dict[str, dict[str, Any]]:
        """Options by method: the window of the fields where a method has one and does not name its own."""
        specs = {spec.id: spec for spec in self.methods()}
        options: dict[str, dict[str, Any]] = {}
        for name in ask.methods:
            spec = specs.get(name.partition(":")[0])
            if spec is not None and "window" in spec.options and "window=" not in name:
                options[name] = {"window": ask.window}
        for name, given in ask.options.items():
            if name in ask.methods:
                options.setdefault(name, {}).update(given)
        return options

    def experiment(
        self, ask: Request, comparison: Any, variant: Any, edits: list[Any], same_size: bool,
        cancel: threading.Event, progress: Callable[[str, float | None], None],
    ) -> Iterator[Any]:  # fmt: skip
        """Decode an edited cache and its random controls; the last event carries their comparison."""
        self.model(ask, progress)
        stop = None if _lent() else cancel
        yield from _try(
            (ask.model, ask.dtype), comparison, variant, edits, same_size, stop, self.traces
        )


def stream(
    engine: Any,
    ask: Request,
    cancel: threading.Event,
    events_of: Callable[..., Iterator[Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Status dicts of one run; the last has state "done", "stopped" or "failed".

    events_of(cancel, progress) replaces the comparison of `ask`. Closing the generator stops the
    work.
    """
    events: queue.Queue[Any] = queue.Queue()
    start = events_of or (lambda *with_: engine.stream(ask, *with_))

    def progress(message: str, fraction: float | None = None) -> None:
        events.put(_status("load", str(message), fraction))

    def work() -> None:
        result = None
        try:
            for event in start(cancel, progress):
                if getattr(event, "result", None) is not None:
                    result = event.result
                events.put(_of_event(event))
            events.put(_ending(result, cancel))
        except Cancelled:
            events.put(_ending(result, cancel))
        except KvvizError as error:
            events.put({"state": "failed", "message": str(error)})
        except MemoryError:
            events.put({"state": "failed", "message": _no_memory(ask)})
        except Exception as error:  # a fault of ours: the log has it, the visitor gets a sentence
            traceback.print_exc()
            full = "out of memory" in str(error).lower()
            text = _no_memory(ask) if full else "The run failed inside kvviz; the log says where."
            events.put({"state": "failed", "message": text})

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), daemon=True, name="kvviz-run"
    )  # the context says whose run it is
    thread.start()
    try:
        while True:
            status = events.get()
            while status["state"] == "running" and not events.empty():
                status = _merged(status, events.get())  # a slow browser gets the newest state
            yield status
            if status["state"] != "running":
                return
    finally:
        cancel.set()


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if new.get("answers") is None and old.get("answers") is not None:
        return {**new, "answers": old["answers"]}
    return new


def _status(stage: str, message: str, fraction: float | None, **more: Any) -> dict[str, Any]:
    number = _NUMBERS.index(stage) + 1 if stage in STAGES else len(STAGES)
    return {
        "state": "running",
        "stage": stage,
        "number": number,
        "of": len(STAGES),
        "title": STAGES.get(stage, ""),
        "message": message,
        "fraction": fraction,
        **more,
    }


def _of_event(event: Any) -> dict[str, Any]:
    total = int(event.total or 0)
    return _status(
        event.stage,
        event.message,
        min(1.0, event.done / total) if total else None,
        seconds_left=event.seconds_left,
        answers=None if event.answers is None else dict(event.answers),
    )


def _ending(result: Any, cancel: threading.Event) -> dict[str, Any]:
    if result is None:
        return {"state": "stopped", "message": "Stopped. No answer was finished yet."}
    if isinstance(result, str):
        return {"state": "done", "message": result}
    stopped = cancel.is_set()
    answers = [result.full, *result.variants]
    finished = sum(v.finished not in ("", "cancelled") for v in answers)
    text = f"Stopped. {finished} of {len(answers)} answers are finished and shown."
    return {
        "state": "stopped" if stopped else "done",
        "message": text if stopped else "",
        "result": result,
    }


def _no_memory(ask: Request) -> str:
    variants = len(ask.methods) * len(ask.budgets)
    return (
        f"Not enough memory for {variants} variants. Fewer budgets or a shorter document will "
        "fit; your last result is kept."
    )
