"""`kvviz causes`: which of the lost entries mattered, found by putting them back and taking them out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvviz.cli.common import add_model, add_prompt, prepared
from kvviz.cli.files import write_out
from kvviz.cli.terminal import interruptible, printable
from kvviz.engine.ask import Ask
from kvviz.errors import InputError
from kvviz.identity import Budget, split_methods
from kvviz.results.causes import PUT_BACK, TAKEN_OUT, UNITS
from kvviz.results.passages import UNITS as PASSAGES
from kvviz.results.words import count

if TYPE_CHECKING:
    from kvviz.results.causes import Causes, Effect

SHOWN = 5  # strongest effects of each kind that are printed


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Put what a method lost back, unit by unit, and take the same units out of the whole cache: how much "
        "of the answer (in nats of its log-probability) comes back or is lost with each."
    )
    add_prompt(parser)
    add = parser.add_argument
    add("--method", default="snapkv", metavar="NAME", help='such as snapkv:window=16 (default: snapkv)')
    add("--budget", default="0.1", help="what is kept: 0.1, 10%% or 128 tokens per KV head (default: 0.1)")
    add("--by", default="head,passage", metavar="LIST", help=f"of {', '.join(UNITS)} (default: %(default)s)")
    add("--passage", default="sentence", choices=PASSAGES, help="what a passage is (default: %(default)s)")
    add("--rescue", action="store_true", help="also search the fewest entries that return the answer")
    add("--rescue-trials", type=int, metavar="N", help="trials that the search may take (default: 1000)")
    add("--would-do", action="store_true", help="also search the smallest cache that gives the answer")
    add("--would-do-trials", type=int, metavar="N", help="trials that the search may take (default: 3000)")
    add_model(parser)
    add("--json", default=None, metavar="OUT", help="write everything as JSON")


def run(args: argparse.Namespace) -> int:
    by = [kind.strip() for kind in args.by.split(",") if kind.strip()]
    if unknown := [kind for kind in by if kind not in UNITS]:
        raise InputError(f"Causes are found by {', '.join(UNITS)}, not by {unknown[0]!r}.")
    methods = split_methods(args.method)
    if len(methods) != 1:
        raise InputError("Give one method; run the command again for another.")
    named = {"rescue_trials": args.rescue_trials, "would_do_trials": args.would_do_trials}
    trials = {name: most for name, most in named.items() if most is not None}
    if trials and min(trials.values()) < 1:
        raise InputError("A search takes at least one trial.")
    budget = Budget.parse(args.budget).value
    ask = Ask(methods, [budget], args.max_new_tokens, expected=args.expected)
    model, prompt, show = prepared(args, ask, args.json)
    from kvviz.engine.causes import causes

    with interruptible() as cancel:
        found = causes(
            model, prompt, methods[0], budget, by=by, passage=args.passage,
            expected=args.expected, max_new_tokens=args.max_new_tokens, rescue=args.rescue,
            would_do=args.would_do, **trials, cancel=cancel, events=show.event,
        )  # fmt: skip
    show.end()
    if args.json:
        write_out(args.json, lambda path: _write(path, found))
    _print(found)
    return 130 if cancel.is_set() else 0


def _write(path: Path, found: Causes) -> None:
    path.write_text(json.dumps(found.to_dict(), allow_nan=False, ensure_ascii=False), encoding="utf-8")


def _print(found: Causes) -> None:
    say = lambda text: print(printable(text))  # noqa: E731
    say(f"Full cache: {' '.join(found.answer.split())}")
    say(f"{found.method} at {Budget.parse(found.budget)} kept: {' '.join(found.method_text.split())}")
    say(f"Gap: {found.gap:.2f} nats over the {len(found.tokens)} tokens of the full cache's answer")
    for direction, words in ((PUT_BACK, "put back, nats returned"), (TAKEN_OUT, "taken out, nats lost")):
        rows = getattr(found, direction)
        for kind in dict.fromkeys(e.unit for e in rows):
            say(f"\nBy {kind}, {words}")
            best = sorted((e for e in rows if e.unit == kind), key=lambda e: -e.effect)[:SHOWN]
            for e in best:
                say(f"  {e.effect:8.2f}  {_unit(found, e)}")
    if found.rescue is not None:
        r = found.rescue
        say(f"\nPutting {count(len(r.entries))} of {count(r.of)} entries back returns the answer: {r.text}")
        minimal = "none of them can be spared" if r.minimal else "the search ended before it was minimal"
        controls = r.controls
        beside = "random sets of that size were not tried" if r.stopped else (
            f"of {len(controls.added)} random sets of that size in the same heads "
            f"{sum(controls.added)} do, at the same size of the cache {sum(controls.same_size)}"
        )  # fmt: skip
        say(f"  {minimal}; {beside}")
        for layer, head, token in r.entries[:20]:
            say(f"  layer {layer}, KV head {head}, token {token}")
    if found.would_do is not None:
        w = found.would_do
        say(f"\nFound by search: {count(w.entries)} entries give the full cache's answer (from {w.start})")
    for sentence in found.notes:
        say(f"Note: {sentence}")


def _unit(found: Causes, e: Effect) -> str:
    parts = []
    if e.layer is not None:
        parts.append(f"layer {e.layer}")
    if e.head is not None:
        parts.append(f"KV head {e.head}")
    if e.token is not None:
        parts.append(f"token {e.token}")
    if e.passage is not None:
        text = " ".join(e.passage.text.split())
        text = text if len(text) <= 70 else text[:69] + "…"
        parts.append(text if e.passage.kind == "document" else f"[{e.passage.kind}] {text}")
    return ", ".join(parts)
