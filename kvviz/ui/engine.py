"""The engine as the page uses it: models, a lent GPU, traces that are kept for the next run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from kvviz.engine.ask import Ask
from kvviz.errors import Cancelled, InputError
from kvviz.results.comparison import Comparison
from kvviz.settings import settings
from kvviz.types import Event
from kvviz.ui.asks import Request
from kvviz.ui.lent import MODELS, Key, lent, model_of, on_gpu, seconds_for
from kvviz.ui.models import Models
from kvviz.ui.traces import Traces

Progress = Callable[[str, float | None], None]


def _run_seconds(key: Key, ask: Request, into: Comparison | None) -> int:
    """How long a lent GPU is asked for: the reading (thrice where a method reads once more in its own way),
    the answers of all waves and their second way through for the measures."""
    from kvviz.engine.trace import needs_of

    model = MODELS[key]
    tokens = len(ask.document) // 3 if into is None else len(into.prompt.input_ids)
    again = bool({"repeat", "column_sums"} & needs_of(ask.methods, ask.options))
    waves = 1 + len(ask.methods) * len(ask.budgets) // 16
    if into is None:  # caches that are cut while generating take up a further question one by one
        waves += len(ask.questions) * (waves if ask.evict_every is None else 1 + ask.answers)
    return _seconds(model, tokens * (3 if again else 1), waves * ask.max_new_tokens * 3 // 2)


def _more_seconds(key: Key, comparison: Comparison, *rest: Any) -> int:
    """The same for work on a run: a reading, and a few answers written or some hundred fed."""
    steps = Ask.of_settings(comparison.settings).max_new_tokens * 8
    return _seconds(MODELS[key], 2 * len(comparison.prompt.input_ids), steps)


def _seconds(model: Any, readings: int, steps: int) -> int:
    weights = sum(weight.numel() for weight in model.hf.parameters())
    return seconds_for(weights, model.dtype.itemsize, readings, steps)


@on_gpu(_run_seconds)
def _compare(
    key: Key, cancel: Any, traces: Traces | None, ask: Request, into: Comparison | None
) -> Iterator[Any]:
    import kvviz
    from kvviz.engine.trace import needs_of

    model = model_of(key)
    if into is None:
        prompt = kvviz.build_prompt(
            model, document=ask.document, question=ask.question, system=ask.system,
            protocol=ask.protocol, limits=settings(), framing=ask.framing,
        )  # fmt: skip
    else:  # the very tokens: a template may hold today's date
        prompt = _same(model, into)
    held = traces.find(model, prompt, needs_of(ask.methods, ask.options)) if traces is not None else None
    events = kvviz.compare_stream(
        model, prompt, ask=ask.plain, cancel=cancel, scored=held, limits=settings(),
        questions=ask.questions if into is None else (),  # what is added to a run answers its first one
    )
    yield from _kept(events, traces)


@on_gpu(_more_seconds)
def _try(
    key: Key, cancel: Any, traces: Traces | None, comparison: Any, variant: Any, edits: list[Any],
    same_size: bool,
) -> Iterator[Any]:  # fmt: skip
    from kvviz.engine.experiment import try_edits_stream
    from kvviz.engine.trace import needs_of

    model = model_of(key)
    needs = needs_of([variant.method])
    prompt = _same(model, comparison)
    held = traces.find(model, prompt, needs) if traces is not None else None
    events = try_edits_stream(
        model, comparison, variant.method, variant.budget, edits, same_size, scored=held, cancel=cancel
    )
    yield from _kept(events, traces)


@on_gpu(_more_seconds)
def _find(
    key: Key, cancel: Any, traces: Traces | None, comparison: Any, variant: Any
) -> Iterator[Any]:
    from kvviz.engine.trace import needs_of
    from kvviz.ui.cause_engine import find_events

    model = model_of(key)
    prompt = _same(model, comparison)
    held = traces.find(model, prompt, needs_of([variant.method])) if traces is not None else None
    yield from _kept(find_events(model, prompt, comparison, variant, held, cancel), traces)


@on_gpu(_more_seconds)
def _branch(
    key: Key, cancel: Any, traces: Traces | None, comparison: Any, answer: str, step: int, index: int
) -> Iterator[Any]:  # fmt: skip
    from kvviz.ui.cause_engine import branch_events

    model = model_of(key)
    prompt = _same(model, comparison)
    held = traces.find(model, prompt) if traces is not None else None
    yield from _kept(branch_events(model, prompt, comparison, answer, step, index, held, cancel), traces)


@on_gpu(_more_seconds)
def _ask(
    key: Key, cancel: Any, traces: Traces | None, comparison: Any, question: str, expected: str | None,
    fresh: bool,
) -> Iterator[Any]:  # fmt: skip
    from kvviz.engine.conversation import ask_stream, needs_for

    model = model_of(key)
    prompt = _same(model, comparison)
    held = traces.find(model, prompt, needs_for(comparison)) if traces is not None else None
    events = ask_stream(
        model, comparison, question, expected=expected, fresh=fresh, scored=held, cancel=cancel
    )
    yield from _kept(events, traces)


@on_gpu(_more_seconds)
def _mix(
    key: Key, cancel: Any, traces: Traces | None, comparison: Any, mix: Any, budget: Any
) -> Iterator[Any]:
    from kvviz.engine.mix import try_mix_stream

    model = model_of(key)
    prompt = _same(model, comparison)
    held = traces.find(model, prompt) if traces is not None else None
    yield from _kept(try_mix_stream(model, comparison, mix, budget, scored=held, cancel=cancel), traces)


def _cell_seconds(key: Key, item: Any, study: Any, *rest: Any) -> int:
    """The same for one text of a grid."""
    from kvviz.engine.trace import needs_of

    again = bool({"repeat", "column_sums"} & needs_of(study.ask.methods))
    waves = 1 + study.ask.answers // 16
    steps = (waves + 1) * study.ask.max_new_tokens * 3 // 2
    return _seconds(MODELS[key], len(item.document) // 3 * (3 if again else 1), steps)


@on_gpu(_cell_seconds)
def _cell(key: Key, cancel: Any, traces: Traces | None, item: Any, study: Any) -> Iterator[Any]:
    from kvviz.evaluate.cells import measure

    for measured in measure(model_of(key), key[0], [item], study, cancel):
        yield measured.cell


def _same(model: Any, c: Comparison) -> Any:
    """The prompt of a run that is added to; InputError where this model is not the one that ran it."""
    made = c.settings.get("weights")
    shape = (model.info.n_layers, model.info.n_kv_heads, model.info.n_query_heads, model.info.head_dim)
    ids = c.prompt.input_ids
    if (
        shape != (c.model.n_layers, c.model.n_kv_heads, c.model.n_query_heads, c.model.head_dim)
        or (made is not None and made != model.weights_hash)
        or not 0 <= int(ids.min()) <= int(ids.max()) < model.hf.get_input_embeddings().num_embeddings
    ):
        raise InputError(
            f"This run was made with another {c.model.id} than the one here. Run the document again to add "
            "to it."
        )
    import torch

    return dataclasses.replace(c.prompt, input_ids=torch.as_tensor(ids))


def _kept(events: Iterator[Any], traces: Traces | None) -> Iterator[Any]:
    """Events without their trace, which stays here (and could not leave the process of a lent GPU)."""
    for event in events:
        if event.scored is not None:
            if traces is not None:
                traces.keep(event.scored)
            event = dataclasses.replace(event, scored=None)
        yield event


class PageEngine(Protocol):
    """What the page asks of an engine. Events are `kvviz.types.Event`."""

    def methods(self) -> list[Any]: ...

    def unavailable(self, model_id: str, dtype: str) -> dict[str, str]: ...

    def calibrate(
        self, model: str, dtype: str, name: str, cancel: threading.Event, progress: Progress
    ) -> None: ...

    def stream(
        self, ask: Request, cancel: threading.Event, progress: Progress, into: Comparison | None = None
    ) -> Iterator[Any]: ...

    def experiment(
        self, ask: Request, comparison: Comparison, variant: Any, edits: list[Any], same_size: bool,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]: ...  # fmt: skip


    def find_cause(
        self, ask: Request, comparison: Comparison, variant: Any, cancel: threading.Event, progress: Progress
    ) -> Iterator[Any]: ...

    def branch(
        self, ask: Request, comparison: Comparison, answer: str, step: int, index: int,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]: ...  # fmt: skip


    def ask_more(
        self, ask: Request, comparison: Comparison, question: str, expected: str | None, fresh: bool,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]: ...  # fmt: skip

    def mix(
        self, ask: Request, comparison: Comparison, mix: Any, budget: float | int,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]: ...  # fmt: skip

    def grid(self, grid: Any, cancel: threading.Event, progress: Progress) -> Iterator[Any]: ...


class Engine:
    """The real engine."""

    def __init__(self, keep: int = 1):
        # A lent GPU works in a process that is gone afterwards, and its traces with it.
        self.traces = None if lent() else Traces(settings().reuse_bytes)
        self.models = Models(MODELS, keep, self.traces.forget if self.traces else lambda model: None)

    def methods(self) -> list[Any]:
        """Specs of the methods on offer."""
        import kvviz

        return list(kvviz.list_methods())

    def unavailable(self, model_id: str, dtype: str) -> dict[str, str]:
        """{method: why it cannot run on this model}; empty until the model has been loaded."""
        model = self.models.loaded.get((model_id, dtype))
        if model is None:
            return {}
        reasons = {spec.id: spec.available(model) for spec in self.methods()}
        return {method: reason for method, reason in reasons.items() if reason}

    def calibrate(
        self, model: str, dtype: str, name: str, cancel: threading.Event, progress: Progress
    ) -> None:
        """Make the calibrated file `name` for a model."""
        from kvviz.calibrate import calibrate

        calibrate(name, self.models.get((model, dtype), cancel, progress), progress=progress, cancel=cancel)

    def stream(
        self, ask: Request, cancel: threading.Event, progress: Progress, into: Comparison | None = None
    ) -> Iterator[Any]:
        """Events of one comparison; the last one carries the result. `into` is a run of the same prompt."""
        key = self._loaded(ask, cancel, progress)
        if cancel.is_set():
            raise Cancelled("Stopped.")
        yield from _compare(key, cancel, self.traces, ask, into)

    def _loaded(self, ask: Request, cancel: threading.Event, progress: Progress) -> tuple[str, str]:
        """The key of the asked model, which is in memory from here on."""
        key = (ask.model, ask.dtype)
        self.models.get(key, cancel, progress)
        return key

    def experiment(
        self, ask: Request, comparison: Comparison, variant: Any, edits: list[Any], same_size: bool,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]:  # fmt: skip
        """Decode an edited cache and its random controls; the last event carries their comparison."""
        key = self._loaded(ask, cancel, progress)
        yield from _try(key, cancel, self.traces, comparison, variant, edits, same_size)

    def find_cause(
        self, ask: Request, comparison: Comparison, variant: Any, cancel: threading.Event, progress: Progress
    ) -> Iterator[Any]:
        """Put back what an answer's cache lost; the last event carries the run with what was found."""
        key = self._loaded(ask, cancel, progress)
        yield from _find(key, cancel, self.traces, comparison, variant)

    def branch(
        self, ask: Request, comparison: Comparison, answer: str, step: int, index: int,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]:  # fmt: skip
        """Go on from another token of an answer ("method@budget" or "full"), as its last event says."""
        key = self._loaded(ask, cancel, progress)
        yield from _branch(key, cancel, self.traces, comparison, answer, step, index)

    def ask_more(
        self, ask: Request, comparison: Comparison, question: str, expected: str | None, fresh: bool,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]:  # fmt: skip
        """A further question to every cache of a run; the last event carries the run with its turn."""
        key = self._loaded(ask, cancel, progress)
        yield from _ask(key, cancel, self.traces, comparison, question, expected, fresh)

    def mix(
        self, ask: Request, comparison: Comparison, mix: Any, budget: float | int,
        cancel: threading.Event, progress: Progress,
    ) -> Iterator[Any]:  # fmt: skip
        """Decode what a mix of the run's stored numbers keeps; the last event carries its answer alone."""
        key = self._loaded(ask, cancel, progress)
        yield from _mix(key, cancel, self.traces, comparison, mix, budget)

    def grid(self, grid: Any, cancel: threading.Event, progress: Progress) -> Iterator[Any]:
        """Read the texts of a `kvviz.ui.grids.Grid` one by one: the first event carries all of them as plain
        items, each later one a text's cell. Where a GPU is lent, it is asked for text by text."""
        from kvviz.evaluate.cells import Study
        from kvviz.evaluate.grid import check_lengths, grid_items

        key = self._loaded(grid.ask, cancel, progress)
        model = MODELS[key]
        check_lengths(model, grid.lengths)
        progress("Writing the texts", None)
        items = grid_items(model.tokenizer, grid.lengths, grid.depths, (0,), grid.seeds, grid.needles)
        yield Event("prefill", "Reading the first text", 0, len(items),
                    result={"items": [item.to_dict() for item in items]})  # fmt: skip
        study = Study(grid.ask.plain, protocol=grid.ask.protocol, dtype=grid.ask.dtype)
        for done, item in enumerate(items, 1):
            if cancel.is_set():
                raise Cancelled("Stopped.")
            for cell in _cell(key, cancel, None, item, study):
                yield Event("prefill", f"{done} of {len(items)} texts", done, len(items), result=cell)
