"""Where files lie: those beside the code (examples, stored runs, calibrated files), and caches.

In a checkout the former are `assets/` beside `kvviz/`; `pip install` puts them into `kvviz/assets/`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """Path of a file or folder below `assets/`; it need not exist."""
    installed = _HERE / "assets"
    return (installed if installed.is_dir() else _HERE.parent / "assets").joinpath(*parts)


def temporary_folder() -> Path:
    """A folder of this user among the temporary files, the same for every process; OSError where there is
    none to be had."""
    user = os.getuid() if hasattr(os, "getuid") else None
    folder = Path(tempfile.gettempdir()) / f"kvviz-{'user' if user is None else user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Someone else's folder of that name must not supply weights.
    if folder.is_symlink() or (user is not None and folder.stat().st_uid != user):
        return Path(tempfile.mkdtemp(prefix="kvviz-"))
    return folder


def keep_libraries_writing(environ: MutableMapping[str, str]) -> None:
    """Point the caches of libraries to a temporary folder where theirs cannot be written to: in a container
    with a read-only home they would fail in words of their own. They read this when they are imported."""
    home = Path(environ.get("HOME") or "~").expanduser()
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    usually = {"HF_HOME": cache / "huggingface", "TRITON_CACHE_DIR": home / ".triton" / "cache"}
    for variable, usual in usually.items():
        if not _can_be_written(Path(environ.get(variable) or usual)):
            try:
                environ[variable] = str(temporary_folder() / variable.lower())
            except OSError:  # whoever needs it says so
                return


def _can_be_written(folder: Path) -> bool:
    """Whether this folder, or the nearest one above it that exists, takes files of this user."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
