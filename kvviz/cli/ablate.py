"""`kvviz ablate`: formula or setting? Methods x windows x poolings on one document."""

from __future__ import annotations

import argparse
from functools import partial

from kvviz.cli.common import BUDGETS_HELP, add_model, add_prompt, prepared
from kvviz.cli.files import write_out
from kvviz.cli.terminal import interruptible, printable
from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.results.table import csv_text


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give every method every window and pooling, decode all of them together, and print verdicts and KL: "
        "what a comparison of two methods at their own settings cannot tell apart."
    )
    add_prompt(parser)
    add = parser.add_argument
    add("--methods", default="snapkv,criticalkv,dropkv", metavar="LIST", help="ids (default: %(default)s)")
    add("--budgets", default="0.1", metavar="LIST", help=BUDGETS_HELP)
    add("--windows", default="8,32", metavar="LIST", help="observation windows (default: %(default)s)")
    add("--pools", default="avg7,max11,none", metavar="LIST", help="poolings (default: %(default)s)")
    add_model(parser)
    add("--csv", default=None, metavar="OUT", help="write the table as CSV")


def run(args: argparse.Namespace) -> int:
    windows = [_window(part) for part in args.windows.split(",")]
    pools = [_pool(part) for part in args.pools.split(",")]
    ask = Ask(args.methods, args.budgets, args.max_new_tokens, expected=args.expected)
    from kvviz.evaluate.ablation import ablate, settings_of

    check = partial(settings_of, ask.methods, windows, pools)
    model, prompt, show = prepared(args, ask, args.csv, check=check)
    with interruptible() as cancel:
        found = ablate(
            model, prompt, ask.methods, ask.budgets, windows, pools, args.expected, args.max_new_tokens,
            events=show.event, cancel=cancel,
        )  # fmt: skip
    show.end()
    table = found.to_frame()
    if args.csv:
        columns = {str(name): list(table[name]) for name in table}
        write_out(args.csv, lambda path: path.write_text(csv_text(columns), "utf-8", "replace"))
    said = table.assign(text=table.text.map(printable))
    print(said.to_string(index=False, na_rep="", max_colwidth=60))
    moved = ", ".join(f"{name} {value:.3f}" for name, value in found.spread().items())
    print(f"\nMean KL moves by this much (nats a step) when one thing alone changes: {moved}")
    return 130 if cancel.is_set() else 0


def _window(text: str) -> int:
    return whole(int(text) if text.strip().isdecimal() else text, "A window in tokens", 1)


def _pool(text: str) -> tuple[str, int]:
    plain = text.strip()
    for kind in ("avg", "max"):
        size = plain.removeprefix(kind)
        if size != plain and size.isdecimal():
            return kind, int(size)
    if plain == "none":
        return "none", 1
    raise InputError(f'A pooling is written avg7, max11 or none, not "{plain[:20]}".')
