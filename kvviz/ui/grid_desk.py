"""Handlers of the needle grid: what it will take, and the grid itself, filling in while it runs."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kvviz.errors import KvvizError
from kvviz.results import words as text
from kvviz.ui import worker
from kvviz.ui.desk import Desk, told
from kvviz.ui.grids import Growing, grid_of
from kvviz.ui.sweeps import SweepStore
from kvviz.ui.visitors import GRID


class GridDesk:
    """Beside the desk: the same line. What a grid comes to is a sweep, reached by its id alone."""

    def __init__(self, desk: Desk, sweeps: SweepStore):
        self.desk, self.sweeps = desk, sweeps

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """What the grid's form asks: {"texts", "answers", "seconds"}, or why it cannot be run."""
        if body.get("view") != "grid_estimate":
            return None
        given = body.get("args")
        try:
            grid = grid_of(self.desk.limits, **(given if isinstance(given, dict) else {}))
        except KvvizError as error:
            return {"error": str(error)}
        seconds = self.desk.estimates.of_texts(grid.ask, grid.texts)
        return {"texts": len(grid.texts), "answers": grid.answers, "seconds": seconds and sum(seconds)}

    def fill(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Measure the grid that the form says; every status names the sweep as soon as it has a text."""
        data = event._data if isinstance(event._data, dict) else {}
        try:
            grid = grid_of(self.desk.limits, **data)
        except KvvizError as error:
            yield self._told("failed", str(error))
            return
        growing, key = Growing(grid), secrets.token_urlsafe(12)
        estimates = self.desk.estimates
        weights = estimates.of_texts(grid.ask, grid.texts) or list(map(float, grid.texts))
        started = [time.monotonic()]

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            for came in self.desk.engine.grid(grid, cancel, progress):
                if "items" in came.result:
                    growing.plan(came.result["items"])
                    started[0] = time.monotonic()
                    left = None
                else:
                    growing.add(came.result)
                    self.sweeps.put(key, growing.sweep())
                    spent = time.monotonic() - started[0]
                    expected = sum(weights[: growing.done])
                    left = spent / expected * sum(weights[growing.done :])
                    estimates.learn_texts(grid.ask, grid.texts[: growing.done], spent)
                yield dataclasses.replace(came, result=None, seconds_left=left)

        for status in self.desk.statuses(request, work, GRID):
            state = status["state"]
            message = status.get("message", "") if state in ("running", "failed") else _ending(growing, state)
            more = {name: status.get(name) for name in ("fraction", "seconds_left", "stage")}
            yield self._told(state, message, grid=key if growing.done else None, done=growing.done, **more)

    def stop(self, request: gr.Request) -> None:
        """Stop this page's grid, and nothing else; it ends with the text that is being read."""
        self.desk.visitors.stop(request, GRID)

    def broken(self) -> str:
        """What the page is told when the handler itself broke."""
        return self._told("failed", "The grid was not started, or its connection broke. Try again.")

    @staticmethod
    def _told(state: str, message: str, **more: Any) -> str:
        return told(state="grid", inner=state, message=message, **more)


def _ending(growing: Growing, state: str) -> str:
    done, of = text.count(growing.done), text.count(len(growing.grid.texts))
    said = f"Stopped. {done} of {of} texts are measured and kept." if state == "stopped" else (
        f"{done} of {of} texts are measured."
    )  # fmt: skip
    return said + (f" Some answers are missing: {growing.reason}" if growing.reason else "")
