"""The folder of a sweep: a file a cell, written whole or not at all, and the table made of them.

    OUT/items.jsonl      the items as they were read or generated
    OUT/cells/KEY.json   one item x one model: rows, seconds, what it was measured with
    OUT/runs/KEY.zip     the comparison itself, where it was to be kept; the page opens it
    OUT/table.parquet    every row, with the same columns whatever was asked (also table.csv)
    OUT/predictions.jsonl, OUT/manifest.json
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.evaluate.cells import Measured


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a next run, finds all of it or none, whenever this one is killed.
    InputError where it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}. Finished cells stay: the same command goes on."
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


class Store:
    """The cells of a sweep on disk. Several processes may fill one folder at the same time."""

    def __init__(self, out: Path):
        self.out = out

    def path(self, key: str) -> Path:
        """Where a cell lies."""
        return self.out / "cells" / f"{key}.json"

    def put(self, measured: Measured) -> None:
        """Keep a finished cell; its run goes first, so that a cell that is there is all there."""
        key = measured.cell["key"]
        if measured.run is not None:
            write_whole(self.out / "runs" / f"{key}.zip", measured.run)
        write_whole(self.path(key), json.dumps(measured.cell, allow_nan=False, indent=1).encode())

    def get(self, key: str) -> dict[str, Any] | None:
        """A finished cell; None where there is none, or what is there is damaged."""
        try:
            cell = json.loads(self.path(key).read_bytes())
            return cell if cell["key"] == key and isinstance(cell["rows"], list) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def count(self) -> int:
        """How many cells there are, of whatever sweep."""
        return sum(1 for _ in (self.out / "cells").glob("*.json"))

    def put_json(self, name: str, value: Any) -> None:
        """A small file beside the table."""
        write_whole(self.out / name, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    def put_lines(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """One JSON object a line."""
        text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
        write_whole(self.out / name, text.encode())
