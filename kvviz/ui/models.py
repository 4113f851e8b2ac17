"""The models in memory: fetched and loaded in the background, so that whoever waits can leave."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvviz import memory
from kvviz.errors import Cancelled

Key = tuple[str, str]  # name, dtype
_LOOK_S = 0.1  # how often someone who waits looks up
_SPARE = 2**30  # bytes that loading leaves free


@dataclass(eq=False)
class _Load:
    """One model on its way. Its work ends early when nobody waits for it any more."""

    key: Key
    waiting: int = 0
    said: tuple[str, float | None] = ("", None)
    ended: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def progress(self, message: str, fraction: float | None = None) -> None:
        if self.waiting <= 0:
            raise Cancelled("Stopped.")
        self.said = (str(message), fraction)


class Models:
    """At most `keep` loaded models, one loading at a time.

    loaded   {key: model}, shared with the process that works on a lent GPU.
    forget   called with a model that leaves memory.

    The old model goes when the new one is there. Where memory holds only one of them it goes first, and is
    loaded again if the new one cannot be had.
    """

    def __init__(self, loaded: dict[Key, Any], keep: int, forget: Callable[[Any], None]):
        self.loaded, self.keep, self.forget = loaded, keep, forget
        self._load: _Load | None = None
        self._lock = threading.Lock()

    def get(self, key: Key, cancel: threading.Event, progress: Callable[[str, float | None], None]) -> Any:
        """The loaded model; raises what loading it raised, or Cancelled once `cancel` is set."""
        while True:
            with self._lock:
                if key in self.loaded:
                    return self.loaded[key]
                load = self._load or self._start(key)
                mine = load.key == key
                load.waiting += mine
            try:
                self._wait(load, mine, cancel, progress)
            finally:
                with self._lock:
                    load.waiting -= mine
            gave_up = isinstance(load.error, Cancelled)  # those before us did; we have just come
            if mine and load.error is not None and not gave_up:
                raise load.error

    def _wait(self, load: _Load, mine: bool, cancel: threading.Event, progress: Callable[..., None]) -> None:
        told = None
        while not load.ended.wait(_LOOK_S):
            if cancel.is_set():
                raise Cancelled("Stopped.")
            says = load.said if mine else (f"Another model is being loaded: {load.said[0]}", load.said[1])
            if says != told:
                told = says
                progress(*says)

    def _start(self, key: Key, wanted: bool = False) -> _Load:
        """Called with the lock held. wanted  to be loaded even if nobody waits."""
        self._load = load = _Load(key, int(wanted))
        threading.Thread(target=self._work, args=(load,), daemon=True, name="kvviz-load").start()
        return load

    def _work(self, load: _Load) -> None:
        gone: list[Key] = []
        with self._lock:
            pass  # whoever started it is counted as waiting by now
        try:
            if not self._room_for_both(load.key):
                gone = self._let_go(self.keep - 1)
            import kvviz

            model = kvviz.load_model(load.key[0], dtype=load.key[1], progress=load.progress)
            self._let_go(self.keep - 1)
            with self._lock:
                self.loaded[load.key] = model
        except BaseException as error:  # handed to whoever waits
            load.error = error
        with self._lock:
            back = gone[0] if load.error is not None and gone else None
            self._load = None
            if back is not None:
                self._start(back, wanted=True)
        load.ended.set()

    def _let_go(self, stay: int) -> list[Key]:
        """Let the oldest models go until `stay` are left; their keys."""
        with self._lock:
            keys = list(self.loaded)[: max(0, len(self.loaded) - stay)]
            models = [self.loaded.pop(key) for key in keys]
        for model in models:
            self.forget(model)
        if keys:
            memory.give_back()
        return keys

    def _room_for_both(self, key: Key) -> bool:
        if len(self.loaded) < self.keep:
            return True
        old = next(iter(self.loaded.values()))
        free = _free(old)
        return free is None or free - (_weights(key) or _held(old)) > _SPARE


def _free(model: Any) -> int | None:
    """Bytes free where the loaded model lies."""
    if model.device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(model.device)[0]
    return memory.available()


def _held(model: Any) -> int:
    """Bytes of a loaded model: what another one takes that nothing is known of."""
    return sum(p.nbytes for p in model.hf.parameters())


def _weights(key: Key) -> int | None:
    """Bytes that a model's weights take, None where that is not known before it is fetched."""
    from kvviz.models.catalog import offer

    name, dtype = key
    offered = offer(name)
    if offered is not None:
        return offered.memory(dtype)
    path = Path(name)
    if path.suffix.lower() == ".gguf" and os.path.isfile(path):  # about 4 bits a weight in the file
        return path.stat().st_size * (4 if dtype in ("bfloat16", "float16") else 8)
    files = list(path.glob("*.safetensors")) if os.path.isdir(path) else []
    return sum(file.stat().st_size for file in files) or None
