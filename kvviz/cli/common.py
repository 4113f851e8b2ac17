"""What commands about one document and question have in common: their arguments, and the way to a prompt."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvviz.cli.files import check_out, read_document
from kvviz.cli.terminal import Progress, note
from kvviz.engine.ask import Ask
from kvviz.errors import InputError
from kvviz.framing import Framing
from kvviz.settings import settings
from kvviz.types import DTYPES, PROTOCOLS

if TYPE_CHECKING:
    from kvviz.engine.prompts import Prompt
    from kvviz.models import Model

BUDGETS_HELP = (
    "what is kept: shares (0.2 or 20%%) or whole numbers of tokens per KV head (128; 1 is one token, 1.0 "
    "or 100%% everything), separated by commas (default: %(default)s)"
)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Files of own methods, which are loaded before the command runs."""
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py",
        help="a file that holds a method of your own (docs/own-method.md); may be given several times",
    )  # fmt: skip


def add_prompt(parser: argparse.ArgumentParser, question: bool = True) -> None:
    """Arguments that say what is asked of what."""
    add = parser.add_argument
    add("--document", required=True, metavar="FILE", help='a text file (UTF-8), or "-" for standard input')
    add("--question", required=question, metavar="TEXT")
    add("--expected", default=None, metavar="TEXT", help="the right answer, to mark answers right or wrong")
    add("--system", default=None, metavar="TEXT", help="system turn")
    add("--turns", default=None, metavar="FILE",
        help='turns before the document\'s, a JSON list of {"role": "user" or "assistant", "content": text}')
    add("--raw", default=None, metavar="FILE",
        help="the whole prompt as it is read, with {document} and {question} in it; no chat template")
    add("--no-template", dest="template", action="store_false",
        help="document and question as plain text, without the chat template")
    add("--cue", default="", metavar="TEXT",
        help="what the answer begins with: it goes on from there, and only that is judged")
    add("--thinking", action="store_true", help="let a model that can think before it answers")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Arguments that say what answers, and how long."""
    add = parser.add_argument
    add(
        "--model",
        default="smollm2-135m",
        help="offered id, hub id, folder or .gguf file (default: %(default)s)",
    )
    add("--dtype", default="auto", choices=DTYPES)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add(
        "--max-new-tokens",
        type=int,
        default=Ask.max_new_tokens,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
    add("--quiet", action="store_true", help="no progress on standard error")
    add_plugin(parser)


def prepared(
    args: argparse.Namespace, ask: Ask, *outs: str | None, check: Callable[[], object] = lambda: None
) -> tuple[Model, Prompt, Progress]:
    """(model, prompt, progress to end after the work).

    What can be refused is refused before the model is loaded: the files to write (`outs`, None where none is
    wanted), the document, the ask, and whatever `check` looks at.
    """
    limits = settings()
    for out in filter(None, outs):
        check_out(out)
    document, notices = read_document(args.document, limits.max_upload_bytes)
    for notice in notices:
        note(notice)
    from kvviz.engine.plan import check_ask
    from kvviz.engine.prompts import build_prompt
    from kvviz.models import load_model

    check_ask(ask, limits)
    check()
    framing = _framing(args, limits.max_upload_bytes)
    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, device=args.device, progress=show.message)
    prompt = build_prompt(
        model, document, args.question, system=args.system, protocol=args.protocol, limits=limits,
        framing=framing,
    )  # fmt: skip
    return model, prompt, show


def _framing(args: argparse.Namespace, most: int) -> Framing:
    """What stands around document and question, as the arguments say."""
    turns: Any = ()
    if args.turns is not None:
        try:
            turns = json.loads(read_document(args.turns, most)[0])
        except ValueError:
            raise InputError(f"{args.turns} is no JSON: it holds a list of turns.") from None
    raw = None if args.raw is None else read_document(args.raw, most)[0]
    return Framing(turns=turns, raw=raw, template=args.template, cue=args.cue, thinking=args.thinking)
