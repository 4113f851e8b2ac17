"""Formula or setting? Every method with every window and pooling, on one document, decoded together.

Two methods' own settings often differ in more than their formula: in how many queries they look at and in how
they smooth the scores. The grid holds one against the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvviz.engine.run import compare
from kvviz.engine.scoring import Scored
from kvviz.errors import InputError
from kvviz.identity import Budget, MethodRef
from kvviz.methods import get_method
from kvviz.models import Model
from kvviz.results.verdict import verdict
from kvviz.types import Event, Prompt

WINDOWS = (8, 32)
POOLS = (("avg", 7), ("max", 11), ("none", 1))


@dataclass(frozen=True)
class Setting:
    """One method with one window and pooling; `method` is the id, `name` what `compare` is given."""

    method: str
    window: int
    pool_kind: str
    pool: int

    @property
    def name(self) -> str:
        options = {"window": self.window, "pool": self.pool, "pool_kind": self.pool_kind}
        return str(MethodRef(self.method, tuple(sorted(options.items()))))


def settings_of(
    methods: Sequence[str], windows: Sequence[int] = WINDOWS, pools: Sequence[tuple[str, int]] = POOLS
) -> list[Setting]:
    """All settings of the methods. InputError where a method has no window or no pooling to change."""
    for name in methods:
        spec = get_method(name)
        if missing := [o for o in ("window", "pool", "pool_kind") if o not in spec.options]:
            raise InputError(f"{spec.label} has no option {missing[0]!r}, so there is nothing to compare.")
    ids = [get_method(name).id for name in methods]
    return [Setting(m, w, kind, size) for m in ids for w in windows for kind, size in pools]


def ablate(
    model: Model,
    prompt: Prompt,
    methods: Sequence[str],
    budgets: Sequence[float | int],
    windows: Sequence[int] = WINDOWS,
    pools: Sequence[tuple[str, int]] = POOLS,
    expected: str | None = None,
    max_new_tokens: int = 64,
    scored: Scored | None = None,
    events: Callable[[Event], None] | None = None,
    cancel: threading.Event | None = None,
) -> pd.DataFrame:
    """One row a (method, window, pooling, budget): verdict, mean KL in nats a step, the answer.

    pools  (kind, size): ("avg", 7), ("max", 11), ("none", 1). The whole cache's row comes first.
    """
    asked = settings_of(methods, windows, pools)
    result = compare(
        model, prompt, [s.name for s in asked], list(budgets), max_new_tokens, measures=("kl",),
        expected=expected, scored=scored, events=events, cancel=cancel,
    )  # fmt: skip
    table = result.to_frame().set_index(["method", "budget"])
    text = result.full.text
    rows: list[dict[str, Any]] = [
        {"method": "full", "budget": 1.0, "verdict": verdict(text, expected), "text": text}
    ]
    for setting in asked:
        for budget in budgets:
            v = result.variant(setting.name, budget)
            if v is not None:
                rows.append({
                    "method": setting.method, "window": setting.window, "pool_kind": setting.pool_kind,
                    "pool": setting.pool, "budget": Budget.parse(budget).value,
                    "verdict": verdict(v.text, expected),
                    "mean_kl": table.loc[(v.method, v.budget), "mean_kl"], "text": v.text,
                })  # fmt: skip
    return pd.DataFrame(rows)


def spread(table: pd.DataFrame) -> dict[str, float]:
    """How much mean KL moves when one thing alone changes: {"method", "window", "pooling"}: nats a step.

    The mean, over all combinations of the others, of the range between its values.
    """
    rows = table[table.method != "full"].assign(pooling=lambda t: t.pool_kind + t.pool.astype(str))
    axes = ["method", "window", "pooling"]
    out = {}
    for axis in axes:
        others = ["budget", *(a for a in axes if a != axis)]
        kl = rows.groupby(others)["mean_kl"]
        out[axis] = float((kl.max() - kl.min()).mean())
    return out
