"""What had to be kept: effects of sets of entries on the answer, and the smallest rescue, as plain values.

Two directions that are never mixed: *put back* (into what a method kept: nats returned) and *taken out* (of
the whole cache: nats lost). Effects are changes of the summed log-probability of the full cache's answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.brief import brief
from kvviz.results.kept import KeptSet
from kvviz.results.passages import Passage
from kvviz.results.points import Point

if TYPE_CHECKING:
    import pandas as pd

PUT_BACK, TAKEN_OUT = "put_back", "taken_out"
FOUND, FOUND_LABEL = "found", "Found by search"  # the kept set of a `WouldDo` beside those of methods
UNITS = ("head", "layer", "passage", "token", "passage-head")


@dataclass(frozen=True)
class Effect:
    """What one unit's entries do to the answer.

    unit      one of UNITS; layer, head, passage and token say which, None where the unit spans all.
    entries   how many entries were put back or taken out; 0 where there was nothing to do.
    effect    nats: put back, log-probability returned; taken out, log-probability lost.
    expected  the same on the tokens of the expected answer alone, None where none is in the full answer.
    kl        mean KL(full || trial) after the change, nats a step.
    """

    unit: str
    entries: int
    effect: float
    kl: float
    expected: float | None = None
    layer: int | None = None
    head: int | None = None
    passage: Passage | None = None
    token: int | None = None

    @property
    def cell(self) -> tuple[int, int]:
        """(layer, KV head) of a head's effect."""
        assert self.layer is not None and self.head is not None
        return self.layer, self.head

    @property
    def piece(self) -> Passage:
        """The passage of a passage's effect."""
        assert self.passage is not None
        return self.passage

    @property
    def place(self) -> tuple:
        """(unit, layer, head, first token of the passage, token): what tells it from all others."""
        start = None if self.passage is None else self.passage.start
        return self.unit, self.layer, self.head, start, self.token

    def to_dict(self) -> dict[str, Any]:
        """Flat plain values; a passage gives its start, end and text."""
        row: dict[str, Any] = {"unit": self.unit}
        for name in ("layer", "head", "token"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        if self.passage is not None:
            row |= asdict(self.passage)
        row |= {"entries": self.entries, "effect": self.effect, "kl": self.kl}
        return row if self.expected is None else {**row, "expected_effect": self.expected}


@dataclass(frozen=True)
class Controls:
    """Whether each of the random sets of the rescue's size, in the rescue's heads, returns the answer too.

    added      put in on top of what the method kept.
    same_size  put in while as many of the head's worst-scored kept entries leave.
    """

    added: list[bool]
    same_size: list[bool]


@dataclass(frozen=True)
class Rescue:
    """The fewest entries found that, put back into what a method kept, return the answer.

    entries    (layer, KV head, token) of each; none can be spared alone where `minimal`.
    text       the answer with them;  verdict  "right", or "same tokens" where no answer was expected.
    necessary  for each entry whether the answer is lost again without it.
    same_size  whether they also return it when as many worst-scored kept entries leave.
    trials, seconds  what the search cost;  minimal  False where it ran out of trials or was stopped.
    """

    entries: list[tuple[int, int, int]]
    of: int  # entries of the whole cache
    text: str
    verdict: str
    necessary: list[bool]
    effect: float
    same_size: bool
    controls: Controls
    minimal: bool
    trials: int
    seconds: float

    __repr__ = brief

    @property
    def stopped(self) -> bool:
        """Whether the search was stopped: smaller ones were still sought, and no random sets were tried."""
        return not self.controls.added

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "entries": [list(entry) for entry in self.entries]}


@dataclass(frozen=True, eq=False)
class WouldDo:
    """The smallest cache found that gives the full cache's answer, token for token.

    mask   bool [L, Hkv, n];  start  the order or cache the search began with.
    kl     mean KL(full || this cache) on the full cache's answer, nats a step.
    held   {"method@budget": share of these entries that it holds}.
    minimal  whether the search ended by itself: no entry can be spared alone. It never says that no smaller
             cache exists.
    most   trials it was allowed;  notes  what the search did not try, in words.
    """

    mask: np.ndarray
    start: str
    text: str
    bytes: int
    kl: float
    held: dict[str, float]
    minimal: bool
    trials: int
    most: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    __repr__ = brief

    @property
    def entries(self) -> int:
        return int(self.mask.sum())

    @property
    def budget(self) -> float:
        """Its size as a method's budget: entries per KV head as a share of the tokens."""
        return self.entries / self.mask.size

    @cached_property
    def point(self) -> Point:
        """The kept set as that of a method called FOUND."""
        return Point(
            FOUND,
            self.budget,
            KeptSet.pack(self.mask, np.zeros((1, 1, 1), bool), round(self.budget * self.mask.shape[-1])),
            stage=self.mask.astype(np.int8),
            label=FOUND_LABEL,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the entries as [layer, KV head, token]."""
        row = {k: v for k, v in vars(self).items() if k not in ("mask", "point")}
        return {**row, "size": self.entries, "entries": np.argwhere(self.mask).tolist()}


@dataclass(frozen=True)
class Agreement:
    """Does a method keep what matters? Spearman's rank correlation of the kept share of each passage of the
    document with what the answer loses without it, with a 95 % bootstrap interval."""

    name: str
    rho: float
    low: float
    high: float


@dataclass
class Causes:
    """The result of `kvviz.causes`: one method at one budget, held against the whole cache.

    answer  the full cache's text;  gap  its summed log-probability less the method's, nats.
    agreement  one row a kept set of the run ("method@budget"), then "recency" and "random".
    stopped  True where Stop ended it: what is here is finished, the rest is missing.
    """

    method: str
    budget: float | int
    answer: str
    tokens: list[str]
    method_text: str
    gap: float
    expected_gap: float | None
    kl: float
    n: int
    put_back: list[Effect] = field(default_factory=list)
    taken_out: list[Effect] = field(default_factory=list)
    rescue: Rescue | None = None
    would_do: WouldDo | None = None
    agreement: list[Agreement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trials: int = 0
    seconds: float = 0.0
    stopped: bool = False

    __repr__ = brief

    @property
    def key(self) -> str:
        """That of the method's answer in a comparison."""
        return f"{self.method}@{self.budget}"

    def of(self, direction: str, unit: str) -> list[Effect]:
        """The effects of one kind of unit."""
        return [e for e in getattr(self, direction) if e.unit == unit]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        apart = ("put_back", "taken_out", "rescue", "would_do", "agreement")
        row = {k: v for k, v in vars(self).items() if k not in apart}
        row |= {way: [e.to_dict() for e in getattr(self, way)] for way in (PUT_BACK, TAKEN_OUT)}
        row["agreement"] = [asdict(a) for a in self.agreement]
        row["rescue"] = None if self.rescue is None else self.rescue.to_dict()
        row["would_do"] = None if self.would_do is None else self.would_do.to_dict()
        return row

    def to_frame(self, direction: str = PUT_BACK) -> pd.DataFrame:
        """One row an effect; direction "put_back" or "taken_out"."""
        import pandas as pd

        return pd.DataFrame([effect.to_dict() for effect in getattr(self, direction)])

    def token_map(self, direction: str = PUT_BACK) -> np.ndarray | None:
        """Effects along the prompt, float64 [n]: of each token where tokens were tried, else each passage's
        spread evenly over its tokens. NaN where nothing was tried; None where neither was."""
        tokens, pieces = self.of(direction, "token"), self.of(direction, "passage")
        if not tokens and not pieces:
            return None
        found = np.full(self.n, np.nan)
        if tokens:
            for e in tokens:
                found[e.token] = e.effect
            return found
        for e in pieces:
            found[e.piece.start : e.piece.end] = e.effect / (e.piece.end - e.piece.start)
        return found
