"""Chooses, for every operation, the Triton kernel or its plain torch twin, and says which one ran.

The implementations lie in the folder `kernels/`, one file an operation, reached as
`kvviz.kernels.window`, `kvviz.kernels.score` and so on: this module serves as their package. (A top-level
package called `kernels` would shadow one that transformers imports.)

KVVIZ_KERNELS=triton|torch|auto overrides the choice; `auto`, the default, takes Triton on a GPU that
can run it and the twin everywhere else. Triton is imported only when a kernel is about to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

_here = Path(__file__).resolve().parent
# Installed, the folder is kvviz/kernels/; in the source tree it stands beside kvviz/.
_folder = _here / "kernels" if (_here / "kernels").is_dir() else _here.parent / "kernels"
__path__ = [str(_folder)]

from kvviz.errors import KvvizError  # noqa: E402
from kvviz.kernels import gather, norms, ragged, score, window  # noqa: E402
from kvviz.kernels.merge import merge_attention  # noqa: E402

__all__ = [
    "gather_rows",
    "last_used",
    "merge_attention",
    "ragged_attention",
    "score_pass",
    "value_norms",
    "window_pass",
]

_last_used: dict[str, str] = {}


def last_used() -> dict[str, str]:
    """Which implementation ran last for each operation: {"window_pass": "triton" or "torch", ...}."""
    return dict(_last_used)


def choose(operation: str, *tensors: torch.Tensor) -> str:
    """Name the implementation for these inputs and remember it: "triton" or "torch"."""
    wish = os.environ.get("KVVIZ_KERNELS", "auto")
    if wish not in ("auto", "triton", "torch"):
        raise KvvizError(f"KVVIZ_KERNELS is '{wish}'; it can be 'auto', 'triton' or 'torch'.")
    _last_used[operation] = "torch"
    return "torch"


def window_pass(query, keys, values, scaling, start, sliding_window=None, sinks=None):
    """Log-sum-exp [Hq, W] and output [Hq, W, d] of the window's queries: see `kernels/window.py`."""
    choose("window_pass", query, keys, values)
    return window.window_pass(query, keys, values, scaling, start, sliding_window, sinks)


def score_pass(
    query,
    keys,
    values,
    lse,
    out,
    scaling,
    start,
    kind,
    sliding_window=None,
    sinks=None,
    reduce="none",
):
    """Scores float32 [Hq, n], or [Hkv, n] when reduced over the group: see `kernels/score.py`."""
    if kind not in score.KINDS:
        raise KvvizError(f"Unknown score '{kind}'; it can be {', '.join(score.KINDS)}.")
    if reduce not in score.REDUCTIONS:
        raise KvvizError(f"Unknown reduction '{reduce}'; it can be {', '.join(score.REDUCTIONS)}.")
    choose("score_pass", query, keys, values)
    return score.score_pass(
        query, keys, values, lse, out, scaling, start, kind, sliding_window, sinks, reduce
    )


def value_norms(values, w_o, order=1):
    """||v_j W_O^h|| float32 [Hq, n], order 1 or 2: see `kernels/norms.py`."""
    if order not in (1, 2):
        raise KvvizError(f"Norm order is {order}; it can be 1 or 2.")
    choose("value_norms", values, w_o)
    return norms.value_norms(values, w_o, order)


def gather_rows(keys, values, mask, block=128):
    """Kept rows in flat blocks (keys, values, positions, head): see `kernels/gather.py`."""
    choose("gather_rows", keys, values, mask)
    return gather.gather_rows(keys, values, mask, block)


def ragged_attention(
    query,
    keys,
    values,
    positions,
    owner,
    n_kv_heads,
    scaling,
    query_positions,
    sliding_window=None,
):
    """Output [V, Hq, T, d] and lse [V, Hq, T] over ragged rows: see `kernels/ragged.py`."""
    choose("ragged_attention", query, keys, values)
    return ragged.ragged_attention(
        query,
        keys,
        values,
        positions,
        owner,
        n_kv_heads,
        scaling,
        query_positions,
        sliding_window,
    )
