"""Limits and choices from the environment: every KVVIZ_* variable, its default, its meaning.

`ROWS` is the table that documentation and the command line list; `settings()` reads and checks it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvviz.errors import InputError

_BYTE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _whole(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _bytes(text: str) -> int:
    """Bytes from "500000000", "500M" or "8 GiB" (units of 1024)."""
    number = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    unit = _BYTE_UNITS.get(number[-1:], 1)
    return int(float(number[:-1] if unit > 1 else number) * unit)


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    return words[text.strip().lower()]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _folder(text: str) -> Path:
    return Path(text).expanduser()


def _one_of(*words: str) -> Callable[[str], str]:
    return lambda text: words[words.index(text.strip().lower())]


@dataclass(frozen=True)
class Row:
    """One setting: field name (variable KVVIZ_<NAME>), defaults, what it expects, what it means."""

    name: str
    default: Any
    expects: str
    help: str
    parse: Callable[[str], Any]
    least: int | None = None
    public_default: Any = None  # stands in for `default` on a public server, None = the same

    @property
    def variable(self) -> str:
        return f"KVVIZ_{self.name.upper()}"


ROWS: tuple[Row, ...] = (
    Row(
        "public",
        False,
        "1 or 0",
        "Serve strangers: catalogue models only, lower limits. On by default on a Space.",
        _flag,
    ),
    Row(
        "cache",
        None,
        "a folder",
        "Where fetched and converted weights are kept. Default: the user's cache folder.",
        _folder,
    ),
    Row(
        "max_tokens",
        131072,
        "a whole number of at least 16",
        "Longest prompt in tokens; a model may read less.",
        _whole,
        16,
        8192,
    ),
    Row(
        "max_new_tokens",
        1024,
        "a whole number of at least 1",
        "Most tokens an answer may have.",
        _whole,
        1,
        128,
    ),
    Row(
        "max_upload_bytes",
        8 * 2**20,
        "a size such as 8M",
        "Largest document file that is read.",
        _bytes,
        1,
        2 * 2**20,
    ),
    Row(
        "max_variants",
        256,
        "a whole number of at least 1",
        "Most answers (methods x budgets) in one run.",
        _whole,
        1,
        40,
    ),
    Row(
        "max_grid_tokens",
        2_000_000,
        "a whole number of at least 100",
        "Tokens that the texts of one needle grid may have together.",
        _whole,
        100,
        64_000,
    ),
    Row(
        "wave_bytes",
        2 * 2**30,
        "a size such as 2G",
        "Cache memory that answers decoded together may take; more answers wait for the next wave.",
        _bytes,
        2**20,
    ),
    Row(
        "reuse_bytes",
        2 * 2**30,
        "a size such as 2G",
        "Memory for traces and full-cache runs kept for the next question.",
        _bytes,
        0,
        512 * 2**20,
    ),
    Row(
        "runs",
        24,
        "a whole number of at least 1",
        "Finished runs the page keeps, stored examples among them.",
        _whole,
        1,
    ),
    Row(
        "runs_bytes",
        2 * 2**30,
        "a size such as 2G",
        "Memory for finished runs.",
        _bytes,
        2**20,
    ),
    Row(
        "models",
        (),
        "names from the catalogue, separated by commas",
        "Models the page offers. Default: the catalogue, on a public server what fits its memory.",
        _names,
    ),
    Row(
        "plugins",
        (),
        "Python files, separated by commas",
        "Files of own methods, which the page's server loads as it starts (docs/own-method.md).",
        _names,
    ),
    Row(
        "hosts",
        (),
        "host names, separated by commas",
        "Names under which a private server on this machine may be reached besides localhost.",
        _names,
    ),
    Row(
        "prefill_chunk",
        2048,
        "a whole number of at least 16",
        "Prompt tokens read per forward pass.",
        _whole,
        16,
    ),
    Row(
        "threads",
        0,
        "a whole number of at least 0",
        "CPU threads for torch, 0 = torch's choice, within what a container is given.",
        _whole,
        0,
    ),
    Row(
        "cpu_products",
        "auto",
        "auto or plain",
        "auto tries at the first use which exact way of multiplying is fastest on this processor; "
        "plain leaves all to torch.",
        _one_of("auto", "plain"),
    ),
    Row(
        "mcp",
        False,
        "1 or 0",
        "Also serve the named endpoints to agents (MCP); needs `pip install 'gradio[mcp]'`.",
        _flag,
    ),
    Row(
        "queue_size",
        64,
        "a whole number of at least 1",
        "Runs that may wait before visitors are asked to come back.",
        _whole,
        1,
        16,
    ),
)


@dataclass(frozen=True)
class Settings:
    """Checked settings; see `ROWS` for the meaning of each."""

    public: bool
    cache: Path
    max_tokens: int
    max_new_tokens: int
    max_upload_bytes: int
    max_variants: int
    max_grid_tokens: int
    wave_bytes: int
    reuse_bytes: int
    runs: int
    runs_bytes: int
    models: tuple[str, ...]
    plugins: tuple[str, ...]
    hosts: tuple[str, ...]
    prefill_chunk: int
    threads: int
    cpu_products: str
    mcp: bool
    queue_size: int


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force now, read from `environ` (default: the process environment).

    Raises InputError with one sentence when a variable holds something that cannot be used.
    """
    environ = os.environ if environ is None else environ
    given = {row.name: _read(row, environ) for row in ROWS if environ.get(row.variable, "").strip()}
    public = given.get("public", bool(environ.get("SPACE_ID")))
    values = {}
    for row in ROWS:
        stand_in = row.default if row.public_default is None or not public else row.public_default
        values[row.name] = given.get(row.name, stand_in)
    values["public"] = public
    values["cache"] = values["cache"] or default_cache_folder(environ)
    return Settings(**values)


def server_port() -> int:
    """The port that GRADIO_SERVER_PORT names, else 7860. InputError where it names none."""
    text = os.environ.get("GRADIO_SERVER_PORT", "7860").strip()
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"GRADIO_SERVER_PORT is {text!r}; it must be a whole number.")
    return int(text)


def _read(row: Row, environ: Mapping[str, str]) -> Any:
    text = environ[row.variable].strip()
    try:
        value = row.parse(text)
        fits = row.least is None or value >= row.least
    except (ValueError, KeyError, OverflowError, RuntimeError):
        fits = False
    if not fits:
        raise InputError(f"{row.variable} is {text!r}; it must be {row.expects}.")
    return value


def default_cache_folder(environ: Mapping[str, str]) -> Path:
    """The user's cache folder for kvviz, by the convention of the platform."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "kvviz"
    if sys.platform == "win32" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "kvviz" / "Cache"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path("~").expanduser()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "kvviz"
