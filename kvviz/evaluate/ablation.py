"""Formula or setting? Every method with every window and pooling, on one document, decoded together.

Two methods' own settings often differ in more than their formula: in how many queries they look at and in how
they smooth the scores. The grid holds one against the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvviz.engine.run import compare
from kvviz.engine.scoring import Scored
from kvviz.errors import InputError
from kvviz.identity import MethodRef
from kvviz.methods import get_method
from kvviz.models import Model
from kvviz.results.ablation import Ablation, AblationRow
from kvviz.results.measures import mean_kl
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
) -> Ablation:
    """One row a (method, window, pooling, budget): verdict, mean KL in nats a step, the answer.

    pools  (kind, size): ("avg", 7), ("max", 11), ("none", 1).
    """
    asked = settings_of(methods, windows, pools)
    result = compare(
        model, prompt, [s.name for s in asked], list(budgets), max_new_tokens, measures=("kl",),
        expected=expected, scored=scored, events=events, cancel=cancel,
    )  # fmt: skip
    rows = []
    for setting in asked:
        for budget in budgets:
            v = result.variant(setting.name, budget)
            if v is not None:
                rows.append(AblationRow(
                    setting.method, setting.window, setting.pool_kind, setting.pool, v.budget,
                    verdict(v.text, expected), mean_kl(v.kl, prompt.protocol), v.text,
                ))  # fmt: skip
    return Ablation(rows, result.full.text, verdict(result.full.text, expected))
