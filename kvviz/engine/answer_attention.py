"""What the full cache looked at to write each token of its answer, and how much of it a kept set lacks."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kvviz.engine.attention import rows_attention
from kvviz.engine.decode import record
from kvviz.engine.trace import Trace
from kvviz.results.attention import CODES_BYTES, STEPS, AnswerAttention, encode
from kvviz.results.kept import KeptSet


def attention_of_answer(
    trace: Trace,
    answer: Sequence[int],
    kept: Mapping[str, KeptSet],
    cancel: threading.Event | None = None,
) -> AnswerAttention:
    """The first 64 steps of an answer (token ids), against kept sets by name."""
    steps = min(len(answer), STEPS)
    queries, keys = _rows(trace, list(answer[:steps]), cancel)
    model, n = trace.model, trace.n
    shape = (steps, model.n_layers, model.n_kv_heads)
    by_head = int(np.prod(shape)) * n <= CODES_BYTES
    codes = np.zeros((*shape[:2], shape[2] if by_head else 1, n), np.uint8)
    document = np.zeros(shape, np.float16)
    lost, lost_document = (np.zeros((len(kept), *shape), np.float16) for _ in range(2))
    first, last = trace.prompt.document_span
    places = np.arange(n)
    inside = (places >= first) & (places < last)
    for layer in range(model.n_layers):
        at = len(trace.prompt.input_ids) - 1  # position of the first query
        p = rows_attention(queries[layer], keys[layer], model.layer(layer), at)[..., :n]
        p = p.unflatten(0, (model.n_kv_heads, -1)).mean(1).cpu().numpy()  # [Hkv, T, n]
        codes[:, layer] = encode(p if by_head else p.mean(0, keepdims=True)).swapaxes(0, 1)
        document[:, layer] = p[..., inside].sum(-1).T
        if kept:
            gone = np.stack([~k.layer(layer) for k in kept.values()], -1).astype(np.float32)  # [Hkv, n, K]
            lost[:, :, layer] = (p @ gone).transpose(2, 1, 0)
            lost_document[:, :, layer] = (p[..., inside] @ gone[:, inside]).transpose(2, 1, 0)
    return AnswerAttention(codes, document, dict(zip(kept, lost)), dict(zip(kept, lost_document)))


def _rows(
    trace: Trace, answer: list[int], cancel: threading.Event | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each layer's queries that predicted the answer's tokens, [Hq, T, d], and all keys they could see."""
    suffix = trace.prompt.input_ids[trace.n :].tolist()
    fed = [*suffix, *answer[:-1]]
    queries, keys = [q[:, -1:] for q in trace.queries], list(trace.keys)  # the last row of what was read
    if fed:
        probes = record(trace, fed, cancel)
        queries = [torch.cat(rows, 1)[:, -len(answer) :] for rows in zip(queries, probes.queries)]
        keys = [torch.cat([rows, later], 1) for rows, (later, _) in zip(keys, probes.tail)]
    return queries, keys
