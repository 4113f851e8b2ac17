"""The table of a sweep: one row an item, model, method and budget, the same columns whatever was asked."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvviz.errors import InputError
from kvviz.results.table import csv_text

if TYPE_CHECKING:
    import pandas as pd

TABLE = "table.parquet"
NEEDED = ["model", "item", "document", "protocol", "method", "budget", "budget_name"]  # of every row
BEST_SETS = "best_sets.json"  # see `kvviz.evaluate.best_sets`
# Column -> Arrow type. `length` (tokens) is the one that was asked for and `depth`, from 0 to 1, the place
# of what is hidden, where the item was made so; `n` is what the model read. `budget` is the number as asked
# (0.2 a share, 128 entries), `budget_name` tells 1 token from 100 %, `entries` are those kept per KV head
# on average. `kl` is in nats a step, `output_error` the median over heads, `knew` how the item was answered
# without its document ("" where it was needed), `reason` why there is no answer ("" where there is one).
COLUMNS = {
    "model": "string", "item": "string", "task": "string", "document": "string", "length": "int64",
    "depth": "double", "protocol": "string",
    "method": "string", "label": "string", "options": "string", "budget": "double", "budget_name": "string",
    "share": "double", "entries": "int64", "n": "int64", "tokens_kept": "double",
    "answer": "string", "verdict": "string", "metric": "string", "score": "double", "empty": "bool",
    "kl": "double", "max_kl": "double", "output_error": "double", "mean_output_error": "double",
    "heads_improved": "double", "same_as_full": "bool", "f1_full": "double",
    "bytes": "int64", "seconds": "double", "read_seconds": "double", "finished_by": "string",
    "knew": "string", "reason": "string",
}  # fmt: skip


def table_files(rows: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """{file name: content} of the table as parquet and as CSV for a spreadsheet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = [{name: row.get(name) for name in COLUMNS} for row in rows]
    table = pa.Table.from_pylist(whole, schema=_schema())
    out = io.BytesIO()
    pq.write_table(table, out)
    return {TABLE: out.getvalue(), "table.csv": csv_text(table.to_pydict()).encode("utf-8", "replace")}


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])


def read_table(where: str | Path) -> pd.DataFrame:
    """The table of a sweep's folder (or the parquet file itself). InputError where there is none."""
    import pyarrow.parquet as pq

    path = Path(where)
    path = path / TABLE if path.is_dir() else path
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise InputError(f"{path.name} is no table of a sweep: it has no column {missing[0]!r}.")
        table = file.read(columns=list(COLUMNS)).select(list(COLUMNS)).cast(_schema()).to_pandas()
    except FileNotFoundError:
        said = f"There is no {TABLE} in {where}: give the folder that `kvviz sweep` wrote."
        raise InputError(said) from None
    except InputError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # Arrow's errors are of these
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"{path.name} is no table of a sweep: {said}.") from error
    if table[NEEDED].isna().to_numpy().any() or not (table.budget > 0).all():
        raise InputError(f"{path.name} is no table of a sweep: a row has no model, item, method or budget.")
    return table


def best_sets_of(data: bytes) -> list[dict[str, Any]]:
    """The rows of such a file that are whole; ValueError where it is no JSON."""
    rows = json.loads(data)
    texts, numbers = ("model", "protocol", "document"), ("heads", "ratio", "attention_ratio", "cone")
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in texts)
        and all(type(row.get(name)) in (int, float) and math.isfinite(row[name]) for name in numbers)
    ]


def read_best_sets(where: str | Path) -> list[dict[str, Any]]:
    """What brute force found on the documents of a sweep's folder, [] where it was not measured there."""
    path = Path(where) / BEST_SETS
    try:
        return best_sets_of(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
