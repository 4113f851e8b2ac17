"""The command line: `python -m kvviz compare ...`. Parses, calls, prints; holds no logic of its own.

Exit codes: 0 done, 2 bad input (one sentence on standard error), 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvviz.cli.terminal import Progress, interruptible, print_result
from kvviz.errors import InputError, KvvizError
from kvviz.identity import split_methods


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return args.run(args) or 0
    except KvvizError as error:
        print(f"kvviz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvviz: interrupted.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvviz",
        description="See what a KV-cache eviction method keeps and loses, and what that does to the answer.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _compare_parser(commands.add_parser("compare", help="compare methods on one document and question"))
    methods = commands.add_parser("methods", help="list the methods with their options")
    methods.add_argument("--markdown", action="store_true", help="the README's table")
    methods.set_defaults(run=_methods)
    _niah_parser(commands.add_parser("niah", help="needle grid: methods x budgets x places in a text"))
    bench = commands.add_parser("bench", help="side-by-side measurements")
    bench.add_argument("what", choices=("peers", "kernels", "gpu", "growth", "app"))
    bench.add_argument("--json", default=None, metavar="OUT")
    bench.add_argument("--tokens", type=int, default=4000, help="prompt length (peers)")
    bench.add_argument("--dtype", default="float32", help="(peers)")
    bench.set_defaults(run=_bench)
    _calibrate_parser(
        commands.add_parser("calibrate", help="measure or train what a method needs for a model")
    )
    serve = commands.add_parser("serve", help="open the browser app")
    serve.add_argument("--port", type=int, default=7860)
    serve.add_argument("--host", default="127.0.0.1")
    serve.set_defaults(run=_serve)
    return parser


def _compare_parser(parser: argparse.ArgumentParser) -> None:
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
    add(
        "--budgets",
        default="0.5,0.2,0.1",
        metavar="LIST",
        help="shares (0.2 or 20%%) or whole numbers of tokens per KV head (default: %(default)s)",
    )
    add(
        "--model",
        default="smollm2-135m",
        help="offered id, hub id, folder or .gguf file (default: %(default)s)",
    )
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    add("--device", default="auto")
    add("--protocol", default="question-aware", choices=("question-aware", "question-agnostic"))
    add("--system", default=None, metavar="TEXT", help="system turn")
    add("--expected", default=None, metavar="TEXT", help="the right answer, to mark answers right or wrong")
    add("--max-new-tokens", type=int, default=64, metavar="N")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-p", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--controlled", action="store_true", help="same window, pooling and group reduction for all methods")
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
    parser.set_defaults(run=_compare)


def _calibrate_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make the calibrated file that a method needs for a model. Ctrl-C stops it; the same command goes on "
        "from where it was."
    )
    add = parser.add_argument
    add("method", choices=("compresskv", "indexmem", "duoattention", "qfilters"))
    add("--model", default="smollm2-135m", help="as for compare (default: %(default)s)")
    add("--texts", default=None, metavar="DIR", help="a folder of .txt files instead of those that ship")
    add("--out", default=None, metavar="DIR", help="where the file goes (default: the user's cache folder)")
    add("--steps", type=int, default=None, metavar="N", help="steps or prompts (default: the method's)")
    add("--seed", type=int, default=0)
    add("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    add("--device", default="auto")
    add("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> int:
    from kvviz.calibrate import calibrate
    from kvviz.errors import Cancelled
    from kvviz.models import load_model

    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, device=args.device, progress=show.message)
    with interruptible() as cancel:
        try:
            path = calibrate(
                args.method,
                model,
                args.texts,
                args.out,
                args.steps,
                args.seed,
                progress=lambda message, fraction: show.message(f"{fraction:4.0%} {message}"),
                cancel=cancel,
            )
        except Cancelled as error:
            show.end()
            print(f"kvviz: {error}", file=sys.stderr)
            return 130
    show.end()
    print(path)
    return 0


def _niah_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hide one sentence at five places of a generated text and ask for it. Prints, for every method and "
        "budget, how often it was found, KL, output error and the share of heads improved over SnapKV."
    )
    add = parser.add_argument
    add("--methods", default="all", metavar="LIST", help='ids, or "all" that need no artefact (default)')
    add("--budgets", default="0.5,0.2,0.1,0.05", metavar="LIST")
    add("--tokens", type=int, default=1000)
    add("--texts", default="0", metavar="LIST", help="which of the three texts, e.g. 0,1,2")
    add("--model", default="smollm2-135m")
    add("--dtype", default="float32", choices=("auto", "float32", "bfloat16", "float16"))
    add("--protocol", default="question-aware", choices=("question-aware", "question-agnostic"))
    add("--own-settings", action="store_true", help="each method's own window and pooling")
    add("--json", default=None, metavar="OUT", help="write one JSON row a text, place, method and budget")
    parser.set_defaults(run=_niah)


def _compare(args: argparse.Namespace) -> int:
    for out in filter(None, (args.json, args.save)):
        if not Path(out).resolve().parent.is_dir():
            raise InputError(f"There is no folder {Path(out).parent} to write {Path(out).name} to.")
    budgets = [b for b in args.budgets.split(",") if b.strip()]
    document, notices = _read_document(args.document)
    for notice in notices:
        print(f"kvviz: {notice}", file=sys.stderr)
    from kvviz.engine.prompts import build_prompt
    from kvviz.engine.run import compare
    from kvviz.models import load_model

    show = Progress(quiet=args.quiet)
    model = load_model(args.model, dtype=args.dtype, device=args.device, progress=show.message)
    prompt = build_prompt(
        model, document=document, question=args.question, system=args.system, protocol=args.protocol
    )
    measures = () if args.measures == "none" else tuple(filter(None, args.measures.split(",")))
    with interruptible() as cancel:
        result = compare(
            model,
            prompt,
            split_methods(args.methods),
            budgets,
            max_new_tokens=args.max_new_tokens,
            measures=measures,
            events=show.event,
            cancel=cancel,
            controlled=args.controlled,
            evict_every=args.evict_every,
            expected=args.expected,
            temperature=args.temperature,
            top_p=args.top_p,
            seed=args.seed,
            lenses=bool(args.json or args.save),
        )
    show.end()
    if result is None:
        raise KeyboardInterrupt
    print_result(result)
    if args.json:
        result.to_json(args.json)
    if args.save:
        result.save(args.save)
    return 130 if cancel.is_set() else 0


def _read_document(name: str) -> tuple[str, list[str]]:
    from kvviz.engine.prompts import decode_document

    if name == "-":
        return decode_document(sys.stdin.buffer.read())
    path = Path(name)
    if not path.is_file():
        raise InputError(f"There is no file {name}.")
    return decode_document(path.read_bytes())


def _niah(args: argparse.Namespace) -> int:
    from kvviz.evaluate.grid import as_markdown, needle_grid
    from kvviz.methods import list_methods
    from kvviz.models import load_model

    methods = split_methods(args.methods)
    if methods == ["all"]:
        methods = [m.id for m in list_methods() if m.artefact is None]
    budgets = [b for b in args.budgets.split(",") if b.strip()]
    with interruptible() as cancel:
        grid = needle_grid(
            load_model(args.model, dtype=args.dtype),
            methods,
            budgets,
            tokens=args.tokens,
            texts=tuple(int(t) for t in args.texts.split(",")),
            protocol=args.protocol,
            controlled=not args.own_settings,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            cancel=cancel,
        )
    print(as_markdown(grid))
    if args.json:
        grid.to_json(args.json, orient="records", indent=1)
    return 130 if cancel.is_set() else 0


def _bench(args: argparse.Namespace) -> int:
    from importlib import import_module

    bench = import_module(f"kvviz.bench.{args.what}")
    options = {"tokens": args.tokens, "dtype": args.dtype} if args.what == "peers" else {}
    bench.main(args.json, **options)
    return 0


def _methods(args: argparse.Namespace) -> int:
    if args.markdown:
        from kvviz.methods import methods_table

        print(methods_table())
        return 0
    from kvviz.methods import list_methods

    for m in list_methods():
        options = ", ".join(f"{k}={v}" for k, v in m.options.items()) or "no options"
        print(f"{m.id:20} {m.idea} ({m.paper})\n{'':20} {options}; allocation={m.allocation}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from kvviz.ui import launch

    launch(host=args.host, port=args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
