"""A GPU that is lent by the call, as ZeroGPU does: each piece of work asks for it, and runs in a process that
was forked from this one.

What crosses between the two is pickled, and nothing of CUDA crosses: tensors come back on the CPU, errors as
values (the lender keeps only their class), Stop goes as a file that appears. A process may be used again for
the next piece of work, so it may be older than a model that was loaded here meanwhile.
"""

from __future__ import annotations

import html
import io
import os
import pickle
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any

from kvviz.errors import InputError, KvvizError
from kvviz.hardware import lent

Key = tuple[str, str]  # name, dtype
MODELS: dict[Key, Any] = {}  # of the process: what is forked from it sees them

_LEAST_S, _MOST_S = 15, 120  # what is asked for; a lender prefers short calls and refuses very long ones
# Allowances, not measurements: what a lent GPU should do in a second even on a bad day.
_START_S = 8.0  # a fresh process with CUDA
_MOVED = 4e9  # bytes of weights to the GPU
_PRODUCTS = 4e13  # operations of a reading, 4 % of what the lent slice is said to do in 16 bits
_STEP_S = 0.05  # one token of all answers that are written together, beside the weights' own time
_SWEPT = 5e11  # bytes of weights read for one token


def seconds_for(weights: int, itemsize: int, readings: float, steps: int) -> int:
    """Seconds to ask for: the weights are moved, tokens are read `readings` times, `steps` tokens written."""
    bytes_ = weights * itemsize
    wanted = _START_S + bytes_ / _MOVED + 2 * weights * readings / _PRODUCTS
    wanted += steps * (_STEP_S + bytes_ / _SWEPT)
    return round(min(max(wanted, _LEAST_S), _MOST_S))


class Stop:
    """Stop for work in another process: a file that appears. Reads like a `threading.Event`."""

    def __init__(self, path: Path):
        self._path = str(path)

    def set(self) -> None:
        Path(self._path).touch()

    def is_set(self) -> bool:
        return os.path.exists(self._path)


class _Plain(pickle.Pickler):
    """Pickles tensors as those of the CPU."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__module__ == "torch" and hasattr(obj, "device") and obj.device.type != "cpu":
            return obj.cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def packed(value: Any) -> bytes:
    """A value as bytes that can be read without a GPU."""
    out = io.BytesIO()
    _Plain(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


Work = Callable[..., Iterator[Any]]


def on_gpu(seconds: Callable[..., int]) -> Callable[[Work], Work]:
    """Ask for a GPU around work(key, cancel, traces, *args) where one is lent by the call.

    seconds  called with (key, *args): how long to ask for it.

    Elsewhere the work itself. Where one is lent, `traces` stay out of it: they could not leave its process.
    """

    def ask(work: Work) -> Work:
        if not lent():
            return work
        import spaces

        @wraps(work)
        def there(key: Key, stop: Stop, *args: Any) -> Iterator[bytes]:
            try:
                for event in work(key, stop, None, *args):
                    yield packed(event)
            except KvvizError as error:
                yield packed(error)

        lends = spaces.GPU(duration=lambda key, stop, *args: seconds(key, *args))(there)

        @wraps(work)
        def here(key: Key, cancel: threading.Event, traces: Any, *args: Any) -> Iterator[Any]:
            with tempfile.TemporaryDirectory(prefix="kvviz-stop-") as place:
                stop = Stop(Path(place) / "stop")
                try:
                    with closing(lends(key, stop, *args)) as events:
                        for data in events:
                            if cancel.is_set():
                                stop.set()  # what is finished still comes
                            event = pickle.loads(data)  # made by our own process a moment ago
                            if isinstance(event, KvvizError):
                                raise event
                            yield event
                except KvvizError:
                    raise
                except Exception as error:
                    raise _of_the_lender(error) from error
                finally:
                    stop.set()

        return here

    return ask


def _of_the_lender(error: Exception) -> Exception:
    """What the lender says to the visitor (no GPU free, quota used up), as one of our errors."""
    import gradio as gr

    if not isinstance(error, gr.Error):
        return error
    said = " ".join(html.unescape(re.sub(r"<[^>]*>", "", str(error.message))).split())
    return InputError(f"The GPU that this page borrows could not be had: {said}")


def model_of(key: Key) -> Any:
    """The loaded model, where it is computed: a lent process takes it to its GPU, once."""
    model = MODELS.get(key)
    if not lent():
        return MODELS[key]
    import torch

    torch.set_num_threads(1)  # the threads of the process it was forked from are not in this one
    if model is None:  # loaded after this process was forked
        import kvviz

        MODELS.clear()
        model = MODELS[key] = kvviz.load_model(key[0], dtype=key[1])
    if torch.cuda.is_available():
        model.hf.to("cuda")
    return model
