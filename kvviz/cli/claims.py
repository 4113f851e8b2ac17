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
        "Hold the headlines of the papers against the table of a sweep: for each one the number here, its "
        "95 % interval, and whether it holds, does not hold, or cannot be tested with these rows, and why."
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="folder of a sweep")
    parser.add_argument("--table", default=None, metavar="DIR", help="the same by name")
    parser.add_argument("--best-sets", action="store_true", help="measure how far DropKV's choice is from "
                        "the best set, by brute force on the sweep's documents and models")  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="print one table")
    parser.add_argument("--json", default=None, metavar="OUT", help="write the claims as JSON")


def run(args: argparse.Namespace) -> int:
    from kvviz.errors import InputError
    from kvviz.results.claims import claims, correction
    from kvviz.results.study import read_best_sets, read_table

    folder = args.table or args.folder
    if not folder:
        raise InputError("Name the folder of a sweep.")
    if args.json:
        check_out(args.json)
    table = read_table(folder)
    sets = _best_sets(Path(folder), table) if args.best_sets else read_best_sets(folder)
    found = claims(table, sets)
    if args.json:
        content = {"claims": found, "correction": correction(found)}
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_out(args.json, lambda path: path.write_text(text + "\n", encoding="utf-8"))
    if args.markdown:
        print(as_markdown(found))
        return 0
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


def as_markdown(found: list[dict[str, Any]]) -> str:
    """The claims as one table, with what was done about their number below it."""
    from kvviz.results.claims import correction

    parts = {(row["model"], row["protocol"]) for row in found}
    lines = ["| paper | claim | here | n | p | verdict | how |", "|---" * 7 + "|"]
    for row in found:
        value, (low, high) = row["value"], row["interval"]
        here = "–" if value is None else f"{value:.3g}" + ("" if low is None else f" [{low:.3g}, {high:.3g}]")
        p = "–" if row["p"] is None else f"{row['p']:.2g}"
        where = "" if len(parts) == 1 else f" ({row['model']}, {row['protocol']})"
        cells = [row["paper"], row["claim"] + where, here, str(row["n"] or "–"), p]
        cells += [row["verdict"], row["reason"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", correction(found)])


def _best_sets(folder: Path, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Measured now, for every model and protocol of the table, and kept in the folder."""
    from kvviz.evaluate.best_sets import of_documents
    from kvviz.evaluate.items import read_items
    from kvviz.models import load_model
    from kvviz.results.scoreboard import parts
    from kvviz.results.study import BEST_SETS

    items = read_items(folder / "items.jsonl")
    rows = []
    for model, protocol, _ in parts(table):
        rows += of_documents(load_model(model), model, items, protocol)
    text = json.dumps(rows, indent=1) + "\n"
    write_out(str(folder / BEST_SETS), lambda path: path.write_text(text, encoding="utf-8"))
    return rows
