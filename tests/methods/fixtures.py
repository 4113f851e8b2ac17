"""One layer to score, made by hand or at random, and the same layer in float64 for slow references.

`given` takes attention rows as they are printed in a paper or worked example; `random_layer` draws
queries, keys and values. Both return a real `LayerView` over a stand-in trace. `Exact` is what the
references read: float64 numpy, attention written out from its definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from kvviz.errors import NeedError
from kvviz.methods import get_method
from kvviz.methods.layer import LayerView

GROUPS = (1, 3, 4, 7, 8)  # query heads per KV head that real models have

# The two worked examples that most methods share.
T1_P = [0.5, 0.25, 0.125, 0.125]
T1_V = [[1, 0], [0, 1], [2, 0], [0, -2]]
T1_W_O = [[1, 0], [0, 3]]
F_P = [
    [[0.4, 0.2, 0.1, 0.1, 0.2, 0], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]],
    [[0.1, 0.1, 0.4, 0.2, 0.2, 0], [0.1, 0.1, 0.3, 0.1, 0.2, 0.2]],
]
F_V = [[1, 0], [0, 1], [2, 0], [0, -2], [1, 1], [0, 0]]


class FakeTrace:
    """What a LayerView reads of a trace: one layer's tensors."""

    contiguous = True  # row j is the token at position j

    def __init__(self, queries, keys, values, w_o, extras, attention=None, sliding=None, sinks=None):
        hq, hkv = len(w_o), len(values)
        layer = SimpleNamespace(
            w_o=w_o, scaling=keys.shape[-1] ** -0.5, sinks=sinks, window=sliding
        )
        self.model = SimpleNamespace(
            n_layers=1,
            n_query_heads=hq,
            n_kv_heads=hkv,
            head_dim=values.shape[-1],
            hidden_size=w_o.shape[-1],
            layer=lambda index: layer,
            rotary=self.rotary,
            info=SimpleNamespace(max_tokens=1 << 20),
        )
        self.n = values.shape[1]
        self.keys, self.values, self.queries = [keys], [values], [queries]
        self._attention, self._extras = attention, extras
        self.angles = None  # rotary frequencies, [rotary_dim / 2]; None: no rotation

    def rotary(self, index, positions):
        if self.angles is None:
            size = self.keys[0].shape[-1]
            return torch.ones(len(positions), size), torch.zeros(len(positions), size)
        turns = positions[:, None].float() * torch.cat([self.angles, self.angles])
        return turns.cos(), turns.sin()

    def seen_by(self, index):
        return torch.arange(self.n, 0, -1, dtype=torch.float32)

    def visible(self, index, rows):
        window = self.model.layer(0).window
        return rows if window is None else rows[:, -min(self.n, window - 1) :]

    def window(self, index, window):
        return self.queries[0][:, -min(window, self.n) :]

    def window_attention(self, index, window):
        if self._attention is not None:
            return self._attention[:, -window:]
        return torch.tensor(attention_of(self, window), dtype=torch.float32)

    def extra(self, need, index):
        if need not in self._extras:
            raise NeedError(f"This trace was made without {need}.")
        return self._extras[need]


def attention_of(trace, window: int, index: int = 0) -> np.ndarray:
    """p of the last W queries from its definition, float64 [Hq, W, n]."""
    layer = trace.model.layer(index)
    queries, keys = exact(trace.queries[index]), exact(trace.keys[index])
    group, n = len(queries) // len(keys), keys.shape[1]
    w = min(window, n)
    out = np.zeros((len(queries), w, n))
    for head, rows in enumerate(queries[:, -w:]):
        for i, query in enumerate(rows):
            position = n - w + i
            start = 0 if layer.window is None else max(0, position - layer.window + 1)
            logits = layer.scaling * (keys[head // group, start : position + 1] @ query)
            top = logits.max()
            total = np.exp(logits - top).sum()
            if layer.sinks is not None:
                total += math.exp(float(layer.sinks[head]) - top)
            out[head, i, start : position + 1] = np.exp(logits - top) / total
    return out


def exact(tensor) -> np.ndarray:
    return np.asarray(tensor.detach().double().cpu() if torch.is_tensor(tensor) else tensor, float)


@dataclass
class Exact:
    """A layer in float64. Token indices are those of the trace; `context` lists the candidates."""

    view: LayerView

    def __post_init__(self):
        view, trace, i = self.view, self.view.trace, self.view.index
        self.layer = trace.model.layer(i)
        self.n, self.hkv, self.g = trace.n, view.n_kv_heads, view.group
        self.first = view.first_position
        self.visible = range(self.first, self.n)
        self.context = range(self.first, self.first + view.context)
        self.q, self.k, self.v = (
            exact(t[i]) for t in (trace.queries, trace.keys, trace.values)
        )
        self.w_o = exact(self.layer.w_o)
        self.scaling = self.layer.scaling

    def p(self, window: int) -> np.ndarray:
        """[Hq, W, n]."""
        given = getattr(self.view.trace, "_attention", None)
        if given is not None:
            return exact(given[:, -window:])
        return attention_of(self.view.trace, window, self.view.index)

    def o(self, window: int) -> np.ndarray:
        """[Hq, W, d]."""
        p = self.p(window)
        return np.stack([p[h] @ self.v[h // self.g] for h in range(len(p))])

    def extra(self, name: str):
        return self.view.extra(name)

    def heads(self, kv: int) -> range:
        """Query heads of a KV head."""
        return range(kv * self.g, (kv + 1) * self.g)

    def projected(self, head: int, order: int) -> np.ndarray:
        """||v_j W_O^h||, [n]."""
        return np.linalg.norm(self.v[head // self.g] @ self.w_o[head], ord=order, axis=-1)


def pooled(row, options) -> np.ndarray:
    """Pooling written out: zeros outside for the average, nothing outside for the maximum."""
    size, kind = options["pool"], options["pool_kind"]
    if kind == "none":
        return np.asarray(row)
    half, out = size // 2, []
    for j in range(len(row)):
        inside = row[max(0, j - half) : j - half + size]
        out.append(max(inside) if kind == "max" else sum(inside) / size)
    return np.asarray(out)


def merged(per_head, how: str) -> np.ndarray:
    """Query heads of one group -> their KV head."""
    return {"mean": np.mean, "max": np.max, "sum": np.sum}[how](per_head, axis=0)


def given(p, values, w_o=None, keys=None, context=None, extras=None, group=None) -> LayerView:
    """A layer with attention rows p ([n], [W, n] or [Hq, W, n]) and one KV head's values [n, d]
    (or [Hkv, n, d]). W_O is the identity unless given ([d, D] or [Hq, d, D])."""
    values = torch.tensor(values, dtype=torch.float32)
    values = values if values.dim() == 3 else values[None]
    p = torch.tensor(p, dtype=torch.float32)
    p = p[(None,) * (3 - p.dim())]
    w_o = torch.eye(values.shape[-1]) if w_o is None else torch.tensor(w_o, dtype=torch.float32)
    w_o = w_o if w_o.dim() == 3 else w_o.expand(len(p), -1, -1)
    keys = torch.zeros_like(values) if keys is None else torch.tensor(keys, dtype=torch.float32)
    keys = keys if keys.dim() == 3 else keys[None]
    queries = torch.zeros(len(p), p.shape[1], values.shape[-1])
    trace = FakeTrace(queries, keys, values, w_o, extras or {}, attention=p)
    return LayerView(trace, 0, trace.n if context is None else context, {})


def random_layer(
    group=2,
    seed=0,
    hkv=2,
    n=13,
    d=4,
    hidden=6,
    window=5,
    spread=1.5,
    sliding=None,
    sinks=False,
    dtype=torch.float32,
) -> LayerView:
    """A layer with random queries (all n of them), keys and values; all but `window` rows compete."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    hq = hkv * group
    queries = (spread * normal(hq, n, d)).to(dtype)
    keys, values = normal(hkv, n, d).to(dtype), normal(hkv, n, d).to(dtype)
    w_o = normal(hq, d, hidden)
    extras = {"repeat": normal(hq, n).abs(), "repeat_plus": normal(hq, n).abs()}
    logit = normal(hq) if sinks else None
    trace = FakeTrace(queries, keys, values, w_o, extras, sliding=sliding, sinks=logit)
    extras["column_sums"] = torch.tensor(attention_of(trace, n).sum(1), dtype=torch.float32)
    late = queries[:, 4:].double()
    mean = late.mean(1)
    cov = late.transpose(1, 2) @ late / late.shape[1] - mean[:, :, None] * mean[:, None]
    extras["query_stats"] = {"mean": mean.float(), "cov": cov.float()}
    trace.angles = torch.tensor([1.0, 0.1])[: d // 2].repeat(max(1, d // 4))[: d // 2]
    rows = trace.visible(0, keys).shape[1]
    return LayerView(trace, 0, rows - min(window, rows), {})


def score(method_id: str, layer: LayerView, **options):
    """A method's own score with its own defaults, and no pooling unless asked for."""
    method = get_method(method_id)
    return method.score(layer, method.resolve(options))


def values_of(method_id: str, layer: LayerView, **options) -> list:
    """The scores as nested lists, for one KV head as one list."""
    values = score(method_id, layer, **options).values
    return values[0].tolist() if len(values) == 1 else values.tolist()


def without(p: np.ndarray, values: np.ndarray, evicted) -> np.ndarray:
    """The output of attention row p once `evicted` tokens are gone, from the definition."""
    kept = [j for j in range(len(p)) if j not in set(evicted)]
    return p[kept] @ values[kept] / p[kept].sum()
