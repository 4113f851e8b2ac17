"""`kvviz calibrate`: make the file that a learned method needs for a model."""

from __future__ import annotations

import argparse

from kvviz.cli.files import check_folder
from kvviz.cli.terminal import Progress, interruptible, note
from kvviz.engine.ask import LAST_SEED, whole
from kvviz.errors import Cancelled
from kvviz.methods import artefact_specs
from kvviz.types import DTYPES


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make the calibrated file that a method needs for a model. Ctrl-C stops it; the same command goes on "
        "from where it was."
    )
    add = parser.add_argument
    add("method", choices=tuple(artefact_specs()))
    add("--model", default="smollm2-135m", help="as for compare (default: %(default)s)")
    add("--texts", default=None, metavar="DIR", help="a folder of .txt files instead of those that ship")
    add("--out", default=None, metavar="DIR", help="where the file goes (default: the user's cache folder)")
    usual = ", ".join(f"{name}: {spec.steps} {spec.step_word}" for name, spec in artefact_specs().items())
    add("--steps", type=int, default=None, metavar="N", help=f"how much to work through ({usual})")
    add("--seed", type=int, default=0)
    add("--dtype", default="float32", choices=DTYPES[1:])
    add("--device", default="auto", help="as for compare (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress on standard error")


def run(args: argparse.Namespace) -> int:
    whole(args.seed, "The seed", 0, LAST_SEED)
    if args.steps is not None:
        whole(args.steps, "The number of steps", 1)
    if args.out is not None:
        check_folder(args.out)
    from kvviz.calibrate import calibrate
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
            note(str(error))
            return 130
    show.end()
    print(path)
    return 0
