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

from kvviz.comparison import Comparison, load_comparison
from kvviz.errors import KvvizError
from kvviz.ui import work
from kvviz.ui.runs import Run, RunStore

_SERIAL = itertools.count(1)


def told(**status: Any) -> str:
    """A status for the page. The serial makes equal statuses differ, so each one is noticed."""
    return json.dumps({"serial": next(_SERIAL), **status}, default=str)


class Desk:
    """One per app: knows the engine, the finished runs and which visitor's run can be stopped."""

    def __init__(self, engine: Any, store: RunStore, limits: Any):
        self.engine, self.store, self.limits = engine, store, limits
        self._cancels: dict[str, threading.Event] = {}
        self.reference: Comparison | None = None  # whose times the next estimate scales

    def run(self, request: gr.Request, *values: Any) -> Iterator[str]:
        """Run what the fields say; yields statuses, the last one names the finished run."""
        from kvviz.ui.fields import NAMES

        try:
            ask = work.request(**dict(zip(NAMES, values)))
            self.check(ask)
        except (KvvizError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return
        yield from self._stream(ask, request.session_hash or "", None)

    def decode_more(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode the run's methods at one more budget and add the answers to it."""
        data = event._data if isinstance(event._data, dict) else {}
        try:
            run = self.store.get(data.get("run"))
            ask = self._recipe(run)
            share = work.budgets([100 * float(data.get("budget", 0))])
        except (KvvizError, TypeError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return
        more = dataclasses.replace(ask, budgets=share)
        yield from self._stream(more, request.session_hash or "", run)

    def failed(self) -> str:
        """What the page is told when a handler itself broke, or the queue was full."""
        return told(state="failed", message="The run could not be started. Try again in a moment.")

    def estimate(self, document: str, methods: list, budgets: Any, new_tokens: float) -> str:
        """About how long Run will take, scaled from the last run or a stored one."""
        try:
            answers = len(methods) * len(work.budgets(budgets))
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
            from kvviz.prompts import decode_document

            if Path(path).stat().st_size > limit:
                megabytes = f"{limit / 1e6:.1f} MB"
                return gr.skip(), told(
                    state="failed", message=f"This file is larger than {megabytes}. Shorten it."
                )
            text, notices = decode_document(Path(path).read_bytes())
        except KvvizError as error:
            return gr.skip(), told(state="failed", message=str(error))
        return text, told(state="idle", message=" ".join(notices))

    def _stream(self, ask: work.Request, owner: str, into: Run | None) -> Iterator[str]:
        cancel = self._cancels[owner] = threading.Event()
        plan = {"methods": ask.methods, "budgets": ask.budgets, "expected": ask.expected}
        yield told(state="running", stage="load", number=1, of=len(work.STAGES),
                   title=work.STAGES["load"], message="", plan=plan)  # fmt: skip
        for status in work.stream(self.engine, ask, cancel):
            result = status.pop("result", None)
            if result is not None:
                run = self._keep(result, ask, owner, into)
                status["run"] = run.id
            yield told(**status, plan=plan)

    def _keep(self, result: Any, ask: work.Request, owner: str, into: Run | None) -> Run:
        if result.seconds:
            self.reference = result
        if into is None:
            return self.store.add(result, "own", "Your run", owner, ask=ask)
        have = {v.key for v in into.comparison.variants}
        new = [v for v in result.variants if v.key not in have and v.finished != "cancelled"]
        return self._extended(into, ask, owner, new)

    def _extended(
        self, run: Run, ask: work.Request, owner: str, new: list[Any], **settings: Any
    ) -> Run:
        """The run with more answers. A stored run is everyone's, so a visitor gets a copy."""
        old = run.comparison
        more = dataclasses.replace(
            old, variants=[*old.variants, *new], settings={**old.settings, **settings}
        )
        if run.origin == "stored":
            return self.store.add(more, "own", f"{run.title}, continued", owner, ask=ask)
        run.comparison = more
        run.memo.clear()
        return run

    def try_again(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode A with entries pinned or evicted by hand, beside three random controls."""
        from kvviz.ui import experiment
        from kvviz.ui.selection import checked

        data = event._data if isinstance(event._data, dict) else {}
        owner = request.session_hash or ""
        try:
            run = self.store.get(data.get("run"))
            c, ask = run.comparison, self._recipe(run)
            chosen = checked(data.get("sel"), c)
            before = c.variant(chosen.a, chosen.budget)
            if before is None or before.selection is None or "+" in before.method:
                raise KvvizError("Choose a method and a budget that were decoded, then try again.")
            edits = experiment.edits_of(data.get("edits"), c)
        except (KvvizError, TypeError, ValueError) as error:
            yield told(state="failed", message=_sentence(error))
            return
        cancel = self._cancels[owner] = threading.Event()
        yield told(state="running", stage="load", number=1, of=len(work.STAGES),
                   title=work.STAGES["load"], message="")  # fmt: skip

        def events(cancel: threading.Event, progress: Any) -> Iterator[Any]:
            same_size = data.get("grow") is not True
            return self.engine.experiment(ask, c, before, edits, same_size, cancel, progress)

        for status in work.stream(self.engine, ask, cancel, events):
            found = status.pop("result", None)
            if found is not None:
                tried = experiment.report(c, before, found, edits)
                number = 1 + sum("+" in m for m in c.methods)
                name, label = f"{before.method}+edit{number}", f"{before.label} + edit {number}"
                new = dataclasses.replace(found[0], method=name, label=label)
                kept = self._extended(run, ask, owner, [new], experiment=tried)
                status |= {"run": kept.id, "experiment": tried}
            yield told(**status)

    def _recipe(self, run: Run) -> work.Request:
        """What was asked when this run was made, to ask it again at another budget."""
        if "ask" in run.recipe:
            return run.recipe["ask"]
        c, made = run.comparison, run.comparison.settings
        options = made.get("options")
        return work.request(
            document=c.prompt.document,
            question=c.prompt.question,
            methods=[m for m in c.methods if "+" not in m],
            budgets=[100 * c.share(b) for b in c.budgets],
            model=c.model.id,
            dtype=c.model.dtype,
            protocol=c.prompt.protocol,
            expected=c.expected,
            system=c.prompt.system,
            max_new_tokens=made.get("max_new_tokens"),
            seed=made.get("seed"),
            options=options if isinstance(options, dict) else {},
        )

    def check(self, ask: work.Request) -> None:
        """Limits of this server, each with what to change."""
        limits = self.limits
        variants = len(ask.methods) * len(ask.budgets)
        if variants > limits.max_variants:
            raise KvvizError(
                f"{len(ask.methods)} methods at {len(ask.budgets)} budgets are {variants} "
                f"answers; this server decodes up to {limits.max_variants} in one run. "
                "Choose fewer methods or budgets."
            )
        if ask.max_new_tokens > limits.max_new_tokens:
            raise KvvizError(
                f"An answer may have up to {limits.max_new_tokens} tokens here; "
                f"{ask.max_new_tokens} were asked for."
            )
        if limits.public:
            from kvviz.models.catalog import offer

            if offer(ask.model) is None:
                raise KvvizError("This server offers the models of its list only. Choose one.")


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
