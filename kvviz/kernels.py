"""Chooses, for every operation, the Triton kernel or its plain torch twin, and says which one ran.

The implementations lie in the folder `kernels/`, one file an operation, reached as
`kvviz.kernels.window`, `kvviz.kernels.score` and so on: this module serves as their package. (A top-level
package called `kernels` would shadow one that transformers imports.)

KVVIZ_KERNELS=triton|torch|auto overrides the choice. `auto`, the default, takes Triton on a GPU that can
run it and the twin everywhere else; should a kernel fail to build there (no C compiler, say), it warns
once and goes on with the twin. Triton is imported only when a kernel is about to run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

_here = Path(__file__).resolve().parent
# Installed, the folder is kvviz/kernels/; in the source tree it stands beside kvviz/.
_folder = _here / "kernels" if (_here / "kernels").is_dir() else _here.parent / "kernels"
__path__ = [str(_folder)]

import kvviz.kernels.gather as gather  # noqa: E402
import kvviz.kernels.norms as norms  # noqa: E402
import kvviz.kernels.ragged as ragged  # noqa: E402
import kvviz.kernels.score as score  # noqa: E402
import kvviz.kernels.window as window  # noqa: E402
from kvviz.errors import KvvizError  # noqa: E402
from kvviz.kernels.device import Device, score_fits  # noqa: E402
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

_TWINS = {
    "window_pass": window,
    "score_pass": score,
    "value_norms": norms,
    "gather_rows": gather,
    "ragged_attention": ragged,
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST_HEAD = 256
_LONGEST_WINDOW = 128  # rows the score kernels take
_last_used: dict[str, str] = {}
_broken: set[str] = set()  # operations whose kernel failed to build on this machine


def last_used() -> dict[str, str]:
    """Which implementation ran last for each operation: {"window_pass": "triton" or "torch", ...}."""
    return dict(_last_used)


def window_pass(query, keys, values, scaling, start, sliding_window=None, sinks=None):
    """Log-sum-exp [Hq, W] and output [Hq, W, d] of the window's queries: see `kernels/window.py`."""
    fits = _fits(query, keys, values)
    return _run("window_pass", fits, query, keys, values, scaling, start, sliding_window, sinks)


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
    epsilon=1e-6,
):
    """Scores float32 [Hq, n]: see `kernels/score.py`."""
    if kind not in score.KINDS:
        raise KvvizError(f"Unknown score '{kind}'; it can be {', '.join(score.KINDS)}.")
    fits = _fits(query, keys, values) and query.shape[1] <= _LONGEST_WINDOW
    fits = fits and score_fits(Device.of(keys), kind, keys.element_size(), keys.shape[-1])
    rest = (scaling, start, kind, sliding_window, sinks, epsilon)
    return _run("score_pass", fits, query, keys, values, lse, out, *rest)


def value_norms(values, w_o, order=1):
    """||v_j W_O^h|| float32 [Hq, n], order 1 or 2: see `kernels/norms.py`."""
    if order not in (1, 2):
        raise KvvizError(f"Norm order is {order}; it can be 1 or 2.")
    return _run("value_norms", _fits(values) and w_o.device == values.device, values, w_o, order)


def gather_rows(keys, values, mask, block=128):
    """Kept rows in flat blocks (keys, values, positions, owner): see `kernels/gather.py`."""
    return _run("gather_rows", _fits(keys, values), keys, values, mask, block)


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
    rest = (positions, owner, n_kv_heads, scaling, query_positions, sliding_window)
    return _run("ragged_attention", _fits(query, keys, values), query, keys, values, *rest)


def _fits(*tensors: torch.Tensor) -> bool:
    """True when the Triton kernels take these tensors: device, dtype, head size, something to do."""
    first = tensors[0]
    if any(t.device != first.device or t.dtype != first.dtype for t in tensors):
        return False
    if first.dtype not in _DTYPES or first.shape[-1] > _WIDEST_HEAD or not all(t.numel() for t in tensors):
        return False
    if first.device.type != "cuda":
        return os.environ.get("TRITON_INTERPRET") == "1"
    if torch.version.hip is not None:  # written for, and compiled in tests for, NVIDIA only
        return False
    oldest = (8, 0) if first.dtype == torch.bfloat16 else (7, 5)
    return torch.cuda.get_device_capability(first.device) >= oldest


def choose(operation: str, fits: bool, device_type: str) -> str:
    """ "triton" or "torch", by the environment, the inputs and what this machine can build."""
    wish = os.environ.get("KVVIZ_KERNELS", "auto")
    if wish not in ("auto", "triton", "torch"):
        raise KvvizError(f"KVVIZ_KERNELS is '{wish}'; it can be 'auto', 'triton' or 'torch'.")
    if wish == "torch" or not fits or importlib.util.find_spec("triton") is None:
        return "torch"
    if wish == "triton":
        return "triton"
    return "triton" if device_type == "cuda" and operation not in _broken else "torch"


def _run(operation: str, fits: bool, *args: Any) -> Any:
    twin = _TWINS[operation]
    if choose(operation, fits, args[0].device.type) == "triton":
        # Multiply and add fused, as in the builds that tests hold to limits; Triton's default is to change.
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        try:
            kernel = importlib.import_module(f"{twin.__name__}_triton")
            with _device_of(args[0]):
                result = getattr(kernel, operation)(*args)
            _last_used[operation] = "triton"
            return result
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if os.environ.get("KVVIZ_KERNELS") == "triton":
                raise
            _broken.add(operation)
            warnings.warn(
                f"The GPU kernel for {operation} does not run here ({type(error).__name__}: {error}); "
                "using plain torch from now on.",
                stacklevel=3,
            )
    _last_used[operation] = "torch"
    return getattr(twin, operation)(*args)


def _device_of(tensor: torch.Tensor) -> Any:
    """Triton launches on the current device, which with several GPUs need not be the tensors'."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()
