"""`kvviz serve`: the browser app."""

from __future__ import annotations

import argparse
import os

from kvviz.cli.common import add_plugin
from kvviz.hardware import keep_threads_from_spinning
from kvviz.settings import server_port


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=None, help="default: 7860")
    parser.add_argument("--host", default=None, help="default: 127.0.0.1, this machine only")
    add_plugin(parser)


def run(args: argparse.Namespace) -> int:
    server_port()  # before Gradio reads it, which ends in a traceback
    keep_threads_from_spinning(os.environ)  # the server itself is one that uses a core
    from kvviz.ui import launch

    launch(host=args.host, port=args.port)
    return 0
