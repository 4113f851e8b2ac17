"""`kvviz claims`: what the papers say beside what a sweep's table gives."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvviz.cli.files import check_out, write_out

if TYPE_CHECKING:
    import pandas as pd


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hold the headlines of the papers against the table of a sweep: for each one the number here, its 95 "
        "% interval, and whether it holds, does not hold, or cannot be tested with these rows, and why."
    ).replace("%", "%%")
    parser.add_argument("folder", nargs="?", metavar="DIR", help="folder of a sweep")
    parser.add_argument("--table", default=None, metavar="DIR", help="the same by name")
    parser.add_argument("--best-sets", action="store_true", help="measure how far DropKV's choice is from "
                        "the best set, by brute force on the sweep's documents and models")  # fmt: skip
    parser.add_argument("--json", default=None, metavar="OUT", help="write the claims as JSON")


def run(args: argparse.Namespace) -> int:
    from kvviz.errors import InputError
    from kvviz.results.claims import claims, correction
    from kvviz.results.study import read_table

    folder = args.table or args.folder
    if not folder:
        raise InputError("Name the folder of a sweep.")
    if args.json:
        check_out(args.json)
    table = read_table(folder)
    found = claims(table, _best_sets(Path(folder), table) if args.best_sets else ())
    if args.json:
        content = {"claims": found, "correction": correction(found)}
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_out(args.json, lambda path: path.write_text(text + "\n", encoding="utf-8"))
    for row in found:
        print(f"\n{row['paper']}: {row['claim']}\n  {row['model']}, {row['protocol']}: {row['verdict']}")
        if row["value"] is not None:
            low, high = row["interval"]
            interval = "no interval" if low is None else f"95 % interval {low:.3g} to {high:.3g}"
            p = "" if row["p"] is None else f", corrected p {row['p']:.2g}"
            print(f"  {row['value']:.3g} ({interval}, n = {row['n']}{p})")
        print(f"  {row['reason']}")
    print(f"\n{correction(found)}")
    return 0


def _best_sets(folder: Path, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Measured now, for every model and protocol of the table."""
    from kvviz.evaluate.best_sets import of_documents
    from kvviz.evaluate.items import read_items
    from kvviz.models import load_model
    from kvviz.results.scoreboard import parts

    items = read_items(folder / "items.jsonl")
    rows = []
    for model, protocol, _ in parts(table):
        rows += of_documents(load_model(model), model, items, protocol)
    return rows
