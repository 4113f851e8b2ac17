"""`kvviz export`: a saved run as one page that plays without server and network."""

from __future__ import annotations

import argparse

from kvviz.cli.files import check_out, write_out


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the page of a saved run as one HTML file: it opens from the file, without server and network, "
        "and plays the story that was saved with the run."
    )
    parser.add_argument("run_file", metavar="RUN.zip", help="a run saved by `compare --save` or the page")
    parser.add_argument("--html", required=True, metavar="OUT.html", help="the file to write")


def run(args: argparse.Namespace) -> int:
    from kvviz.results.archive import load_comparison
    from kvviz.ui.saved_page import page_html

    check_out(args.html)
    page = page_html(load_comparison(args.run_file))
    write_out(args.html, lambda path: path.write_text(page, encoding="utf-8"))
    print(f"{args.html}: {len(page.encode()) / 1e6:.1f} MB")
    return 0
