"""Handlers of the page's fields: run, stop, decode more, open a file, leave."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from kvviz.engine.ask import Ask
from kvviz.errors import Cancelled, KvvizError
from kvviz.identity import MethodRef
from kvviz.results.archive import load_comparison
from kvviz.results.comparison import Comparison, Variant
from kvviz.ui import asks, worker
from kvviz.ui.line import Line, words
from kvviz.ui.runs import Run, RunStore

_SERIAL = itertools.count(1)


def told(**status: Any) -> str:
    """A status for the page. The serial makes equal statuses differ, so each one is noticed."""
    return json.dumps({"serial": next(_SERIAL), **status}, default=str)


class Desk:
    """One per app: knows the engine, the finished runs and which visitor's run can be stopped."""

    def __init__(self, engine: Any, store: RunStore, limits: Any):
        self.engine, self.store, self.limits = engine, store, limits
        self.line = Line(limits.queue_size)
        self._calibrating, self._stop_calibration = threading.Lock(), threading.Event()
        self._cancels: dict[str, threading.Event] = {}
        self.reference: Comparison | None = None  # whose times the next estimate scales

    def run(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Run what the fields say; yields statuses, the last one names the finished run."""
        from kvviz.ui.fields import NAMES

        try:
            ask = asks.form_request(self.limits, **dict(zip(NAMES, values)))
        except (KvvizError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return
        yield from self._stream(ask, request.session_hash or "", None)

    def decode_more(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode the run's methods at one more budget, or one more method, and add the answers to it."""
        data = event._data if isinstance(event._data, dict) else {}
        try:
            run = self.store.get(data.get("run"))
            ask = self._recipe(run)
            if data.get("method"):
                more = ask.of(methods=[str(data["method"])])
            else:  # the views have their stops already; the page says a share
                more = ask.of(budgets=[float(data.get("budget", 0))], lenses=False)
            more = asks.check(more, self.limits)
        except (KvvizError, TypeError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return
        yield from self._stream(more, request.session_hash or "", run)

    def methods_of(self, model: str, dtype: str) -> str:
        """Methods that cannot run on this model, each with its reason (known once it is loaded)."""
        reasons = self.engine.unavailable(str(model), str(dtype))
        specs = {spec.id: spec for spec in self.engine.methods()}
        rows = [
            {"id": m, "label": specs[m].label, "reason": reason,
             "artefact": specs[m].artefact and specs[m].artefact.name}
            for m, reason in reasons.items()
        ]  # fmt: skip
        return told(state="methods", methods=rows, model=str(model), dtype=str(dtype),
                    calibrates=not self.limits.public)  # fmt: skip

    def calibrate(self, event: gr.EventData) -> Iterator[str]:
        """Make what a method needs for a model, beside all else; one at a time, and not on public servers."""
        data = event._data if isinstance(event._data, dict) else {}
        spec = next((s for s in self.engine.methods() if s.id == data.get("method")), None)
        if spec is None or not getattr(spec, "artefact", None) or self.limits.public:
            return
        model, dtype = str(data.get("model")), str(data.get("dtype"))
        if not self._calibrating.acquire(blocking=False):
            message = "Another calibration is running. Try again when it is over."
            yield told(state="calibrate", inner="failed", label=spec.label, message=message)
            return
        try:
            self._stop_calibration.clear()
            ask = asks.Request(model=model, dtype=dtype)

            def events(cancel: threading.Event, progress: Any) -> Iterator[Any]:
                return self.engine.calibrate(ask, spec.artefact.name, cancel, progress)

            for status in worker.stream(self.engine, ask, self._stop_calibration, events):
                stopped = status["state"] == "stopped"
                message = "Stopped. Started again, it goes on from there." if stopped else status["message"]
                yield told(state="calibrate", inner=status["state"], label=spec.label, message=message,
                           fraction=status.get("fraction"))  # fmt: skip
        finally:
            self._calibrating.release()
        yield self.methods_of(model, dtype)

    def stop_calibration(self) -> None:
        """Stop the calibration; it goes on from its last checkpoint when it is started again."""
        self._stop_calibration.set()

    def failed(self) -> str:
        """What the page is told when a handler itself broke, or the queue was full."""
        return told(state="failed", message="The run could not be started. Try again in a moment.")

    def estimate(self, document: str, methods: list, budgets: Any, new_tokens: float) -> str:
        """About how long Run will take, scaled from the last run or a stored one."""
        try:
            answers = len(methods) * len(asks.percent_budgets(budgets))
        except KvvizError:
            return told(state="estimate", seconds=None)
        if not (document or "").strip() or not answers or self.reference is None:
            return told(state="estimate", seconds=None)
        return told(
            state="estimate",
            seconds=expected_seconds(
                self.reference, len(document), len(methods), answers, int(new_tokens or 1)
            ),
        )

    def stop(self, request: gr.Request) -> None:
        """Stop this visitor's run; it ends within a step."""
        event = self._cancels.get(request.session_hash or "")
        if event is not None:
            event.set()

    def leave(self, request: gr.Request) -> None:
        """The page was closed: stop the run, let the results go after a grace time."""
        self.stop(request)
        self._cancels.pop(request.session_hash or "", None)
        self.store.left(request.session_hash or "")

    def open_saved(self, path: str | None, request: gr.Request) -> str:
        """Open a run that was saved as a file."""
        if not path:
            return told(state="idle")
        try:
            comparison = load_comparison(path)
        except KvvizError as error:
            return told(state="failed", message=str(error))
        title = str(comparison.settings.get("title") or "Opened file")
        run = self.store.add(comparison, "file", title, request.session_hash or "")
        return told(state="done", message="", run=run.id)

    def read_document(self, path: str | None) -> tuple[Any, str]:
        """Text of an uploaded document, with a notice where characters could not be read."""
        if not path:
            return gr.skip(), told(state="idle")
        limit = self.limits.max_upload_bytes
        try:
            from kvviz.engine.prompts import decode_document

            if Path(path).stat().st_size > limit:
                megabytes = f"{limit / 1e6:.1f} MB"
                return gr.skip(), told(
                    state="failed", message=f"This file is larger than {megabytes}. Shorten it."
                )
            text, notices = decode_document(Path(path).read_bytes())
        except KvvizError as error:
            return gr.skip(), told(state="failed", message=str(error))
        return text, told(state="idle", message=" ".join(notices))

    def _stream(self, ask: asks.Request, owner: str, into: Run | None) -> Iterator[str]:
        plan = {"methods": ask.methods, "budgets": ask.budgets, "expected": ask.expected}
        for status in self._in_turn(ask, owner):
            result = status.pop("result", None)
            if result is not None:
                run = self._keep(result, ask, owner, into)
                status["run"] = run.id
            yield told(**status, plan=plan)

    def _in_turn(self, ask: asks.Request, owner: str, events_of: Any = None) -> Iterator[dict]:
        """Statuses of one piece of work: first of the wait, then of the work itself."""
        cancel = self._cancels[owner] = threading.Event()
        try:
            ticket = self.line.enter()
        except KvvizError as error:
            yield {"state": "failed", "message": str(error)}
            return
        try:
            for before in self.line.wait(ticket, cancel):
                yield {"state": "running", "stage": "wait", "number": 0, "of": len(worker.STAGES),
                       "title": "Waiting", "message": words(before)}  # fmt: skip
            yield {"state": "running", "stage": "load", "number": 1, "of": len(worker.STAGES),
                   "title": worker.STAGES["load"], "message": ""}  # fmt: skip
            yield from worker.stream(self.engine, ask, cancel, events_of)
        except Cancelled:
            yield {"state": "stopped", "message": "Stopped. No answer was finished yet."}
        finally:
            self.line.leave(ticket)

    def _keep(self, result: Any, ask: asks.Request, owner: str, into: Run | None) -> Run:
        if result.seconds:
            self.reference = result
        if into is None:
            return self.store.add(result, "own", "Your run", owner, ask=ask)
        return self._extended(into, ask, owner, into.comparison.merged(result))

    def _extended(self, run: Run, ask: asks.Request, owner: str, more: Comparison) -> Run:
        """The run with more answers. A stored run is everyone's, so a visitor gets a copy."""
        made = [m for m in more.methods if not MethodRef.parse(m).made]
        ask = self._recipe(run).of(made, more.budgets)  # what it holds now, for the next time more is asked
        more = dataclasses.replace(more, settings={**more.settings, "ask": ask.plain.to_dict()})
        if run.origin == "stored":
            return self.store.add(more, "own", f"{run.title}, continued", owner, ask=ask)
        run.comparison = more
        if run.origin == "own":
            run.recipe["ask"] = ask
        return run

    def try_again(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode A with entries pinned or evicted by hand, beside three random controls."""
        from kvviz.ui.chosen import checked, edits_of

        data = event._data if isinstance(event._data, dict) else {}
        owner = request.session_hash or ""
        try:
            run = self.store.get(data.get("run"))
            c, ask = run.comparison, self._recipe(run)
            chosen = checked(data.get("sel"), c)
            before = c.variant(chosen.a, chosen.budget)
            if before is None or before.selection is None or MethodRef.parse(before.method).made:
                raise KvvizError("Choose a method and a budget that were decoded, then try again.")
            edits, same_size = edits_of(data.get("edits"), c), data.get("grow") is not True
        except (KvvizError, TypeError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return

        def events(cancel: threading.Event, progress: Any) -> Iterator[Any]:
            return self.engine.experiment(ask, c, before, edits, same_size, cancel, progress)

        for status in self._in_turn(ask, owner, events):
            found = status.pop("result", None)
            if found is not None and len(found.variants) > 1 and status["state"] == "done":
                kept = self._with_edit(run, ask, owner, before, found, edits, same_size)
                status |= {"run": kept.id, "experiment": True}
            yield told(**status)

    def _with_edit(
        self, run: Run, ask: asks.Request, owner: str, before: Variant, found: Comparison,
        edits: list[Any], same_size: bool,
    ) -> Run:  # fmt: skip
        """The run with the edited answer beside the others, what was edited, and what came of it."""
        from kvviz.results.edits import report

        c = run.comparison
        number = 1 + len(c.settings.get("edits") or [])
        name, label = f"{before.method}+edit{number}", f"{before.label} + edit {number}"
        new = dataclasses.replace(found.variants[0], method=name, label=label)
        new.selection = dataclasses.replace(new.packed, method=name, label=label)
        made = {"method": before.method, "budget": before.budget, "same_size": same_size,
                "edits": [dataclasses.asdict(edit) for edit in edits], "name": name}  # fmt: skip
        settings = {**c.settings, "experiment": report(c, before, found.variants, edits),
                    "edits": [*(c.settings.get("edits") or []), made]}  # fmt: skip
        more = dataclasses.replace(c, variants=[*c.variants, new], settings=settings)
        return self._extended(run, ask, owner, more)

    def _recipe(self, run: Run) -> asks.Request:
        """What was asked when this run was made, to ask it again at another budget."""
        if run.recipe.get("ask") is not None:
            return run.recipe["ask"]
        c = run.comparison
        ask = Ask.of_settings(c.settings)
        made = [m for m in c.methods if not MethodRef.parse(m).made]
        recipe = asks.Request(
            **vars(dataclasses.replace(ask, expected=c.expected)),
            document=c.prompt.document, question=c.prompt.question, system=c.prompt.system,
            protocol=c.prompt.protocol, model=c.model.id, dtype=c.model.dtype,
        )  # fmt: skip
        return recipe.of(made, c.budgets, lenses=True)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, KvvizError) else "A field holds something unreadable."


def expected_seconds(
    c: Comparison, characters: int, methods: int, answers: int, new_tokens: int
) -> float:
    """Time of a run from the times of another on the same machine."""
    longer = characters / max(1, len(c.prompt.document))
    more_methods = methods / max(1, len(c.methods))
    more_answers = (answers + 1) / (len(c.variants) + 1)
    written = max((len(v.token_ids) for v in [c.full, *c.variants]), default=1)
    steps = new_tokens / max(1, written)
    scale = {"read": longer, "decode": more_answers * steps}
    scale |= dict.fromkeys(("score", "errors", "lenses"), longer * more_methods)
    return sum(seconds * scale.get(stage, 1.0) for stage, seconds in c.seconds.items())
