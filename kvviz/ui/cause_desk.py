"""Handlers of Cause and the fork: find what was lost, go on from another token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kvviz.errors import InputError, KvvizError
from kvviz.results.comparison import FULL, Comparison
from kvviz.ui import worker
from kvviz.ui.chosen import whole
from kvviz.ui.desk import Desk, failed

PART = "Stopped. What was found until then is shown."



def _found(found: Comparison) -> Comparison:
    return found  # the run with what was put back, or gone on from


def _part(status: dict[str, Any]) -> dict[str, Any]:
    return status if status.get("result") is None else {**status, "message": PART}


class CauseDesk:
    """Beside the desk: the same line, the same runs."""

    def __init__(self, desk: Desk):
        self.desk = desk

    def find(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Put back what A lost at this budget, head by head and passage by passage, and search the rescue."""
        try:
            data, run, ask, chosen = self.desk.pointed_at(event)
            c = run.comparison
            v = c.variant(chosen.a, chosen.budget)
            if v is None or v.selection is None or not run.asked_for(v.method):
                raise InputError("Choose a method and a budget that were decoded, then find the cause.")
        except KvvizError as error:
            yield failed(error)
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.desk.engine.find_cause(ask, c, v, cancel, progress)

        yield from self.desk.added(request, run, work, _found, _part)

    def branch(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Make one cache say another of its likely tokens, and write on from there."""
        try:
            data, run, ask, chosen = self.desk.pointed_at(event)
            c = run.comparison
            method = {"a": chosen.a, "b": chosen.b}.get(str(data.get("side")))
            v = c.variant(method, chosen.budget) if method else c.full
            key = FULL if v is c.full else v.key if v is not None else ""
            path = c.fork.paths.get(key) if c.fork is not None else None
            steps = [] if path is None else path.steps
            step = whole(data.get("step"), 0, len(steps) - 1)
            index = None if step is None else whole(data.get("index"), 0, len(steps[step].likeliest) - 1)
            if v is None or step is None or index is None or step >= len(v.token_ids):
                raise InputError("Choose one of the likely tokens, then go on from it.")
        except KvvizError as error:
            yield failed(error)
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.desk.engine.branch(ask, c, key, step, index, cancel, progress)

        yield from self.desk.added(request, run, work, _found, _part)
