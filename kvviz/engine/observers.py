"""What methods may ask of a prefill beyond keys, values and the last queries.

An observer sees every chunk of every layer as it streams by (`see`) and hands over one item a layer at
the end (`finish`). Its time is counted apart, as the method's own cost.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext

import torch

from kvviz.engine.attention import attention_by_rows, causal_attention, unrotate
from kvviz.engine.forward import forward
from kvviz.errors import Cancelled

_BLOCK = 256  # query rows worked on at once


class Observer:
    """Base: remembers what it is called and how long it took."""

    name = ""
    what = ""  # for the sentence "This trace was made without {what}"

    def __init__(self, model, n: int):
        self.model, self.n, self.seconds = model, n, 0.0

    def watching(self):
        """A context that is open while the model runs; hooks it sets are gone afterwards."""
        return nullcontext()

    def see(self, index: int, query: torch.Tensor, keys: torch.Tensor, start: int) -> None:
        """One chunk of one layer: query [Hq, T, d] at positions start .., keys [Hkv, start + T, d]."""

    def finish(self, trace, cancel) -> dict[str, list]:
        """{need: one item a layer}."""
        raise NotImplementedError


class ColumnSums(Observer):
    """Accumulated attention: sum over all causal query rows of p_ij, float32 [Hq, n] a layer.

    The prefill attends with the weights at hand and adds them up: no second pass over the keys. Its cost
    is therefore part of the prefill's seconds; `bench peers` measures it by reading with and without.
    """

    name = "column_sums"
    what = "the accumulated attention of all queries"

    def __init__(self, model, n: int):
        super().__init__(model, n)
        shape = (model.n_layers, model.n_query_heads, n)
        self.sums = torch.zeros(shape, dtype=torch.float32, device=model.device)

    def attend(self, index, query, keys, values, layer, offset, first) -> torch.Tensor:
        """Causal attention as in `attention.causal_attention`; the keys begin at position `first`."""
        sums = self.sums[index, :, first : first + keys.shape[1]]
        return attention_by_rows(query, keys, values, layer, offset, sums)

    def finish(self, trace, cancel):
        return {self.name: list(self.sums)}


class QueryStats(Observer):
    """Mean [Hq, d] and covariance [Hq, d, d] of the unrotated queries at positions >= 4, a layer."""

    name = "query_stats"
    what = "the statistics of its queries"
    SKIP = 4  # attention sinks: their queries are unlike all others

    def __init__(self, model, n: int):
        super().__init__(model, n)
        hq, d = model.n_query_heads, model.head_dim
        options = {"dtype": torch.float64, "device": model.device}
        self.sum = torch.zeros(model.n_layers, hq, d, **options)
        self.square = torch.zeros(model.n_layers, hq, d, d, **options)
        self.count = [0] * model.n_layers

    def see(self, index, query, keys, start):
        skip = max(0, self.SKIP - start)
        rows = query[:, skip:].float()
        if rows.shape[1] == 0:
            return
        positions = torch.arange(start + skip, start + query.shape[1], device=query.device)
        rows = unrotate(rows, *self.model.rotary(index, positions))
        self.sum[index] += rows.sum(1)
        self.square[index] += rows.transpose(1, 2) @ rows
        self.count[index] += rows.shape[1]

    def finish(self, trace, cancel):
        items = []
        for index, count in enumerate(self.count):
            count = max(count, 1)
            mean = self.sum[index] / count
            cov = self.square[index] / count - mean[:, :, None] * mean[:, None, :]
            items.append({"mean": mean.float(), "cov": cov.float()})
        return {self.name: items}


class Repeat(Observer):
    """KVzip's extra pass (arXiv 2505.23416): the model is asked to repeat the context, chunk by chunk.

    For every entry the largest attention it gets while its own chunk is repeated, per query head, in
    a softmax over the sinks, the chunk's keys and the repeat prompt's own keys: float32 [Hq, n].
    "repeat_plus" divides each query row by the norm of its hidden state first (KVzip+).
    """

    name = "repeat"
    what = "KVzip's pass that repeats the context"
    SINKS = 4
    CHUNK = 2048

    def finish(self, trace, cancel):
        model, n = self.model, self.n
        shape = (model.n_layers, model.n_query_heads, n)
        best = {
            key: torch.zeros(shape, dtype=torch.float32, device=model.device)
            for key in ("repeat", "repeat_plus")
        }
        ids = trace.prompt.input_ids[:n].to(model.device)
        for start in range(0, n, self.CHUNK):
            end = min(n, start + self.CHUNK)
            asked = self._request(ids, start)
            tokens = torch.cat([asked, ids[start:end]])
            attend = _RepeatAttend(trace, start, end, best, cancel)
            with attend.hidden_norms():
                positions = torch.arange(n, n + len(tokens))
                forward(model, tokens[None], positions[None], attend, logits_to_keep=1)
        return {key: list(value) for key, value in best.items()}

    def _request(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        text = "\n\nRepeat the previous context exactly."
        if start:
            tail = self.model.tokenizer.decode(ids[max(0, start - 8) : start])
            text = f"\n\nRepeat the part of the previous context exactly, starting with{tail}"
        encode = self.model.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return torch.tensor(encode["input_ids"], dtype=torch.long, device=ids.device)


class _RepeatAttend:
    """Attention of the repeat pass: the whole cache is seen, the subsampled softmax is recorded."""

    def __init__(self, trace, start: int, end: int, best, cancel):
        self.trace, self.start, self.end, self.best, self.cancel = trace, start, end, best, cancel
        self.norms: dict[int, torch.Tensor] = {}

    def hidden_norms(self):
        """While open, remembers the norm of what enters each attention module, [T]."""

        def remember(index, hidden):
            self.norms[index] = hidden[0].float().norm(dim=-1)

        return watch_inputs(self.trace.model, remember)

    def __call__(self, index, query, key, value):
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped while repeating the document.")
        trace, layer = self.trace, self.trace.model.layer(index)
        n = trace.n
        keys = torch.cat([trace.keys[index], key[0]], 1)
        values = torch.cat([trace.values[index], value[0]], 1)
        out = causal_attention(query[0], keys, values, layer, n)
        self._record(index, query[0], key[0])
        return out[None]

    def _record(self, index: int, query: torch.Tensor, own: torch.Tensor) -> None:
        trace, layer = self.trace, self.trace.model.layer(index)
        sinks = trace.keys[index][:, : min(Repeat.SINKS, self.start)]
        chunk = trace.keys[index][:, self.start : self.end]
        keys = torch.cat([sinks, chunk, own], 1).float()
        skip, width, hkv = sinks.shape[1], chunk.shape[1], keys.shape[0]
        for begin in range(0, query.shape[1], _BLOCK):
            rows = query[:, begin : begin + _BLOCK].float()
            r = rows.shape[1]
            grouped = rows.unflatten(0, (hkv, -1)).flatten(1, 2) * layer.scaling
            logits = (grouped @ keys.transpose(1, 2)).unflatten(1, (-1, r)).flatten(0, 1)
            k = torch.arange(keys.shape[1], device=rows.device) - skip - width
            q = torch.arange(begin, begin + r, device=rows.device)[:, None]
            p = logits.masked_fill(k > q, float("-inf")).softmax(-1)[..., skip : skip + width]
            norm = self.norms[index][begin : begin + r, None].clamp_min(1e-6)
            for key, scores in (("repeat", p), ("repeat_plus", p / norm)):
                held = self.best[key][index, :, self.start : self.end]
                torch.maximum(held, scores.amax(1), out=held)


@contextmanager
def watch_inputs(model, see):
    """While open, `see(layer index, hidden [B, T, D])` is called before each attention module runs.

    Only what this thread runs is shown: another one may be reading its own prompt on the same model.
    """
    own = threading.get_ident()

    def hook(index):
        def before(module, args, kwargs):
            if threading.get_ident() == own:
                see(index, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

        return before

    handles = [
        model.layer(index).attention.register_forward_pre_hook(hook(index), with_kwargs=True)
        for index in range(model.n_layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Hidden(Observer):
    """What enters each attention module (after the layer's input norm), [n, D] a layer."""

    name = "hidden"
    what = "the hidden states"

    def __init__(self, model, n: int):
        super().__init__(model, n)
        self.rows: list[list[torch.Tensor]] = [[] for _ in range(model.n_layers)]

    def watching(self):
        return watch_inputs(self.model, lambda index, hidden: self.rows[index].append(hidden[0]))

    def finish(self, trace, cancel):
        return {self.name: [torch.cat(rows) for rows in self.rows]}


OBSERVERS = {cls.name: cls for cls in (ColumnSums, QueryStats, Repeat, Hidden)}
