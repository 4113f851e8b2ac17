"""Files of the command line: read with one sentence where that fails, and checked before the work that fills
them begins."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvviz.errors import InputError


def read_document(name: str, most: int) -> tuple[str, list[str]]:
    """(text, notices) of a file, PDF, Word and HTML files as their text, or of standard input for "-", of
    which no more than `most` bytes are read."""
    from kvviz.engine import documents

    if name == "-":
        data = sys.stdin.buffer.read(most + 1)
    else:
        try:
            if Path(name).is_dir():
                raise InputError(f"{_short(name)} is a folder; give a text file.")
            with open(name, "rb") as file:  # a pipe such as <(command) is read as well
                data = file.read(documents.PACKED * most + 1)
        except FileNotFoundError:
            raise InputError(f"There is no file {_short(name)}.") from None
        except OSError as error:
            raise InputError(f"{_short(name)} cannot be read: {error.strerror}.") from None
    text, notices = documents.read_document(name, data)
    if not text.strip():
        raise InputError(f"There is no text in {'standard input' if name == '-' else _short(name)}.")
    return text, notices


def check_out(name: str) -> None:
    """InputError where a file of this name cannot be written."""
    path = Path(name)
    try:
        if path.is_dir():
            raise InputError(f"{_short(name)} is a folder; give the name of a file to write.")
        if not path.resolve().parent.is_dir():
            raise InputError(f"There is no folder {_short(path.parent)} to write {_short(path.name)} to.")
        if not path.exists():
            check_folder(path.resolve().parent)
        elif path.is_file():
            with open(path, "ab"):
                pass
    except OSError as error:
        raise InputError(f"{_short(name)} cannot be written: {error.strerror}.") from None


def check_folder(name: str | Path) -> None:
    """InputError where no file can be put into this folder; it is made where it is not there."""
    path = Path(name)
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{_short(name)} is a file; give a folder.")
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"Nothing can be written to {_short(name)}: {error.strerror}.") from None


def write_out(name: str, write: Callable[[Path], Any]) -> None:
    """write(path), whole or not at all: an interrupted or failed one leaves no half of a file."""
    path = Path(name)
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            write(path)
            return
        try:
            write(beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{_short(name)} cannot be written: {error.strerror}.") from None


def _short(name: str | Path) -> str:
    text = str(name)
    return text if len(text) <= 80 else f"{text[:79]}…"
