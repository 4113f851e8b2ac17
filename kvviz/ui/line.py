"""The line in front of the model: one run at a time, in order of arrival, and everyone knows their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from kvviz.errors import Cancelled, InputError

_LOOK_S = 0.5  # how often someone who waits is told
EACH = 2  # places that one session, or one address at the endpoint, may hold


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the line. `who` holds it: a session of the page or an address."""

    who: str


class Line:
    """A queue of at most `most` who wait for the one place at the model."""

    def __init__(self, most: int):
        self.most = most
        self._waiting: list[Ticket] = []  # the first one has the model
        self._moved = threading.Condition()

    def enter(self, who: str) -> Ticket:
        """Take a place at the end; InputError where the line is full or `who` holds enough of it."""
        ticket = Ticket(who)
        with self._moved:
            if sum(other.who == who for other in self._waiting) >= EACH:
                raise InputError(f"You have {EACH} runs here already. Wait until one has ended, or stop it.")
            if len(self._waiting) > self.most:
                raise InputError("Too many runs are waiting. Try again in a few minutes.")
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place up, whether it was one's turn or not."""
        with self._moved:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._moved.notify_all()

    def wait(self, ticket: Ticket, cancel: threading.Event) -> Iterator[int]:
        """Yields how many are before this one, until it is its turn; Cancelled when `cancel` is set."""
        before = self._before(ticket)
        while before:
            yield before
            with self._moved:
                self._moved.wait(_LOOK_S)
            if cancel.is_set():
                raise Cancelled("Stopped.")
            before = self._before(ticket)

    def _before(self, ticket: Ticket) -> int:
        with self._moved:
            return self._waiting.index(ticket)


def words(before: int) -> str:
    """ "1 run before yours"."""
    return "1 run before yours" if before == 1 else f"{before} runs before yours"
