"""What a run will do: an `Ask` checked against methods, model and prompt before anything is read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from kvviz import memory
from kvviz.engine.ask import Ask, check_limits
from kvviz.engine.decode import Sampling
from kvviz.engine.observers import OBSERVERS
from kvviz.engine.rolling import check_rolling
from kvviz.engine.selection import Selection, label_of
from kvviz.engine.trace import Trace
from kvviz.errors import InputError, NeedError
from kvviz.identity import Budget, MethodRef, option_text
from kvviz.methods import Method, get_method
from kvviz.methods.own import sources
from kvviz.models import Model
from kvviz.options import known
from kvviz.settings import Settings
from kvviz.types import Prompt

# One setting for all windowed methods: most published differences hide in these four.
CONTROLLED = {"window": 32, "pool": 7, "pool_kind": "avg", "group": "mean"}


@dataclass(frozen=True)
class Planned:
    """A method of a run: its name, the options it was given, its own ones with these, and the ones used."""

    name: str
    method: Method
    given: dict[str, Any]
    own: dict[str, Any]
    used: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A checked `Ask`. `selections` are further kept sets to decode."""

    ask: Ask
    methods: tuple[Planned, ...]
    selections: tuple[Selection, ...]
    notes: tuple[str, ...]

    @property
    def answers(self) -> int:
        """Answers besides the full cache's."""
        return self.ask.answers + len(self.selections)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.ask.temperature, self.ask.top_p, self.ask.seed)

    @property
    def needs(self) -> frozenset[str]:
        """What the trace must carry."""
        return frozenset(n for p in self.methods for n in p.method.needs_with(p.used))

    def settings(self) -> dict[str, Any]:
        """The plan as plain values, for the saved comparison."""
        own = sources(p.method.id for p in self.methods)
        return {
            "ask": self.ask.to_dict(),
            **({"own": {id: source.told() for id, source in own.items()}} if own else {}),
            "methods": {
                p.name: {"label": p.method.label, "own": dict(p.own), "used": dict(p.used),
                         "compare_with": p.method.compare_with}
                for p in self.methods
            },
        }  # fmt: skip


AnAsk = TypeVar("AnAsk", bound=Ask)


def named(ask: AnAsk) -> AnAsk:
    """The same with every method's id as it is registered: "SnapKV:window=16" is "snapkv:window=16"."""
    options = {_name(name): given for name, given in ask.options.items()}
    return dataclasses.replace(ask, methods=tuple(map(_name, ask.methods)), options=options)


def plan_methods(ask: Ask) -> tuple[Planned, ...]:
    """The methods of a `named` ask with every option; needs no model. InputError where one is unusable."""
    for name in ask.options:
        if name not in ask.methods:
            raise InputError(f"There are options for {name}, which is not among the methods.")
    return tuple(_planned(name, ask.options.get(name, {}), ask.controlled) for name in ask.methods)


def check_ask(ask: AnAsk, limits: Settings | None = None) -> AnAsk:
    """The ask with its methods `named`, where all is well that can be known without a model."""
    if not ask.methods:
        raise InputError("Choose at least one method.")
    if not ask.budgets:
        raise InputError("Choose at least one budget.")
    if limits is not None:
        check_limits(ask, limits)
    ask = named(ask)
    plan_methods(ask)
    return ask


def _name(name: str) -> str:
    given = MethodRef.parse(name).id
    return name.replace(given, get_method(given).id, 1)


def _planned(name: str, options: Mapping[str, Any], controlled: bool) -> Planned:
    ref = MethodRef.parse(name)
    method = get_method(ref.id)
    given = known(method.rows, {**ref.given, **options})  # as options are called now
    own = method.resolve(given)
    shared = {}
    if controlled:  # what was given by name stays
        preset = method.presets.get(str(given.get("preset")), {})
        shared = {k: v for k, v in CONTROLLED.items() if k in method.options and k not in {**preset, **given}}
    return Planned(name, method, given, own, method.resolve({**given, **shared}))


def labels(methods: Sequence[Planned]) -> dict[str, str]:
    """{name: label}: "SnapKV", "SnapKV with global", "SnapKV (window=16)" with what it was given."""
    found = {}
    for p in methods:
        label = label_of(p.method, p.used)
        default = {**p.method.resolve(), "allocation": p.given.get("allocation")}  # the label has it already
        options = {k: v for k, v in p.given.items() if k not in default or v != default[k]}
        words = ", ".join(f"{k}={option_text(v)}" for k, v in sorted(options.items()))
        found[p.name] = f"{label} ({words})" if words else label
    alike = Counter(found.values())
    for p in methods:
        written = MethodRef.parse(p.name).options_words
        if alike[found[p.name]] > 1 and written:
            found[p.name] = f"{found[p.name]} ({written})"
    return found


def make_plan(
    model: Model,
    prompt: Prompt,
    ask: Ask,
    *,
    selections: Sequence[Selection] = (),
    trace: Trace | None = None,
    limits: Settings | None = None,
) -> Plan:
    """Check everything that can be known before the document is read; InputError or NeedError with a
    sentence for a person.

    limits  of a server; None: as large as the model allows.
    """
    if ask.methods or not selections:
        ask = check_ask(ask, limits)
    methods = plan_methods(ask)
    for p in methods:
        window = p.given.get("window")
        if isinstance(window, int) and window > prompt.n_compressible:
            raise InputError(
                f"The window ({window}) is longer than the prompt ({prompt.n_compressible}). "
                "Choose a smaller window."
            )
        if reason := p.method.available(model, p.used):
            raise NeedError(reason)
    if ask.evict_every is not None:
        check_rolling(model, [p.name for p in methods], [p.used for p in methods])
    _check_room(model, prompt, ask.max_new_tokens)
    plan = Plan(ask, methods, tuple(selections), tuple(_notes(ask, methods, prompt.n_compressible)))
    if trace is not None:
        _check_trace(trace, model, prompt, plan)
    else:
        _check_memory(model, prompt, plan)
    return plan


def _notes(ask: Ask, methods: Sequence[Planned], n: int) -> list[str]:
    notes = []
    if len({Budget.parse(b).of(n) for b in ask.budgets}) < len(ask.budgets):
        notes.append("Some budgets keep the same number of tokens of this prompt.")
    shown = labels(methods)
    for index, p in enumerate(methods):
        for other in methods[:index]:
            if (p.method, p.used) == (other.method, other.used):
                both = f"{shown[other.name]} and {shown[p.name]}"
                notes.append(f"{both} are one method with the same settings.")
    return notes


def _check_room(model: Model, prompt: Prompt, new: int) -> None:
    tokens, most = len(prompt.input_ids), model.info.max_tokens
    if tokens + new > most:
        raise InputError(
            f"The prompt has {tokens:,} tokens and {new:,} new ones may follow; {model.id} reads {most:,} "
            "tokens. Ask for fewer new tokens or shorten the document."
        )


_KEPT_BY_ROW = {"column_sums": 1, "repeat": 2}  # float32 numbers a query head and token that a need keeps


def _check_memory(model: Model, prompt: Prompt, plan: Plan) -> None:
    """InputError where the whole cache, with what the methods need beside it, does not fit what is free."""
    free = memory.free_for(model.device)
    rows = model.n_layers * prompt.n_compressible
    needed = rows * 2 * model.n_kv_heads * model.head_dim * model.dtype.itemsize
    needed += rows * 4 * model.n_query_heads * sum(_KEPT_BY_ROW.get(need, 0) for need in plan.needs)
    if free is not None and needed > free:
        raise InputError(
            f"This text takes {needed / 1e9:,.1f} GB of memory once {model.id} has read it, and "
            f"{max(0, free) / 1e9:,.1f} GB are free. Shorten it, or choose a smaller model."
        )


def _check_trace(trace: Trace, model: Model, prompt: Prompt, plan: Plan) -> None:
    if trace.model.hf is not model.hf:
        raise InputError("This trace was made with another model. Prefill again with this one.")
    before, now = trace.prompt.input_ids[: trace.n], prompt.input_ids[: prompt.n_compressible]
    if not torch.equal(torch.as_tensor(before).cpu(), torch.as_tensor(now).cpu()):
        raise InputError("This trace was made from other tokens. Prefill again for this prompt.")
    missing = sorted(plan.needs - trace.needs)
    if missing:
        raise NeedError(
            f"This trace was made without {OBSERVERS[missing[0]].what}. Prefill again for these methods."
        )
