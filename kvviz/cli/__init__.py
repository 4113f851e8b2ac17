"""The command line: `python -m kvviz compare ...`. Parses, calls, prints; holds no logic of its own.

Each command is a module of this folder: `add(parser)` names its arguments, `run(args)` does it and returns
the exit code. Codes: 0 done, 2 bad input (one sentence on standard error), 130 interrupted, 141 nobody
reads the output any more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from kvviz import __version__, memory
from kvviz.errors import KvvizError
from kvviz.resources import keep_libraries_writing

COMMANDS = {
    "compare": "compare methods on one document and question",
    "causes": "find which of the lost entries mattered, by putting them back",
    "ablate": "formula or setting? methods x windows x poolings",
    "methods": "list the methods with their options",
    "sweep": "many items, models, methods and budgets into one table",
    "plot": "a sweep as pictures and tables for a paper",
    "claims": "the papers' headlines beside what a sweep gives",
    "choose": "the cheapest method and budget that keeps a quality",
    "niah": "needle grid: methods x budgets x places in a text",
    "bench": "side-by-side measurements",
    "calibrate": "measure or train what a method needs for a model",
    "export": "a saved run as one HTML page that needs no server",
    "serve": "open the browser app",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # an old Windows code page lacks letters of answers
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):
                stream.reconfigure(errors="replace")
    keep_libraries_writing(os.environ)
    try:
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        args = _parser(arguments).parse_args(arguments)
        if getattr(args, "quiet", False):  # bars of libraries, which read this when they are imported
            os.environ.setdefault("TQDM_DISABLE", "1")
        if plugins := getattr(args, "plugin", ()):
            from kvviz.methods.own import load_plugins

            load_plugins(plugins)
        code = args.run(args) or 0
        sys.stdout.flush()
        return code
    except KvvizError as error:
        return _said(str(error))
    except KeyboardInterrupt:
        print("kvviz: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `kvviz ... | head`: whoever read has read enough
        _drop_output()
        return 141
    except (MemoryError, RuntimeError) as error:
        if not memory.ran_out(error):
            raise
        return _said(memory.TOO_LITTLE)
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        return _said(f"{where}{error.strerror or error}.")


def _said(sentence: str) -> int:
    print(f"kvviz: {sentence}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """What is still to be written cannot be; without this the interpreter tries again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; only the one that is asked for is imported and fills in its own."""
    parser = argparse.ArgumentParser(
        prog="kvviz",
        description="See what a KV-cache eviction method keeps and loses, and what that does to the answer.",
    )
    parser.add_argument("--version", action="version", version=f"kvviz {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        own = commands.add_parser(name, help=words)
        if name in arguments:
            command = import_module(f"kvviz.cli.{name}")
            own.set_defaults(run=command.run)
            command.add(own)
    return parser


if __name__ == "__main__":
    sys.exit(main())
