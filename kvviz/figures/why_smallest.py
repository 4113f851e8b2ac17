"""The smallest budget at which a method keeps one token: exact where it follows from the token's rank."""

from __future__ import annotations

from dataclasses import dataclass

from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import KeptSet


@dataclass(frozen=True)
class Smallest:
    """Shares of n. here: in one head; half: in half of all heads; None where no stored budget does.

    words  "13% (51 tokens) here, between 10% and 15% in half of all heads".
    """

    here: float | None
    half: float | None
    words: str


def smallest_budget(
    c: Comparison, method: str, token: int, layer: int, head: int, rank: int | None, by_rule: int
) -> Smallest:
    """rank  the token's place among what competes in its head, beside `by_rule` tokens kept by rule; None
    where a head does not simply keep its highest scores.
    """
    shares = c.shares(method)
    sets = [c.need(method, share).kept for share in shares]
    kept = [one.token(token) for one in sets]
    here = [bool(heads[layer, head]) for heads in kept]
    half = [2 * int(heads.sum()) >= heads.size for heads in kept]
    first, said = _first(shares, here), f"{_between(shares, here)} here"
    if rank is not None and True in here[1:] and _as_by_rank(sets, here, layer, head, rank, by_rule):
        needed = rank + by_rule
        first = needed / c.n
        tokens = "1 token" if needed == 1 else f"{text.count(needed)} tokens"
        said = f"{text.budget_share(first)} ({tokens}) here"
    return Smallest(first, _first(shares, half), f"{said}, {_between(shares, half)} in half of all heads")


def _as_by_rank(
    sets: list[KeptSet], here: list[bool], layer: int, head: int, rank: int, by_rule: int
) -> bool:
    """Does the rank tell it? Not where what is kept by rule changes on the way down: then others compete."""
    entries = [int(one.counts()[layer, head]) for one in sets]
    if any(held != (have >= rank + by_rule) for held, have in zip(here, entries)):
        return False
    below = sets[here.index(True) - 1]
    return int(below.layer_protected(layer)[head].sum()) == by_rule


def _first(shares: list[float], held: list[bool]) -> float | None:
    return next((share for share, has in zip(shares, held) if has), None)


def _between(shares: list[float], held: list[bool]) -> str:
    """ "between 10% and 15%": it was lost at the one and kept at the other."""
    if True not in held:
        return "at no stored budget"
    at = held.index(True)
    if at == 0:
        return f"{text.budget_share(shares[0])} or less"
    return f"between {text.budget_share(shares[at - 1])} and {text.budget_share(shares[at])}"
