"""Work that is told as it goes: streams of events, and the plain calls that run them to their end."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from kvviz.types import Event

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


class Steps(Generic[S, R]):
    """The steps of a generator, to loop over; `result` is what it returned, once they are over."""

    result: R

    def __init__(self, steps: Generator[S, None, R]):
        self._steps = steps

    def __iter__(self) -> Iterator[S]:
        self.result = yield from self._steps


def called_as(stream: Callable[P, S]) -> Callable[[Callable[[S], R]], Callable[P, R]]:
    """Makes a function of what `stream` gives into one that is called with the arguments of `stream`."""

    def take(fn: Callable[[S], R]) -> Callable[P, R]:
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return fn(stream(*args, **kwargs))

        named: Any = functools.update_wrapper(call, fn)
        returns = inspect.signature(fn).return_annotation
        named.__signature__ = inspect.signature(stream).replace(return_annotation=returns)
        del named.__wrapped__
        return named

    return take


def heard(events: Iterator[Event], by: Callable[[Event], None]) -> Iterator[Event]:
    """The same events, each told to `by` first."""
    for event in events:
        by(event)
        yield event


def result_of(events: Iterator[Event]) -> Any:
    """What a stream made: its last event carries it. In a notebook a bar shows how far it is (TQDM_DISABLE=1
    in the environment: none)."""
    result = None
    for event in with_bar(events) if in_notebook() else events:
        result = event.result
    return result


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def with_bar(events: Iterator[Event]) -> Iterator[Event]:
    """The same events, with a bar of the stage that goes on."""
    bars = importlib.import_module("tqdm.auto")
    with bars.tqdm(total=1.0, bar_format="{desc} {percentage:3.0f}%|{bar}|", leave=False) as bar:
        for event in events:
            bar.set_description_str(event.message, refresh=False)
            bar.n = min(1.0, event.done / event.total) if event.total else 0.0
            bar.refresh()
            yield event
