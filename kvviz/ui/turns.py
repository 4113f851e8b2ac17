"""One piece of work in its turn: the wait in the line, then the work itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from kvviz.errors import Cancelled, KvvizError
from kvviz.ui import worker
from kvviz.ui.line import Line, words


def in_turn(line: Line, who: str, work: worker.Work, cancel: threading.Event) -> Iterator[dict[str, Any]]:
    """Statuses as `worker.stream` gives them, those of the wait before them. Closing it ends both."""
    try:
        ticket = line.enter(who)
    except KvvizError as error:
        yield {"state": "failed", "message": str(error)}
        return
    try:
        for before in line.wait(ticket, cancel):
            yield {**worker.status("wait", words(before)), "number": 0, "title": "Waiting"}
        yield worker.status("load", "")
        yield from worker.stream(work, cancel)
    except Cancelled:
        yield worker.STOPPED
    finally:
        line.leave(ticket)
