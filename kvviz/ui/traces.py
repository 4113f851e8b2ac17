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

from kvviz.ui.memory import give_back


def weight(trace: Any) -> int:
    """Bytes that a trace keeps alive: caches, queries, what observers took, scores already made."""
    seen: dict[int, int] = {}
    todo = [trace.padded, trace.queries, trace.last_logits, trace.extras, trace.memo]
    while todo:
        item = todo.pop()
        if hasattr(item, "untyped_storage"):
            storage = item.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        elif hasattr(item, "__dataclass_fields__"):
            todo += [getattr(item, name) for name in item.__dataclass_fields__]
    return sum(seen.values())


class Traces:
    """The last traces that fit in `most_bytes`, least recently used out first."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, model: Any, prompt: Any, needs: Iterable[str] = ()) -> Any | None:
        """The trace of this model over this prompt's compressible tokens, with all of `needs`."""
        key = _key(prompt)
        with self._lock:
            trace, _ = self._held.get(key, (None, 0))
            if trace is None or trace.model is not model or not set(needs) <= set(trace.needs):
                return None
            self._held.move_to_end(key)
            return trace

    def keep(self, trace: Any) -> None:
        """Hold on to a trace (again: it may have grown), letting go of the oldest beyond the bound."""
        key, size = _key(trace.prompt), weight(trace)
        with self._lock:
            self._held.pop(key, None)
            before = len(self._held)
            if size <= self.most_bytes:
                self._held[key] = trace, size
            while sum(held for _, held in self._held.values()) > self.most_bytes:
                self._held.popitem(last=False)
            gone = len(self._held) <= before
        if gone:
            give_back()

    def forget(self, model: Any) -> None:
        """Let go of the traces of a model that leaves memory."""
        with self._lock:
            for key, (trace, _) in list(self._held.items()):
                if trace.model is model:
                    del self._held[key]
        give_back()

    def __len__(self) -> int:
        return len(self._held)


def _key(prompt: Any) -> str:
    ids = prompt.input_ids[: prompt.n_compressible].cpu().numpy()
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()
