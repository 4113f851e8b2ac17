"""`kvviz niah`: one sentence hidden at five places of a generated text."""

from __future__ import annotations

import argparse

from kvviz.cli.common import BUDGETS_HELP, DTYPES
from kvviz.cli.files import check_out, write_out
from kvviz.cli.terminal import Progress, interruptible, note
from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.types import PROTOCOLS

SHORTEST = 100  # tokens


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hide one sentence at five places of a generated text and ask for it. Prints, for every method and "
        "budget, how often it was found, KL, output error and the share of heads improved over SnapKV."
    )
    add = parser.add_argument
    add("--methods", default="all", metavar="LIST", help='ids, or "all" that need no artefact (default)')
    add("--budgets", default="0.5,0.2,0.1,0.05", metavar="LIST", help=BUDGETS_HELP)
    add("--tokens", type=int, default=1000, help="length of the text (default: %(default)s)")
    add("--texts", default="0", metavar="LIST", help="which of the three texts, e.g. 0,1,2")
    add("--model", default="smollm2-135m", help="as for compare (default: %(default)s)")
    add("--dtype", default="float32", choices=DTYPES)
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add("--own-settings", action="store_true", help="each method's own window and pooling")
    add("--json", default=None, metavar="OUT", help="write one JSON row a text, place, method and budget")
    add("--quiet", action="store_true", help="no progress on standard error")


def run(args: argparse.Namespace) -> int:
    from kvviz.engine.plan import check_ask
    from kvviz.evaluate.grid import as_markdown, needle_grid
    from kvviz.methods import list_methods
    from kvviz.models import load_model

    methods = args.methods
    if methods.strip() == "all":
        methods = [m.id for m in list_methods() if m.artefact is None]
    ask = check_ask(Ask(methods, args.budgets, controlled=not args.own_settings))
    texts = _texts(args.texts)
    whole(args.tokens, "The length of the text in tokens", SHORTEST)
    if args.json:
        check_out(args.json)
    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, progress=show.message)
    show.end()
    if args.tokens >= model.info.max_tokens:
        raise InputError(
            f"{model.id} reads {model.info.max_tokens:,} tokens; a text of {args.tokens:,} does not fit."
        )
    with interruptible() as cancel:
        grid = needle_grid(
            model,
            ask.methods,
            ask.budgets,
            tokens=args.tokens,
            texts=texts,
            protocol=args.protocol,
            controlled=ask.controlled,
            say=None if args.quiet else note,
            cancel=cancel,
        )
    if grid.empty:
        raise KeyboardInterrupt
    if args.json:
        write_out(args.json, lambda path: grid.to_json(path, orient="records", indent=1))
    print(as_markdown(grid))
    return 130 if cancel.is_set() else 0


def _texts(given: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in given.split(",") if part.strip()]
    if not numbers or any(number not in ("0", "1", "2") for number in numbers):
        raise InputError(f"The texts are of 0, 1 and 2, separated by commas, not {given!r}.")
    return tuple(dict.fromkeys(map(int, numbers)))
