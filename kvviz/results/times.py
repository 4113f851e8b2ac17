"""How long a run takes, told from the times of another one."""

from __future__ import annotations

from dataclasses import dataclass

from kvviz.results.comparison import Comparison

# What each stage of a run grows with; stages are those of `Comparison.seconds`.
_READING = ("prefill",)  # "read" is nothing where a trace was at hand
_WRITING = ("decode",)
_LOOKING = ("score", "errors", "lenses")


RESCUE_TRIALS = 600  # that a search for the smallest rescue takes, about
# A token of a trial costs about as much as one that is read; in a search, where few trials run side by side
# and some answers are written, more.
_FED, _SEARCHED = 1.5, 4


def causes_seconds(c: Comparison, units: int) -> float | None:
    """About how long a search for causes takes with so many units in both directions, before any trial was
    timed. None where a run does not say how long reading took."""
    reading = c.seconds.get("prefill", 0.0)
    if not reading or not c.full.token_ids:
        return None
    tokens = len(c.full.token_ids) * (_FED * 2 * units + _SEARCHED * RESCUE_TRIALS)
    return reading * (1 + tokens / c.n)


def branch_seconds(c: Comparison) -> float | None:
    """About how long it takes to go on from another token: to read the document and write one answer."""
    if not c.variants or not c.seconds.get("decode"):
        return None
    return c.seconds.get("prefill", 0.0) + 2 * c.seconds["decode"] / (len(c.variants) + 1)


def turn_seconds(c: Comparison) -> float | None:
    """About how long a further question takes: as the last one did, else as the run's answers did; None for
    the first one to caches that are cut while generating, which then write one by one."""
    if c.turns:
        return c.turns[-1].seconds
    return None if c.settings.get("evict_every") else c.seconds.get("decode")


@dataclass(frozen=True)
class Times:
    """Seconds of each stage of a run, and how much there was to do."""

    seconds: dict[str, float]
    characters: int
    tokens: int
    methods: int
    answers: int  # without the full cache's
    new_tokens: int

    @classmethod
    def of(cls, c: Comparison) -> Times:
        """The times of a finished run."""
        written = max((len(v.token_ids) for v in [c.full, *c.variants]), default=1)
        return cls(dict(c.seconds), max(1, len(c.prompt.document)), c.n, max(1, len(c.methods)),
                   len(c.variants), max(1, written))  # fmt: skip

    def tokens_of(self, characters: int) -> float:
        """About how many tokens a document of so many characters has."""
        return self.tokens * characters / self.characters

    def expected(
        self, characters: int, methods: int, answers: int, new_tokens: int, questions: int = 1
    ) -> float:
        """Seconds of a run of the same model on the same machine; all caches answer every question."""
        longer = characters / self.characters
        scale = dict.fromkeys(_READING, longer)
        written = questions * (answers + 1) * new_tokens
        scale |= dict.fromkeys(_WRITING, written / ((self.answers + 1) * self.new_tokens))
        scale |= dict.fromkeys(_LOOKING, longer * methods / self.methods)
        return sum(scale[stage] * taken for stage, taken in self.seconds.items() if stage in scale)
