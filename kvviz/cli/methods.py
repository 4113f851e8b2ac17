"""`kvviz methods`: what there is, with options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvviz.cli.common import add_plugin
from kvviz.identity import option_text

if TYPE_CHECKING:
    from kvviz.options import Option


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List every method with its options: default, what each does, what it may be. Then the allocations, "
        "with theirs."
    )
    parser.add_argument("--markdown", action="store_true", help="the README's table")
    parser.add_argument("--json", action="store_true", help="all methods with their options as JSON")
    add_plugin(parser)


def run(args: argparse.Namespace) -> int:
    from kvviz.engine.budgets import ALLOCATORS
    from kvviz.methods import list_methods, methods_table
    from kvviz.methods.own import source_of
    from kvviz.methods.spec import PROTECT

    methods = list_methods()
    if args.markdown:
        print(methods_table())
        return 0
    if args.json:
        print(json.dumps([m.describe() for m in methods], indent=1))
        return 0
    for m in methods:
        source = source_of(m.id)
        print(f"{m.id:20} {m.idea} ({m.paper if source is None else f'own, from {source.name}'})")
        _print_options(m.rows)
        print(f"  allocation={m.allocation}")
        for name, given in m.presets.items():
            print(f"  preset={name}: {', '.join(f'{k}={option_text(v)}' for k, v in given.items())}")
    print("\nEvery method")
    _print_options([PROTECT])
    print("\nAllocations: how the budget is shared among layers and heads")
    for a in ALLOCATORS.values():
        served = [m.id for m in methods if a in m.allocators()]
        print(f"allocation={a.id}" + (f" ({', '.join(served)})" if len(served) < len(methods) else ""))
        _print_options(a.rows)
    return 0


def _print_options(rows: Iterable[Option]) -> None:
    for row in rows:
        print(f"  {f'{row.name}={option_text(row.default)}':20} {row.help} Allowed: {row.allowed}.")
