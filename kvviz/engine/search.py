"""Search for few entries that do: put back into a cut cache, or kept alone, they give the answer.

The search only asks whether sets of entries *work*, many sets at once, and takes nothing for granted: putting
more back need not help. What it returns is 1-minimal, that is, none of its entries can be spared alone; it is
the smallest set found, never claimed to be the smallest of all.

Entries are whole numbers, places in the flattened [L, Hkv, n].
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Works = Callable[[list[np.ndarray]], list[bool]]  # sets of entries -> whether each does
Gains = Callable[[list[np.ndarray]], list[float]]  # sets of entries -> how far each goes, nats
Split = Callable[[np.ndarray], list[np.ndarray]]  # a set of entries -> parts of it
MOST_TRIALS = 4000  # of one search; it stops with the smallest set found until then
RANKED = 128  # parts that are tried one by one to see what each gives alone; of more a hint says it


class OutOfTrials(Exception):
    """The search has asked as often as it may."""


@dataclass
class Search:
    """One search: what it may ask, and the smallest working set so far.

    works, gains  answer for a list of sets, decoded together.
    hint    gives a weight for every entry, by which many parts are ordered without a trial; None: all are
            tried.
    known, gained  what was answered, so that no set is decoded twice.
    """

    works: Works
    gains: Gains
    most: int = MOST_TRIALS
    asked: int = 0
    best: np.ndarray | None = None
    hint: Callable[[], np.ndarray] | None = None
    known: dict[bytes, bool] = field(default_factory=dict)
    gained: dict[bytes, float] = field(default_factory=dict)

    def ask(self, sets: list[np.ndarray]) -> list[bool]:
        """Which of these sets work."""
        self._try(sets, self.known, self.works)
        found = [self.known[s.tobytes()] for s in sets]
        for entries, yes in zip(sets, found):
            if yes and (self.best is None or len(entries) < len(self.best)):
                self.best = entries
        return found

    def ranked(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Parts ordered by what each gives alone, or by their weights; equal ones keep their order."""
        if len(parts) < 2:
            return list(parts)
        tried = all(part.tobytes() in self.gained for part in parts)
        if self.hint is not None and len(parts) > RANKED and not tried:
            weights = self.hint()
            gains = [float(weights[part].sum()) for part in parts]
        else:
            self._try(parts, self.gained, self.gains)
            gains = [self.gained[part.tobytes()] for part in parts]
        return [parts[i] for i in sorted(range(len(parts)), key=lambda i: -gains[i])]

    def _try(self, sets: Sequence[np.ndarray], known: dict[bytes, Any], trial: Callable) -> None:
        """Fill in what is not known of these sets, within the trials that are left."""
        fresh = {s.tobytes(): s for s in sets if s.tobytes() not in known}
        if self.asked + len(fresh) > self.most:
            raise OutOfTrials
        self.asked += len(fresh)
        if fresh:
            known.update(zip(fresh, trial(list(fresh.values()))))

    def prefix(self, parts: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The shortest working run of leading parts among those tried, None where none works."""
        sizes = sorted({min(2**i, len(parts)) for i in range(len(parts).bit_length() + 1)})
        low, high = 0, None
        while sizes:
            answers = self.ask([joined(parts[:size]) for size in sizes])
            hit = next((size for size, yes in zip(sizes, answers) if yes), None)
            if hit is None:
                break
            high = hit
            low = max([size for size in sizes if size < hit], default=low)
            step = max(1, (high - low) // 8)
            sizes = list(range(low + step, high, step))
        return None if high is None else list(parts[:high])

    def shortest(self, order: np.ndarray) -> np.ndarray | None:
        """The fewest leading entries of an order that work among those tried, None where none do.

        Sizes double until one works, then the gap is cut into eighths. A shorter run between two that were
        tried may work as well: more entries need not help.
        """
        sizes = sorted({min(2**i, len(order)) for i in range(len(order).bit_length() + 1)})
        low, high = 0, None
        for size in sizes:
            if self.ask([np.sort(order[:size])])[0]:
                high = size
                break
            low = size
        while high is not None and high - low > max(1, high // 50):
            step = max(1, (high - low) // 8)
            sizes = list(range(low + step, high, step))
            answers = self.ask([np.sort(order[:size]) for size in sizes])
            hit = next((size for size, yes in zip(sizes, answers) if yes), high)
            low, high = max([size for size in sizes if size < hit], default=low), hit
        return None if high is None else np.sort(order[:high])

    def pruned(self, parts: Sequence[np.ndarray]) -> Generator[None, None, list[np.ndarray]]:
        """Working parts without those that can be spared: in halves, quarters, ... then one by one.

        Yields after every round of questions and returns the parts.
        """
        left = list(parts)
        size = max(1, len(left) // 2)
        while True:
            pieces = [left[i : i + size] for i in range(0, len(left), size)] if len(left) > 1 else []
            without = [_but(pieces, [i]) for i in range(len(pieces))]
            answers = self.ask([joined(rest) for rest in without])
            yield
            spared = [i for i, yes in enumerate(answers) if yes]
            if spared:
                # What can be spared singly need not be spared together: as many of the first as can.
                runs = sorted({len(spared) * k // 8 for k in range(1, 9)} - {0, 1, len(pieces)}, reverse=True)
                rests = [_but(pieces, spared[:run]) for run in runs]
                works = self.ask([joined(rest) for rest in rests])
                left = next((rest for rest, yes in zip(rests, works) if yes), without[spared[0]])
                size = min(size, max(1, len(left) // 2))
            elif size == 1:
                return left
            else:
                size = max(1, size // 2)


def _but(pieces: list[list[np.ndarray]], out: Sequence[int]) -> list[np.ndarray]:
    return [part for i, piece in enumerate(pieces) if i not in out for part in piece]


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The entries of several parts as one sorted set."""
    return np.unique(np.concatenate(parts)) if len(parts) else np.zeros(0, np.int64)


def smallest(
    search: Search, entries: np.ndarray, splits: Sequence[Split]
) -> Generator[None, None, bool]:
    """Shrink a working set by each split in turn, then entry by entry; `search.best` holds the result.

    splits  each cuts a set of entries into parts, such as passages or heads.
    Yields after every round of questions; returns whether the search ended by itself, with a 1-minimal set,
    rather than out of trials.
    """
    try:
        if not search.ask([entries])[0]:
            return True
        current = entries
        for split in [*splits, singles]:
            parts = search.ranked(split(current))
            current = joined((yield from search.pruned(search.prefix(parts) or parts)))
        yield from one_by_one(search, current)
        return True
    except OutOfTrials:
        return False


def one_by_one(search: Search, entries: np.ndarray) -> Generator[None, None, None]:
    """Where a smaller set than these was only passed by: is it minimal, too?"""
    while search.best is not None and len(search.best) < len(entries):
        entries = joined((yield from search.pruned(singles(search.best))))


def singles(entries: np.ndarray) -> list[np.ndarray]:
    """Every entry a part of its own."""
    return list(entries[:, None])


def is_minimal(search: Search, entries: np.ndarray) -> list[bool]:
    """For each entry whether the set fails without it."""
    return [not yes for yes in search.ask([np.delete(entries, i) for i in range(len(entries))])]
