"""`python -m kvviz bench app`: how fast the page answers on 8,000 and 128,000 tokens, and how much it sends.

Every control asks one or several views for data. Here each view is asked as the page asks it, at several
budgets and tokens, and its time (computing and writing JSON) and size are taken.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kvviz.figures import FIGURES
from kvviz.ui.export_views import Exports

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from synthetic import synthetic_comparison  # noqa: E402

SIZES = {"8k": 8192, "128k": 131072}
LIMIT_S = {"8k": 0.5, "128k": 1.5}  # a control answers within
LIMIT_BYTES = 2_000_000



def _figures(tab: str, control: str, *args: str) -> tuple[str, ...]:
    """Figures of a tab that `control` makes stale, each side of them, as `_ask` reads them."""
    sides = [(row, side) for row in FIGURES for side in ("", "b")[: 1 + row.sides]]
    return tuple(
        f"{row.id}:{','.join(filter(None, (side, *args)))}"
        for row, side in sides
        if row.tab == tab and control in row.reads and not row.folded
    )


# What each control asks for: all views that it can make stale at once on one tab.
CONTROLS = {
    "slider, Kept": ("finding", "cards", "document", *_figures("kept", "budget")),
    "zoom": _figures("kept", "range", "zoom"),
    "token, Why": ("why_card", *_figures("why", "tok")),
    "slider, Effect": ("finding", "cards", "document", *_figures("effect", "budget")),
    "measure, Sweep": ("sweep", "sweep:measure=mark_held", "sweep:measure=overlap"),
    "every method": ("all_methods",),
    "open a run": ("meta", "text", "finding", "cards"),
}  # fmt: skip


def main(out: str | None = None, repeats: int = 5) -> dict[str, Any]:
    """Measure every control at both lengths, print the table, write it to `out` as JSON."""
    report = {name: _at(n, repeats) for name, n in SIZES.items()}
    for name, rows in report.items():
        print(f"\n{name} tokens (limit {LIMIT_S[name]} s a control, {LIMIT_BYTES / 1e6:.0f} MB a reply)")
        print(f"{'control':18} {'median s':>9} {'worst s':>9} {'largest reply MB':>17}  slowest view")
        for row in rows:
            print(f"{row['control']:18} {row['median_s']:9.3f} {row['worst_s']:9.3f} "
                  f"{row['largest_bytes'] / 1e6:17.3f}  {row['slowest']}")  # fmt: skip
    if out:
        Path(out).write_text(json.dumps(report, indent=2))
    return report


def _at(n: int, repeats: int) -> list[dict[str, Any]]:
    from kvviz.ui.runs import RunStore

    store = RunStore(max_bytes=1 << 40)
    run = store.add(_made_up(n), "own", f"{n} tokens")
    rows = []
    for control, views in CONTROLS.items():
        times, views_s, largest = [], dict.fromkeys(views, 0.0), 0
        for turn in range(repeats):
            total = 0.0
            for name in views:
                seconds, size = _ask(store, run, name, turn, n)
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


def _ask(store, run, name: str, turn: int, n: int) -> tuple[float, int]:
    """(seconds, bytes) of one view's reply; each turn has another budget and token: nothing is remembered."""
    from kvviz.ui.views import answer

    view, _, rest = name.partition(":")
    args: dict[str, Any] = {"columns": 1500}
    for part in filter(None, rest.split(",")):
        if part == "zoom":
            args |= {"x0": n // 4 + 100 * turn, "x1": n // 2 + 100 * turn}
        elif part == "b":
            args["side"] = "b"
        else:
            key, _, value = part.partition("=")
            args[key] = value
    token = n // 3 + 7 * turn
    budget = (0.1, 0.15, 0.05, 0.3, 0.02)[turn % 5]
    sel = {"a": "snapkv", "b": "dropkv", "budget": budget, "tok": [token, token + 1]}
    started = time.perf_counter()
    reply = answer(store, Exports(), {"view": view, "run": run.id, "sel": sel, "args": args})
    size = len(json.dumps(reply))
    seconds = time.perf_counter() - started
    if "error" in reply:
        raise RuntimeError(f"{name}: {reply['error']}")
    return seconds, size
