"""What the machine gives: where files lie (those beside the code, and caches), and how threads wait.

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


def keep_threads_from_spinning(environ: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon where they wait for each other, unless the user says how they wait.

    GNU's OpenMP has them spin 300,000 rounds at the end of every small product. Where another program uses
    a core as well, the thread that all wait for is kept from running by those that wait: runs took 25 times
    as long on two cores with such a neighbour. Read when torch is imported, so it comes before.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "1000")


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
