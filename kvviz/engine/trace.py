"""The one prefill: the prompt is read once, and every method and budget is served from what it left.

Long prompts are read in chunks with the plain causal attention. Observers take what the chosen methods
need while it streams by, so no n x n tensor is ever held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch

from kvviz.brief import brief
from kvviz.engine.attention import causal_attention, rows_attention
from kvviz.engine.forward import forward
from kvviz.engine.observers import OBSERVERS, ColumnSums
from kvviz.engine.products import products_of
from kvviz.engine.steps import Steps
from kvviz.errors import Cancelled, NeedError
from kvviz.methods import parse_method
from kvviz.methods.parts import MAX_WINDOW
from kvviz.models import Model
from kvviz.settings import settings
from kvviz.types import Event, Prompt


def block_rows(n: int) -> int:
    """Rows of a storage block: small for short prompts, where slack would swallow what was saved."""
    return 16 if n < 1024 else 32 if n < 4096 else 64 if n < 16384 else 128


def last_queries(queries: torch.Tensor, window: int) -> torch.Tensor:
    """The last W of the queries held [Hq, m, d]; NeedError where there are fewer."""
    if window > queries.shape[1]:
        raise NeedError(
            f"An observation window of {window} needs more queries than this trace holds "
            f"({queries.shape[1]}). The longest window is {MAX_WINDOW}."
        )
    return queries[:, -window:]


@dataclass(frozen=True, eq=False)
class Trace:
    """What one prefill left behind.

    n              tokens under compression (positions 0 .. n - 1).
    keys, values   lists over layers of [Hkv, n, d] in the model's dtype; keys are rotated.
    queries        list over layers of [Hq, min(n, 128), d]: the last rotated queries.
    last_logits    float32 [V]: next-token logits after position n - 1.
    needs          what the observers took besides.
    padded         the storage behind keys and values: lists of [Hkv, m, d], m = n rounded up to whole
                   blocks, so that the full cache can decode without a copy.
    """

    model: Model
    prompt: Prompt
    n: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    queries: list[torch.Tensor]
    last_logits: torch.Tensor
    needs: frozenset[str]
    extras: dict[str, list[Any]]
    padded: tuple[list[torch.Tensor], list[torch.Tensor]]
    seconds: dict[str, float] = field(default_factory=dict)
    contiguous: ClassVar[bool] = True  # row j is the token at position j

    __repr__ = brief

    @property
    def bytes(self) -> int:
        """Storage of the prompt's whole cache as a model keeps it, in whole blocks: a sliding layer holds no
        rows that the next token cannot see."""
        block, total = block_rows(self.n), 0
        for index, (keys, values) in enumerate(zip(*self.padded)):
            a_row = sum(side[:, 0].numel() * side.element_size() for side in (keys, values))
            total += -(-self.rows(index) // block) * block * a_row
        return total

    def rows(self, index: int) -> int:
        """n_l: rows of a layer still visible to the next token (fewer than n in a sliding layer)."""
        window = self.model.layer(index).window
        return self.n if window is None else min(self.n, window - 1)

    def seen_by(self, index: int) -> torch.Tensor:
        """How many queries so far could see each row, float32 [n]."""
        return torch.arange(self.n, 0, -1, dtype=torch.float32, device=self.keys[index].device)

    def visible(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """The visible rows of a [Hkv, n, d] tensor of this layer."""
        return rows[:, self.n - self.rows(index) :]

    def window(self, index: int, window: int) -> torch.Tensor:
        """The last min(window, n) queries, [Hq, W, d]; NeedError where the trace holds fewer."""
        return last_queries(self.queries[index], min(window, self.n))

    def window_attention(self, index: int, window: int) -> torch.Tensor:
        """Attention of the last W queries on all n rows, float32 [Hq, W, n], causal.

        A sliding layer's rows outside a query's window get 0; learned sink logits join the softmax as
        one more column, which is dropped.
        """
        rows = self.window(index, window)
        return rows_attention(rows, self.keys[index], self.model.layer(index), self.n - rows.shape[1])

    def extra(self, need: str, index: int) -> Any:
        """What an observer took of one layer; NeedError names what is missing."""
        if need not in self.extras:
            raise NeedError(
                f"This trace was made without {OBSERVERS[need].what}. "
                "Prefill again and name the method in `methods`."
            )
        return self.extras[need][index]


def needs_of(
    methods: Iterable[str], options: Mapping[str, Mapping[str, Any]] | None = None
) -> frozenset[str]:
    """The union of what the named methods need beyond keys, values and window queries."""
    needs: set[str] = set()
    for name in methods:
        method, inline = parse_method(name)
        needs |= method.needs_with(method.resolve({**inline, **(options or {}).get(name, {})}))
    return frozenset(needs)


def prefill(
    model: Model,
    prompt: Prompt,
    methods: Iterable[str] = (),
    needs: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
    cancel: threading.Event | None = None,
) -> Trace:
    """Read the compressible part of a prompt once, for all `methods` and budgets.

    progress(done, total) is called after every chunk, in tokens. Raises Cancelled when `cancel` is set.
    """
    steps = Steps(prefill_steps(model, prompt, frozenset(needs) | needs_of(methods), cancel))
    for done, total in steps:
        if progress:
            progress(done, total)
    return steps.result


def prefill_events(
    model: Model, prompt: Prompt, needs: frozenset[str], cancel: threading.Event | None = None
) -> Generator[Event, None, Trace]:
    """The same as events, with the time that is left; returns the trace."""
    started = time.perf_counter()
    n = prompt.n_compressible
    yield Event("prefill", f"Reading the document, 0 of {n:,} tokens", 0, n)
    steps = Steps(prefill_steps(model, prompt, needs, cancel))
    for done, total in steps:
        left = (time.perf_counter() - started) / done * (total - done)
        yield Event("prefill", f"Reading the document, {done:,} of {total:,} tokens", done, total, left)
    return steps.result


def prefill_steps(
    model: Model, prompt: Prompt, needs: frozenset[str], cancel: threading.Event | None = None
) -> Generator[tuple[int, int], None, Trace]:
    """The same in steps: yields (tokens read, tokens in all) after every chunk, returns the trace."""
    n = prompt.n_compressible
    ids = torch.as_tensor(prompt.input_ids[:n]).to(model.device)
    reader = _Reader(model, n, [OBSERVERS[need](model, n) for need in sorted(needs)], cancel)
    seconds = {"prefill": 0.0}
    chunk = settings().prefill_chunk
    for start in range(0, n, chunk):
        end = min(n, start + chunk)
        reader.start = start
        started = time.perf_counter()
        with ExitStack() as stack:
            for observer in reader.observers:
                stack.enter_context(observer.watching())
            positions = torch.arange(start, end)[None]
            logits = forward(model, ids[None, start:end], positions, reader.attend, logits_to_keep=1)
        seconds["prefill"] += time.perf_counter() - started
        yield end, n
    trace = Trace(
        model=model,
        prompt=prompt,
        n=n,
        keys=[k[:, :n] for k in reader.keys],
        values=[v[:, :n] for v in reader.values],
        queries=reader.queries,
        last_logits=logits[0, -1].float(),
        needs=needs,
        extras={},
        padded=(reader.keys, reader.values),
        seconds=seconds,
    )
    extras: dict[str, list[Any]] = {}
    for observer in reader.observers:
        started = time.perf_counter()
        extras |= observer.finish(trace, cancel)
        seconds["prefill"] -= observer.seconds  # its share of the chunks is its own cost
        seconds[observer.name] = observer.seconds + time.perf_counter() - started
    return replace(trace, extras=extras)


def storage_bytes(*things: Any) -> int:
    """Bytes of the tensors' storages that lists, dicts and values of this project hold, each once."""
    seen: dict[int, int] = {}
    todo = list(things)
    while todo:
        item = todo.pop()
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        elif is_dataclass(item) and not isinstance(item, Model):  # the weights are not the trace's
            todo += [getattr(item, f.name) for f in fields(item)]
    return sum(seen.values())


class _Reader:
    """Attention of the prefill: stores the new rows, attends causally, shows them to the observers."""

    def __init__(self, model: Model, n: int, observers: list, cancel: threading.Event | None):
        self.model, self.n, self.observers, self.cancel = model, n, observers, cancel
        self.sums = next((o for o in observers if isinstance(o, ColumnSums)), None)
        self.by_rows = products_of(model).by_rows
        self.start = 0
        block = block_rows(n)
        self.shape = (model.n_kv_heads, -(-n // block) * block, model.head_dim)
        self.keys: list[torch.Tensor] = []  # made at first touch, on the layer's own device
        self.values: list[torch.Tensor] = []
        self.queries: list[torch.Tensor] = []

    def attend(self, index: int, query, key, value) -> torch.Tensor:
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped while reading the document.")
        layer = self.model.layer(index)
        start, end = self.start, self.start + query.shape[2]
        if index == len(self.keys):
            self.keys.append(key.new_zeros(self.shape))
            self.values.append(value.new_zeros(self.shape))
            self.queries.append(query.new_zeros(0))
        self.keys[index][:, start:end] = key[0]
        self.values[index][:, start:end] = value[0]
        first = 0 if layer.window is None else max(0, start - layer.window + 1)
        keys, values = self.keys[index][:, first:end], self.values[index][:, first:end]
        rest = (query[0], keys, values, layer, start - first)
        out = self.sums.attend(index, *rest, first) if self.sums else causal_attention(*rest, self.by_rows)
        self._keep_last(index, query[0])
        for observer in self.observers:
            began = time.perf_counter()
            observer.see(index, query[0], self.keys[index][:, :end], start)
            observer.seconds += time.perf_counter() - began
        return out[None]

    def _keep_last(self, index: int, query: torch.Tensor) -> None:
        last = query[:, -MAX_WINDOW:]
        if self.start > 0 and last.shape[1] < MAX_WINDOW:  # a short last chunk: join it with the one before
            last = torch.cat([self.queries[index], last], 1)[:, -MAX_WINDOW:]
        self.queries[index] = last.clone()
