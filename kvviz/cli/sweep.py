"""`kvviz sweep`: many items, models, methods and budgets into one folder with one table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvviz.cli.common import BUDGETS_HELP, DTYPES
from kvviz.cli.files import check_folder
from kvviz.cli.plot import KINDS_HELP, check_kinds, draw
from kvviz.cli.terminal import Progress, interruptible, note
from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.types import PROTOCOLS

if TYPE_CHECKING:
    from kvviz.evaluate.items import Item

LAYOUTS = ("table", "kvpress")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read every item once and answer it from the full cache and from every method at every budget. "
        "Leaves one table (parquet and CSV), predictions and a manifest. Whatever was finished is never "
        "measured again: run the same command to go on."
    )
    add = parser.add_argument
    add("--items", required=True, nargs="+", metavar="WHERE",
        help="one or several: a .jsonl file (context, input or question, answers), a folder (texts with "
        "questions.jsonl or questions.csv, or .jsonl files) or a generated task: "
        '"task:NAME", with options "task:NAME:tokens=4000"')  # fmt: skip
    add("--limit", type=int, default=None, metavar="N", help="only the first N items of each")
    add_study(parser)


def add_study(parser: argparse.ArgumentParser, methods: str = "snapkv,criticalkv") -> None:
    """What `sweep` and `niah` have in common: everything but the items."""
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="folder of the table; one that is there is gone on with")
    add("--methods", default=methods, metavar="LIST", help='as for compare, or "all" that need no calibrated '
        "file (default: %(default)s)")  # fmt: skip
    add("--budgets", default="0.5,0.2,0.1,0.05", metavar="LIST", help=BUDGETS_HELP)
    add("--model", "--models", dest="models", default="smollm2-135m", metavar="LIST",
        help="one or several, separated by commas (default: %(default)s)")  # fmt: skip
    add("--dtype", default="auto", choices=DTYPES)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N; several GPUs are shared out by auto")
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add("--max-new-tokens", type=int, default=Ask.max_new_tokens, metavar="N",
        help="longest answer, where an item does not say (default: %(default)s)")  # fmt: skip
    add("--measures", default="kl,output_error", help='"kl", "output_error", both, or "none"')
    add("--controlled", action="store_true", help="same window, pooling and group reduction for all methods")
    add("--seed", type=int, default=Ask.seed, help="of sampling, where --temperature is above 0")
    add("--temperature", type=float, default=Ask.temperature, help="0 is greedy (default)")
    add("--workers", type=int, default=1, metavar="N", help="processes with a model each (default: 1)")
    add("--threads", type=int, default=0, metavar="N", help="of each worker; 0: the cores shared out")
    add("--shard", default="1/1", metavar="K/N", help="only the K-th of N parts, for N jobs with one --out")
    add("--keep-runs", default="none", choices=("none", "failures", "all"),
        help="save comparisons as .zip for the page: all, or those in which a method lost a right "
        "answer")  # fmt: skip
    add("--retry", action="store_true", help="measure again what failed before")
    add("--layout", default=LAYOUTS[0], choices=LAYOUTS,
        help="kvpress: also its folders of predictions.csv, metrics.json and config.yaml")  # fmt: skip
    add("--plot", default="", metavar="LIST", help=f"draw what is there afterwards: {KINDS_HELP}")
    add("--quiet", action="store_true", help="no progress on standard error")


def run(args: argparse.Namespace) -> int:
    from kvviz.evaluate.items import TASK, checked, read_items

    most = None if args.limit is None else whole(args.limit, "The number of items", 1)

    def items(tokenizer=None) -> Sequence[Item]:
        found = [item for where in args.items for item in read_items(where, tokenizer)[:most]]
        return checked(found, " and ".join(args.items))

    return run_study(args, items, needs_tokenizer=any(where.startswith(TASK) for where in args.items))


def run_study(args: argparse.Namespace, items, needs_tokenizer: bool) -> int:
    """Measure `items(tokenizer)` as the arguments say, print what is there, return the exit code."""
    study, shard = _study(args), _shard(args.shard)
    check_kinds(args.plot)
    workers = whole(args.workers, "The number of workers", 1)
    threads = whole(args.threads, "The number of threads", 0)
    models = list(dict.fromkeys(filter(None, (name.strip() for name in args.models.split(",")))))
    if not models:
        raise InputError("Name at least one model.")
    found = None if needs_tokenizer else items()
    check_folder(args.out)
    out = Path(args.out)
    from kvviz.evaluate.sweep import run_sweep

    show = Progress(quiet=args.quiet)
    if found is None:
        found = _generated(out, args, items, models[0], show)
    _keep_items(out, found)

    def say(done: int, total: int, left: float | None) -> None:
        tail = "" if not left else f", about {_time(left)} left"
        show.message(f"{done:,} of {total:,} cells (item x model) done{tail}")

    with interruptible() as cancel:
        outcome = run_sweep(
            models, found, study, out, workers=workers, shard=shard, device=args.device,
            threads=threads, retry=args.retry, command=["kvviz", *sys.argv[1:]], say=say, cancel=cancel,
        )  # fmt: skip
    show.end()
    for model, reason in outcome.unloaded.items():
        note(f"{model} was left out: {reason}")
    for line in outcome.notes:
        note(line)
    if args.layout == "kvpress" and outcome.cells:
        from kvviz.evaluate.kvpress_layout import write_kvpress

        write_kvpress(out, found)
    failed = f"; {outcome.failed:,} of them failed, with the reason in the table" if outcome.failed else ""
    print(f"{outcome.cells:,} of {outcome.of:,} cells are in {out}{failed}")
    if args.plot and outcome.cells:
        draw(out, args.plot)
    if outcome.unloaded and len(outcome.unloaded) == len(models):
        return 2
    return 130 if cancel.is_set() else 0


def _study(args: argparse.Namespace):
    from kvviz.engine.plan import check_ask
    from kvviz.evaluate.cells import Study
    from kvviz.methods import list_methods

    methods = args.methods
    if methods.strip() == "all":
        methods = [m.id for m in list_methods() if m.artefact is None]
    ask = Ask(methods, args.budgets, args.max_new_tokens, args.measures, controlled=args.controlled,
              seed=args.seed, temperature=args.temperature)  # fmt: skip
    return Study(check_ask(ask), args.protocol, args.dtype, args.keep_runs)


def _shard(text: str) -> tuple[int, int]:
    from kvviz.evaluate.sweep import parse_shard

    return parse_shard(text)


def _generated(out: Path, args: argparse.Namespace, items, model: str, show: Progress) -> Sequence[Item]:
    """Items that are counted in tokens of the first model: the same texts for every model of the sweep."""
    from kvviz.models import load_model

    show.message("Generating the items")
    return items(load_model(model, dtype=args.dtype, device="cpu", progress=show.message).tokenizer)


def _keep_items(out: Path, items: Sequence[Item]) -> None:
    from kvviz.evaluate.items import lines_of
    from kvviz.evaluate.store import write_whole

    write_whole(out / "items.jsonl", lines_of(items).encode("utf-8", "surrogatepass"))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
