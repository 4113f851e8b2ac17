"""`kvviz methods`: what there is, with options."""

from __future__ import annotations

import argparse
import json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="the README's table")
    parser.add_argument("--json", action="store_true", help="all rows as JSON")


def run(args: argparse.Namespace) -> int:
    from kvviz.methods import list_methods, methods_table

    if args.markdown:
        print(methods_table())
        return 0
    if args.json:
        print(json.dumps([_row(m) for m in list_methods()], indent=1))
        return 0
    for m in list_methods():
        options = ", ".join(f"{k}={v}" for k, v in m.options.items()) or "no options"
        print(f"{m.id:20} {m.idea} ({m.paper})\n{'':20} {options}; allocation={m.allocation}")
    return 0


def _row(method) -> dict:
    return {
        "id": method.id,
        "label": method.label,
        "idea": method.idea,
        "paper": method.paper,
        "options": dict(method.options),
        "allocation": method.allocation,
        "presets": {name: dict(preset) for name, preset in method.presets.items()},
    }
