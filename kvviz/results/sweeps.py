"""A finished sweep opened to be looked at: its folder, that folder as a zip, or its table alone.

A file may come from a stranger. Sizes are bounded before anything is unpacked, known columns of plain types
alone are read, nothing is unpickled, and whatever does not fit is refused in one sentence.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.results.comparison import FULL
from kvviz.results.scoreboard import with_full
from kvviz.results.study import BEST_SETS, COLUMNS, TABLE, best_sets_of, table_files
from kvviz.results.table import formula_text

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 300_000
MOST_BYTES = 64_000_000  # of a table as it lies on disk, of what comes beside it, of one kept run
MOST_UNPACKED = 512_000_000  # of a parquet table's columns
MOST_FILES = 50_000  # in a zip
MOST_ANSWER, MOST_NAME = 2_000, 200  # characters that are kept of an answer, of any other text
NEEDED = ("model", "item", "method", "budget")
VERDICTS = ("right", "wrong")

Key = tuple[str, str, str]  # model, protocol, item


@dataclass
class Sweep:
    """The table of a sweep and what lies beside it.

    table     every column of COLUMNS; texts are "" and numbers NaN where nothing is known.
    manifest  as it was written, {} where there is none.
    items     {item: {"document", "question", "answers", ...}} where the sweep kept them.
    best_sets  rows of `kvviz.evaluate.best_sets`, where they were measured.
    runs      {(model, protocol, item): name of its kept run}; `read` gives a run's bytes.
    here      it is measured here and now, not read from a file.
    """

    title: str
    table: pd.DataFrame
    manifest: dict[str, Any] = field(default_factory=dict)
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[Key, str] = field(default_factory=dict)
    best_sets: list[dict[str, Any]] = field(default_factory=list)
    read: Callable[[str], bytes] | None = None
    here: bool = False
    # What can be chosen of a part, once it was looked up: a table does not change.
    choices: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def full(self) -> pd.DataFrame:
        """The table with `right`, `full_right` and `full_score` beside."""
        return with_full(self.table)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """(model, protocol) of what is never put together."""
        return list(dict.fromkeys(zip(self.table.model, self.table.protocol)))

    @property
    def nbytes(self) -> int:
        """About the memory that it takes: the table, `full` beside it (with the same texts), the items."""
        table = self.table.memory_usage(deep=True).sum() + self.table.memory_usage().sum()
        return int(table) + sum(sys.getsizeof(v) for item in self.items.values() for v in item.values())

    def of(self, model: str, protocol: str) -> pd.DataFrame:
        """The rows of one model and protocol."""
        return self.full[(self.full.model == model) & (self.full.protocol == protocol)]

    def run_of(self, key: Key) -> bytes | None:
        """The saved comparison of an item, None where the sweep kept none."""
        name = self.runs.get(key)
        return None if name is None or self.read is None else self.read(name)


def open_sweep(path: Path) -> Sweep:
    """The sweep in a folder, a zip of one, or a table alone (.parquet or .csv). InputError with one sentence
    where there is none, or it is too large."""
    try:
        if path.is_dir():
            return _folder(_Folder(path), path.name)
        if not path.is_file():
            raise InputError("This file did not arrive. Try again.")
        if path.suffix.lower() == ".zip":
            return _folder(_Zip(path), path.stem)
        data = _bounded(path.stat().st_size, path.read_bytes, path.name)
        return Sweep(path.stem, _table(path.name, data))
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"There is not enough memory to open {path.name}.") from error
    except Exception as error:  # every way a stranger's file can be broken is the same to the reader
        raise InputError(
            f"{path.name} is no sweep: open a table.parquet or table.csv that `kvviz sweep` wrote, or its "
            "folder as a zip."
        ) from error


class _Folder:
    """Files of a sweep's folder by name."""

    def __init__(self, path: Path):
        self.path = path
        self.names = {
            p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file() and not p.is_symlink()
        }

    def read(self, name: str) -> bytes:
        path = self.path / name
        return _bounded(path.stat().st_size, path.read_bytes, name)


class _Zip:
    """The same of a zip, whose folder may have a name of its own."""

    def __init__(self, path: Path):
        self.path = path
        with zipfile.ZipFile(path) as archive:
            found = archive.namelist()
        if len(found) > MOST_FILES:
            raise InputError(f"This zip holds {len(found):,} files; up to {MOST_FILES:,} are read.")
        tables = sorted((n for n in found if PurePosixPath(n).name in (TABLE, "table.csv")), key=len)
        self.prefix = tables[0][: -len(PurePosixPath(tables[0]).name)] if tables else ""
        self.names = {n[len(self.prefix) :] for n in found if n.startswith(self.prefix)}

    def read(self, name: str) -> bytes:
        if not self.path.is_file():
            raise InputError("This file is no longer here. Open it again.")
        with zipfile.ZipFile(self.path) as archive:
            info = archive.getinfo(self.prefix + name)
            with archive.open(info) as file:
                return _bounded(info.file_size, lambda: file.read(MOST_BYTES + 1), name)


def _bounded(size: int, read: Callable[[], bytes], name: str) -> bytes:
    data = b"" if size > MOST_BYTES else read()
    if max(size, len(data)) > MOST_BYTES:  # what a zip says of sizes need not be true
        raise InputError(f"{name} is larger than {MOST_BYTES // 10**6} MB. Open a smaller one.")
    return data


def _folder(files: _Folder | _Zip, title: str) -> Sweep:
    table = next((name for name in (TABLE, "table.csv") if name in files.names), None)
    if table is None:
        raise InputError(f"There is no {TABLE} in {title}: open the folder that `kvviz sweep` wrote.")
    found = _table(table, files.read(table))
    manifest = _json(files.read("manifest.json")) if "manifest.json" in files.names else {}
    items = _items(files.read("items.jsonl")) if "items.jsonl" in files.names else {}
    title = str(manifest.get("title") or title)[:MOST_NAME]
    sets = best_sets_of(files.read(BEST_SETS)) if BEST_SETS in files.names else []
    return Sweep(title, found, manifest, items, _kept_runs(files), sets, files.read)


def _kept_runs(files: _Folder | _Zip) -> dict[Key, str]:
    """Runs by what they are of, which their cells say."""
    runs: dict[Key, str] = {}
    for name in sorted(n for n in files.names if n.startswith("runs/") and n.endswith(".zip")):
        cell = f"cells/{PurePosixPath(name).stem}.json"
        rows = _json(files.read(cell)).get("rows") if cell in files.names else None
        first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
        runs[str(first.get("model")), str(first.get("protocol")), str(first.get("item"))] = name
    return runs


def _json(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    return value if isinstance(value, dict) else {}


def _items(data: bytes) -> dict[str, dict[str, Any]]:
    found = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        row = _json(line.encode()) if line.strip() else {}
        if isinstance(row.get("document"), str) and isinstance(row.get("question"), str):
            answers = row["answers"] if isinstance(row.get("answers"), list) else []
            found[str(row.get("id"))] = {**row, "answers": [a for a in answers if isinstance(a, str)]}
    return found


def _table(name: str, data: bytes) -> pd.DataFrame:
    raw = _csv(data) if name.lower().endswith(".csv") else _parquet(data)
    missing = [column for column in NEEDED if column not in raw]
    if missing:
        raise InputError(f"{name} is no table of a sweep: it has no column {missing[0]!r}.")
    return tidy(raw)


def _too_many(rows: int) -> InputError:
    return InputError(f"This table has {rows:,} rows or more; up to {MOST_ROWS:,} are read.")


def _csv(data: bytes) -> dict[str, Any]:
    import pandas as pd

    text = io.StringIO(data.decode("utf-8-sig", "replace"))
    table = pd.read_csv(
        text, dtype=str, keep_default_na=False, na_filter=False, usecols=lambda n: n in COLUMNS,
        nrows=MOST_ROWS + 1,
    )  # fmt: skip
    if len(table) > MOST_ROWS:
        raise _too_many(len(table))
    return {str(name): table[name].map(formula_text).to_numpy(object) for name in table}


def _parquet(data: bytes) -> dict[str, Any]:
    """Texts stay a dictionary until they are cut: a small file may say one long text a million times."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    meta, schema = file.metadata, file.schema_arrow
    if meta.num_rows > MOST_ROWS:
        raise _too_many(meta.num_rows)
    names = [name for name in COLUMNS if name in schema.names]
    for name in names:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
                or pa.types.is_null(kind)):  # fmt: skip
            raise InputError(f"The column {name!r} of this table holds {kind}, not plain values.")
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    size = sum(g.column(j).total_uncompressed_size for g in groups for j in range(g.num_columns))
    if size > MOST_UNPACKED:
        raise InputError(f"This table unpacks to more than {MOST_UNPACKED // 10**6} MB.")
    texts = [name for name in names if COLUMNS[name] == "string"]
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    table = file.read(columns=names, use_threads=False, use_pandas_metadata=False)
    return {name: _values(table[name], name) for name in names}


def _values(column: Any, name: str) -> np.ndarray:
    """A column's values; None where there is none."""
    import pyarrow as pa

    column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ChunkedArray):  # without rows
        return np.array([], object)
    if pa.types.is_dictionary(column.type):
        texts = np.array([_cut(v, name) for v in column.dictionary.to_pylist()] + [None], object)
        codes = column.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
        return texts[codes]
    return np.array(column.to_pylist(), object)


def _cut(value: Any, name: str) -> str:
    return str(value)[: MOST_ANSWER if name == "answer" else MOST_NAME]


def tidy(raw: Any) -> pd.DataFrame:
    """Columns by name, of whatever their cells hold, as a table whose cells can be relied on."""
    import pandas as pd

    rows = len(raw["model"])
    columns = {name: _column(raw.get(name), name, kind, rows) for name, kind in COLUMNS.items()}
    t = pd.DataFrame(columns)
    if not len(t):
        raise InputError("This table has no rows.")
    if (t.budget.isna() | ~(t.budget > 0)).any():
        raise InputError("This table has a row whose budget is no number above 0.")
    whole = t.method == FULL
    t["budget_name"] = np.where(t.budget_name == "", [_budget_name(v) for v in t.budget], t.budget_name)
    t["budget_name"] = t.budget_name.where(~whole, "100%")
    share = t.share.where(~whole, 1.0)
    share = share.where(share.between(0, 1)).fillna(t.budget.where(t.budget <= 1))
    t["share"] = share.fillna((t.budget / t.n).clip(upper=1.0))
    t["document"] = t.document.where(t.document != "", t["item"])
    t["label"] = t.label.where(t.label != "", t.method)
    t["verdict"] = t.verdict.where(t.verdict.isin(VERDICTS), "")
    t["task"] = t.task.where(t.task != "", "no task named")
    return t


def _budget_name(value: float) -> str:
    return str(Budget.parse(float(value) if value <= 1 else int(value)))


def _column(values: Any, name: str, kind: str, rows: int) -> Any:
    import pandas as pd

    if kind == "string":
        cells = [""] * rows if values is None else ["" if v is None else _cut(v, name) for v in values]
        return pd.Series(cells, dtype=object)
    if values is None:
        return pd.Series(np.full(rows, np.nan), dtype=float)
    if kind == "bool":
        said = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
        values = [said.get(v, np.nan) if isinstance(v, str) else v for v in values]
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").astype(float)
    return numbers.where(np.isfinite(numbers))


def sweep_zip(sweep: Sweep) -> bytes:
    """Table, items and manifest as the zip that `open_sweep` reads; kept runs stay out of it."""
    kinds = {"int64": int, "bool": bool}
    rows = [
        {
            name: None if value != value else kinds.get(COLUMNS[name], lambda v: v)(value)
            for name, value in zip(sweep.table.columns, row)
        }
        for row in sweep.table.itertuples(index=False, name=None)
    ]
    files = dict(table_files(rows))
    files["manifest.json"] = json.dumps(sweep.manifest, indent=1).encode()
    files["items.jsonl"] = "".join(json.dumps(item) + "\n" for item in sweep.items.values()).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()
