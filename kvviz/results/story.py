"""What a run says of itself beside its answers: what it is called, where it opens, what was tried with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MOST_STEPS = 24
MOST_WORDS = 400  # characters of a step


@dataclass(frozen=True)
class Opening:
    """A view of a run: methods `a` and `b`, a budget, chosen tokens [start, end); `grain` is what the text is
    seen by, one of `kvviz.results.passages.GRAINS`."""

    a: str
    b: str | None
    budget: float | int
    tok: tuple[int, int] | None = None
    layer: int | None = None
    head: int | None = None
    grain: str = "token"


@dataclass(frozen=True)
class Step:
    """One step of a story: what its teller says, and what is looked at meanwhile.

    shows  the part of the page that shows it: a tab's name, "answers", "text" or "budget".
    """

    words: str
    shows: str
    view: Opening


@dataclass(frozen=True)
class Places:
    """The run's question asked with its answer at several places of the text.

    what    what is looked for, as a heading ("Code").
    found   {method: {share kept: whether it was found at each place}}.
    depths  where each place lies, as a share of the text; empty where that is not known.
    """

    found: dict[str, dict[float, tuple[bool, ...]]]
    what: str = "Answer"
    depths: tuple[float, ...] = ()

    def at(self, method: str, share: float) -> tuple[bool, ...] | None:
        """What a method found at each place with this share kept, None where it was not tried."""
        rows = self.found.get(method, {}).items()
        return next((row for s, row in rows if abs(s - share) < 1e-9), None)


@dataclass(frozen=True)
class Experiment:
    """An edit beside its random controls: a row of words an answer, and the outcome in a sentence."""

    rows: tuple[dict[str, str], ...]
    sentence: str


@dataclass(frozen=True)
class Story:
    """Each part is empty or None where nothing is said. A saved file holds them in the run's settings."""

    title: str = ""
    label: str = ""
    opening: Opening | None = None
    places: Places | None = None
    experiment: Experiment | None = None
    steps: tuple[Step, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The parts that are there, as plain values."""
        return {key: value for key, value in asdict(self).items() if value}
