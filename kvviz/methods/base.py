"""What a method is, and the few pieces that methods share.

A method is one frozen `Method` row around one pure function: `score(layer, options) -> Scores`. It ranks
the context entries of one layer; it never protects, counts or picks anything. Budgets belong to
`kvviz.budgets`, picking to `kvviz.selection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from kvviz.attention import rows_attention
from kvviz.errors import InputError
from kvviz.methods import _removal

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
    allocation  the default allocator of `kvviz.budgets.ALLOCATORS`.
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
        from kvviz import artefacts

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


POOL_KINDS = ("avg", "max", "none")
GROUP_REDUCTIONS = ("mean", "max", "sum")


def pool(scores: torch.Tensor, options: Options) -> torch.Tensor:
    """Pool along the last axis, stride 1, same length: [..., C] -> [..., C].

    Average pooling pads with zeros and always divides by the kernel (edges are damped, as in the
    papers' code); maximum pooling pads with -inf.
    """
    size, kind = options["pool"], options["pool_kind"]
    length = scores.shape[-1]
    if kind == "none" or size <= 1 or length == 0:
        return scores
    if kind == "avg" and scores.device.type == "cpu":
        return _average(scores, size)
    flat = scores.reshape(1, -1, length)
    pooling = F.avg_pool1d if kind == "avg" else F.max_pool1d
    return pooling(flat, size, stride=1, padding=size // 2)[..., :length].reshape(scores.shape)


def _average(scores: torch.Tensor, size: int) -> torch.Tensor:
    """`avg_pool1d` by adding shifted rows, in the same order: its own loop on a CPU is not vectorised."""
    length, total = scores.shape[-1], torch.zeros_like(scores)
    for shift in range(-(size // 2), size - size // 2):
        low, high = max(0, -shift), min(length, length - shift)  # the entries that have one at i + shift
        if low < high:
            total[..., low:high] += scores[..., low + shift : high + shift]
    return total.div_(size)


def reduce_group(per_head: torch.Tensor, layer: LayerView, how: str = "mean") -> torch.Tensor:
    """[Hq, ...] -> [Hkv, ...]: the query heads of a group become one score for their KV head."""
    grouped = per_head.unflatten(0, (layer.n_kv_heads, layer.group))
    if how == "max":
        return grouped.amax(1)
    return grouped.sum(1) if how == "sum" else grouped.mean(1)


# [Hq, W, n] numbers that a layer's window attention may have; beyond it is never held whole (64 MB).
HELD_WHOLE = 1 << 24
KERNEL_EPSILON = 1e-6  # the one that the score kernel knows


class LayerView:
    """What one layer of a trace offers to a method. Lives while that layer is scored, then goes.

    context     C, the leading entries that compete; the n - C after them are protected.
    keys, values  [Hkv, n, d] in the model's dtype (in a sliding layer only the rows still visible).
    """

    def __init__(self, trace, index: int, context: int, memo: dict[Any, torch.Tensor]):
        self._trace, self._memo = trace, memo
        self.index = index
        self.context = context
        self.keys: torch.Tensor = trace.visible(index, trace.keys[index])
        self.values: torch.Tensor = trace.visible(index, trace.values[index])
        self.n_kv_heads, self.n = self.keys.shape[:2]
        self.first_position = trace.n - self.n  # of row 0: above 0 only in a sliding layer

    @property
    def model(self):
        return self._trace.model

    @property
    def trace(self):
        return self._trace

    @property
    def n_layers(self) -> int:
        return self._trace.model.n_layers

    @property
    def group(self) -> int:
        """g, query heads per KV head."""
        return self._trace.model.n_query_heads // self.n_kv_heads

    @property
    def w_o(self) -> torch.Tensor:
        """Output projection by query head, [Hq, d, D]; a head contributes o @ w_o[h]."""
        return self._trace.model.layer(self.index).w_o

    def extra(self, need: str):
        """What the trace observed for this layer under the name `need`."""
        return self._trace.extra(need, self.index)

    def artefact(self, name: str) -> dict[str, torch.Tensor]:
        """The calibrated tensors called `name` of this model; NeedError says how to make them."""
        from kvviz import artefacts

        return artefacts.load(self.model, name).tensors

    def seen_by(self) -> torch.Tensor:
        """How many queries could see each row, [n]; [Hkv, n] where heads hold different rows."""
        return self._trace.seen_by(self.index)[..., self.first_position :]

    def queries(self, window: int) -> torch.Tensor:
        """Last min(window, n) rotated queries, [Hq, W, d] in the model's dtype."""
        return self._trace.window(self.index, window)

    def attention(self, window: int) -> torch.Tensor:
        """p of the last W queries over all rows, float32 [Hq, W, n], causal, softmax over every key.

        Only for short windows: what goes by head or by sum should ask for `attention_by_head`,
        `attention_mean` or `window_scores`, which hold no such tensor for a long prompt.
        """
        return self._attention_on_all(window)[..., self.first_position :]

    def attention_by_head(self, window: int) -> Iterator[torch.Tensor]:
        """The same, one query head at a time: float32 [W, n]. Not to be written to."""
        for rows in self._rows_by_head(window):
            yield rows[:, self.first_position :]

    def attention_mean(self, window: int) -> torch.Tensor:
        """Mean over the W window queries of attention, float32 [Hq, n]."""
        return self._once(("mean", self._width(window)), self._mean, window)

    def window_scores(self, kind: str, window: int, epsilon: float = 0.0) -> torch.Tensor:
        """Sums over the W window queries, for each query head, float32 [Hq, n]:

        "square" p^2;  "dropkv" (p / (1 - p + epsilon))^2 ||v - o||^2;  "caote" p / (1 - p) ||v - o||.
        """
        key = (kind, epsilon, self._width(window))
        return self._once(key, lambda w: self._window_scores(kind, w, epsilon), window)

    def window_rows(self, window: int, mean_group: bool = False) -> Iterator[_removal.Rows]:
        """Attention rows on all of the trace's keys with their leaders apart, one query head at a time.
        `mean_group` averages p over the group first and gives one a KV head.
        """
        rows, column = 0.0, None
        for head, p in enumerate(self._rows_by_head(window)):
            kv, member = divmod(head, self.group)
            values, sink = self._trace.values[self.index][kv], self._sink_mass(p, head, window)
            if not mean_group:
                yield _removal.rows_of(p, values, sink)
                continue
            rows = rows + p / self.group
            column = None if sink is None else sink / self.group + (0.0 if column is None else column)
            if member == self.group - 1:
                yield _removal.rows_of(rows, values, column)
                rows, column = 0.0, None

    def value_norms(self, order: int) -> torch.Tensor:
        """||v_j W_O^h|| of the given order (1 or 2) for each query head, float32 [Hq, n]."""
        from kvviz import kernels

        return self._once(
            ("value_norms", order), lambda o: kernels.value_norms(self.values, self.w_o, o), order
        )

    def _once(self, key, compute, argument) -> torch.Tensor:
        if key not in self._memo:
            self._memo[key] = compute(argument)
        return self._memo[key]

    def _width(self, window: int) -> int:
        return min(window, self._trace.n)

    def _attention_on_all(self, window: int) -> torch.Tensor:
        """Attention on all of the trace's rows, those no longer visible at n included: [Hq, W, .]."""
        key = ("attention", self._width(window))
        return self._once(key, lambda w: self._trace.window_attention(self.index, w), window)

    def _is_long(self, window: int) -> bool:
        """Whether [Hq, W, n] is too large to hold (a cache that has gaps is always short enough)."""
        numbers = self._trace.model.n_query_heads * self._width(window) * self._trace.n
        return self._trace.contiguous and numbers > HELD_WHOLE

    def _rows_by_head(self, window: int) -> Iterator[torch.Tensor]:
        """[W, .] on all of the trace's rows, for each query head."""
        if not self._is_long(window):
            yield from self._attention_on_all(window)
            return
        layer, keys = self.model.layer(self.index), self._trace.keys[self.index]
        queries = self.queries(window)
        for head in range(len(queries)):
            one = slice(head, head + 1)
            sinks = None if layer.sinks is None else layer.sinks[one]
            alone = SimpleNamespace(scaling=layer.scaling, window=layer.window, sinks=sinks)
            own = keys[head // self.group : head // self.group + 1]
            yield rows_attention(queries[one], own, alone, self._trace.n - queries.shape[1])[0]

    def _sink_mass(self, p: torch.Tensor, head: int, window: int) -> torch.Tensor | None:
        """Attention of one head's window queries on its learned sink logit, [W]; None without one."""
        layer = self.model.layer(self.index)
        if layer.sinks is None:
            return None
        lead, top = p.max(-1)
        keys = self._trace.keys[self.index][head // self.group, top].float()
        logits = (self.queries(window)[head].float() * keys).sum(-1) * layer.scaling
        return lead * (layer.sinks[head].float() - logits).exp()

    def _mean(self, window: int) -> torch.Tensor:
        if self._by_kernel(window):
            return self._score_pass("mean", window)
        return self.attention(window).mean(1)

    def _window_scores(self, kind: str, window: int, epsilon: float) -> torch.Tensor:
        if self._by_kernel(window) and (kind != "dropkv" or epsilon == KERNEL_EPSILON):
            return self._score_pass(kind, window)
        if kind == "square":
            return torch.stack([rows.square().sum(0) for rows in self.attention_by_head(window)])
        if kind == "caote":
            heads = [_removal.removals(rows) for rows in self.window_rows(window)]
        else:
            heads = [_removal.squared_removals(rows, epsilon) for rows in self.window_rows(window)]
        return torch.stack(heads)[:, self.first_position :]

    def _by_kernel(self, window: int) -> bool:
        """On a GPU and for long prompts scores are made in one sweep over the keys, by blocks."""
        return self._trace.contiguous and (self.keys.is_cuda or self._is_long(window))

    def _score_pass(self, kind: str, window: int) -> torch.Tensor:
        from kvviz import kernels

        layer, queries = self.model.layer(self.index), self.queries(window)
        keys, values = self._trace.keys[self.index], self._trace.values[self.index]
        start = self._trace.n - queries.shape[1]

        def sweep(_):
            return kernels.window_pass(
                queries, keys, values, layer.scaling, start, layer.window, layer.sinks
            )

        lse, out = self._once(("window_pass", queries.shape[1]), sweep, window)
        scores = kernels.score_pass(
            queries, keys, values, lse, out, layer.scaling, start, kind, layer.window, layer.sinks
        )
        return scores[:, self.first_position :]
