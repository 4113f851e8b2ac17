"""What methods may ask of a prefill beyond keys, values and the last queries.

An observer sees every chunk of every layer as it streams by (`see`) and hands over one item a layer at
the end (`finish`). Its time is counted apart, as the method's own cost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F

from kvviz.engine.attention import (
    attention_by_rows,
    causal_attention,
    fused_part,
    has_parts,
    partial,
    rows_attention,
    unrotate,
)
from kvviz.engine.forward import forward
from kvviz.engine.products import products_of
from kvviz.errors import Cancelled
from kvviz.kernels.merge import merge_attention
from kvviz.kernels.product import project

_LOGITS_IN_CACHE = 1 << 19  # 2 MB of float32
_BLOCK = 128  # query rows worked on at once


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
        shape = (model.n_query_heads, n)
        self.sums = [torch.zeros(shape, dtype=torch.float32, device=layer.device) for layer in model.layers]

    def attend(self, index, query, keys, values, layer, offset, first) -> torch.Tensor:
        """Causal attention as in `attention.causal_attention`; the keys begin at position `first`."""
        sums = self.sums[index][:, first : first + keys.shape[1]]
        return attention_by_rows(query, keys, values, layer, offset, sums)

    def finish(self, trace, cancel):
        return {self.name: self.sums}


class QueryStats(Observer):
    """Mean [Hq, d] and covariance [Hq, d, d] of the unrotated queries at positions >= 4, a layer."""

    name = "query_stats"
    what = "the statistics of its queries"
    SKIP = 4  # attention sinks: their queries are unlike all others

    def __init__(self, model, n: int):
        super().__init__(model, n)
        hq, d = model.n_query_heads, model.head_dim
        places = [{"dtype": torch.float64, "device": layer.device} for layer in model.layers]
        self.sum = [torch.zeros(hq, d, **place) for place in places]
        self.square = [torch.zeros(hq, d, d, **place) for place in places]
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
    """KVzip's extra pass (arXiv 2505.23416): the model is asked to repeat the document, chunk by chunk.

    For every entry of the document the largest attention it gets while its own chunk is repeated, per query
    head, in a softmax over the sinks, the chunk's keys and the request's and repeated tokens' own: float32
    [Hq, n], 0 outside the document. What a layer cannot see (a sliding window) counts for nothing, and a
    learned sink logit takes its share. "repeat_plus" divides each query row by the norm of its hidden state
    first (KVzip+).

    The request ends like the prompt does after its question, so that the model is about to answer. Later
    chunks are announced by the last tokens of the one before. No position lies past the model's limit:
    "repeat_moved" tells whether some were moved back for that.
    """

    name = "repeat"
    what = "KVzip's pass that repeats the document"
    SINKS = 4
    CHUNK = 2048
    LEAD = 8  # tokens of the chunk before that a later request quotes
    REQUESTS = (
        "\n\nRepeat the previous context exactly.",
        "\n\nRepeat the part of the previous context exactly, starting with",
    )

    def finish(self, trace, cancel):
        model, n = self.model, self.n
        shape = (model.n_query_heads, n)
        best = {
            key: [torch.zeros(shape, dtype=torch.float32, device=layer.device) for layer in model.layers]
            for key in ("repeat", "repeat_plus")
        }
        moved = False
        for start, end, tokens in repeats(trace):
            positions = repeat_positions(n, len(tokens), model.info.max_tokens)
            moved |= int(positions[0]) < n
            attend = _RepeatAttend(trace, start, end, best, cancel)
            with attend.hidden_norms():
                forward(model, tokens[None], positions[None], attend, logits_to_keep=1)
        return {**best, "repeat_moved": [moved] * model.n_layers}


def repeats(trace) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(start, end, token ids) of every chunk of the document: the request, the prompt's end, the chunk."""
    model, ids = trace.model, trace.prompt.input_ids
    encode = model.tokenizer
    whole, part = (
        torch.tensor(encode(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        for text in Repeat.REQUESTS
    )
    suffix = ids[trace.prompt.question_span[1] : trace.prompt.cue_span[0] or len(ids)]
    first, last = trace.prompt.document_span[0], min(trace.prompt.document_span[1], trace.n)
    room = model.info.max_tokens - max(len(whole), len(part) + Repeat.LEAD) - len(suffix)
    chunk = max(1, min(Repeat.CHUNK, room))
    for start in range(first, last, chunk):
        end = min(last, start + chunk)
        asked = [whole] if start == first else [part, ids[max(first, start - Repeat.LEAD) : start]]
        yield start, end, torch.cat([*asked, suffix, ids[start:end]])


def repeat_positions(n: int, tokens: int, limit: int) -> torch.Tensor:
    """Where the repeat pass's tokens stand: after the prompt, moved back where the last would pass the limit
    (angles beyond it are those of another model in some families)."""
    start = max(0, min(n, limit - tokens))
    return torch.arange(start, start + tokens).clamp_(max=limit - 1)


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
        if layer.window is None and has_parts(query):
            return self._in_parts(index, query[0], key[0], value[0])[None]
        keys = torch.cat([trace.keys[index], key[0]], 1)
        values = torch.cat([trace.values[index], value[0]], 1)
        out = causal_attention(query[0], keys, values, layer, trace.n, products_of(trace.model).by_rows)
        self._record(index, query[0], key[0])
        return out[None]

    def _in_parts(self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor):
        """The same with the chunk as a part of its own, so that the sums over the parts, which the attention
        needs anyway, also give the recorded softmax.

        exp grows, so the largest weight of an entry is exp of the largest logit - log of the row's sum.
        """
        trace, layer = self.trace, self.trace.model.layer(index)
        keys, values, chunk = trace.keys[index], trace.values[index], slice(self.start, self.end)
        chunk_part = fused_part(query, keys[:, chunk], values[:, chunk], layer, False)
        own_part = fused_part(query, key, value, layer, True)
        parts = [chunk_part, own_part]
        for side in (slice(0, self.start), slice(self.end, trace.n)):
            if side.start < side.stop:
                parts.append(fused_part(query, keys[:, side], values[:, side], layer, False))
        recorded = [chunk_part, own_part]
        if sinks := min(Repeat.SINKS, self.start):
            recorded.append(partial(query, keys[:, :sinks], values[:, :sinks], layer))
        _, lse = merge_attention(recorded, layer.sinks)
        rows = torch.cat([query.float() * layer.scaling, -lse[..., None]], -1)
        norms = self.norms[index].clamp_min(1e-6).log()[:, None]
        group = len(query) // len(key)
        fit = max(8, _LOGITS_IN_CACHE // (group * (self.end - self.start)))
        for head, own in enumerate(keys[:, chunk].float()):
            own = F.pad(own, (0, 1), value=1.0)  # takes the log of the sum along
            mine = slice(head * group, (head + 1) * group)
            for begin in range(0, query.shape[1], fit):
                block = rows[mine, begin : begin + fit]
                logits = project(block.flatten(0, 1), own).unflatten(0, block.shape[:2])
                self._raise(index, "repeat", mine, logits.amax(1).exp_())
                logits -= norms[begin : begin + fit]
                self._raise(index, "repeat_plus", mine, logits.amax(1).exp_())
        return merge_attention(parts, layer.sinks)[0].to(query.dtype)

    def _record(self, index: int, query: torch.Tensor, own: torch.Tensor) -> None:
        trace, layer, n = self.trace, self.trace.model.layer(index), self.trace.n
        rows = torch.cat(  # of the cache that the softmax runs over
            [torch.arange(min(Repeat.SINKS, self.start)), torch.arange(self.start, self.end)]
        ).to(query.device)
        keys = torch.cat([trace.keys[index][:, rows], own], 1)
        # True positions matter to a sliding window only: all rows of the cache lie before the queries.
        own_rows = torch.arange(n, n + own.shape[1], device=rows.device)
        where = None if layer.window is None else torch.cat([rows, own_rows])
        first = len(rows) if where is None else n
        chunk = slice(len(rows) - (self.end - self.start), len(rows))
        for begin in range(0, query.shape[1], _BLOCK):
            block = query[:, begin : begin + _BLOCK]
            seen = len(rows) + begin + block.shape[1]  # up to the block's last token
            at = None if where is None else where[:seen]
            p = rows_attention(block, keys[:, :seen], layer, first + begin, at)[..., chunk]
            self._raise(index, "repeat", slice(None), p.amax(1))
            norm = self.norms[index][begin : begin + block.shape[1], None].clamp_min(1e-6)
            self._raise(index, "repeat_plus", slice(None), p.div_(norm).amax(1))

    def _raise(self, index: int, key: str, heads: slice, scores: torch.Tensor) -> None:
        held = self.best[key][index][heads, self.start : self.end]
        torch.maximum(held, scores, out=held)


@contextmanager
def watch_inputs(model, see):
    """While open, `see(layer index, hidden [B, T, D])` is called before each attention module runs.

    Only what this thread runs is shown: another one may be reading its own prompt on the same model.
    """
    own = threading.get_ident()

    def hook(index):
        def before(module, args, kwargs=None):  # torch gives none to a thread that comes while it is hung up
            if kwargs is not None and threading.get_ident() == own:
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
