"""`kvviz ablate`: formula or setting? Methods x windows x poolings on one document."""

from __future__ import annotations

import argparse

from kvviz.cli.compare import BUDGETS_HELP, DTYPES
from kvviz.cli.files import check_out, read_document, write_out
from kvviz.cli.terminal import Progress, interruptible, note, printable
from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.settings import settings
from kvviz.types import PROTOCOLS


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give every method every window and pooling, decode all of them together, and print verdicts and KL: "
        "what a comparison of two methods at their own settings cannot tell apart."
    )
    add = parser.add_argument
    add("--document", required=True, metavar="FILE", help='a text file (UTF-8), or "-" for standard input')
    add("--question", required=True, metavar="TEXT")
    add("--expected", default=None, metavar="TEXT", help="the right answer, to mark answers right or wrong")
    add("--methods", default="snapkv,criticalkv,dropkv", metavar="LIST", help="ids (default: %(default)s)")
    add("--budgets", default="0.1", metavar="LIST", help=BUDGETS_HELP)
    add("--windows", default="8,32", metavar="LIST", help="observation windows (default: %(default)s)")
    add("--pools", default="avg7,max11,none", metavar="LIST", help="poolings (default: %(default)s)")
    add("--model", default="smollm2-135m", help="offered id, hub id, folder or .gguf file")
    add("--dtype", default="auto", choices=DTYPES)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add("--max-new-tokens", type=int, default=Ask.max_new_tokens, metavar="N", help="longest answer")
    add("--csv", default=None, metavar="OUT", help="write the table as CSV")
    add("--quiet", action="store_true", help="no progress on standard error")


def run(args: argparse.Namespace) -> int:
    windows = [_window(part) for part in args.windows.split(",")]
    pools = [_pool(part) for part in args.pools.split(",")]
    ask = Ask(args.methods, args.budgets, args.max_new_tokens, expected=args.expected)
    if args.csv:
        check_out(args.csv)
    document, notices = read_document(args.document, settings().max_upload_bytes)
    for notice in notices:
        note(notice)
    from kvviz.engine.plan import check_ask
    from kvviz.engine.prompts import build_prompt
    from kvviz.evaluate.ablation import ablate, settings_of
    from kvviz.models import load_model

    check_ask(ask, settings())
    settings_of(ask.methods, windows, pools)
    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, device=args.device, progress=show.message)
    prompt = build_prompt(model, document, args.question, protocol=args.protocol, limits=settings())
    with interruptible() as cancel:
        found = ablate(
            model, prompt, ask.methods, ask.budgets, windows, pools, args.expected, args.max_new_tokens,
            events=show.event, cancel=cancel,
        )  # fmt: skip
    show.end()
    table = found.to_frame()
    if args.csv:
        write_out(args.csv, lambda path: table.to_csv(path, index=False))
    print(printable(table.to_string(index=False, na_rep="", max_colwidth=60)))
    moved = ", ".join(f"{name} {value:.3f}" for name, value in found.spread().items())
    print(f"\nMean KL moves by this much (nats a step) when one thing alone changes: {moved}")
    return 130 if cancel.is_set() else 0


def _window(text: str) -> int:
    return whole(int(text) if text.strip().isdecimal() else text, "A window in tokens", 1)


def _pool(text: str) -> tuple[str, int]:
    plain = text.strip()
    for kind in ("avg", "max"):
        size = plain.removeprefix(kind)
        if size != plain and size.isdecimal():
            return kind, int(size)
    if plain == "none":
        return "none", 1
    raise InputError(f'A pooling is written avg7, max11 or none, not "{plain[:20]}".')
