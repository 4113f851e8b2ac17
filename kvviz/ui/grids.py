"""A needle grid as the page asks for it, and the sweep that it grows into, text by text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvviz.engine.ask import whole
from kvviz.errors import InputError
from kvviz.evaluate.grid import NEW_TOKENS
from kvviz.evaluate.needles import MIN_TOKENS, NEEDLES
from kvviz.figures.evidence_needles import MOST_COLUMNS
from kvviz.identity import shown
from kvviz.results import words as text
from kvviz.results.study import COLUMNS
from kvviz.results.sweeps import Sweep, tidy
from kvviz.settings import Settings
from kvviz.ui import asks

MOST_TEXTS, MOST_SEEDS = 240, 10


@dataclass(frozen=True)
class Grid:
    """What is hidden where, and what every text is answered from.

    lengths  in tokens; depths from 0 (start) to 1 (end).
    needles  places in `NEEDLES`; each seed draws the texts anew.
    """

    ask: asks.Request
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    needles: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def texts(self) -> list[int]:
        """The length of every text, in the order in which they are read."""
        each = len(self.seeds) * len(self.depths)
        return [length for _ in self.needles for length in self.lengths for _ in range(each)]

    @property
    def answers(self) -> int:
        """Answers of all texts, the full cache's among them."""
        return len(self.texts) * (self.ask.answers + 1)

    @property
    def command(self) -> list[str]:
        """The command that measures the same on one's own machine."""
        ask = self.ask
        given = {
            "--lengths": self.lengths, "--depths": [f"{d:g}" for d in self.depths], "--seeds": self.seeds,
            "--needles": self.needles, "--methods": ask.methods, "--budgets": ask.budgets,
            "--model": [ask.model], "--dtype": [ask.dtype], "--protocol": [ask.protocol],
        }  # fmt: skip
        words = [word for name, values in given.items() for word in (name, ",".join(map(str, values)))]
        return ["kvviz", "niah", *words, *([] if ask.controlled else ["--own-settings"]), "--out", "grid"]


def grid_of(limits: Settings, /, **given: Any) -> Grid:
    """A grid of the form's fields, if this server takes it; InputError with one sentence otherwise."""
    depths = _list(given.get("depths"), "depths", "10%, 50%, 90%", _depth)
    lengths = _list(given.get("lengths"), "lengths", "500, 1000", _length)
    methods = given.get("methods")
    ask = asks.check(
        asks.Request(
            methods=[str(m) for m in methods] if isinstance(methods, list) else [],
            budgets=[b.value for b in asks.percent_budgets(given.get("budgets"))],
            model=str(given.get("model") or asks.Request.model).strip(),
            protocol=_protocol(given.get("protocol")),
            controlled=given.get("controlled") is not False,
            max_new_tokens=NEW_TOKENS,
            lenses=False,
        ),
        limits,
    )  # fmt: skip
    asked = given.get("needles")
    needles = sorted({int(n) for n in asked if n in range(len(NEEDLES))}) if isinstance(asked, list) else [0]
    if not needles:
        raise InputError("Choose at least one sentence to hide.")
    seeds = range(whole(given.get("seeds") or 1, "The number of texts a place", 1, MOST_SEEDS))
    grid = Grid(ask, lengths, depths, tuple(needles), tuple(seeds))
    _check(grid, limits)
    return grid


def _check(grid: Grid, limits: Settings) -> None:
    places = len(grid.lengths) * len(grid.depths)
    if places > MOST_COLUMNS:
        raise InputError(
            f"{len(grid.lengths)} lengths at {len(grid.depths)} depths are {places} places; a grid shows up "
            f"to {MOST_COLUMNS}. Choose fewer."
        )
    if max(grid.lengths) > limits.max_tokens:
        raise InputError(
            f"A text of {max(grid.lengths):,} tokens is too long: up to {limits.max_tokens:,} are read here."
        )
    number, tokens = len(grid.texts), sum(grid.texts)
    if number > MOST_TEXTS:
        raise InputError(
            f"These are {number:,} texts; up to {MOST_TEXTS} are read in one grid. Choose fewer places, "
            "sentences or texts a place."
        )
    if tokens > limits.max_grid_tokens:
        raise InputError(
            f"These {number:,} texts have {tokens:,} tokens together; up to {limits.max_grid_tokens:,} are "
            "read in one grid here. Choose fewer or shorter ones."
        )


def _list(given: Any, name: str, example: str, one: Callable[[str], Any]) -> tuple[Any, ...]:
    parts = [part for part in re.split(r"[,;\s]+", str(given or "")[:1000]) if part]
    try:
        values = tuple(sorted({one(part) for part in parts}))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The {name} are written as {example}, not {shown(given)}.") from None
    if not values:
        raise InputError(f"Write at least one of the {name}, such as {example}.")
    return values


def _length(part: str) -> int:
    if len(part) > 9:
        raise ValueError(part)
    tokens = int(part)
    if tokens < MIN_TOKENS:
        raise InputError(f"A text has {MIN_TOKENS} tokens or more, not {shown(part)}.")
    return tokens


def _depth(part: str) -> float:
    percent = float(part.removesuffix("%"))
    if not part.endswith("%") and 0 < percent < 1:
        raise InputError(f"Depths are percent here: write {100 * percent:g}% for {part}.")
    if not 0 <= percent <= 100:  # also refuses NaN
        raise InputError(f"A depth lies between 0% (start) and 100% (end), not {shown(part)}.")
    return percent / 100


def _protocol(given: Any) -> str:
    if given is not None and given not in asks.PROTOCOLS:
        raise InputError(f"There is no protocol {shown(given)}.")
    return given or asks.Request.protocol


class Growing:
    """A grid that is being measured: what has come of it so far, as a sweep."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.items: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.done = 0
        self.reason = ""  # why an answer is missing, of the first one that is
        lengths = text.span_names([text.count(n) for n in grid.lengths])
        self.manifest: dict[str, Any] = {
            "title": f"Needle grid, {lengths} tokens",
            "command": grid.command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "models": [grid.ask.model],
            "items": len(grid.texts),
            "settings": {"ask": grid.ask.plain.to_dict(), "protocol": grid.ask.protocol,
                         "dtype": grid.ask.dtype, "keep_runs": "none"},
            "grid": {name: list(getattr(grid, name)) for name in ("lengths", "depths", "needles", "seeds")},
        }  # fmt: skip

    def plan(self, items: Sequence[dict[str, Any]]) -> None:
        """The texts that will be read."""
        self.items = {item["id"]: item for item in items}

    def add(self, cell: dict[str, Any]) -> None:
        """One text's rows."""
        self.rows += cell["rows"]
        self.done += 1
        self.reason = self.reason or next((r["reason"] for r in cell["rows"] if r["reason"]), "")
        about = {name: value for name, value in cell["about"].items() if name != "machine"}
        self.manifest["measured_with"] = {self.grid.ask.model: [about]}

    def sweep(self) -> Sweep:
        """As far as it is measured."""
        table = tidy({name: [row.get(name) for row in self.rows] for name in COLUMNS})
        return Sweep(self.manifest["title"], table, dict(self.manifest), self.items, here=True)
