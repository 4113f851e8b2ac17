"""The smallest rescue: the fewest entries found that, put back into what a method kept, return the answer.

First the lost entries in the order of the answer's own attention: how many of the leading ones do. Then by
passage and by head, each within a share of the trials, so that a text whose parts all matter a little does
not use them up. At last the smallest set of all these is thinned until none of its entries can be spared.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from kvviz.engine.changes import drawn, pushed_out, worth
from kvviz.engine.ground import Ground
from kvviz.engine.search import RANKED, OutOfTrials, Search, is_minimal, joined, one_by_one, singles, smallest
from kvviz.engine.steps import Steps
from kvviz.engine.trials import Trials
from kvviz.errors import Cancelled
from kvviz.results.cause_words import PASSAGES_TOGETHER, spread_sentence
from kvviz.results.causes import Causes, Controls, Rescue
from kvviz.results.passages import Passage
from kvviz.types import Event

MOST_TRIALS = 1000
LISTED = 5000  # entries a rescue may have: more of them tell nobody anything
FEW = 200  # entries that a reader can look at; of more it is said how the loss is spread
ROUTE = 1 / 8  # of the trials: what the search by passage may take, and what that by head may
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
        ground.works(ground.kept), ground.gains, most, hint=hint, gained=_known(ground, found),
        known={b"": False},
    )  # fmt: skip
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
        elif len(search.best) <= LISTED:
            found.notes.append(f"The search for the rescue ended at its limit of {most:,} trials.")
        if len(search.best) > FEW:
            found.notes.append(spread_sentence(found, len(search.best), _together(ground, search, pieces)))
        if len(search.best) > LISTED:
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
    """Whether it ended by itself, with a set of which no entry can be spared."""
    n, most, ended = ground.kept.shape[-1], search.most, False

    def by_passage(entries: np.ndarray) -> list[np.ndarray]:
        return _parts(entries, n, pieces)

    def by_head(entries: np.ndarray) -> list[np.ndarray]:
        head = entries // n
        return [entries[head == h] for h in np.unique(head)]

    def by_both(entries: np.ndarray) -> list[np.ndarray]:
        """Many entries once more in larger parts, before they are tried one by one."""
        return [entries] if len(entries) <= RANKED else [q for p in by_passage(entries) for q in by_head(p)]

    order = entries[np.argsort(-ground.looks[0].reshape(-1)[entries], kind="stable")]
    try:
        if not search.ask([entries])[0]:
            return True
        yield
        search.shortest(order)
        yield
    except OutOfTrials:
        return False
    for first, second in ((by_passage, by_head), (by_head, by_passage)):
        search.most = min(most, search.asked + int(ROUTE * most))
        ended = (yield from smallest(search, entries, [first, second, by_both])) or ended
    search.most = most
    assert search.best is not None  # all of them work
    if len(search.best) > LISTED:
        return False  # thinning so many would take all trials and leave too many to look at
    try:
        best = order[np.isin(order, search.best)][::-1]  # the least attended is thinned first
        thinned = joined((yield from search.pruned(singles(best))))
        yield from one_by_one(search, thinned)
    except OutOfTrials:
        return False
    return True


def _parts(entries: np.ndarray, n: int, pieces: Sequence[Passage]) -> list[np.ndarray]:
    """Entries of each passage that has any."""
    token = entries % n
    parts = (entries[(token >= p.start) & (token < p.end)] for p in pieces)
    return [part for part in parts if len(part)]


def _together(ground: Ground, search: Search, pieces: Sequence[Passage]) -> float:
    """Nats that the strongest passages return together."""
    parts = _parts(np.flatnonzero(ground.lost), ground.kept.shape[-1], pieces)
    search.most = search.asked + len(parts)
    return ground.gains([joined(search.ranked(parts)[:PASSAGES_TOGETHER])])[0]


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
