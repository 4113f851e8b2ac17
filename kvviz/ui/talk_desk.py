"""The handler of "Ask more": a further question to every cache of a run as it stands."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kvviz.engine.ask import Ask
from kvviz.errors import InputError, KvvizError
from kvviz.results.comparison import Comparison
from kvviz.ui import asks, worker
from kvviz.ui.desk import Desk, failed

MOST_TURNS = 50  # of a run kept here


class TalkDesk:
    """Beside the desk: the same line, the same runs. What a question needs is in the run itself, so that no
    cache of a visitor waits here between two questions."""

    def __init__(self, desk: Desk):
        self.desk = desk

    def ask(self, event: gr.EventData, request: gr.Request) -> Iterator[str]:
        """Ask; yields statuses, the last one names the run with the turn in it."""
        try:
            data, run, ask, _ = self.desk.pointed_at(event)
            question, expected = (str(data.get(name) or "").strip() for name in ("question", "expected"))
            if not question:
                raise InputError("Ask a question about the document.")
            asks.check_text(self.desk.limits, question=question, expected=expected)
            if len(run.comparison.turns) >= MOST_TURNS:
                raise InputError(f"A run holds up to {MOST_TURNS} further questions here. Start a new run.")
            wanted = Ask(expected=expected).expected
        except KvvizError as error:
            yield failed(error)
            return
        fresh = data.get("fresh") is True

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return self.desk.engine.ask_more(ask, run.comparison, question, wanted, fresh, cancel, progress)

        def more(found: Comparison) -> Comparison:
            return dataclasses.replace(run.comparison, turns=found.turns)

        stopped = {"state": "stopped", "message": "Stopped. This question was not answered."}
        yield from self.desk.added(request, run, work, more, lambda status: stopped)
