"""What a run will do, checked before anything is computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvviz.engine.budgets import ALLOCATORS, allocate
from kvviz.engine.decode import Sampling
from kvviz.engine.selection import label_of
from kvviz.errors import InputError
from kvviz.identity import Budget, MethodRef, parse_budgets
from kvviz.methods import Method, parse_method
from kvviz.settings import settings
from kvviz.types import Prompt, Selection

MEASURES = ("kl", "output_error")
# One setting for all windowed methods: most published differences hide in these three.
CONTROLLED = {"window": 32, "pool": 7, "pool_kind": "avg", "group": "mean"}


@dataclass(frozen=True)
class Planned:
    """A method of a run: `name` as it was asked for, its own options and the ones used."""

    name: str
    method: Method
    own: dict[str, Any]
    used: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Everything a run was asked for. `selections` are further kept sets to decode."""

    methods: tuple[Planned, ...]
    budgets: tuple[float | int, ...]
    max_new_tokens: int
    measures: tuple[str, ...]
    sampling: Sampling
    expected: str | None
    lenses: bool
    controlled: bool
    evict_every: int | None
    selections: tuple[Selection, ...]
    notes: tuple[str, ...]

    @property
    def answers(self) -> int:
        """Answers besides the full cache's."""
        return len(self.methods) * len(self.budgets) + len(self.selections)

    @property
    def needs(self) -> frozenset[str]:
        """What the trace must carry."""
        return frozenset(n for p in self.methods for n in p.method.needs_with(p.used))

    def settings(self) -> dict[str, Any]:
        """The plan as plain values, for the saved comparison."""
        return {
            "methods": {p.name: {"own": dict(p.own), "used": dict(p.used)} for p in self.methods},
            "budgets": list(self.budgets),
            "max_new_tokens": self.max_new_tokens,
            "measures": list(self.measures),
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "seed": self.sampling.seed,
            "controlled": self.controlled,
            "evict_every": self.evict_every,
        }


def labels(methods: Sequence[Planned]) -> dict[str, str]:
    """{name: label}; methods that would read alike show the options they were given by name."""
    plain = {p.name: label_of(p.method, p.used) for p in methods}
    alike = Counter(plain.values())
    found = {}
    for name, label in plain.items():
        given = MethodRef.parse(name).options_words
        found[name] = f"{label} ({given})" if given and alike[label] > 1 else label
    return found


def make_plan(
    prompt: Prompt,
    methods: Sequence[str],
    budgets: Sequence[float | int],
    max_new_tokens: int,
    measures: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    *,
    selections: tuple[Selection, ...] = (),
    evict_every: int | None = None,
    controlled: bool = False,
    **others: Any,
) -> Plan:
    """Check what was asked for; InputError with a sentence for a person."""
    methods = [methods] if isinstance(methods, str) else list(methods)
    if not methods and not selections:
        raise InputError("Choose at least one method.")
    budgets = parse_budgets(budgets)
    if methods and not budgets:
        raise InputError("Choose at least one budget.")
    for name in options:
        parse_method(name)  # options of a misspelt name would be ignored without a word
    notes = _check_budgets(budgets, prompt.n_compressible)
    planned = tuple(_planned(name, methods, options.get(name, {}), controlled, prompt) for name in methods)
    unknown = [m for m in measures if m not in MEASURES]
    if unknown:
        raise InputError(f"There is no measure {unknown[0]!r}. Choose from: {', '.join(MEASURES)}.")
    if evict_every is not None and (not isinstance(evict_every, int) or evict_every < 1):
        raise InputError(
            "Evicting while decoding happens every so many new tokens: a whole number from 1 up."
        )
    plan = Plan(
        methods=planned,
        budgets=tuple(b.value for b in budgets),
        max_new_tokens=max_new_tokens,
        measures=tuple(measures),
        controlled=controlled,
        evict_every=evict_every,
        selections=selections,
        notes=tuple(notes),
        **others,
    )
    _check_limits(plan)
    return plan


def _check_budgets(budgets: Sequence[Budget], n: int) -> list[str]:
    entries = [b.of(n) for b in budgets]
    return (
        ["Some budgets keep the same number of tokens of this prompt."]
        if len(set(entries)) < len(entries)
        else []
    )


def _planned(
    name: str, names: list[str], given: Mapping[str, Any], controlled: bool, prompt: Prompt
) -> Planned:
    ref = MethodRef.parse(name)
    if [MethodRef.parse(other) for other in names].count(ref) > 1:
        raise InputError(f"{name} is chosen twice. Choose each method once, or give them different options.")
    method, inline = parse_method(name)
    given = {**inline, **given}
    own = method.resolve(given)
    if own["allocation"] not in ALLOCATORS:
        allocate(own["allocation"], [], own)  # says which there are
    window = given.get("window")
    if isinstance(window, int) and window > prompt.n_compressible:
        raise InputError(
            f"The window ({window}) is longer than the prompt ({prompt.n_compressible}). "
            "Choose a smaller window."
        )
    shared = {k: v for k, v in CONTROLLED.items() if k in method.options} if controlled else {}
    return Planned(name, method, own, method.resolve({**given, **shared}))


def _check_limits(plan: Plan) -> None:
    limits = settings()
    if plan.answers > limits.max_variants:
        raise InputError(
            f"{plan.answers} answers (methods x budgets) are more than the {limits.max_variants} allowed "
            "in one run. Choose fewer methods or budgets."
        )
    if not 1 <= plan.max_new_tokens <= limits.max_new_tokens:
        raise InputError(f"New tokens lie between 1 and {limits.max_new_tokens}, not {plan.max_new_tokens}.")
    temperature, top_p = plan.sampling.temperature, plan.sampling.top_p
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"The temperature is a number from 0 up, not {temperature}.")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p lies above 0 and at most at 1, not {top_p}.")
