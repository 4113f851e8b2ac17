"""One calibration on its way: what it was asked for, progress, stop, checkpoint."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvviz.calibrate.texts import Texts
from kvviz.errors import Cancelled

Progress = Callable[[str, float], None]


@dataclass
class Job:
    """What a calibrator is given. `say` after every step: it also stops the work when that is wished."""

    name: str
    model: Any
    texts: Texts
    steps: int
    seed: int
    folder: Path
    progress: Progress | None = None
    cancel: threading.Event | None = None

    def say(self, message: str, fraction: float) -> None:
        """Show progress; raises Cancelled when a stop was asked for."""
        if self.progress is not None:
            self.progress(message, fraction)
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped while calibrating. Started again, it goes on from its last checkpoint.")

    # -- checkpoint -----------------------------------------------------------------------------------

    @property
    def _checkpoint(self) -> Path:
        return self.folder / f".{self.name}.checkpoint.safetensors"

    @property
    def _settings(self) -> str:
        """A checkpoint made with other settings is not gone on with."""
        return json.dumps([self.model.weights_hash, self.steps, self.seed, self.texts.key])

    def keep(self, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
        """Write the state reached so far."""
        partial = self._checkpoint.with_suffix(".partial")
        stored = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
        save_file(stored, partial, {"settings": self._settings, "plain": json.dumps(plain)})
        os.replace(partial, self._checkpoint)

    def kept(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The state of an earlier run with the same settings, or None."""
        try:
            with safe_open(self._checkpoint, "pt") as file:
                about = file.metadata() or {}
                if about.get("settings") != self._settings:
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                return tensors, json.loads(about["plain"])
        except (OSError, SafetensorError, ValueError, KeyError):
            return None

    def forget(self) -> None:
        self._checkpoint.unlink(missing_ok=True)
