"""`kvviz compare`: one document, one question, every method at every budget."""

from __future__ import annotations

import argparse

from kvviz.cli.common import BUDGETS_HELP, add_model, add_prompt, prepared
from kvviz.cli.files import read_document, write_out
from kvviz.cli.terminal import interruptible, print_result, print_turns
from kvviz.engine.ask import Ask
from kvviz.errors import InputError
from kvviz.settings import settings


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read a document once, then answer a question from the full cache and from every method at every "
        "budget. Prints what was kept, what it changed, and the answers."
    )
    add_prompt(parser, question=False)
    add = parser.add_argument
    add(
        "--methods",
        default="snapkv,criticalkv",
        metavar="LIST",
        help="ids, separated by commas (see `kvviz methods`); options after a colon: "
        '"snapkv:window=16,allocation=global,tova" (default: %(default)s)',
    )
    add("--budgets", default="0.5,0.2,0.1", metavar="LIST", help=BUDGETS_HELP)
    add_model(parser)
    add("--temperature", type=float, default=Ask.temperature, help="0 is greedy (default)")
    add("--top-p", type=float, default=Ask.top_p)
    add("--seed", type=int, default=Ask.seed, help="of sampling above temperature 0")
    add(
        "--controlled",
        action="store_true",
        help="same window, pooling and group reduction for all methods, but for options given by name",
    )
    add(
        "--evict-every",
        type=int,
        default=None,
        metavar="N",
        help="also evict while generating: back to the budget every N new tokens",
    )
    add("--measures", default="kl,output_error", help='"kl", "output_error", both, or "none"')
    add(
        "--questions",
        default=None,
        metavar="FILE",
        help="further questions to the same caches, one a line, each followed by a tab and its expected "
        "answer where there is one; without --question the first is the run's own",
    )
    add("--json", default=None, metavar="OUT", help="write the whole comparison as JSON")
    add("--save", default=None, metavar="OUT.zip", help="write the whole comparison for the app to open")


def run(args: argparse.Namespace) -> int:
    questions = questions_of(args)
    ask = Ask(
        args.methods,
        args.budgets,
        args.max_new_tokens,
        args.measures,
        controlled=args.controlled,
        expected=args.expected,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        lenses=bool(args.json or args.save),
        evict_every=args.evict_every,
    )
    model, prompt, show = prepared(args, ask, args.json, args.save)
    from kvviz.engine.run import compare

    with interruptible() as cancel:
        result = compare(model, prompt, events=show.event, cancel=cancel, limits=settings(), ask=ask,
                         questions=questions)  # fmt: skip
    show.end()
    if result is None:
        raise KeyboardInterrupt
    if args.json:
        write_out(args.json, result.to_json)
    if args.save:
        write_out(args.save, result.save)
    print_result(result)
    print_turns(result)
    return 130 if cancel.is_set() else 0


def questions_of(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Questions of the file; where none was given beside it, the first becomes the run's own."""
    lines = "" if args.questions is None else read_document(args.questions, settings().max_upload_bytes)[0]
    found: list[tuple[str, str | None]] = []
    for line in lines.splitlines():
        question, _, expected = line.partition("\t")
        if question.strip():
            found.append((question.strip(), expected.strip() or None))
    if args.question is None and found:
        args.question, expected_ = found.pop(0)
        args.expected = args.expected or expected_
    if args.question is None:
        raise InputError("Ask a question: --question TEXT, or --questions FILE.")
    return found
