"""Sweeps that the page can show: a bounded store, and the stored ones on disk.

As with runs, a sweep is reached by its id only, and an id cannot be guessed.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from pathlib import Path

from kvviz.errors import InputError
from kvviz.resources import asset
from kvviz.results.study import TABLE
from kvviz.results.sweeps import Sweep, open_sweep

STORED = asset("sweeps")
GONE = "This sweep is no longer kept here. Open its file to see it again."
# Of the opened sweeps of all visitors; the least recently used goes first.
MOST = 8
MOST_BYTES = 2**30


class SweepStore:
    """Sweeps by id."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES):
        self.most, self.most_bytes = most, most_bytes
        self._sweeps: OrderedDict[str, Sweep] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()

    def add(self, sweep: Sweep) -> str:
        """Keep a sweep under a fresh id; InputError where it is too large to be kept."""
        key = secrets.token_urlsafe(12)
        self.put(key, sweep)
        return key

    def open(self, path: Path) -> str:
        """Keep a sweep that was sent as a file; one is read at a time: what it unpacks to takes memory."""
        with self._reading:
            return self.add(open_sweep(path))

    def get(self, key: object) -> Sweep:
        """The sweep of an id; InputError where it is not (or no longer) here."""
        with self._lock:
            if isinstance(key, str) and key in self._sweeps:
                self._sweeps.move_to_end(key)
                return self._sweeps[key]
        path = stored_sweeps().get(key) if isinstance(key, str) else None
        if path is None:
            raise InputError(GONE)
        with self._reading:
            sweep = open_sweep(path)
        self.put(str(key), sweep)
        return sweep

    def put(self, key: str, sweep: Sweep) -> None:
        """The sweep of an id as it is by now; InputError where it is too large to be kept."""
        size = sweep.nbytes
        if size > self.most_bytes:
            raise InputError(
                f"This sweep takes {size / 1e9:.1f} GB of memory; up to {self.most_bytes / 1e9:.1f} GB are "
                "kept here. Open one with fewer rows."
            )
        with self._lock:
            self._sweeps[key], self._bytes[key] = sweep, size
            self._sweeps.move_to_end(key)
            while len(self._sweeps) > self.most or sum(self._bytes.values()) > self.most_bytes:
                oldest, _ = self._sweeps.popitem(last=False)
                del self._bytes[oldest]


def stored_sweeps() -> dict[str, Path]:
    """{id: folder} of the sweeps that come with the app, in name order."""
    return {f"stored-{path.parent.name}": path.parent for path in sorted(STORED.glob(f"*/{TABLE}"))}


def listed() -> list[dict[str, str]]:
    """Ids and titles of the stored sweeps; their tables stay closed."""
    found = []
    for key, folder in stored_sweeps().items():
        try:
            title = json.loads((folder / "manifest.json").read_bytes()).get("title")
        except (OSError, ValueError, AttributeError):
            title = None
        found.append({"id": key, "title": str(title or folder.name.replace("-", " "))})
    return found
