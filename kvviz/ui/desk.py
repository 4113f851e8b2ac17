"""Handlers of the page's fields: run, stop, decode more, open a file, leave."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from kvviz.errors import InputError, KvvizError
from kvviz.results.comparison import Comparison
from kvviz.settings import Settings
from kvviz.ui import asks, worker
from kvviz.ui.chosen import Chosen, checked, edits_of
from kvviz.ui.engine import PageEngine
from kvviz.ui.estimates import Estimates
from kvviz.ui.line import Line
from kvviz.ui.runs import Run, RunStore
from kvviz.ui.turns import in_turn
from kvviz.ui.uploads import uploaded
from kvviz.ui.visitors import RUN, Visitors, session, visitor

_SERIAL = itertools.count(1)


def told(**status: Any) -> str:
    """A status for the page. The serial makes equal statuses differ, so each one is noticed."""
    return json.dumps({"serial": next(_SERIAL), **status}, default=str)


def failed(message: Any) -> str:
    """The status of what could not be done, in one sentence."""
    return told(state="failed", message=str(message))


class Desk:
    """One per app: knows the engine, the finished runs and whose work can be stopped."""

    def __init__(self, engine: PageEngine, store: RunStore, limits: Settings):
        self.engine, self.store, self.limits = engine, store, limits
        self.line, self.visitors = Line(limits.queue_size), Visitors()
        self.estimates = Estimates(limits, store)
        self._calibrating, self._stop_calibration = threading.Lock(), threading.Event()

    def run(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Run what the form says; yields statuses, the last one names the finished run."""
        from kvviz.ui.form import NAMES

        data = event._data if isinstance(event._data, dict) else {}
        try:
            ask = asks.form_request(self.limits, **{name: data.get(name) for name in NAMES})
        except KvvizError as error:
            yield failed(error)
            return

        def keep(result: Comparison) -> Run:
            return self.store.add(result, "own", "Your run", visitor(request), ask)

        yield from self._work(request, ask, self._comparing(ask), keep)

    def decode_more(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode the run's methods at one more budget, or one more method, and add the answers to it."""
        data = event._data if isinstance(event._data, dict) else {}
        try:
            run = self.store.get(data.get("run"))
            ask = run.recipe()
            if data.get("method"):
                more = ask.of(methods=[str(data["method"])])
            else:  # the views have their stops already; the page says a share
                share = data.get("budget")  # a browser writes 1.0 as 1
                more = ask.of(budgets=[float(share) if type(share) is int else share], lenses=False)
            more = asks.check(more, self.limits)
        except KvvizError as error:
            yield failed(error)
            return

        def keep(result: Comparison) -> Run:
            return self.store.extend(run, run.comparison.merged(result), visitor(request))

        yield from self._work(request, more, self._comparing(more, run.comparison), keep)

    def pointed_at(self, event: gr.EventData) -> tuple[dict[str, Any], Run, asks.Request, Chosen]:
        """What an event says, the run it is about, how that was asked, and what is chosen in it."""
        data = event._data if isinstance(event._data, dict) else {}
        run = self.store.get(data.get("run"))
        ask = asks.check(run.recipe(), self.limits)
        return data, run, ask, checked(data.get("sel"), run.comparison)

    def try_again(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode A with entries pinned or evicted by hand, beside three random controls."""
        from kvviz.results.edits import edited

        try:
            data, run, ask, chosen = self.pointed_at(event)
            c = run.comparison
            before = c.variant(chosen.a, chosen.budget)
            if before is None or before.selection is None or not run.asked_for(before.method):
                raise InputError("Choose a method and a budget that were decoded, then try again.")
            edits, same_size = edits_of(data.get("edits"), c), data.get("grow") is not True
        except KvvizError as error:
            yield failed(error)
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.engine.experiment(ask, c, before, edits, same_size, cancel, progress)

        def more(found: Comparison) -> Comparison:
            return edited(c, before, found.variants, edits, same_size)

        # An edit says nothing without all of its controls.
        yield from self.added(request, run, work, more, lambda status: worker.STOPPED)

    def added(
        self, request: gr.Request, run: Run, work: worker.Work, more: Callable[[Comparison], Comparison],
        at_stop: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> Iterator[str]:  # fmt: skip
        """Statuses of work on a finished run; the last one names the run with what was found in it.

        more     the run's comparison with what was found.
        at_stop  what is told of a stop: with the `result` of the status, where its part is kept.
        """

        def keep(found: Comparison) -> Run:
            return self.store.extend(run, more(found), visitor(request))

        for status in self.statuses(request, work):
            if status["state"] == "stopped":
                status = at_stop(status)
            yield told(**self.with_run(status, keep), experiment=True)

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """What the form asks beside a run, None for what is not its business; nothing in it is trusted."""
        answers = {"estimate": self.estimate, "unavailable": self.unavailable, "read": self.read}
        fn, args = answers.get(str(body.get("view"))), body.get("args")
        if fn is None:
            return None
        try:
            return fn(args if isinstance(args, dict) else {})
        except KvvizError as error:
            return {"error": str(error)}

    def unavailable(self, args: dict[str, Any]) -> dict[str, Any]:
        """Methods that cannot run on this model, each with its reason (known once it is loaded)."""
        model, dtype = str(args.get("model")), str(args.get("dtype"))
        reasons = self.engine.unavailable(model, dtype)
        specs = {spec.id: spec for spec in self.engine.methods()}
        rows = [
            {"id": m, "label": specs[m].label, "reason": reason,
             "artefact": specs[m].artefact and specs[m].artefact.name}
            for m, reason in reasons.items()
        ]  # fmt: skip
        return {"methods": rows, "model": model, "dtype": dtype, "calibrates": not self.limits.public}

    def estimate(self, args: dict[str, Any]) -> dict[str, Any]:
        """What Run will take, from the fields that decide it."""
        return self.estimates.told(args)

    def read(self, args: dict[str, Any]) -> dict[str, Any]:
        """The text of a file that was dropped or chosen, sent as base64."""
        from kvviz.engine.documents import is_blank, read_document

        try:
            data = base64.b64decode(str(args.get("data") or ""), validate=True)
        except ValueError:
            raise InputError("This file did not arrive whole. Try again.") from None
        text, notices = read_document(str(args.get("name") or ""), data)
        if is_blank(text):
            raise InputError("There is no text in this file.")
        return {"text": text, "notices": notices}

    def calibrate(self, event: gr.EventData) -> Iterator[str]:
        """Make what a method needs for a model, beside all else; one at a time, and not on public servers."""
        data = event._data if isinstance(event._data, dict) else {}
        spec = next((s for s in self.engine.methods() if s.id == data.get("method")), None)
        if spec is None or not spec.artefact or self.limits.public:
            return
        model, dtype = str(data.get("model")), str(data.get("dtype"))
        if not self._calibrating.acquire(blocking=False):
            message = "Another calibration is running. Try again when it is over."
            yield told(state="calibrate", inner="failed", label=spec.label, message=message)
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            self.engine.calibrate(model, dtype, spec.artefact.name, cancel, progress)
            return iter(())

        endings = {"done": "Calibrated. It can be chosen now.",
                   "stopped": "Stopped. Started again, it goes on from there."}  # fmt: skip
        try:
            self._stop_calibration.clear()
            for status in worker.stream(work, self._stop_calibration):
                message = endings.get(status["state"], status["message"])
                yield told(state="calibrate", inner=status["state"], label=spec.label, message=message,
                           fraction=status.get("fraction"))  # fmt: skip
        finally:
            self._calibrating.release()
        yield told(state="methods", **self.unavailable({"model": model, "dtype": dtype}))

    def stop_calibration(self) -> None:
        """Stop the calibration; it goes on from its last checkpoint when it is started again."""
        self._stop_calibration.set()

    def broken(self) -> str:
        """What the page is told when a handler itself broke, or a field was refused before it."""
        message = "This was not started: a field holds something that cannot be used, or the server is busy."
        return failed(message)

    def arrive(self, request: gr.Request) -> None:
        """The page was opened: the visitor's runs stay."""
        self.visitors.arrive(request)
        self.store.back(visitor(request))

    def stop(self, request: gr.Request) -> None:
        """Stop what this page has running; it ends within a step. A needle grid has a Stop of its own."""
        self.visitors.stop(request, RUN)

    def leave(self, request: gr.Request) -> None:
        """The page was closed: its work stops, and after the last one the runs go in a while."""
        if self.visitors.leave(request):
            self.store.left(visitor(request))

    def open_saved(self, event: gr.EventData, request: gr.Request) -> str:
        """Open a run that was saved as a file, which the page has uploaded."""
        data = event._data if isinstance(event._data, dict) else {}
        try:
            run = self.store.open(uploaded(data.get("path")), visitor(request))
        except KvvizError as error:
            return told(state="failed", message=str(error), place="page")
        if data.get("beside") is True:
            return told(state="beside", run=run.id)
        return told(state="done", message="", run=run.id)

    def _comparing(self, ask: asks.Request, into: Comparison | None = None) -> worker.Work:
        """The comparison that is asked for, of the very tokens of `into` where it adds to a run."""

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.engine.stream(ask, cancel, progress, into)

        return work

    def _work(
        self, request: gr.Request, ask: asks.Request, work: worker.Work, keep: Callable[[Comparison], Run]
    ) -> Iterator[str]:
        plan = {"methods": ask.methods, "budgets": ask.budgets, "expected": ask.expected}
        for status in self.statuses(request, work):
            if status.get("result") is not None:
                self.estimates.learn(ask.model, status["result"])
            yield told(**self.with_run(status, keep), plan=plan)

    def statuses(
        self, request: gr.Request, work: worker.Work, kind: str = RUN
    ) -> Iterator[dict[str, Any]]:
        """Statuses of a piece of work in its turn; the Stop of its kind and the page's leaving end it."""
        with self.visitors.working(session(request), kind) as cancel:
            yield from in_turn(self.line, session(request), work, cancel)

    @staticmethod
    def with_run(status: dict[str, Any], keep: Callable[[Comparison], Run]) -> dict[str, Any]:
        """The status with the id of the run it came to, in place of the run itself."""
        plain = {name: value for name, value in status.items() if name != "result"}
        result = status.get("result")
        return plain if result is None else {**plain, "run": keep(result).id}
