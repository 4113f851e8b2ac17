"""`kvviz niah`: one sentence hidden in generated texts, at several depths."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvviz.cli.files import check_out, write_out
from kvviz.cli.plot import draw
from kvviz.cli.sweep import add_study, run_study
from kvviz.errors import InputError

if TYPE_CHECKING:
    from kvviz.evaluate.items import Item
    from kvviz.models import Model

SHORTEST = 100  # tokens
T = TypeVar("T", int, float)


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hide one sentence in generated texts, at several depths, and ask for it. Prints, for every method "
        "and budget, how often it was found, KL, output error and the share of heads improved over SnapKV. "
        "With --out, whatever was finished is kept as of a sweep: run the same command to go on."
    )
    add = parser.add_argument
    add("--lengths", "--tokens", default="1000", metavar="LIST", help="of the texts (default: %(default)s)")
    add("--depths", default="0.1,0.3,0.5,0.7,0.9", metavar="LIST",
        help="0 is the start of the text, 1 its end (default: %(default)s)")  # fmt: skip
    add("--texts", default="0", metavar="LIST", help="which of the three proses, e.g. 0,1,2")
    add("--seeds", default="0", metavar="LIST", help="each draws the texts anew (default: %(default)s)")
    add("--needles", default="0", metavar="LIST", help="which of the three hidden sentences, e.g. 0,1,2")
    add("--own-settings", action="store_true", help="each method's own window and pooling")
    add("--json", default=None, metavar="OUT", help="write one JSON row a text, place, method and budget")
    add("--out", default=None, metavar="DIR", help="folder of the table; one that is there is gone on with")
    add_study(parser, methods="all", dtype="float32")


def run(args: argparse.Namespace) -> int:
    given = {
        "lengths": _list(args.lengths, "lengths in tokens", int, lambda n: n >= SHORTEST,
                         f"whole numbers from {SHORTEST} up"),
        "depths": _list(args.depths, "depths", float, lambda x: 0 <= x <= 1, "numbers from 0 to 1"),
        "texts": _list(args.texts, "texts", int, lambda n: n in (0, 1, 2), "of 0, 1 and 2"),
        "seeds": _list(args.seeds, "seeds", int, lambda n: n >= 0, "whole numbers from 0 up"),
        "needles": _list(args.needles, "needles", int, lambda n: n in (0, 1, 2), "of 0, 1 and 2"),
    }  # fmt: skip
    if args.json:
        check_out(args.json)
    args.controlled = not args.own_settings
    if args.out:
        return _run(args, Path(args.out), given)
    if args.plot:
        raise InputError("Name a folder for the plots with --out.")
    with tempfile.TemporaryDirectory() as folder:
        return _run(args, Path(folder), given)


def _run(args: argparse.Namespace, out: Path, given: Mapping[str, Sequence]) -> int:
    from kvviz.evaluate.grid import as_markdown, check_lengths, grid_items, grid_rows
    from kvviz.results.study import read_table

    def items(model: Model) -> Sequence[Item]:
        check_lengths(model, given["lengths"])
        return grid_items(model.tokenizer, **given)

    done = run_study(args, out, items, needs_model=True)
    if not done.outcome.cells:
        if done.code == 130:
            raise KeyboardInterrupt
        return done.code
    grid = grid_rows(read_table(out), done.items)
    if args.json:
        write_out(args.json, lambda path: grid.to_json(path, orient="records", indent=1))
    parts = grid.groupby(["model", "length"], sort=False)
    for (model, length), rows in parts:
        if len(parts) > 1:
            print(f"\n{model}, texts of {length:,} tokens. ", end="")
        print(as_markdown(rows))
    if args.out:
        done.say()
    if args.plot:
        draw(out, args.plot)
    return done.code


def _list(
    given: str, name: str, kind: Callable[[str], T], fits: Callable[[T], bool], words: str
) -> tuple[T, ...]:
    """The values of a list; InputError where there is none, or one does not fit."""
    try:
        values = [kind(part) for part in given.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or not all(map(fits, values)):
        raise InputError(f"The {name} are {words}, separated by commas, not {given!r}.")
    return tuple(dict.fromkeys(values))
