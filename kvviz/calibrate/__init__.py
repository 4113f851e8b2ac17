"""Calibration: what CompressKV, IndexMem, DuoAttention and Q-Filters must know of a model beforehand.

    path = kvviz.calibrate.calibrate("indexmem", model)      # or: python -m kvviz calibrate indexmem

Every calibrator reads its own texts, disjoint from everything that is measured with, and writes one
artefact (`kvviz.methods.artefacts`). Work stops within a step when `cancel` is set and goes on from its last
checkpoint when it is started again with the same settings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from kvviz.calibrate.job import Job, Progress
from kvviz.calibrate.texts import Texts
from kvviz.errors import InputError
from kvviz.methods import artefacts


def calibrate(
    name: str,
    model: Any,
    texts: Path | str | None = None,
    out: Path | str | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Path:
    """Make the artefact `name` for `model`; returns the file.

    texts     a folder with .txt files; default: the public-domain texts of assets/calibration. Generated
              texts are always added.
    out       where the file goes; default: the user's cache folder, where it is found again.
    steps     default: the method's own (`ArtefactSpec`). More is better and slower.
    progress  called as progress(message, fraction).

    Raises Cancelled when `cancel` is set, InputError with a sentence for a person.
    """
    spec = artefacts.spec_of(name)
    steps = spec.steps if steps is None else steps
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps is a whole number from 1 up, not {steps!r}.")
    folder = artefacts.folder_for(model, out)
    job = Job(name, model, Texts(texts), steps, seed, folder, progress, cancel)
    run: Callable[[Job], tuple[dict, dict]] = import_module(f"kvviz.calibrate.{name}").run
    tensors, about = run(job)
    command = f"python -m kvviz calibrate {name} --model {model.id} --steps {steps} --seed {seed}"
    about = {"texts": job.texts.about, "steps": steps, "seed": seed, "command": command, **about}
    path = artefacts.save(model, name, tensors, about, folder)
    job.forget()
    job.say(f"{path.name} written", 1.0)
    return path
