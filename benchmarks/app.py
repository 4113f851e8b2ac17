"""`python -m kvviz bench app`: how fast the page answers on 8,000 and 128,000 tokens, and how much it sends.

Every control asks one or several views for data. Here each view is asked as the page asks it, at several
budgets and tokens, and its time (computing and writing JSON) and size are taken. In front of it all: how long
a first visitor waits for the first map, and how the server answers while it computes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import busy, visit
from kvviz.figures import FIGURES
from kvviz.figures.evidence import EVIDENCE
from kvviz.results.passages import GRAINS
from kvviz.ui.export_views import Exports

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from many import BUDGETS, sweep_folder  # noqa: E402
from synthetic import synthetic_comparison, with_findings, with_turn  # noqa: E402

SIZES = {"8k": 8192, "128k": 131072}
ITEMS = 1000  # of the sweep that Evidence shows
LIMIT_S = {"8k": 0.5, "128k": 1.5, "evidence": 0.5}  # a control answers within
LIMIT_BYTES = 2_000_000


def _figures(tab: str, control: str, *args: str) -> tuple[str, ...]:
    """Figures of a tab that `control` makes stale, each side of them, as `_ask` reads them."""
    sides = [(row, side) for row in FIGURES for side in ("", "b")[: 1 + row.sides]]
    return tuple(
        f"{row.id}:{','.join(filter(None, (side, *args)))}"
        for row, side in sides
        if row.tab == tab and control in row.reads and not row.folded
    )


# What each control asks for: all views that it can make stale at once on one tab. A step of a story changes
# everything: "swap" has A and B change places from turn to turn.
_swapped = ("finding:swap", "cards:swap", "document:swap")
CONTROLS = {
    "slider or Play, Kept": ("finding", "cards", "document", *_figures("kept", "budget")),
    "zoom": _figures("kept", "range", "zoom"),
    "token, Why": ("why_card", *_figures("why", "tok")),
    "slider, Effect": ("finding", "cards", "document", *_figures("effect", "budget")),
    "measure, Sweep": ("sweep", "sweep:measure=mark_held", "sweep:measure=overlap"),
    "every method": ("all_methods",),
    "all answers": ("all_answers",),
    "answers to 3 more": ("turns",),
    "open a run": ("meta", "text", "finding", "cards"),
    **{f"text by {grain}": (f"document:grain={grain}", *_figures("kept", "grain", f"grain={grain}"))
       for grain in GRAINS},
    "only B holds": ("passages",),
    "story step, Kept": (*_swapped, *_figures("kept", "budget", "swap")),
    "story step, Why": (*_swapped, "why_card:swap", *_figures("why", "tok", "swap")),
    "two runs": ("beside:beside",),
    "two runs, by word": ("beside:beside,grain=word",),
}  # fmt: skip
# Of a run whose causes were searched; they are known at one budget.
CAUSES = {
    "open Cause": ("cause:at=0.1", "fork:at=0.1", "looked:at=0.1", *_figures("cause", "budget", "at=0.1")),
    "colour by effect": ("document:at=0.1,by=effect",),
    "Cause, taken out": _figures("cause", "direction", "at=0.1", "direction=taken_out"),
    "answer step": ("looked:at=0.1,step=3", "fork:at=0.1"),
}


def main(out: str | None = None, repeats: int = 5) -> dict[str, Any]:
    """Measure every control at both lengths, print the table, write it to `out` as JSON."""
    first = visit.visits(repeats)
    print(visit.shown(first))
    tabs = visit.cause_tabs(repeats)
    print(visit.tabs_shown(tabs))
    beside, stop = busy.beside_a_run(), busy.stops(repeats)
    print(busy.shown(beside, stop))
    report = {name: _at(n, repeats) for name, n in SIZES.items()}
    report["evidence"] = _evidence(repeats)
    for name, rows in report.items():
        of = f"a sweep of {ITEMS:,} items" if name == "evidence" else f"{name} tokens"
        print(f"\n{of} (limit {LIMIT_S[name]} s a control, {LIMIT_BYTES / 1e6:.0f} MB a reply)")
        print(f"{'control':22} {'median s':>9} {'worst s':>9} {'largest reply MB':>17}  slowest view")
        for row in rows:
            print(f"{row['control']:22} {row['median_s']:9.3f} {row['worst_s']:9.3f} "
                  f"{row['largest_bytes'] / 1e6:17.3f}  {row['slowest']}")  # fmt: skip
    if out:
        told = {"first_visit": first, "cause_tab": tabs, "beside_a_run": beside, "stop": stop}
        Path(out).write_text(json.dumps({**report, **told}, indent=2))
    return report


def _at(n: int, repeats: int) -> list[dict[str, Any]]:
    from kvviz.ui.runs import RunStore

    store = RunStore(max_bytes=1 << 40)
    c = _made_up(n)
    for question in ("Who?", "Where?", "Since when?"):
        c = with_turn(c, question)
    run = store.add(with_findings(c) if n == SIZES["8k"] else c, "own", f"{n} tokens")
    other = store.add(_made_up(n + 100), "own", "another")
    return _timed(
        {**CONTROLS, **(CAUSES if n == SIZES["8k"] else {})},
        lambda name, turn: _ask(store, run, other, name, turn, n), repeats,
    )  # fmt: skip


def _evidence(repeats: int) -> list[dict[str, Any]]:
    """The page Evidence on a large sweep: each control redraws all of it."""
    from kvviz.results.sweeps import open_sweep
    from kvviz.ui.evidence import Evidence
    from kvviz.ui.runs import RunStore

    with tempfile.TemporaryDirectory() as folder:
        sweep = open_sweep(sweep_folder(Path(folder) / "made-up", n=ITEMS))
    page = Evidence(RunStore())
    key = page.sweeps.add(sweep)
    figures = tuple(row.id for row in EVIDENCE)
    controls = {
        "open a sweep": ("evidence", "evidence_choose", "evidence_claims", "evidence_apart", *figures),
        "measure, A, B, budget": ("evidence_choose", *figures),
        "an item": ("evidence_item",),
    }

    def ask(name: str, turn: int) -> tuple[float, int]:
        a, b = (("snapkv", "criticalkv"), ("keydiff", "snapkv"), ("criticalkv", "keydiff"))[turn % 3]
        sel = {"a": a, "b": b, "budget": BUDGETS[turn % len(BUDGETS)]}
        body = {"view": name, "run": key, "sel": sel, "args": {"item": f"item-{turn}"}}
        return _replied(name, lambda: page.answer(body))

    return _timed(controls, ask, repeats)


def _timed(controls: Any, ask: Any, repeats: int) -> list[dict[str, Any]]:
    """A row a control; ask(view, turn) gives (seconds, bytes)."""
    rows = []
    for control, views in controls.items():
        times, views_s, largest = [], dict.fromkeys(views, 0.0), 0
        for turn in range(repeats):
            total = 0.0
            for name in views:
                seconds, size = ask(name, turn)
                views_s[name] = max(views_s[name], seconds)
                largest = max(largest, size)
                total += seconds
            times.append(total)
        rows.append({"control": control, "median_s": statistics.median(times), "worst_s": max(times),
                     "largest_bytes": largest, "slowest": max(views_s, key=views_s.get),
                     "views": views_s})  # fmt: skip
    return rows


def _made_up(n: int):
    """A comparison of two methods on a text of n tokens, in the shapes of a 30-layer model."""
    return synthetic_comparison(n, 30, 9, 3, ("snapkv", "dropkv"), (0.2, 0.1), d=64)


def _ask(store, run, other, name: str, turn: int, n: int) -> tuple[float, int]:
    """(seconds, bytes) of one view's reply; each turn has another budget and token: nothing is remembered."""
    from kvviz.ui.views import answer

    view, _, rest = name.partition(":")
    token = n // 3 + 7 * turn
    sel = {"a": "snapkv", "b": "dropkv", "budget": (0.1, 0.15, 0.05, 0.3, 0.02)[turn % 5],
           "tok": [token, token + 1]}  # fmt: skip
    args: dict[str, Any] = {"columns": 1500}
    for part in filter(None, rest.split(",")):
        if part == "zoom":
            args |= {"x0": n // 4 + 100 * turn, "x1": n // 2 + 100 * turn}
        elif part == "b":
            args["side"] = "b"
        elif part == "swap":
            sel["a"], sel["b"] = (sel["a"], sel["b"]) if turn % 2 else (sel["b"], sel["a"])
        elif part == "beside":
            args |= {"beside": other.id, "sel": sel}
        else:
            key, _, value = part.partition("=")
            (sel if key == "grain" else args)[key] = value
            sel["budget"] = float(args.pop("at", sel["budget"]))
    body = {"view": view, "run": run.id, "sel": sel, "args": args}
    return _replied(name, lambda: answer(store, Exports(), body))


def _replied(name: str, ask: Any) -> tuple[float, int]:
    """(seconds, bytes) of a reply; one that is an error is no measurement."""
    started = time.perf_counter()
    reply = ask()
    size = len(json.dumps(reply))
    seconds = time.perf_counter() - started
    if "error" in reply:
        raise RuntimeError(f"{name}: {reply['error']}")
    return seconds, size
