"""What one layer of a trace offers to a method while it is scored."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kvviz.engine.attention import rows_attention
from kvviz.methods import removal

if TYPE_CHECKING:
    from kvviz.models import Model

# [Hq, W, n] numbers that a layer's window attention may have; beyond it is never held whole (64 MB).
HELD_WHOLE = 1 << 24
KERNEL_EPSILON = 1e-6  # the one that the score kernel knows


class Rows(Protocol):
    """The rows that methods score: those of a whole prompt (a trace), or those one cache still holds.

    n           rows a layer; keys, values  lists over layers of [Hkv, n, d].
    contiguous  row j is the token at position j.
    """

    @property
    def model(self) -> Model: ...

    @property
    def n(self) -> int: ...

    @property
    def keys(self) -> list[torch.Tensor]: ...

    @property
    def values(self) -> list[torch.Tensor]: ...

    @property
    def contiguous(self) -> bool: ...

    def rows(self, index: int) -> int:
        """Rows of a layer still visible to the next token."""

    def visible(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """The visible rows of a [Hkv, n, d] tensor of this layer."""

    def seen_by(self, index: int) -> torch.Tensor:
        """How many queries so far could see each row, float32 [n] or [Hkv, n]."""

    def window(self, index: int, window: int) -> torch.Tensor:
        """The last min(window, n) queries, [Hq, W, d]."""

    def window_attention(self, index: int, window: int) -> torch.Tensor:
        """Attention of the last W queries on all n rows, float32 [Hq, W, n], causal."""

    def extra(self, need: str, index: int) -> Any:
        """What an observer took of one layer; NeedError where it was not asked to."""


class LayerView:
    """What one layer of a trace offers to a method. Lives while that layer is scored, then goes.

    context     C, the leading entries that compete; the n - C after them are protected.
    keys, values  [Hkv, n, d] in the model's dtype (in a sliding layer only the rows still visible).
    """

    def __init__(self, trace: Rows, index: int, context: int, memo: dict[Any, torch.Tensor]):
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
    def trace(self) -> Rows:
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
        from kvviz.methods import artefacts

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

    def window_rows(self, window: int, mean_group: bool = False) -> Iterator[removal.Rows]:
        """Attention rows on all of the trace's keys with their leaders apart, one query head at a time.
        `mean_group` averages p over the group first and gives one a KV head.
        """
        rows: torch.Tensor | None = None
        column: torch.Tensor | None = None
        for head, p in enumerate(self._rows_by_head(window)):
            kv, member = divmod(head, self.group)
            values, sink = self._trace.values[self.index][kv], self._sink_mass(p, head, window)
            if not mean_group:
                yield removal.rows_of(p, values, sink)
                continue
            rows = p / self.group if rows is None else rows + p / self.group
            if sink is not None:
                column = sink / self.group if column is None else column + sink / self.group
            if member == self.group - 1:
                yield removal.rows_of(rows, values, column)
                rows = column = None

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
            heads = [removal.removals(rows) for rows in self.window_rows(window)]
        else:
            heads = [removal.squared_removals(rows, epsilon) for rows in self.window_rows(window)]
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
