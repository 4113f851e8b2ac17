"""`kvviz bench`: this project's measurements."""

from __future__ import annotations

import argparse
from importlib import import_module

from kvviz.cli.compare import DTYPES
from kvviz.cli.files import check_out
from kvviz.engine.ask import whole


def add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=("peers", "kernels", "gpu", "growth", "app"))
    add("--json", default=None, metavar="OUT", help="write what was measured as JSON")
    add("--tokens", type=int, default=4000, help="prompt length (peers)")
    add("--dtype", default="float32", choices=DTYPES[1:], help="(peers)")


def run(args: argparse.Namespace) -> int:
    whole(args.tokens, "The prompt length in tokens", 200)
    if args.json:
        check_out(args.json)
    bench = import_module(f"kvviz.bench.{args.what}")
    options = {"tokens": args.tokens, "dtype": args.dtype} if args.what == "peers" else {}
    bench.main(args.json, **options)
    return 0
