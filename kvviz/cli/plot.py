"""`kvviz plot`: a sweep's table as pictures and tables for a paper."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from kvviz.cli.files import check_folder
from kvviz.errors import InputError
from kvviz.identity import parse_budgets, split_methods
from kvviz.results.plots import KINDS, check_kind

KINDS_HELP = f"one or several of {', '.join(KINDS)}, separated by commas"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw the table of a sweep for print: each plot as SVG and PDF, its numbers as CSV and LaTeX (for "
        "booktabs), 95 % intervals included. Every model and protocol has a plot of its own."
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder of a sweep")
    add("--kind", default="kl-budget", metavar="LIST", help=f"{KINDS_HELP} (default: %(default)s)")
    add("--methods", default="", metavar="LIST", help="only these, in this order (default: all)")
    add("--budgets", default="", metavar="LIST", help="only these (default: all)")
    add("--measure", default="", metavar="MEASURE", choices=("", "kl", "output_error", "score", "right"),
        help="kl, output_error, score or right, instead of KL or, for score-budget, the score")  # fmt: skip
    add("--base", default="", metavar="METHOD", help="whom the others are held against (pairs)")
    add("--out", default=None, metavar="DIR2", help="where to write (default: DIR/plots)")


def run(args: argparse.Namespace) -> int:
    budgets = parse_budgets(args.budgets) if args.budgets else ()
    only = {"methods": split_methods(args.methods), "budgets": budgets}
    draw(Path(args.folder), args.kind, args.out, **only, measure=args.measure, base=args.base)
    return 0


def check_kinds(kinds: str) -> list[str]:
    """The kinds of a list. InputError where there is no such kind."""
    names = list(dict.fromkeys(filter(None, (kind.strip() for kind in kinds.split(",")))))
    for name in names:
        check_kind(name)
    return names


def draw(folder: Path, kinds: str, out: str | None = None, **how: Any) -> None:
    """Write the plots of a sweep's folder, as `plots(..., **how)` makes them, and say where they are.

    InputError about kinds that its table does not serve, once the others are written.
    """
    from kvviz.evaluate.store import write_whole
    from kvviz.figures.printed import files
    from kvviz.results.plots import plots
    from kvviz.results.study import read_table

    table = read_table(folder)
    made, reasons = [], []
    for kind in check_kinds(kinds):
        try:
            made += plots(table, kind, **how)
        except InputError as error:
            reasons.append(str(error))
    target = Path(out) if out else (folder if folder.is_dir() else folder.parent) / "plots"
    check_folder(target)
    for plot in made:
        parts = [plot.kind, Path(plot.model).name or plot.model, plot.protocol]
        name = "-".join(re.sub(r"[^\w.-]+", "-", part).strip("-.") for part in parts)
        for ending, data in files(plot).items():
            write_whole(target / f"{name}.{ending}", data)
        print(f"{target / name}.svg, .pdf, .csv, .tex: {plot.words}")
    if reasons:
        raise InputError(" ".join(dict.fromkeys(reasons)))
