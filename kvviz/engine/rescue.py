"""The smallest rescue: the fewest entries found that, put back into what a method kept, return the answer."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from kvviz.engine.changes import drawn, pushed_out, worth
from kvviz.engine.ground import Ground
from kvviz.engine.search import RANKED, Search, is_minimal, smallest
from kvviz.engine.steps import Steps
from kvviz.engine.trials import Trials
from kvviz.errors import Cancelled
from kvviz.results.causes import Causes, Controls, Rescue
from kvviz.results.passages import Passage
from kvviz.types import Event

MOST_TRIALS = 1000
LISTED = 5000  # entries a rescue may have: more of them tell nobody anything
N_CONTROLS = 20  # random sets beside a rescue
SEED = 0


def find(ground: Ground, found: Causes, pieces: Sequence[Passage], most: int) -> Iterator[Event]:
    """Put it into `found.rescue`, in at most so many trials; a stop leaves the smallest set until then, which
    a later search goes on from."""
    if ground.returned(ground.own):
        found.notes.append("Nothing to rescue: this cache gives the answer already.")
        return
    hint = lambda: ground.looks[0].reshape(-1)  # noqa: E731
    search = Search(
        ground.works(ground.kept), ground.gains, most, hint=hint, gained=_known(ground, found)
    )
    started, before = time.perf_counter(), ground.trials.count
    necessary: list[bool] | None = None

    def told(best: np.ndarray, controls: Controls, same_size: bool) -> Rescue:
        trials = Trials(ground.trace, ground.trials.readout)  # these no stop ends
        (answer,) = trials.write([ground.having(best)], ground.most)
        (forced,) = trials.force([ground.having(best)], ground.answer)
        return Rescue(
            entries=[(int(i), int(h), int(t)) for i, h, t in zip(*np.unravel_index(best, ground.kept.shape))],
            of=int(ground.held.sum()),
            text=ground.words(answer.token_ids),
            verdict="right" if ground.steps is not None else "same tokens",
            necessary=[False] * len(best) if necessary is None else necessary,
            effect=float(forced.logp.sum() - ground.base.logp.sum()),
            same_size=same_size,
            controls=controls,
            minimal=necessary is not None and all(necessary),
            trials=ground.trials.count - before + trials.count,
            seconds=time.perf_counter() - started,
        )

    try:
        rounds = Steps(_search(ground, search, _begin(ground, found), pieces))
        for _ in rounds:
            size = "" if search.best is None else f" so far: {len(search.best):,} entries"
            yield Event("cause", f"Smallest rescue{size}, at most {most:,} trials", search.asked, most)
        if search.best is None:
            found.notes.append("Nothing returns the answer, not even all that was lost.")
            return
        if rounds.result:
            necessary = is_minimal(search, search.best)
        else:
            found.notes.append(f"The search for the rescue ended at its limit of {most:,} trials.")
        if len(search.best) > LISTED:
            size = f"{len(search.best):,}"
            found.notes.append(f"Putting {size} entries back returns the answer: too many to list.")
            return
        yield Event("cause", f"{N_CONTROLS} random sets of {len(search.best):,} entries beside it", 0, 0)
        found.rescue = told(search.best, *_controls(ground, search.best))
    except Cancelled:
        if search.best is not None and len(search.best) <= LISTED:
            found.rescue = told(search.best, Controls([], []), False)
        raise


def _begin(ground: Ground, found: Causes) -> np.ndarray:
    """The entries to choose from: all that was lost, or what a search that was stopped had come to."""
    if found.rescue is None:
        return np.flatnonzero(ground.lost)
    return np.ravel_multi_index(tuple(np.array(found.rescue.entries).T), ground.kept.shape)


def _known(ground: Ground, found: Causes) -> dict[bytes, float]:
    """What is known of each head's and passage's lost entries, put back alone."""
    known = {}
    for e in found.put_back:
        place = np.zeros_like(ground.lost)
        if e.unit == "head":
            place[e.cell] = True
        elif e.unit == "passage":
            place[..., e.piece.start : e.piece.end] = True
        known[np.flatnonzero(ground.lost & place).tobytes()] = e.effect
    return known


def _search(
    ground: Ground, search: Search, entries: np.ndarray, pieces: Sequence[Passage]
) -> Generator[None, None, bool]:
    """By passage, then by head, and the other way round; whether it ended by itself."""
    n, ended = ground.kept.shape[-1], False

    def by_passage(entries: np.ndarray) -> list[np.ndarray]:
        token = entries % n
        parts = (entries[(token >= p.start) & (token < p.end)] for p in pieces)
        return [part for part in parts if len(part)]

    def by_head(entries: np.ndarray) -> list[np.ndarray]:
        head = entries // n
        return [entries[head == h] for h in np.unique(head)]

    def by_both(entries: np.ndarray) -> list[np.ndarray]:
        """Many entries once more in larger parts, before they are tried one by one."""
        return [entries] if len(entries) <= RANKED else [q for p in by_passage(entries) for q in by_head(p)]

    for first, second in ((by_passage, by_head), (by_head, by_passage)):
        ended = (yield from smallest(search, entries, [first, second, by_both])) or ended
    return ended


def _controls(ground: Ground, best: np.ndarray) -> tuple[Controls, bool]:
    """(random sets in the same heads, whether the rescue itself works at the same size)."""
    rng, rescue = np.random.default_rng(SEED), ground.having(best, np.zeros_like(ground.kept))
    free = ground.lost & ~rescue
    sets = [np.flatnonzero(drawn(rescue.sum(-1), free, rng)) for _ in range(N_CONTROLS)]
    added = ground.works(ground.kept)(sets)
    swapped = ground.return_it(ground.having(s, _room_for(ground, s)) for s in [best, *sets])
    return Controls(added, swapped[1:]), swapped[0]


def _room_for(ground: Ground, entries: np.ndarray) -> np.ndarray:
    """The kept set less as many worst-scored, unprotected entries of each head as are to be put in."""
    counts = ground.having(entries, np.zeros_like(ground.kept)).sum(-1)
    fixed = np.broadcast_to(np.asarray(ground.selection.protected), ground.kept.shape)
    scores = np.stack([np.asarray(row, np.float32) for row in ground.selection.scores])
    return pushed_out(ground.kept, counts, fixed, worth(scores))
