"""The line in front of the model: one run at a time, in order of arrival, and everyone knows their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvviz.errors import Cancelled, KvvizError

_LOOK_S = 0.5  # how often someone who waits is told


class Line:
    """A queue of at most `most` who wait for the one place at the model."""

    def __init__(self, most: int):
        self.most = most
        self._waiting: list[object] = []  # the first one has the model
        self._moved = threading.Condition()

    def enter(self) -> object:
        """Take a place at the end; KvvizError where the line is full."""
        ticket = object()
        with self._moved:
            if len(self._waiting) > self.most:
                raise KvvizError("Too many runs are waiting. Try again in a few minutes.")
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: object) -> None:
        """Give the place up, whether it was one's turn or not."""
        with self._moved:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._moved.notify_all()

    def wait(self, ticket: object, cancel: threading.Event) -> Iterator[int]:
        """Yields how many are before this one, until it is its turn; Cancelled when `cancel` is set."""
        before = self._before(ticket)
        while before:
            yield before
            with self._moved:
                self._moved.wait(_LOOK_S)
            if cancel.is_set():
                raise Cancelled("Stopped.")
            before = self._before(ticket)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait without a word, then hold the place."""
        ticket = self.enter()
        try:
            for _ in self.wait(ticket, threading.Event()):
                pass
            yield
        finally:
            self.leave(ticket)

    def _before(self, ticket: object) -> int:
        with self._moved:
            return self._waiting.index(ticket)


def words(before: int) -> str:
    """ "1 run before yours"."""
    return "1 run before yours" if before == 1 else f"{before} runs before yours"
