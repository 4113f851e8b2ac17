"""What a comparison is asked for: one value, checked as soon as it is made, kept with the result.

The form, the command line, the web endpoint, "decode more" and the exported Python lines are ways of
writing an `Ask`. No model is needed to make one; what depends on the model and the prompt is checked by
`kvviz.engine.plan.make_plan`, before anything is read.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kvviz.errors import InputError
from kvviz.identity import MethodRef, parse_budgets, shown, split_methods
from kvviz.settings import Settings

MEASURES = ("kl", "output_error")
LAST_SEED = 2**63 - 1  # of torch's generators


@dataclass(frozen=True)
class Ask:
    """Everything about a comparison but the model and the prompt. InputError where a part is unusable.

    methods         ids, or ids with options: "snapkv", "snapkv:window=16,allocation=global".
    budgets         what is kept: shares of n in (0, 1] or whole numbers (entries per KV head).
    max_new_tokens  longest answer.
    measures        of "kl" and "output_error"; () decodes only.
    options         {method as in `methods`: {option: value}}, for what a name cannot hold.
    controlled      every windowed method gets the same window, pooling and group reduction, but for
                    options that were given.
    expected        a text that a right answer contains.
    temperature     0 is greedy; `top_p` and `seed` count above 0.
    lenses          also store what the page's views need: kept sets and errors at the slider's stops,
                    scores, attention and single-token effects.
    evict_every     bring every cache back to its budget after this many new tokens (methods that can).
    """

    methods: Sequence[str] = ()  # tuples, once made
    budgets: Sequence[float | int] = ()
    max_new_tokens: int = 64
    measures: Sequence[str] = MEASURES
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    controlled: bool = False
    expected: str | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    lenses: bool = False
    evict_every: int | None = None

    def __post_init__(self):
        checked = {
            "methods": _methods(self.methods),
            "budgets": tuple(b.value for b in parse_budgets(self.budgets)),
            "max_new_tokens": whole(self.max_new_tokens, "The longest answer in new tokens", 1),
            "measures": _measures(self.measures),
            "options": _options(self.options),
            "controlled": bool(self.controlled),
            "expected": _expected(self.expected),
            "temperature": _number(self.temperature, "The temperature", "a number from 0 up", 0),
            "top_p": _number(self.top_p, "top_p", "above 0 and at most 1", 1e-12, 1),
            "seed": whole(self.seed, "The seed", 0, LAST_SEED),
            "lenses": bool(self.lenses),
        }
        if self.evict_every is not None:
            words = "The number of new tokens after which is evicted again"
            checked["evict_every"] = whole(self.evict_every, words, 1)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def answers(self) -> int:
        """Answers besides the full cache's."""
        return len(self.methods) * len(self.budgets)

    @property
    def decoding(self) -> str:
        """ "greedy", or "sampled at temperature 0.7 (top-p 0.9, seed 3)"."""
        if not self.temperature:
            return "greedy"
        return f"sampled at temperature {self.temperature:g} (top-p {self.top_p:g}, seed {self.seed})"

    def of(self, methods: Any = None, budgets: Any = None, **changes: Any) -> Self:
        """The same for other methods or budgets; options of methods that are left out go with them."""
        methods = self.methods if methods is None else _methods(methods)
        budgets = self.budgets if budgets is None else budgets
        options = {name: given for name, given in self.options.items() if name in methods}
        return dataclasses.replace(self, methods=methods, budgets=budgets, options=options, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are stored with a comparison."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(Ask)}
        plain["options"] = {name: dict(given) for name, given in self.options.items()}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Ask:
        """The other way round; what a newer version may have added is left out."""
        if not isinstance(plain, Mapping):
            raise InputError("What was asked for cannot be read from this file.")
        known = [f.name for f in dataclasses.fields(Ask)]
        return cls(**{name: plain[name] for name in known if name in plain})

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Ask:
        """What a stored comparison's settings say was asked; older files hold it in single keys."""
        if "ask" in settings:
            return cls.from_dict(settings["ask"])
        old = {k: v for k, v in settings.items() if v is not None and k not in ("methods", "options")}
        rows = settings.get("methods")
        rows = {m: row for m, row in rows.items() if isinstance(row, Mapping)} if rows else {}
        given = {} if old.get("controlled") else {m: row["own"] for m, row in rows.items() if "own" in row}
        return cls.from_dict({**old, "methods": list(rows), "options": given})


def check_limits(ask: Ask, limits: Settings) -> None:
    """InputError where a run is larger than `limits` allow."""
    if ask.answers > limits.max_variants:
        raise InputError(
            f"{_count(len(ask.methods), 'method')} at {_count(len(ask.budgets), 'budget')} are "
            f"{ask.answers:,} answers; at most {limits.max_variants:,} are decoded in one run here. "
            "Choose fewer methods or budgets."
        )
    if ask.max_new_tokens > limits.max_new_tokens:
        raise InputError(
            f"An answer may have up to {limits.max_new_tokens:,} new tokens here, "
            f"not {ask.max_new_tokens:,}."
        )


def whole(value: Any, what: str, low: int, high: int | None = None) -> int:
    """A whole number from `low` up, also one written as 8.0; InputError says what it must be."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    right = real and math.isfinite(value) and value == int(value) and low <= value
    if right and (high is None or value <= high):
        return int(value)
    upper = "up" if high is None else f"to {high:,}"
    raise InputError(f"{what} is a whole number from {low} {upper}, not {shown(value)}.")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + "s" * (number != 1)


def _number(value: Any, what: str, range_: str, low: float, high: float = math.inf) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= value <= high:
        raise InputError(f"{what} is {range_}, not {shown(value)}.")
    return float(value)


def _methods(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        given = split_methods(given)
    elif not isinstance(given, Iterable):
        given = [given]
    names, refs = [], []
    for item in given:
        ref, name = MethodRef.parse(item), str(item).strip()
        if ref.made:
            raise InputError(f"{name} was changed by hand; ask for {ref.base} instead.")
        if ref in refs:
            raise InputError(
                f"{name} is chosen twice. Choose each method once, or give them different options."
            )
        names.append(name)
        refs.append(ref)
    return tuple(names)


def _measures(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        given = [] if given.strip() == "none" else [m.strip() for m in given.split(",")]
    given = list(given) if isinstance(given, Iterable) else [given]
    unknown = [m for m in given if m not in MEASURES]
    if unknown:
        raise InputError(f"There is no measure {shown(unknown[0])}. Choose from: {', '.join(MEASURES)}.")
    return tuple(dict.fromkeys(given))


def _options(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping) or not all(isinstance(row, Mapping) for row in given.values()):
        raise InputError('Options are given by method: {"snapkv": {"window": 16}}.')
    return {str(name).strip(): dict(row) for name, row in given.items() if MethodRef.parse(name)}


def _expected(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise InputError(f"The expected answer is one text, not {shown(given)}.")
    return (given or "").strip() or None
