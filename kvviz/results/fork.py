"""Where answers part: the likeliest next tokens of each cache at every step of its answer.

It tells an answer that was lost (the expected token is nowhere near the top) from one that went another way
(the expected token was second).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvviz.brief import brief


@dataclass(frozen=True)
class Step:
    """One step of one cache's own greedy answer.

    token   what it wrote;  likeliest  (token, probability) of the ten likeliest, likeliest first.
    """

    token: str
    likeliest: list[tuple[str, float]]


@dataclass(frozen=True)
class Path:
    """One cache's answer, step by step.

    expected  (probability, rank counted from 1) of each of the full cache's answer tokens when this cache is
              fed that answer: how near it came.
    """

    name: str
    text: str
    steps: list[Step]
    expected: list[tuple[float, int]]

    __repr__ = brief


@dataclass(frozen=True)
class Fork:
    """The paths of the whole cache and of others; `parts` names the first step at which each leaves it."""

    tokens: list[str]  # of the full cache's answer
    paths: dict[str, Path]

    __repr__ = brief

    @property
    def parts(self) -> dict[str, int | None]:
        """{name: first step whose token is not the full cache's}, None where the answers are equal."""
        full = [s.token for s in self.paths["full"].steps]
        return {name: _first(full, [s.token for s in path.steps]) for name, path in self.paths.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "tokens": self.tokens,
            "parts": self.parts,
            "paths": {
                name: {
                    "text": p.text,
                    "steps": [
                        {"token": s.token, "likeliest": [list(x) for x in s.likeliest]} for s in p.steps
                    ],
                    "expected": [list(x) for x in p.expected],
                }
                for name, p in self.paths.items()
            },
        }


def _first(full: list[str], other: list[str]) -> int | None:
    for step, (a, b) in enumerate(zip(full, other)):
        if a != b:
            return step
    return None if len(full) == len(other) else min(len(full), len(other))
