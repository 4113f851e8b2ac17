"""Runs work in a thread of its own and tells of it in small status dicts that a browser can show.

Loading a model reports its progress too, and Stop is heard at once. Errors of a user end as one sentence
in the last status; nothing else is lost.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kvviz import memory
from kvviz.errors import Cancelled, KvvizError
from kvviz.results.comparison import Comparison
from kvviz.types import Event
from kvviz.ui import faults

STAGES = {
    "load": "Getting the model ready",
    "prefill": "Reading the document",
    "score": "Scoring",
    "decode": "Writing the answers",
    "measure": "Measuring",
}
_NUMBERS = list(STAGES)
STOPPED = {"state": "stopped", "message": "Stopped. No answer was finished yet."}

Progress = Callable[[str, float | None], None]
Work = Callable[[threading.Event, Progress], Iterator[Event]]


def stream(work: Work, cancel: threading.Event) -> Iterator[dict[str, Any]]:
    """Status dicts of work(cancel, progress); the last has state "done", "stopped" or "failed".

    A comparison that the work came to is in the last status as "result". Closing the generator stops the
    work.
    """
    statuses: queue.Queue[dict[str, Any]] = queue.Queue()

    def progress(message: str, fraction: float | None = None) -> None:
        statuses.put(status("load", str(message), fraction))

    def run() -> None:
        try:
            statuses.put(_all(work(cancel, progress), statuses.put, cancel))
        except Cancelled:
            statuses.put(STOPPED)
        except KvvizError as error:
            statuses.put({"state": "failed", "message": str(error)})
        except Exception as error:  # a fault of ours: the log has it, the visitor gets a sentence
            faults.log(error)
            text = "The run failed inside kvviz; the log says where."
            if memory.ran_out(error):
                text = memory.TOO_LITTLE
            statuses.put({"state": "failed", "message": text})

    threading.Thread(
        target=contextvars.copy_context().run, args=(run,), daemon=True, name="kvviz-run"
    ).start()  # the context says whose run it is
    try:
        while True:
            newest = statuses.get()
            while newest["state"] == "running" and not statuses.empty():
                newest = _merged(newest, statuses.get())  # a slow browser gets the newest state
            yield newest
            if newest["state"] != "running":
                return
    finally:
        cancel.set()


def status(stage: str, message: str, fraction: float | None = None, **more: Any) -> dict[str, Any]:
    """What the page shows while something goes on."""
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


def _all(events: Iterator[Event], tell: Callable[[dict], None], cancel: threading.Event) -> dict[str, Any]:
    """Tells of every event; the last status."""
    result = None
    for event in events:
        result = event.result if event.result is not None else result
        total = int(event.total or 0)
        fraction = min(1.0, event.done / total) if total else None
        answers = None if event.answers is None else dict(event.answers)
        more = {"seconds_left": event.seconds_left, "answers": answers}
        tell(status(event.stage, event.message, fraction, **more))
    if not cancel.is_set():
        return {"state": "done", "message": "", "result": result}
    return _stopped(result) if result is not None else STOPPED


def _stopped(result: Comparison) -> dict[str, Any]:
    """A stopped run counts where at least one answer beside the full cache's was finished."""
    answers = [result.full, *result.variants]
    finished = sum(v.finished not in ("", "cancelled") for v in answers)
    if not any(v.finished not in ("", "cancelled") for v in result.variants):
        return STOPPED
    rest = len(answers) - finished
    text = f"Stopped. {finished} of {len(answers)} answers are finished"
    text += f"; {'one is' if rest == 1 else f'{rest} are'} cut off." if rest else "."
    return {"state": "stopped", "message": text, "result": result}


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if new.get("answers") is None and old.get("answers") is not None:
        return {**new, "answers": old["answers"]}
    return new
