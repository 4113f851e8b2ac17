"""Finished runs that the page can show: a bounded store, and the stored example runs on disk.

A run is reached by its id only, and an id cannot be guessed, so visitors never see each other's
runs. When a visitor leaves, the run stays for a while: a reload finds it again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.resources import asset
from kvviz.results.archive import load_comparison
from kvviz.results.comparison import Comparison

STORED = asset("runs")
GONE = "This run is no longer kept here. Open its saved file to see it again."


@dataclass
class Run:
    """A comparison and how it came here.

    origin  "stored", "own" or "file"; recipe what is needed to decode more (model, prompt, options).
    """

    id: str
    comparison: Comparison
    origin: str
    title: str
    owner: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    left_at: float | None = None


def weight(c: Comparison) -> int:
    """Bytes a comparison holds, for the bound of the store."""
    return c.nbytes


class RunStore:
    """Runs by id, least recently used out first."""

    def __init__(self, max_runs: int = 24, max_bytes: int = 2 * 2**30, keep_left_s: float = 900):
        self.max_runs, self.max_bytes, self.keep_left_s = max_runs, max_bytes, keep_left_s
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # two visitors at once read a stored file once

    def add(
        self, comparison: Comparison, origin: str, title: str, owner: str = "", **recipe: Any
    ) -> Run:
        """Keep a run under a fresh id and let go of what no longer fits."""
        run = Run(secrets.token_urlsafe(12), comparison, origin, title, owner, recipe)
        with self._lock:
            self._runs[run.id] = run
            self._trim()
        return run

    def get(self, run_id: Any) -> Run:
        """The run with this id; InputError when it is not (or no longer) here."""
        if not isinstance(run_id, str) or len(run_id) > 80:
            raise InputError(GONE)
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                self._runs.move_to_end(run_id)
                run.left_at = None
                return run
        if run_id.startswith("stored-"):
            return self._stored(run_id)
        raise InputError(GONE)

    def left(self, owner: str) -> None:
        """A visitor closed the page: their runs go once the grace time is over."""
        with self._lock:
            now = time.monotonic()
            for run in self._runs.values():
                if run.owner == owner:
                    run.left_at = now
            self._trim()

    def _stored(self, run_id: str) -> Run:
        path = stored_runs().get(run_id)
        if path is None:
            raise InputError(GONE)
        with self._reading:
            with self._lock:
                if run_id in self._runs:
                    return self._runs[run_id]
            comparison = load_comparison(path)
            title = str(comparison.settings.get("title") or path.stem.replace("-", " "))
            run = Run(run_id, comparison, "stored", title)
            with self._lock:
                self._runs[run_id] = run
                self._trim()
        return run

    def _trim(self) -> None:
        now = time.monotonic()
        for key, run in list(self._runs.items()):
            if run.left_at is not None and now - run.left_at > self.keep_left_s:
                del self._runs[key]
        while len(self._runs) > 1 and (
            len(self._runs) > self.max_runs
            or sum(weight(run.comparison) for run in self._runs.values()) > self.max_bytes
        ):
            self._runs.popitem(last=False)


def stored_runs(folder: Path | None = None) -> dict[str, Path]:
    """{run id: file} of the stored example runs, in name order."""
    folder = STORED if folder is None else folder
    return {f"stored-{path.stem}": path for path in sorted(folder.glob("*.zip"))}
