"""`kvviz choose`: the cheapest method and budget that keeps a quality."""

from __future__ import annotations

import argparse
import json

from kvviz.cli.files import check_out, write_out


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Which method for me? From a sweep's table, the smallest budget at which a method keeps the share "
        "you name of the answers that the full cache gets right, with the evidence."
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a sweep")
    parser.add_argument("--quality", type=float, default=0.9, metavar="SHARE",
                        help="share of right answers to keep (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", default=None, metavar="OUT", help="write the evidence as JSON")


def run(args: argparse.Namespace) -> int:
    from kvviz.results.choose import choose
    from kvviz.results.study import read_table

    if args.json:
        check_out(args.json)
    found = choose(read_table(args.folder), args.quality)
    if args.json:
        text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_out(args.json, lambda path: path.write_text(text, encoding="utf-8"))
    for row in found:
        print(f"{row['model']}, {row['protocol']}: {row['sentence']}")
    return 0
