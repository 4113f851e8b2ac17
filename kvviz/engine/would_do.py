"""The cache that would do: the fewest entries found that, kept alone, give the full cache's answer.

Entries are ordered by the attention of the answer's own queries, and the fewest leading ones that work are
sought; so are the smallest working kept sets of the methods. From the smallest of these, entries are taken
away as long as it works: the least attended half, quarters, ..., at last one by one. What comes out is the
smallest cache found, not the smallest there is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import torch

from kvviz.engine.decode import record
from kvviz.engine.measures import answer_attention, token_effects
from kvviz.engine.rescue import OutOfTrials, Search, joined, one_by_one, singles
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.steps import Steps
from kvviz.engine.trace import Trace

MOST_TRIALS = 3000
# Kept sets that are tried as a start beside the orders.
METHODS = ("snapkv", "tova", "keydiff", "streaming_llm", "criticalkv", "dropkv", "laprox")
BUDGETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)


def orders(
    trace: Trace, answer: Sequence[int], held: np.ndarray, cancel: threading.Event | None = None
) -> dict[str, np.ndarray]:
    """{name: entries of the whole cache (`held`), best first}, by what the answer's own queries make of them:
    their attention over all heads, the same head by head, and the output's change without the entry."""
    suffix = trace.prompt.input_ids[trace.n :].tolist()
    probes = record(trace, [*suffix, *answer], cancel)
    attention, effect = answer_attention(trace, probes), token_effects(trace, probes)
    rank = (-attention).argsort(-1).argsort(-1) - attention  # ties between heads go to the larger weight
    found = {}
    for name, lowest in (("attention", -attention), ("attention by head", rank), ("effect", -effect)):
        order = lowest.reshape(-1).argsort(kind="stable")
        found[name] = order[held.reshape(-1)[order]]
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
