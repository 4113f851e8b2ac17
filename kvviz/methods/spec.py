"""What a method is: one frozen `Method` row around one pure function.

`score(layer, options) -> Scores` ranks the context entries of one layer; it never protects, counts or
picks anything. Budgets belong to `kvviz.engine.budgets`, picking to `kvviz.engine.selection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from kvviz.errors import InputError
from kvviz.methods.parts import GROUP_REDUCTIONS, POOL_KINDS

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Scores:
    """One layer's scores for the C context entries of each KV head; higher is kept.

    values  float32 [Hkv, C]: what decides.
    raw     float32 [Hkv, C]: the same before pooling, for the why card (None: no pooling happened).
    second  float32 [Hkv, C]: for two-stage methods, what decides after stage 1; `values` is then stage 1.
    first   bool [Hkv, C]: entries that go before all others whatever their score (DefensiveKV's stage 1).
    turn    int64 [Hkv, C]: the order among `first` entries, 0 = earliest, where a method caps how many go.
    weight  this layer's claim on the total budget, for allocators that share over layers (CAKE, LAVa).
    """

    values: torch.Tensor
    raw: torch.Tensor | None = None
    second: torch.Tensor | None = None
    first: torch.Tensor | None = None
    turn: torch.Tensor | None = None
    weight: float | None = None

    def goes_first(self, budget: int) -> torch.Tensor | None:
        """The `first` entries that may go first where a head keeps `budget` context entries on average."""
        if self.first is None or self.turn is None:
            return self.first
        return self.first & (self.turn < budget)


class Readout:
    """What a method adds to the attention output of its kept entries (IndexMem's memory).

    bytes  storage of its state; notes  sentences for a person.
    """

    bytes: int = 0
    notes: list[str]

    def read(self, index: int, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """float32 [Hq, T, d] to add for rotated queries [Hq, T, d] at true positions [T] of one layer."""
        raise NotImplementedError


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    needs       what the trace must carry beyond keys, values and window queries: "column_sums",
                "query_stats", "hidden", "repeat" (KVzip's extra pass).
    needs_by    the same for single options: {(option, value): needs}.
    allocation  the default allocator of `kvviz.engine.budgets.ALLOCATORS`.
    options     every option with its default. `window` (observation window W) and `sinks` also decide
                what is protected; a method without `window` protects nothing recent.
    presets     {name: options} of published settings that differ.
    """

    id: str
    label: str
    idea: str
    paper: str
    score: Callable[[LayerView, Options], Scores]
    needs: frozenset[str] = frozenset()
    needs_by: Mapping[tuple[str, Any], frozenset[str]] = field(default_factory=dict)
    allocation: str = "uniform"
    options: Options = field(default_factory=dict)
    presets: Mapping[str, Options] = field(default_factory=dict)
    reconstructed: str = ""  # what had to be reconstructed, "" when the definition was verified
    reads: str = ""  # what it looks at, for the table of methods
    cost: str = ""
    artefact: str | None = None  # name of the calibrated file it needs
    decodes: bool = False  # may evict while generating
    compare_with: str | None = None  # its attention-only base, for "share of heads improved"
    # Recent tokens protected, given b; or (recent tokens, sinks) where the sinks depend on b as well.
    protect: Callable[[int, Options], int | tuple[int, int]] | None = None
    # (model, options, b) -> entries per KV head that something else than entries takes from the budget
    charge: Callable[[Any, Options, int], int] | None = None
    # (trace, kept masks, b, options) -> what is added to the kept entries' attention output, or None
    readout: Callable[[Any, list[torch.Tensor], int, Options], Readout | None] | None = None

    def available(self, model) -> str:
        """Why this method cannot run on `model`: one sentence, "" where it can."""
        if self.artefact is None:
            return ""
        from kvviz.methods import artefacts

        return artefacts.missing(model, self.artefact, self.label)

    def needs_with(self, options: Options) -> frozenset[str]:
        """What the trace must carry for these options."""
        return self.needs | ({"column_sums"} if options.get("base") == "h2o" else frozenset())

    def resolve(self, given: Options | None = None) -> dict[str, Any]:
        """Defaults, then the preset, then the given options; unknown names are an error."""
        given = dict(given or {})
        preset = given.pop("preset", None)
        if preset is not None and preset not in self.presets:
            known = ", ".join(self.presets) or "none"
            raise InputError(f"{self.label} has no preset {preset!r}. Presets: {known}.")
        options = {**COMMON_OPTIONS, "allocation": self.allocation, **self.options}
        unknown = sorted(set(given) - set(options))
        if unknown:
            raise InputError(
                f"{self.label} has no option {unknown[0]!r}. Options: {', '.join(sorted(options))}."
            )
        options.update(self.presets.get(preset, {}) if preset else {})
        options.update(given)
        if "pool_kind" in given and given["pool_kind"] is None:  # "snapkv:pool_kind=none" reads as None
            options["pool_kind"] = "none"
        _check(self, options)
        return options


# Options every method takes: how many recent tokens are protected whatever the window (None: the rule of
# `selection.protected_counts`), and the allocators' own settings.
COMMON_OPTIONS: Options = MappingProxyType(
    {
        "protect": None,
        "safeguard": 0.2,
        "rule": "floor",
        "normalise": True,
        "beta": 20,
        "layer_weights": None,
    }
)


def _check(method: Method, options: dict[str, Any]) -> None:
    for name, default in {**COMMON_OPTIONS, **method.options}.items():
        if isinstance(default, bool) and not isinstance(options[name], bool):
            raise InputError(f"{method.label}: {name} is true or false, not {options[name]!r}.")
    for name in ("window", "sinks", "recent", "heads", "pool", "protect"):
        value = options.get(name)
        low = 0 if name in ("sinks", "protect") else 1
        if value is None and name == "protect":
            continue
        if name in options and (not isinstance(value, int) or isinstance(value, bool) or value < low):
            raise InputError(f"{method.label}: {name} is a whole number from {low} up, not {value!r}.")
    if options.get("pool_kind", "avg") not in POOL_KINDS:
        raise InputError(f"{method.label}: pool_kind is one of {', '.join(POOL_KINDS)}.")
    if options.get("group", "mean") not in GROUP_REDUCTIONS:
        raise InputError(f"{method.label}: group is one of {', '.join(GROUP_REDUCTIONS)}.")
    for name in ("safeguard", "stage1"):
        value = options.get(name, 0.5)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InputError(f"{method.label}: {name} lies between 0 and 1, not {value!r}.")


