"""`kvviz bench`: this project's measurements."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from kvviz.cli.files import check_out
from kvviz.engine.ask import whole
from kvviz.errors import InputError
from kvviz.types import DTYPES

CHECKOUT = Path(__file__).resolve().parents[2]


def add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=("peers", "kernels", "gpu", "growth", "app", "causes", "sweep", "formats"))
    add("--json", default=None, metavar="OUT", help="write what was measured as JSON")
    add("--tokens", type=int, default=4000, help="prompt length (peers)")
    add("--dtype", default="float32", choices=DTYPES[1:], help="(peers)")


def run(args: argparse.Namespace) -> int:
    if not (CHECKOUT / "benchmarks" / f"{args.what}.py").is_file():
        raise InputError("The benchmarks are not installed with kvviz: run them from a checkout.")
    whole(args.tokens, "The prompt length in tokens", 200)
    if args.json:
        check_out(args.json)
    sys.path.insert(0, str(CHECKOUT))
    bench = import_module(f"benchmarks.{args.what}")
    options = {"tokens": args.tokens, "dtype": args.dtype} if args.what == "peers" else {}
    bench.main(args.json, **options)
    return 0
