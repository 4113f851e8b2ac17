"""The cache that would do: the fewest entries found that, kept alone, give the full cache's answer.

Entries are ordered by the attention of the answer's own queries, and the fewest leading ones that work are
sought; so are the smallest working kept sets of the methods. From the smallest of these, entries are taken
away as long as it works: the least attended half, quarters, ..., at last one by one. What comes out is the
smallest cache found, not the smallest there is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping

import numpy as np
import torch

from kvviz.engine.ground import Ground
from kvviz.engine.scoring import Scored
from kvviz.engine.search import OutOfTrials, Search, joined, one_by_one, singles
from kvviz.engine.selection import select_from
from kvviz.engine.steps import Steps
from kvviz.engine.trials import Trials
from kvviz.results.causes import Causes, WouldDo
from kvviz.types import Event

MOST_TRIALS = 3000
# Kept sets that are tried as a start beside the orders.
METHODS = ("snapkv", "tova", "keydiff", "streaming_llm", "criticalkv", "dropkv", "laprox")
BUDGETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)


def find(ground: Ground, found: Causes, most: int) -> Iterator[Event]:
    """Put it into `found.would_do`, in at most so many trials."""
    started = time.perf_counter()
    yield Event("cause", "Searching the smallest cache that gives the answer", 0, most)
    plain = Trials(ground.trace, None, ground.cancel)  # these are kept sets of no method
    sets = kept_sets(ground.scored)
    sets[found.key] = ground.kept
    if found.rescue is not None:
        entries = tuple(np.array(found.rescue.entries).T)
        sets["the rescue"] = ground.having(np.ravel_multi_index(entries, ground.kept.shape))
    empty = np.zeros_like(ground.kept)
    search = Search(
        lambda tried: list(plain.agree((ground.having(s, empty) for s in tried), ground.answer)),
        ground.gains,
        most,
    )
    rounds = Steps(smallest_cache(search, orders(ground), sets))
    for what in rounds:
        size = "" if search.best is None else f": {len(search.best):,} entries"
        yield Event("cause", f"Smallest cache {what}{size}", search.asked, most)
    begin, ended = rounds.result
    if search.best is None:
        found.notes.append("Not even the whole cache gave its answer again: no smaller one was sought.")
        return
    best = ground.having(search.best, empty)
    entry = 2 * ground.trace.model.head_dim * ground.trace.keys[0].element_size()
    said = "none of its entries can be spared alone" if ended else "the search ended out of trials"
    found.would_do = WouldDo(
        mask=best,
        start=begin,
        text=ground.words(next(plain.write([best], ground.most)).token_ids),
        bytes=int(best.sum()) * entry,
        kl=float(next(plain.force([best], ground.answer)).kl.mean()),
        held={name: float((mask & best).sum() / best.sum()) for name, mask in sets.items()},
        minimal=ended,
        trials=search.asked,
        most=most,
        seconds=time.perf_counter() - started,
        notes=[f"The smallest cache found, not the smallest there is: {said}."],
    )
    ground.trials.count += plain.count


def orders(ground: Ground) -> dict[str, np.ndarray]:
    """{name: entries of the whole cache, best first}, by what the answer's own queries make of them: their
    attention over all heads, the same head by head, and the output's change without the entry."""
    attention, effect = ground.looks
    rank = (-attention).argsort(-1).argsort(-1) - attention  # ties between heads go to the larger weight
    found = {}
    for name, lowest in (("attention", -attention), ("attention by head", rank), ("effect", -effect)):
        order = lowest.reshape(-1).argsort(kind="stable")
        found[name] = order[ground.held.reshape(-1)[order]]
    return found


def kept_sets(scored: Scored) -> dict[str, np.ndarray]:
    """{"method@budget": bool [L, Hkv, n]} of the methods that are tried as a start."""
    found = {}
    for method in METHODS:
        for share in BUDGETS:
            rows = select_from(scored, method, share).mask
            found[f"{method}@{share}"] = torch.stack([row.cpu() for row in rows]).numpy()
    return found


def smallest_cache(
    search: Search, orders: Mapping[str, np.ndarray], sets: Mapping[str, np.ndarray]
) -> Generator[str, None, tuple[str, bool]]:
    """Search for it; `search.best` holds its entries, flat in [L, Hkv, n].

    orders  entries of the whole cache, best first; the first one says what is taken away first.
    Yields what is being done after every round of questions; returns (name of the order or kept set that it
    began with, whether the search ended by itself: no entry of the result can be spared).
    """
    begin = ""
    try:
        for name, order in orders.items():
            size = _size(search)
            search.shortest(order)
            begin = name if _size(search) < size else begin
            yield f"in the order of {name}"
        for name, mask in sorted(sets.items(), key=lambda item: int(item[1].sum())):
            if int(mask.sum()) >= _size(search):
                break
            if search.ask([np.flatnonzero(mask)])[0]:
                begin = name
        yield "among the methods' kept sets"
        if search.best is None:
            return begin, True
        order = next(iter(orders.values()))
        rounds = Steps(search.pruned(singles(order[np.isin(order, search.best)][::-1])))
        for _ in rounds:
            yield "by taking entries away"
        for _ in one_by_one(search, joined(rounds.result)):
            yield "by taking entries away"
        return begin, True
    except OutOfTrials:
        return begin, False


def _size(search: Search) -> float:
    return math.inf if search.best is None else len(search.best)
