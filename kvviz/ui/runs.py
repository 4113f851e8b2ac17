"""Finished runs that the page can show: a bounded store, and the stored example runs on disk.

A run is reached by its id only, and an id cannot be guessed, so visitors never see each other's
runs. When a visitor leaves, the run stays for a while: a reload finds it again.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from kvviz.engine.ask import Ask
from kvviz.errors import InputError
from kvviz.identity import MethodRef
from kvviz.resources import asset
from kvviz.results.archive import load_comparison
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison
from kvviz.ui import asks

STORED = asset("runs")
GONE = "This run is no longer kept here. Open its saved file to see it again."


@dataclass
class Run:
    """A comparison and how it came here.

    origin  "stored", "own" or "file"; owner is the visitor who may change it, "" = nobody.
    ask     what was asked when it was made here, None for a run that was read from a file.
    """

    id: str
    comparison: Comparison
    origin: str
    title: str
    owner: str = ""
    ask: asks.Request | None = None
    left_at: float | None = None

    def recipe(self) -> asks.Request:
        """What is asked for to make this run, with all it holds by now; InputError where a file is odd."""
        c = self.comparison
        if self.ask is not None:
            made = self.ask
        else:
            made = asks.Request(
                **vars(dataclasses.replace(Ask.of_settings(c.settings), expected=c.expected)),
                document=c.prompt.document, question=c.prompt.question, system=c.prompt.system,
                protocol=c.prompt.protocol, model=c.model.id, dtype=c.model.dtype,
                framing=c.prompt.framing,
                questions=tuple((t.question, t.expected) for t in takewhile(lambda t: t.fresh, c.turns)),
            )  # fmt: skip
        return made.of([m for m in c.methods if self.asked_for(m)], c.budgets, lenses=True)

    @staticmethod
    def asked_for(method: str) -> bool:
        """Whether a method ran by itself: its kept set was neither changed by hand nor found by search."""
        return method != FOUND and not MethodRef.parse(method).made


def _later(seconds: float, call: Callable[[], None]) -> None:
    """Call it after so many seconds, unless the program has ended by then."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class RunStore:
    """Runs by id. Where they do not fit, the visitor who has most gives up the one least recently used.

    clock, later  the seconds, and how something is called after some of them.
    """

    def __init__(
        self,
        max_runs: int = 24,
        max_bytes: int = 2 * 2**30,
        keep_left_s: float = 900,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _later,
    ):
        self.max_runs, self.max_bytes, self.keep_left_s = max_runs, max_bytes, keep_left_s
        self._clock, self._later = clock, later
        self._looks_again = False  # a look for runs whose time is over is on its way
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # one file at a time: what it unpacks to takes memory

    def add(self, comparison: Comparison, origin: str, title: str, owner: str = "",
            ask: asks.Request | None = None) -> Run:
        """Keep a run under a fresh id and let go of what no longer fits."""
        run = Run(secrets.token_urlsafe(12), comparison, origin, title, owner, ask)
        self._keep(run)
        return run

    def holds(self, run_id: str) -> bool:
        """Whether a run is (still) here."""
        with self._lock:
            return run_id in self._runs

    def open(self, path: Path, owner: str, title: str = "Opened file") -> Run:
        """Keep a run saved as a file; InputError where it is none, holds no answer or is too large."""
        with self._reading:
            comparison = load_comparison(path)
            if not comparison.variants:
                raise InputError("This run was stopped before its first answer: there is nothing to show.")
            size = comparison.nbytes
            if size > self.max_bytes:
                raise InputError(
                    f"This run takes {size / 1e9:.1f} GB; up to {self.max_bytes / 1e9:.1f} GB are kept here. "
                    "Open it with kvviz.load_comparison."
                )
            return self.add(comparison, "file", _title(comparison, title), owner)

    def extend(self, run: Run, more: Comparison, visitor: str) -> Run:
        """The run with more in it; a copy for whoever is not its owner: a link must not change a run."""
        added = dataclasses.replace(run, comparison=more)
        ask = added.recipe()
        more = dataclasses.replace(more, settings={**more.settings, "ask": ask.plain.to_dict()})
        if not visitor or run.owner != visitor:
            title = run.title if run.origin == "stored" else "Shared run"
            return self.add(more, "own", f"{title}, continued", visitor, ask)
        run.comparison, run.ask = more, ask if run.origin == "own" else None
        self._keep(run)
        return run

    def get(self, run_id: Any) -> Run:
        """The run with this id; InputError when it is not (or no longer) here."""
        if not isinstance(run_id, str) or len(run_id) > 80:
            raise InputError(GONE)
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                self._runs.move_to_end(run_id)
                if run.left_at is not None:
                    run.left_at = self._clock()  # someone with the link reads it: the time starts again
                return run
        if run_id.startswith("stored-"):
            return self._stored(run_id)
        raise InputError(GONE)

    def left(self, owner: str) -> None:
        """A visitor closed the last page: their runs go once the grace time is over."""
        with self._lock:
            for run in self._runs.values():
                if owner and run.owner == owner:
                    run.left_at = self._clock()
        self._drop_left()

    def back(self, owner: str) -> None:
        """A visitor has a page open (again): their runs stay."""
        with self._lock:
            for run in self._runs.values():
                if owner and run.owner == owner:
                    run.left_at = None

    def _stored(self, run_id: str) -> Run:
        path = stored_runs().get(run_id)
        if path is None:
            raise InputError(GONE)
        with self._reading:
            with self._lock:
                if run_id in self._runs:
                    return self._runs[run_id]
            comparison = load_comparison(path)
            run = Run(run_id, comparison, "stored", _title(comparison, path.stem.replace("-", " ")))
            self._keep(run)
        return run

    def _keep(self, run: Run) -> None:
        size = run.comparison.nbytes
        with self._lock:
            self._runs[run.id], self._bytes[run.id] = run, size
            self._runs.move_to_end(run.id)
            while len(self._runs) > 1 and (
                len(self._runs) > self.max_runs or sum(self._bytes.values()) > self.max_bytes
            ):
                self._drop(self._least_missed())

    def _least_missed(self) -> str:
        """A stored run counts for itself: it can be read again, but not for every visitor anew."""
        have = Counter(run.owner or run.id for run in self._runs.values())
        newest = next(reversed(self._runs))
        others = [key for key in self._runs if key != newest]
        return max(others, key=lambda key: have[self._runs[key].owner or key])  # the first of equals

    def _drop_left(self) -> None:
        """Let go of the runs whose time is over, and look again once that of the next one is."""
        with self._lock:
            now, waits = self._clock(), []
            for key, run in list(self._runs.items()):
                if run.left_at is None:
                    continue
                wait = run.left_at + self.keep_left_s - now
                if wait < 0:
                    self._drop(key)
                else:
                    waits.append(wait)
            if waits and not self._looks_again:
                self._looks_again = True
                self._later(min(waits) + 1, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self._drop_left()

    def _drop(self, key: str) -> None:
        del self._runs[key], self._bytes[key]


def _title(comparison: Comparison, otherwise: str) -> str:
    return comparison.story.title or otherwise


def stored_runs(folder: Path | None = None) -> dict[str, Path]:
    """{run id: file} of the stored example runs, in name order."""
    folder = STORED if folder is None else folder
    return {f"stored-{path.stem}": path for path in sorted(folder.glob("*.zip"))}
