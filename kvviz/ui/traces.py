"""Prefills that are kept for the next request on the same text: another budget, another method, an edit, or
another question where the question comes after compression.

A trace is found by the tokens it has read and by its model, so only someone who brings the same text
reaches it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from kvviz.memory import give_back


class Traces:
    """The last traces that fit in `most_bytes`, least recently used out first."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, model: Any, prompt: Any, needs: Iterable[str] = ()) -> Any | None:
        """The scored trace of this model over this prompt's compressible tokens, with all of `needs`."""
        key = _key(prompt)
        with self._lock:
            scored, _ = self._held.get(key, (None, 0))
            if scored is None:
                return None
            trace = scored.trace
            if trace.model is not model or not set(needs) <= set(trace.needs):
                return None
            self._held.move_to_end(key)
            return scored

    def keep(self, scored: Any) -> None:
        """Hold on to a scored trace (again: it may have grown), letting go of the oldest beyond the bound."""
        key, size = _key(scored.trace.prompt), scored.bytes
        with self._lock:
            self._held.pop(key, None)
            before = len(self._held)
            if size <= self.most_bytes:
                self._held[key] = scored, size
            while sum(held for _, held in self._held.values()) > self.most_bytes:
                self._held.popitem(last=False)
            gone = len(self._held) <= before
        if gone:
            give_back()

    def forget(self, model: Any) -> None:
        """Let go of the traces of a model that leaves memory."""
        with self._lock:
            for key, (scored, _) in list(self._held.items()):
                if scored.trace.model is model:
                    del self._held[key]
        give_back()

    def __len__(self) -> int:
        return len(self._held)


def _key(prompt: Any) -> str:
    ids = prompt.input_ids[: prompt.n_compressible].cpu().numpy()
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()
