"""What a method is: one frozen `Method` row around one pure function.

`score(layer, options) -> Scores` ranks the context entries of one layer; it never protects, counts or
picks anything. Budgets belong to `kvviz.engine.budgets`, picking to `kvviz.engine.selection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvviz.engine.budgets import ALLOCATORS, Allocator
from kvviz.errors import InputError
from kvviz.options import CHOICE, NUMBER, SWITCH, WHOLE, Option, known

if TYPE_CHECKING:
    import torch

    from kvviz.methods.layer import LayerView, Rows
    from kvviz.models import Model

Options = Mapping[str, Any]

# Options that every method takes besides its own and its allocation's.
ALLOCATION = Option(
    "allocation",
    "uniform",
    CHOICE,
    "How the budget is shared among layers and heads.",
    choices=tuple(ALLOCATORS),
    scoring=False,
)
PROTECT = Option(
    "protect",
    None,
    WHOLE,
    "Recent tokens kept by rule; none: the window, at most half of the budget.",
    0,
    1_000_000,
    optional=True,
    scoring=False,
)
_SHARED = {row.name: row for a in ALLOCATORS.values() for row in a.rows}  # options that allocations read


@dataclass(frozen=True)
class Scores:
    """One layer's scores for the C context entries of each KV head; higher is kept.

    values  float32 [Hkv, C]: what decides.
    raw     float32 [Hkv, C]: the same before pooling, for the why card (None: no pooling happened).
    second  float32 [Hkv, C]: for two-stage methods, what decides after stage 1; `values` is then stage 1.
    first   bool [Hkv, C]: entries that go before all others whatever their score (DefensiveKV's stage 1).
    lifted  `first` entries count as their layer's best where layers compete, instead of before all others.
    turn    int64 [Hkv, C]: the order among `first` entries, 0 = earliest, where a method caps how many go.
    weight  this layer's claim on the total budget, for allocators that share over layers (CAKE, LAVa).
    """

    values: torch.Tensor
    raw: torch.Tensor | None = None
    second: torch.Tensor | None = None
    first: torch.Tensor | None = None
    turn: torch.Tensor | None = None
    weight: float | None = None
    lifted: bool = False

    def goes_first(self, budget: int) -> torch.Tensor | None:
        """The `first` entries that may go first where a head keeps `budget` context entries on average."""
        if self.first is None or self.turn is None:
            return self.first
        return self.first & (self.turn < budget)


class Readout:
    """What a method adds to the attention output of its kept entries (IndexMem's memory).

    bytes  storage of its state; notes  sentences for a person.
    """

    notes: list[str]

    @property
    def bytes(self) -> int:
        return 0

    def read(self, index: int, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """float32 [Hq, T, d] to add for rotated queries [Hq, T, d] at true positions [T] of one layer."""
        raise NotImplementedError


@dataclass(frozen=True)
class ArtefactSpec:
    """The calibrated file that a method needs.

    shapes     (model info) -> {tensor: shape}.
    steps      how many steps its calibration takes by default, and `step_word` what one is.
    """

    name: str
    shapes: Callable[[Any], dict[str, tuple[int, ...]]]
    steps: int
    step_word: str


# What methods look at, from least to most; the form and tables list them in this order.
GROUPS = ("position", "keys", "attention", "attention and values", "learned", "controls")
# What a trace can carry beyond keys, values and window queries (`Method.needs`).
NEEDS = ("column_sums", "query_stats", "hidden", "repeat")


@dataclass(frozen=True)
class Method:
    """One row of the registry.

    rows        its own options (`Option`). `window` (observation window W) and `sinks` also decide what
                is protected; a method without `window` protects nothing recent. A row called like an
                allocation's changes only that default.
    options     {name: default} of `rows`; a method outside this package may give these instead of rows.
    needs       what the trace must carry beyond keys, values and window queries: "column_sums",
                "query_stats", "hidden", "repeat" (KVzip's extra pass).
    needs_by    the same for single options: {(option, value): needs}.
    allocation  the default allocator of `kvviz.engine.budgets.ALLOCATORS`.
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
    rows: tuple[Option, ...] = ()
    options: Options = field(default_factory=dict)
    presets: Mapping[str, Options] = field(default_factory=dict)
    reconstructed: str = ""  # what had to be reconstructed, "" when the definition was verified
    differs: str = ""  # where it knowingly differs from the public code, "" where it does not
    reads: str = ""  # what it looks at, for the table of methods
    group: str = ""  # the same in one of `GROUPS`
    cost: str = ""  # multiplications a layer, in the letters of the README
    artefact: ArtefactSpec | None = None
    claims: bool = False  # its scores state what each layer claims of the total (`Scores.weight`)
    gates: bool = False  # its scores are one number a head
    decodes: bool = False  # may evict while generating
    compare_with: str | None = None  # its attention-only base, for "share of heads improved"
    # Why a combination of options makes no sense, "" where it does.
    conflict: Callable[[Options], str] = lambda options: ""
    # Why these options do not fit a model, "" where they do.
    fits: Callable[[Model, Options], str] = lambda model, options: ""
    # (rows, b, options) -> recent tokens protected, or (recent tokens, sinks) where the sinks vary as well.
    protect: Callable[[Rows, int, Options], int | tuple[int, int]] | None = None
    # (rows, b, options) -> what a person should know of this prompt and budget, "" where there is nothing.
    caution: Callable[[Rows, int, Options], str] = lambda rows, b, options: ""
    # (model, options, b) -> entries per KV head that something else than entries takes from the budget
    charge: Callable[[Any, Options, int], int] | None = None
    # (trace, kept masks, b, options) -> what is added to the kept entries' attention output, or None
    readout: Callable[[Any, list[torch.Tensor], int, Options], Readout | None] | None = None

    def __post_init__(self):
        rows = self.rows or tuple(_row_of(name, default) for name, default in self.options.items())
        object.__setattr__(self, "rows", rows)
        options = MappingProxyType({row.name: row.default for row in rows})
        object.__setattr__(self, "options", options)

    # -- what it can do -------------------------------------------------------------------------------

    def available(self, model: Model, options: Options | None = None) -> str:
        """Why it cannot run on `model` (with these resolved options): a sentence, "" where it can."""
        if self.artefact is not None:
            from kvviz.methods import artefacts

            if reason := artefacts.missing(model, self.artefact.name, self.label):
                return reason
        options = self.resolve() if options is None else options
        allocator = ALLOCATORS[options["allocation"]]
        reason = allocator.requires(self, options, model.n_layers)
        return self._cannot(allocator, reason) if reason else self.fits(model, options)

    def allocators(self) -> list[Allocator]:
        """The allocations that can serve this method without further options."""
        return [a for a in ALLOCATORS.values() if not a.requires(self, _defaults(a.rows), None)]

    def needs_with(self, options: Options) -> frozenset[str]:
        """What the trace must carry for these options."""
        further = (needs for (name, value), needs in self.needs_by.items() if options.get(name) == value)
        return self.needs.union(*further)

    def scoring_options(self, options: Options) -> tuple[tuple[str, Any], ...]:
        """The resolved options that decide its scores, by name; all others only share out or select."""
        read = sorted(row.name for row in self.rows if row.scoring and row.name not in _SHARED)
        return tuple((name, options[name]) for name in read)

    # -- options --------------------------------------------------------------------------------------

    def all_rows(self) -> dict[str, Option]:
        """{name: row} of every option it takes under some allocation."""
        own = (*_SHARED.values(), ALLOCATION.having(self.allocation), PROTECT, *self.rows)
        return {row.name: row for row in own}

    def resolve(self, given: Options | None = None) -> dict[str, Any]:
        """Defaults, then the preset, then the given options, all checked: InputError with one sentence.

        Holds the method's own options, `allocation`, `protect` and what the allocation reads.
        """
        rows = self.all_rows()
        given = known(self.rows, given or {})
        preset = given.pop("preset", None)
        if preset is not None and (not isinstance(preset, str) or preset not in self.presets):
            names = ", ".join(self.presets) or "none"
            raise InputError(f"{self.label} has no preset {preset!r}. Presets: {names}.")
        if unknown := sorted(set(given) - set(rows)):
            raise InputError(
                f"{self.label} has no option {unknown[0]!r}. Options: {', '.join(sorted(rows))}."
            )
        changed = {**(self.presets[preset] if preset else {}), **given}
        checked = {name: rows[name].check(value, self.label) for name, value in changed.items()}
        options = {**_defaults(rows.values()), **checked}
        allocator = ALLOCATORS[options["allocation"]]
        for name in set(_SHARED) - {row.name for row in allocator.rows}:
            value = options.pop(name)
            if name in given and value != rows[name].default:
                which = " or ".join(a.id for a in ALLOCATORS.values() if _SHARED[name] in a.rows)
                raise InputError(
                    f"{self.label}: {name} belongs to the allocation {which}, and this one is {allocator.id}."
                )
        if reason := allocator.requires(self, options, None):
            raise InputError(self._cannot(allocator, reason))
        if reason := self.conflict(options):
            raise InputError(f"{self.label}: {reason}")
        return options

    def _cannot(self, allocator: Allocator, reason: str) -> str:
        return f"{self.label}: the allocation {allocator.id} {reason}."

    def describe(self) -> dict[str, Any]:
        """What a person needs to know of it, as plain values: words, options (`Option.describe`), presets."""
        words = ("id", "label", "idea", "paper", "reads", "cost", "reconstructed", "differs", "allocation")
        extra = [r for r in ALLOCATORS[self.allocation].rows if r.name not in self.options]
        return {
            **{name: getattr(self, name) for name in words},
            "options": [row.describe() for row in (*self.rows, *extra, PROTECT)],
            "presets": {name: dict(options) for name, options in self.presets.items()},
            "allocations": [a.id for a in self.allocators()],
        }


def _defaults(rows: Iterable[Option]) -> dict[str, Any]:
    return {row.name: row.default for row in rows}


def _row_of(name: str, default: Any) -> Option:
    """A row for a plain default, as wide as may be."""
    if isinstance(default, str):
        return Option(name, default, CHOICE, "", choices=(default,))
    kind = SWITCH if isinstance(default, bool) else WHOLE if isinstance(default, int) else NUMBER
    return Option(name, default, kind, "", -1e9, 1e9)
