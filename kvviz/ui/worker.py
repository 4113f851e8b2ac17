"""Runs the engine for the page: one stream of small status dicts a browser can show.

The engine lives in a worker thread, so that loading a model reports its progress too and Stop is
heard at once. Errors of a user end as one sentence in the last status; nothing else is lost.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from kvviz.errors import Cancelled, KvvizError
from kvviz.ui.asks import Request

STAGES = {
    "load": "Getting the model ready",
    "prefill": "Reading the document",
    "score": "Scoring",
    "decode": "Writing the answers",
    "measure": "Measuring",
}
_NUMBERS = list(STAGES)


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
