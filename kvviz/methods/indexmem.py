"""IndexMem (arXiv 2605.25475): a small learned indexer ranks tokens, a latent memory keeps what goes.

    I[s, t] = sum_h w_h[s] ReLU( q_h[s] . k[t] ),   q_h = norm(x_s W_q)_h,  k = norm(x_t W_k),  w = x_s W_w
    s_t = mean over the last `window` queries s >= t of I[s, t],   the same for every KV head

x is what enters the attention module, norm a LayerNorm without scale and shift, h_I = Hq / 2, d_I = d / 4,
no rotation. Trained to the attention averaged over heads (`kvviz.calibrate.indexmem`). What is evicted
is written into a memory per KV head and read back at every later step:

    A <- lambda A + eta sum phi(k) v^T,   z <- lambda z + eta sum phi(k)^2,   phi(x) = ReLU(x) + 1
    m(q) = gamma phi(q)^T A / max(phi(q)^2 . z, 1e-6),   added to the attention output before W_O

with keys and queries unrotated, so that the memory knows no position; gamma per query head by least
squares. The denominator pairs phi(q)^2 with the sum of phi(k)^2, so one stored pair does not read back
as v: that is the published form as far as it is known, and it is kept. One eviction is one write; lambda
matters only where evictions follow each other. `memory=False` is the indexer alone; the state is counted
in bytes, and with `charge_memory=True` its worth in entries is taken from the budget.
All formulas are reconstructed from summaries [reconstructed]. Cost: 128 n h_I d_I, and n d^2 a head to
write the memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import SINKS, WINDOW
from kvviz.methods.spec import ArtefactSpec, Method, Options, Readout, Scores
from kvviz.options import NUMBER, SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def indexer_sizes(info) -> tuple[int, int]:
    """The indexer's (heads h_I = Hq / 2, head size d_I = d / 4), at least 1 and 4."""
    return max(1, info.n_query_heads // 2), max(4, info.head_dim // 4)


def shapes(info) -> dict[str, tuple[int, ...]]:
    """What is trained for a model: the indexer's projections, and gamma a query head."""
    layers, (heads, size) = info.n_layers, indexer_sizes(info)
    return {
        "w_q": (layers, info.hidden_size, heads * size),
        "w_k": (layers, info.hidden_size, size),
        "w_w": (layers, info.hidden_size, heads),
        "gamma": (layers, info.n_query_heads),
    }


def indexer_queries(hidden: torch.Tensor, w_q, w_w) -> tuple[torch.Tensor, torch.Tensor]:
    """(q [.., T, h_I, d_I], w [.., T, h_I]) of hidden states [.., T, D], float32."""
    heads = w_w.shape[-1]
    q = (hidden @ w_q).unflatten(-1, (heads, -1))
    return torch.nn.functional.layer_norm(q, q.shape[-1:]), hidden @ w_w


def indexer_keys(hidden: torch.Tensor, w_k) -> torch.Tensor:
    """k [.., T, d_I] of hidden states [.., T, D], float32."""
    k = hidden @ w_k
    return torch.nn.functional.layer_norm(k, k.shape[-1:])


def index_scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """I[s, t]: q [.., S, h, d], k [.., T, d], w [.., S, h] -> [.., S, T], one indexer head at a time."""
    total = torch.zeros((), device=q.device)
    for head in range(q.shape[-2]):
        total = total + w[..., head, None] * (q[..., head, :] @ k.transpose(-1, -2)).relu()
    return total


def score(layer: LayerView, options: Options) -> Scores:
    learned, index = layer.artefact("indexmem"), layer.index
    device = layer.keys.device
    w_q, w_k, w_w = (learned[name][index].to(device) for name in ("w_q", "w_k", "w_w"))
    hidden = layer.extra("hidden")[layer.first_position :].float()
    n, rows = layer.n, min(options["window"], layer.n)
    queries, weights = indexer_queries(hidden[n - rows :], w_q, w_w)
    scores = index_scores(queries, indexer_keys(hidden[: layer.context], w_k), weights)  # [W, C]
    if layer.context > n - rows:  # some candidates stand inside the window: later queries alone see them
        row = torch.arange(n - rows, n, device=device)[:, None]
        seen = torch.arange(layer.context, device=device) <= row
        values = (scores * seen).sum(0) / seen.sum(0)
    else:
        values = scores.mean(0)
    return Scores(values.expand(layer.n_kv_heads, -1))


def phi(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


def write(a, z, keys, values, decay: float, eta: float):
    """One eviction into the state of a head: a [.., d, dv], z [.., d], keys and values [.., E, d]."""
    f = phi(keys)
    return decay * a + eta * f.transpose(-1, -2) @ values, decay * z + eta * f.square().sum(-2)


def read(a, z, query) -> torch.Tensor:
    """m(q) with gamma = 1: query [.., T, d] -> [.., T, dv]."""
    f = phi(query)
    return f @ a / (f.square() @ z[..., None]).clamp_min(1e-6)


class Memory(Readout):
    """The evicted entries of one selection in latent form.

    a  float32 [Hkv, d, d] a layer; z  float32 [Hkv, d] a layer; gamma  float32 [L, Hq].
    """

    def __init__(self, model, gamma: torch.Tensor):
        self.model, self.gamma = model, gamma
        self.notes: list[str] = []
        self.a: list[torch.Tensor] = []
        self.z: list[torch.Tensor] = []

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.a, *self.z))

    def write(self, index: int, keys, values, evicted, positions, decay: float, eta: float) -> None:
        """Evict rows of one layer: keys, values [Hkv, n, d], evicted bool [Hkv, n], positions [n]."""
        if index == len(self.a):
            hkv, _, d = keys.shape
            self.a.append(torch.zeros(hkv, d, d, device=keys.device))
            self.z.append(torch.zeros(hkv, d, device=keys.device))
        from kvviz.engine.attention import unrotate

        plain = unrotate(keys.float(), *self.model.rotary(index, positions))
        for head, gone in enumerate(evicted):
            a, z, rows = self.a[index][head], self.z[index][head], values[head, gone].float()
            self.a[index][head], self.z[index][head] = write(a, z, plain[head, gone], rows, decay, eta)

    def read(self, index, query, positions):
        from kvviz.engine.attention import unrotate

        plain = unrotate(query.float(), *self.model.rotary(index, positions.to(query.device)))
        hkv = self.a[index].shape[0]
        grouped = plain.unflatten(0, (hkv, -1)).flatten(1, 2)  # [Hkv, g T, d]
        out = read(self.a[index], self.z[index], grouped)
        out = out.unflatten(1, (-1, query.shape[1])).flatten(0, 1)
        return self.gamma[index].to(out.device)[:, None, None] * out


class NoMemory(Readout):
    """What stands in where the budget cannot pay for the memory."""

    def __init__(self, model):
        self.notes = [
            f"The memory would cost {state_entries(model)} entries a KV head, all of this budget or more: "
            "it is left out."
        ]

    def read(self, index, query, positions):
        return torch.zeros_like(query, dtype=torch.float32)


def state_entries(model) -> int:
    """Entries per KV head whose keys and values take as many bytes as the memory's state (float32)."""
    d = model.head_dim
    return math.ceil((d * d + d) * 4 / (2 * d * model.dtype.itemsize))


def charge(model, options: Options, b: int) -> int:
    if not (options["memory"] and options["charge_memory"]):
        return 0
    return state_entries(model) if affordable(model, b) else 0


def affordable(model, b: int) -> bool:
    """Whether a charged memory leaves at least one entry."""
    return state_entries(model) < b


def readout(trace, masks, b: int, options: Options) -> Readout | None:
    """The memory of what `masks` evicts. In a sliding layer rows out of sight were not evicted by us."""
    model = trace.model
    if not options["memory"]:
        return None
    if options["charge_memory"] and not affordable(model, b):
        return NoMemory(model)
    from kvviz.methods.artefacts import load

    memory = Memory(model, load(model, "indexmem").tensors["gamma"])
    for index, mask in enumerate(masks):
        keys = trace.keys[index]
        gone = ~mask.to(keys.device)
        gone[:, : trace.n - trace.rows(index)] = False
        positions = torch.arange(trace.n, device=keys.device)
        memory.write(index, keys, trace.values[index], gone, positions, options["decay"], options["eta"])
    worth = state_entries(model)
    taken = "taken from the budget" if options["charge_memory"] else "held on top of the budget"
    memory.notes.append(
        f"The memory of evicted tokens takes {memory.bytes / 1e6:.1f} MB, as much as {worth} entries "
        f"a KV head, {taken}."
    )
    return memory


ROWS = (
    WINDOW.having(128),
    SINKS,
    Option("memory", True, SWITCH, "Keep what is evicted in a compact memory.", scoring=False),
    Option("charge_memory", False, SWITCH, "Take the memory's worth from the budget.", scoring=False),
    Option("decay", 0.9, NUMBER, "What is left of the memory at a further eviction.", 0, 1, scoring=False),
    Option("eta", 1.0, NUMBER, "Weight of an eviction in the memory.", 0, 100, scoring=False),
)

METHOD = Method(
    id="indexmem",
    label="IndexMem",
    group="learned",
    idea="A small trained indexer ranks tokens; what is evicted lives on in a compact memory.",
    paper="arXiv 2605.25475",
    reads="hidden states",
    score=score,
    needs=frozenset({"hidden"}),
    rows=ROWS,
    artefact=ArtefactSpec("indexmem", shapes, steps=1500, step_word="training steps"),
    cost="128 n h_I d_I; n d^2 a head for the memory; one training a model",
    reconstructed="all formulas of indexer, memory and training",
    compare_with="tova",
    charge=charge,
    readout=readout,
)
