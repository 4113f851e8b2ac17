"""Who is at the page: a browser is known by a cookie, each of its open pages by Gradio's session.

The cookie lasts as long as the browser is open and names nobody; where a browser keeps none (in some
frames), each page stands for itself, and a reload is someone new.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COOKIE = "kvviz-visitor"
RUN, GRID = "run", "grid"  # kinds of work: all but a needle grid is of the first
_LONGEST = 64  # characters of a cookie that is believed


def visitor(request: Any) -> str:
    """Whose runs a request may change: the browser's cookie, else the session; "" where neither is known."""
    given = request.cookies.get(COOKIE) or ""
    return given if 0 < len(given) <= _LONGEST else session(request)


def session(request: Any) -> str:
    """The open page that asks; "" for a plain request of the page's scripts."""
    return getattr(request, "session_hash", None) or ""


def address(request: Any) -> str:
    """Where a call of the endpoint comes from: one client may open as many sessions as it likes."""
    return request.client.host if request is not None and request.client else ""


class Visitors:
    """Open pages by visitor, and the work that is going on for each page."""

    def __init__(self) -> None:
        self._pages: dict[str, str] = {}  # session: visitor
        self._work: dict[str, dict[threading.Event, str]] = {}  # session: what stops its work, of which kind
        self._lock = threading.Lock()

    def arrive(self, request: Any) -> None:
        """A page was opened."""
        with self._lock:
            self._pages[session(request)] = visitor(request)

    def leave(self, request: Any) -> bool:
        """A page was closed: its work stops. True where that was the visitor's last page."""
        self.stop(request)
        with self._lock:
            who = self._pages.pop(session(request), visitor(request))
            return who not in self._pages.values()

    @contextmanager
    def working(self, who: str, kind: str = RUN) -> Iterator[threading.Event]:
        """An event that is set when `who` stops work of this kind, leaves, or the work is given up."""
        cancel = threading.Event()
        with self._lock:
            self._work.setdefault(who, {})[cancel] = kind
        try:
            yield cancel
        finally:
            cancel.set()
            with self._lock:
                del self._work[who][cancel]
                if not self._work[who]:
                    del self._work[who]

    def stop(self, request: Any, kind: str | None = None) -> None:
        """Stop all that is going on for one page, or all of a kind; it ends within a step."""
        with self._lock:
            for cancel, its in self._work.get(session(request), {}).items():
                if kind in (None, its):
                    cancel.set()
