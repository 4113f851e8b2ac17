"""Which of several exact ways the large products of a float32 model on a CPU go, found by a trial.

Linear layers go through the BLAS that torch calls or through oneDNN; the attention of a reading through
torch's fused one or by rows with the weights at hand; the small products of a ragged cache with keys or
queries on the left. All compute the same in float32, up to rounding; which
is faster differs between processors by a factor of two either way. So each is tried once, for a fraction of
a second, and the outcome is kept in the cache folder under the processor's name.

KVVIZ_CPU_PRODUCTS=plain leaves everything to torch.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from kvviz.engine.attention import attention_by_rows, causal_attention
from kvviz.kernels import ragged
from kvviz.kernels.product import project
from kvviz.models import Model
from kvviz.settings import settings

FEW = 128  # rows of a decoding step at most; more than these are a reading's
_TRIED_ROWS = {True: 32, False: 512}  # few, many
_TRIED_QUERIES = 1024
_TRIED_BLOCKS = 1024  # of a ragged cache
_SMALL = 1 << 16  # weights below are nothing to win with
_MOST_WORK = 1 << 28  # multiplications of one trial
_CLEARLY = 0.9  # a way other than torch's own has to be faster by this much


@dataclass(frozen=True)
class Products:
    """onednn   (outputs, inputs, few rows?) of the linear layers that go to oneDNN.
    by_rows  whether a reading attends by rows.
    queries_left  whether queries stand on the left of the small products of a ragged cache.
    """

    onednn: frozenset[tuple[int, int, bool]] = frozenset()
    by_rows: bool = False
    queries_left: bool = False


PLAIN = Products()
_Trial = tuple[str, Callable[[], Any], Callable[[], Any]]  # what is tried, torch's own way, the other
_CHOSEN: WeakKeyDictionary[Any, Products] = WeakKeyDictionary()
_LAYERS: WeakKeyDictionary[Any, list[torch.nn.Linear]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def products_of(model: Model) -> Products:
    """What is fastest for this model here; tried at the first call, PLAIN where nothing is to choose."""
    with _LOCK:
        if model.hf not in _CHOSEN:
            _CHOSEN[model.hf] = _choose(model)
        return _CHOSEN[model.hf]


def linear_layers(model: Model) -> list[torch.nn.Linear]:
    """The model's linear layers; looked for once."""
    if model.hf not in _LAYERS:
        _LAYERS[model.hf] = [m for m in model.hf.modules() if type(m) is torch.nn.Linear]
    return _LAYERS[model.hf]


def _choose(model: Model) -> Products:
    if settings().cpu_products == "plain" or model.device.type != "cpu" or model.dtype != torch.float32:
        return PLAIN
    path = settings().cache / "products.json"
    known = _stored(path)
    tried = dict(known)

    def wins(what: str, plain: Callable[[], Any], other: Callable[[], Any]) -> bool:
        key = f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}: {what}"
        if key not in tried:
            tried[key] = _is_faster(plain, other)
        return tried[key]

    weights = _weights(model)
    onednn = {
        (*weight.shape, few)
        for weight in weights
        for few in _TRIED_ROWS
        if wins(*_linear_trial(weight, few))
    }
    by_rows = bool(weights) and wins(*_attention_trial(model))
    ragged.queries_left = bool(weights) and wins(*_blocks_trial(model))
    if tried != known:
        _store(path, tried)
    return Products(frozenset(onednn), by_rows, ragged.queries_left)


def _weights(model: Model) -> list[torch.Tensor]:
    """One weight of every shape among the linear layers."""
    weights = [layer.weight.detach() for layer in linear_layers(model)]
    return list({w.shape: w for w in weights if w.numel() >= _SMALL}.values())


def _linear_trial(weight: torch.Tensor, few: bool) -> _Trial:
    x = torch.randn(max(1, min(_TRIED_ROWS[few], _MOST_WORK // weight.numel())), weight.shape[1])
    name = f"linear {weight.shape[0]} x {weight.shape[1]}, {'few' if few else 'many'} rows"
    return name, lambda: F.linear(x, weight), lambda: project(x, weight)


def _attention_trial(model: Model) -> _Trial:
    layer, (hq, hkv, d) = model.layer(0), (model.n_query_heads, model.n_kv_heads, model.head_dim)
    query = torch.randn(hq, _TRIED_QUERIES, d)
    keys, values = torch.randn(2, hkv, _TRIED_QUERIES, d)
    rest = (query, keys, values, layer, 0)
    name = f"attention of {hq} on {hkv} heads of {d}, window {layer.window}"
    return name, lambda: causal_attention(*rest), lambda: attention_by_rows(*rest)


def _blocks_trial(model: Model) -> _Trial:
    asked = torch.randn(_TRIED_BLOCKS, model.group, model.head_dim)
    keys = torch.randn(_TRIED_BLOCKS, 32, model.head_dim)
    rest = (asked, keys, keys[..., 0])
    name = f"queries before keys, {model.group} of {model.head_dim}"
    return name, lambda: ragged.block_logits(*rest, False), lambda: ragged.block_logits(*rest, True)


def _is_faster(plain: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Whether `other` is clearly faster; the best of three each, in turn, after one to warm up."""
    best = {plain: float("inf"), other: float("inf")}
    with torch.no_grad():
        for attempt in range(4):
            for way in best:
                started = time.perf_counter()
                way()
                if attempt:
                    best[way] = min(best[way], time.perf_counter() - started)
    return best[other] < _CLEARLY * best[plain]


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _stored(path: Path) -> dict[str, bool]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or broken: tried anew
        return {}
    return {k: v for k, v in read.items() if isinstance(v, bool)} if isinstance(read, dict) else {}


def _store(path: Path, tried: dict[str, bool]) -> None:
    with suppress(OSError):  # a cache that cannot be written costs a trial at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".products-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(tried, file, indent=1, sort_keys=True)
        os.replace(beside, path)
