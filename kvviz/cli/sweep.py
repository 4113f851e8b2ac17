"""`kvviz sweep`: many items, models, methods and budgets into one folder with one table."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvviz.cli.common import BUDGETS_HELP, add_plugin
from kvviz.cli.files import check_folder
from kvviz.cli.plot import KINDS_HELP, check_kinds, draw
from kvviz.cli.terminal import Progress, interruptible, note
from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.types import DTYPES, PROTOCOLS

if TYPE_CHECKING:
    from kvviz.evaluate.cells import Study
    from kvviz.evaluate.items import Item
    from kvviz.evaluate.sweep import Outcome
    from kvviz.models import Model

LAYOUTS = ("table", "kvpress")
_EVERY = 10  # seconds between lines of progress that go to a file


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
    add("--out", required=True, metavar="DIR", help="folder of the table; one that is there is gone on with")
    add("--controlled", action="store_true", help="same window, pooling and group reduction for all methods")
    add("--layout", default=LAYOUTS[0], choices=LAYOUTS,
        help="kvpress: also its folders of predictions.csv, metrics.json and config.yaml")  # fmt: skip
    add_study(parser, methods="snapkv,criticalkv")


def add_study(parser: argparse.ArgumentParser, methods: str, dtype: str = "auto") -> None:
    """What `sweep` and `niah` have in common: everything but the items and where the table goes."""
    add = parser.add_argument
    add("--methods", default=methods, metavar="LIST", help='as for compare, or "all" that need no calibrated '
        "file (default: %(default)s)")  # fmt: skip
    add("--budgets", default="0.5,0.2,0.1,0.05", metavar="LIST", help=BUDGETS_HELP)
    add("--model", "--models", dest="models", default="smollm2-135m", metavar="LIST",
        help="one or several, separated by commas (default: %(default)s)")  # fmt: skip
    add("--dtype", default=dtype, choices=DTYPES)
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N; several GPUs are shared out by auto")
    add("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    add("--max-new-tokens", type=int, default=Ask.max_new_tokens, metavar="N",
        help="longest answer, where an item does not say (default: %(default)s)")  # fmt: skip
    add("--measures", default="kl,output_error", help='"kl", "output_error", both, or "none"')
    add("--seed", type=int, default=Ask.seed, help="of sampling, where --temperature is above 0")
    add("--temperature", type=float, default=Ask.temperature, help="0 is greedy (default)")
    add("--engine", default="local", choices=("local", "ray"), help="where workers are; ray: on the cluster "
        "that RAY_ADDRESS names, or on this machine")  # fmt: skip
    add("--workers", type=int, default=1, metavar="N", help="processes with a model each (default: 1)")
    add("--threads", type=int, default=0, metavar="N", help="of each worker; 0: the cores shared out")
    add("--shard", default="1/1", metavar="K/N", help="only the K-th of N parts, for N jobs with one --out")
    add("--keep-runs", default="none", choices=("none", "failures", "all"),
        help="save comparisons as .zip for the page: all, or those in which a method lost a right "
        "answer")  # fmt: skip
    add("--retry", action="store_true", help="measure again what failed before")
    add("--plot", default="", metavar="LIST", help=f"draw what is there afterwards: {KINDS_HELP}")
    add("--dry-run", action="store_true", help="only say how much there is to do; nothing is written")
    add("--quiet", action="store_true", help="no progress on standard error")
    add_plugin(parser)


def run(args: argparse.Namespace) -> int:
    from kvviz.evaluate.items import TASK, check_task, checked, read_items

    generated = [where for where in args.items if where.startswith(TASK)]
    for where in generated:
        check_task(where.removeprefix(TASK))
    most = None if args.limit is None else whole(args.limit, "The number of items", 1)

    def items(model: Model | None = None) -> Sequence[Item]:
        tokenizer = None if model is None else model.tokenizer
        found = [item for where in args.items for item in read_items(where, tokenizer)[:most]]
        return checked(found, " and ".join(args.items))

    out = Path(args.out)
    done = run_study(args, out, items, bool(generated))
    if args.dry_run:
        return done.code
    if args.layout == "kvpress" and done.outcome.cells:
        from kvviz.evaluate.kvpress_layout import write_kvpress

        write_kvpress(out, done.items, args.seed)
    done.say()
    if args.plot and done.outcome.cells:
        draw(out, args.plot)
    return done.code


@dataclass
class Done:
    """What a command has measured: the exit code says whether all of it."""

    outcome: Outcome
    items: Sequence[Item]
    code: int

    def say(self) -> None:
        o = self.outcome
        failed = f"; {o.failed:,} of them failed" if o.failed else ""
        print(f"{o.cells:,} of {o.of:,} cells are in {o.out}{failed}")
        if o.reasons:
            ((reason, _),) = o.reasons.most_common(1)
            print(f"{o.reasons.total():,} rows have a reason in place of an answer, most often: {reason}")


def run_study(
    args: argparse.Namespace, out: Path, items: Callable[..., Sequence[Item]], needs_model: bool
) -> Done:
    """Measure `items()`, or `items(the first model)` where they are counted in its tokens, into `out`."""
    study, shard = _study(args), _shard(args.shard)
    check_kinds(args.plot)
    workers = whole(args.workers, "The number of workers", 1)
    threads = whole(args.threads, "The number of threads", 0)
    models = list(dict.fromkeys(filter(None, (name.strip() for name in args.models.split(",")))))
    if not models:
        raise InputError("Name at least one model.")
    found = None if needs_model else items()
    if not args.dry_run:
        check_folder(out)
    from kvviz.evaluate.sweep import Outcome, run_sweep
    from kvviz.evaluate.workers import Bench

    show = Progress(quiet=args.quiet)
    here = workers == 1 and args.engine == "local"
    # The same texts for every model of the sweep; the one that counted them is at hand for the work.
    bench = Bench(study, args.device, threads)
    if found is None:
        found = items(bench.load(models[0], show.message))
    if args.dry_run:
        show.end()
        _say_ahead(models, found, study, out, shard, args.retry)
        return Done(Outcome(out), found, 0)
    _keep_items(out, found)

    said = -math.inf

    def say(done: int, total: int, left: float | None) -> None:
        nonlocal said
        if not show.live and 0 < done < total and time.monotonic() - said < _EVERY:
            return  # a log is not to be filled with thousands of cells
        said = time.monotonic()
        tail = "" if not left else f", about {_time(left)} left"
        show.message(f"{done:,} of {total:,} cells (item x model) done{tail}")

    with interruptible() as cancel:
        outcome = run_sweep(
            models, found, study, out, workers=workers, engine=args.engine, shard=shard, device=args.device,
            threads=threads, retry=args.retry, bench=bench if here else None,
            command=["kvviz", *sys.argv[1:]], say=say, cancel=cancel,
        )  # fmt: skip
    show.end()
    for model, reason in outcome.unloaded.items():
        note(f"{model} was left out: {reason}")
    for line in outcome.notes:
        note(line)
    return Done(outcome, found, 130 if cancel.is_set() else 2 if outcome.unloaded else 0)


def _say_ahead(
    models: Sequence[str], items: Sequence[Item], study: Study, out: Path, shard: tuple[int, int], retry: bool
) -> None:
    """What --dry-run prints."""
    from kvviz.evaluate.sweep import ahead

    a = ahead(models, items, study, out, shard, retry)
    answers = 1 + len(study.ask.methods) * len(study.ask.budgets)
    print(
        f"{len(items):,} items x {len(models):,} models; of {a.cells:,} cells {a.there:,} are in {out} and "
        f"{a.cells - a.there:,} are to do: {a.readings:,} texts to read ({a.characters:,} characters in all) "
        f"and {answers:,} answers to each question (full cache, methods x budgets)."
    )
    if a.cells == a.there:
        return
    if a.seconds is None:
        print("How long that takes is said once a cell of each model is there: run with --limit 1 first.")
    else:
        print(f"By the cells that are there: about {_time(a.seconds)} on one worker.")


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


def _keep_items(out: Path, items: Sequence[Item]) -> None:
    from kvviz.evaluate.items import lines_of
    from kvviz.evaluate.store import write_whole

    write_whole(out / "items.jsonl", lines_of(items).encode("utf-8", "surrogatepass"))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
