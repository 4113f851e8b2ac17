"""`kvviz compare`: one document, one question, every method at every budget."""

from __future__ import annotations

import argparse

from kvviz.cli.files import check_out, read_document, write_out
from kvviz.cli.terminal import Progress, interruptible, note, print_result
from kvviz.engine.ask import Ask
from kvviz.settings import settings
from kvviz.types import PROTOCOLS

DTYPES = ("auto", "float32", "bfloat16", "float16")
BUDGETS_HELP = (
    "what is kept: shares (0.2 or 20%%) or whole numbers of tokens per KV head (128; 1 is one token, 1.0 "
    "or 100%% everything), separated by commas (default: %(default)s)"
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read a document once, then answer a question from the full cache and from every method at every "
        "budget. Prints what was kept, what it changed, and the answers."
    )
    add = parser.add_argument
    add("--document", required=True, metavar="FILE", help='a text file (UTF-8), or "-" for standard input')
    add("--question", required=True, metavar="TEXT")
    add(
        "--methods",
        default="snapkv,criticalkv",
        metavar="LIST",
        help="ids, separated by commas (see `kvviz methods`); options after a colon: "
        '"snapkv:window=16,allocation=global,tova" (default: %(default)s)',
    )
    add("--budgets", default="0.5,0.2,0.1", metavar="LIST", help=BUDGETS_HELP)
    add(
        "--model",
        default="smollm2-135m",
        help="offered id, hub id, folder or .gguf file (default: %(default)s)",
    )
    add("--dtype", default="auto", choices=DTYPES)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add("--system", default=None, metavar="TEXT", help="system turn")
    add("--expected", default=None, metavar="TEXT", help="the right answer, to mark answers right or wrong")
    add(
        "--max-new-tokens",
        type=int,
        default=Ask.max_new_tokens,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
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
    add("--json", default=None, metavar="OUT", help="write the whole comparison as JSON")
    add("--save", default=None, metavar="OUT.zip", help="write the whole comparison for the app to open")
    add("--quiet", action="store_true", help="no progress on standard error")


def run(args: argparse.Namespace) -> int:
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
    limits = settings()
    for out in filter(None, (args.json, args.save)):
        check_out(out)
    document, notices = read_document(args.document, limits.max_upload_bytes)
    for notice in notices:
        note(notice)
    from kvviz.engine.plan import check_ask
    from kvviz.engine.prompts import build_prompt
    from kvviz.engine.run import compare
    from kvviz.models import load_model

    check_ask(ask, limits)
    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, device=args.device, progress=show.message)
    prompt = build_prompt(
        model, document, args.question, system=args.system, protocol=args.protocol, limits=limits
    )
    with interruptible() as cancel:
        result = compare(model, prompt, events=show.event, cancel=cancel, limits=limits, ask=ask)
    show.end()
    if result is None:
        raise KeyboardInterrupt
    if args.json:
        write_out(args.json, result.to_json)
    if args.save:
        write_out(args.save, result.save)
    print_result(result)
    return 130 if cancel.is_set() else 0
