"""The handler of "Mix": decode what a mix of stored numbers keeps, as one more method of the run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kvviz.errors import KvvizError
from kvviz.results.comparison import Comparison
from kvviz.results.mix import Mix, check_new, with_mix
from kvviz.ui import worker
from kvviz.ui.desk import Desk, failed


class MixDesk:
    """Beside the desk: the same line, the same runs."""

    def __init__(self, desk: Desk):
        self.desk = desk

    def decode(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Decode at the chosen budget; yields statuses, the last one names the run with the answer in it."""
        try:
            data, run, ask, chosen = self.desk.pointed_at(event)
            mix = Mix.of(data.get("mix"))
            check_new(run.comparison, mix, chosen.budget)
        except KvvizError as error:
            yield failed(error)
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.desk.engine.mix(ask, run.comparison, mix, chosen.budget, cancel, progress)

        def more(found: Comparison) -> Comparison:
            return with_mix(run.comparison, mix, found)

        stopped = {"state": "stopped", "message": "Stopped. This mix was not decoded."}
        yield from self.desk.added(request, run, work, more, lambda status: stopped)
