"""Methods of one's own: a file like those of this folder, anywhere, that becomes one more method.

    METHOD = Method(id="my_method", label="My method", idea="...", paper="", score=score)

`register` takes it from a running program, `load_plugin` from such a file (`--plugin`, `KVVIZ_PLUGINS`), and
an installed package names it in the entry-point group `kvviz.methods`. All lists hold it from then on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvviz import memory
from kvviz.engine.budgets import ALLOCATORS
from kvviz.errors import InputError, KvvizError
from kvviz.identity import shown
from kvviz.lazy import torch
from kvviz.methods.spec import NEEDS, Method, Options, Scores

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

ENTRY_POINTS = "kvviz.methods"
_ID = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED = ("full", "found", "mix")  # the whole cache, the cache that would do, what was mixed on the page


@dataclass(frozen=True)
class Source:
    """Where an own method comes from.

    name    the file, the package with its version, or "register" where a program handed the method over.
    path    the file's place on this machine, "" where it is none; it is never stored with a run.
    sha256  of the file; "" where there is none.
    """

    name: str
    path: str = ""
    sha256: str = ""

    def told(self) -> dict[str, str]:
        """What a run stores of it."""
        return {"from": self.name, **({"sha256": self.sha256} if self.sha256 else {})}


_CALL = Source("register")
_OWN: dict[str, tuple[Method, Source]] = {}
_lock = threading.RLock()
_reading: list[Source] = []  # the plugin or package whose code runs now
_installed_read = False


def register(method: Method, *, replace: bool = False) -> Method:
    """Put `method` beside the built-in ones: API, command line, page and sweeps of this process know it.

    replace  takes the place of an own method of that id, as when a notebook's cell is run again.

    Returns the method. InputError where it cannot stand in the list: its id is taken or no name, its
    allocation, needs or presets do not exist.
    """
    _check(method)
    with _lock:
        _check_free(method, replace)
        _OWN[method.id] = method, (_reading[-1] if _reading else _CALL)
    return method


def own_methods() -> list[Method]:
    """All of them, in the order they came; packages that name some are read at the first call."""
    _read_installed()
    return [method for method, _ in list(_OWN.values())]


def source_of(method_id: str) -> Source | None:
    """Where an own method comes from, None for a built-in one."""
    return _OWN[method_id][1] if method_id in _OWN else None


def load_plugin(path: str | Path) -> list[Method]:
    """Run a file and register its methods: those it hands to `kvviz.register`, and every `Method` that it
    names (`METHOD = Method(...)`). Reading a file twice does nothing, unless it was changed: then what it
    gave before is replaced.

    Returns the file's methods. InputError where the file is missing, raises, or holds no method.
    """
    place = Path(path).expanduser()
    try:
        place = place.resolve()
        data = place.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        what = "is a folder" if isinstance(error, IsADirectoryError) else "cannot be read"
        what = "does not exist" if isinstance(error, FileNotFoundError) else what
        raise InputError(f"The plugin {shown(str(path))} {what}. Give a Python file.") from None
    source = Source(place.name, str(place), hashlib.sha256(data).hexdigest())
    with _lock:
        if not any(its == source for _, its in _OWN.values()):
            _run(source, partial(_execute, place, data))
        return [method for method, its in _OWN.values() if its == source]


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Load one after the other."""
    for path in paths:
        load_plugin(path)


def sources(ids: Iterable[str]) -> dict[str, Source]:
    """{id: source} of the own ones among these methods."""
    return {id: source for id in ids if (source := source_of(id)) is not None}


def bring(wanted: Mapping[str, Source]) -> None:
    """Have these own methods in this process, as another one knows them. InputError where one cannot be
    had: it was handed over by a program, or its file was changed since."""
    for id, source in wanted.items():
        if source.path and source_of(id) != source:
            load_plugin(source.path)
        own_methods()  # those of packages
        if source_of(id) != source:
            why = "was handed over by a program" if source == _CALL else "is another one there by now"
            raise InputError(
                f"The method {id} {why}, so that a worker process cannot have it. Give its file with "
                "--plugin or kvviz.load_plugin."
            )


def _run(source: Source, execute: Callable[[], list[Method]]) -> None:
    """Registers what a plugin or package gives; where something is wrong, all stays as it was."""
    before = dict(_OWN)
    _reading.append(source)
    try:
        for id, (_, its) in before.items():
            if source.path and its.path == source.path:  # the file as it was
                del _OWN[id]
        for method in execute():
            if all(method is not known for known in [*_built_in(), *(m for m, _ in _OWN.values())]):
                register(method)
        if not any(its == source for _, its in _OWN.values()):
            raise InputError(f"{source.name} holds no method. End it with METHOD = Method(...).")
    except (Exception, SystemExit) as error:
        _OWN.clear()
        _OWN.update(before)
        if isinstance(error, KvvizError):
            raise
        raise InputError(f"{source.name} could not be read: {_said(error, source.path)}.") from error
    finally:
        _reading.pop()


def _execute(place: Path, data: bytes) -> list[Method]:
    """Run the file as a module of its own; the methods it names."""
    name = f"kvviz_plugin_{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    module = types.ModuleType(name)
    module.__file__ = str(place)
    sys.modules[name] = module  # dataclasses of the file look themselves up there
    exec(compile(data, str(place), "exec"), module.__dict__)  # the very bytes whose hash is known
    return _methods_of(module)


def _methods_of(found: Any) -> list[Method]:
    """What an entry point or a module gives: a method, or all that it names."""
    if isinstance(found, Method):
        return [found]
    return list({id(v): v for v in vars(found).values() if isinstance(v, Method)}.values())


def _read_installed() -> None:
    """Packages that name methods. A broken one is left out, with a warning: it must not end everything."""
    global _installed_read
    with _lock:
        if _installed_read:
            return
        _installed_read = True
        for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
            package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            try:
                _run(Source(package), partial(_load, point))
            except InputError as error:
                warnings.warn(f"kvviz: a method of an installed package is left out. {error}", stacklevel=2)


def _load(point: importlib.metadata.EntryPoint) -> list[Method]:
    return _methods_of(point.load())


def _built_in() -> tuple[Method, ...]:
    from kvviz.methods import METHODS

    return METHODS


def plain_name(name: str) -> str:
    """A name as it is compared: letters and digits, case aside."""
    return "".join(filter(str.isalnum, name)).casefold()


def _check(method: Any) -> None:
    if not isinstance(method, Method):
        raise InputError(f"Register a kvviz.methods.Method, not {shown(method)}.")
    if not isinstance(method.id, str) or not _ID.fullmatch(method.id) or method.id in _RESERVED:
        raise InputError(
            f"{shown(method.id)} cannot be a method's id: up to 40 small letters, digits and _, a letter "
            f"first, and not {', '.join(_RESERVED[:-1])} or {_RESERVED[-1]}."
        )
    words = (method.label, method.idea, method.paper)
    if not all(isinstance(text, str) for text in words) or not plain_name(method.label):
        raise InputError(f"{method.id}: label, idea and paper are texts, and the label is not empty.")
    if not callable(method.score):
        raise InputError(f"{method.id}: score is a function of (layer, options) that gives Scores.")
    if method.allocation not in ALLOCATORS:
        known = ", ".join(ALLOCATORS)
        raise InputError(f"{method.id}: there is no allocation {shown(method.allocation)}. One of: {known}.")
    if unknown := sorted(set(method.needs).union(*method.needs_by.values()) - set(NEEDS)):
        known = ", ".join(NEEDS)
        raise InputError(f"{method.id}: a trace cannot carry {shown(unknown[0])}. Needs are of: {known}.")
    for given in ({}, *({"preset": name} for name in method.presets)):
        method.resolve(given)


def _check_free(method: Method, replace: bool) -> None:
    taken = [*_built_in(), *(m for id, (m, _) in _OWN.items() if not (replace and id == method.id))]
    mine = {plain_name(method.id), plain_name(method.label)}
    for other in taken:
        if mine & {plain_name(other.id), plain_name(other.label)}:
            own = other.id in _OWN
            from_ = f", from {_OWN[other.id][1].name}" if own else ""
            hint = "" if not own or other.id != method.id else ", or register it with replace=True"
            raise InputError(
                f"There is a method {other.id} ({other.label}{from_}) already. "
                f"Give {method.id} another id and label{hint}."
            )


# -- what it says of a layer ------------------------------------------------------------------------------


def scores_of(method: Method, layer: LayerView, options: Options) -> Scores:
    """The method's scores of one layer. Those of an own method are checked: InputError in words where its
    code fails or gives something that is no score for each entry."""
    source = source_of(method.id)
    if source is None:
        return method.score(layer, options)
    try:
        scores = method.score(layer, options)
    except KvvizError:
        raise
    except Exception as error:
        if memory.ran_out(error):
            raise
        file = source.path or getattr(getattr(method.score, "__code__", None), "co_filename", "")
        raise InputError(
            f"{method.label} failed while scoring layer {layer.index}: {_said(error, file)}."
        ) from error
    if fault := _fault(scores, layer):
        raise InputError(f"{method.label}, layer {layer.index}: {fault}.")
    return scores


def _fault(scores: Any, layer: LayerView) -> str:
    """What is wrong with an own method's scores, "" where nothing is."""
    if not isinstance(scores, Scores):
        return f"score gives kvviz.methods.Scores, not {type(scores).__name__}"
    shape = (layer.n_kv_heads, layer.context)
    wanted = {"values": torch.float32, "raw": torch.float32, "second": torch.float32, "first": torch.bool,
              "turn": torch.int64}  # fmt: skip
    for name, dtype in wanted.items():
        given = getattr(scores, name)
        if given is None and name != "values":
            continue
        if not isinstance(given, torch.Tensor):
            return f"{name} is a tensor, not {type(given).__name__}"
        if tuple(given.shape) != shape:
            return (
                f"{name} has the shape {list(given.shape)} instead of [{shape[0]}, {shape[1]}], one number "
                "for each KV head and context entry (layer.n_kv_heads, layer.context)"
            )
        if given.dtype != dtype:
            return f"{name} is {given.dtype} instead of {dtype}" + ": .float() makes it so" * (
                dtype == torch.float32
            )
        if dtype == torch.float32 and (missing := int(given.isnan().sum())):
            return f"{missing:,} of {given.numel():,} numbers in {name} are NaN; every entry needs a number"
    if scores.weight is not None and not math.isfinite(scores.weight):
        return "weight is no number"
    return ""


def _said(error: BaseException, file: str) -> str:
    """An error of someone else's code on one line, with the place in their file."""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
    if isinstance(error, SyntaxError):
        return words
    lines = []
    with suppress(Exception):
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if file and f.filename == file]
    return f"{words} (line {lines[-1]} of {Path(file).name})" if lines else words
