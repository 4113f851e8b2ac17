"""What the command line shows: progress on standard error, a table and the answers on standard output."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvviz.results.comparison import Comparison


class Progress:
    """One line on standard error, rewritten in a terminal, one line a stage elsewhere."""

    def __init__(self, quiet: bool):
        self.quiet, self.live, self.stage, self.shown = quiet, sys.stderr.isatty(), "", 0.0

    def message(self, text: str, fraction: float | None = None) -> None:
        self._show(text if fraction is None else f"{text} {fraction:.0%}", text)

    def event(self, event) -> None:
        left = event.seconds_left
        tail = f", about {left:.0f} s left" if left else ""
        self._show(event.message + tail, event.stage)

    def _show(self, text: str, stage: str) -> None:
        if self.quiet or (not self.live and stage == self.stage):
            return
        if self.live and stage == self.stage and time.monotonic() - self.shown < 0.1:
            return
        self.stage, self.shown = stage, time.monotonic()
        print(
            f"\r\x1b[K{text}" if self.live else text,
            end="" if self.live else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        if self.live and not self.quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class interruptible:
    """Within it, Ctrl-C asks the run to stop and hand over what is finished; a second one breaks off."""

    def __enter__(self) -> threading.Event:
        self.cancel = threading.Event()
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._stop)
        return self.cancel

    def _stop(self, *_) -> None:
        if self.cancel.is_set():
            raise KeyboardInterrupt
        self.cancel.set()

    def __exit__(self, *_) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)


def note(sentence: str) -> None:
    """One line about the work, on standard error."""
    print(f"kvviz: {printable(sentence)}", file=sys.stderr, flush=True)


def print_result(result: Comparison) -> None:
    """The table, the answers, and what there is to know about them."""
    from kvviz.results import words as text

    rows = []
    for v, row in zip([result.full, *result.variants], result.rows()):
        rows.append(
            {
                "method": v.label,
                "kept": text.share(row["share"]),
                "tokens/head": f"{v.tokens_kept:,.0f}",
                "MB": f"{v.bytes / 1e6:,.1f}",
                "KL": _number(row["mean_kl"], _zero if v is result.full else text.kl_number),
                "error": _number(row["median_output_error"], text.relative_error),
                "differs at": "same" if v.first_difference is None else str(v.first_difference),
                "": "cut off" if v.finished == "cancelled" else row["verdict"],
            }
        )
    m = result.model
    print(
        f"{m.id}, {m.dtype}, {result.n:,} tokens under compression, "
        f"{m.n_layers} layers x {m.n_kv_heads} KV heads, {result.prompt.protocol}"
    )
    print(_table(rows))
    print(
        f"\nMB: after reading; every further token adds {result.token_bytes / 1e3:,.1f} kB. "
        "KL: mean nats a token against the full cache. "
        "error: median over heads of the relative output change, in layers where something was evicted."
    )
    for v in [result.full, *result.variants]:
        budget = "" if v is result.full else f" {text.budget_name(v.budget)}"
        print(f"\n{v.label}{budget}: {printable(v.text) or '(stopped at once)'}")
    notes = [*result.notes, *(f"{v.label}: {n}" for v in result.variants for n in v.notes)]
    for line in dict.fromkeys(notes):
        print(f"\nNote: {printable(line)}", end="")
    print()


def print_turns(result: Comparison) -> None:
    """The table over the questions, and every answer to the further ones."""
    from kvviz.results import words as text
    from kvviz.results.turns import mean_kl, words
    from kvviz.results.verdict import judge

    if not result.turns:
        return
    rows = []
    for v in [result.full, *result.variants]:
        kept = "" if v is result.full else text.budget_name(v.budget)
        row = {"method": v.label, "kept": kept}
        for i, turn in enumerate(result.turns, 1):
            a = turn.answer(v.key)
            said = "-" if a is None else f"{judge(a, turn.expected)} {_number(mean_kl(a), text.kl_number)}"
            row[f"question {i}"] = said.strip()
        rows.append(row)
    print(f"\nFurther questions (verdict, KL)\n{_table(rows)}")
    for i, turn in enumerate(result.turns, 1):
        print(f"\n{i}. {printable(turn.question)}")
        for v in [turn.full, *turn.variants]:
            kept = "" if v is turn.full else f" {text.budget_name(v.budget)}"
            print(f"  {v.label}{kept}: {printable(v.text) or '(stopped at once)'}")
    if words(result):
        print(f"\nNote: {words(result)}")


def _zero(value: float) -> str:
    return "0"  # the full cache against itself


def _number(value, write: Callable[[float], str]) -> str:
    return "-" if value is None or value != value else write(value)


def printable(text: str) -> str:
    """Answers may hold anything: control characters must not reach the terminal."""
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "?" for c in text).strip()


def _table(rows: list[dict[str, str]]) -> str:
    heads = list(rows[0])
    width = {h: max(len(h), *(len(r[h]) for r in rows)) for h in heads}

    def line(cells: dict[str, str]) -> str:
        first, *rest = heads
        return "  ".join(
            [cells[first].ljust(width[first]), *(cells[h].rjust(width[h]) for h in rest)]
        ).rstrip()

    return "\n".join([line({h: h for h in heads}), *(line(r) for r in rows)])
