"""Is the paper right, on this model and these items? Each headline beside what a sweep's table gives.

A claim holds where the whole 95 % interval lies on its side, does not hold where the whole interval lies on
the other, and cannot be tested here otherwise, with the reason; p values, corrected for the number of claims
(Holm), must agree. Nothing is entered by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvviz.identity import MethodRef
from kvviz.results.comparison import FULL
from kvviz.results.scoreboard import MEASURES, paired, parts, telling, with_full
from kvviz.results.statistics import (
    ALPHA,
    Estimate,
    bootstrap_mean,
    holm,
    holm_words,
    p_of_mean,
    p_of_share,
    wilson,
)

if TYPE_CHECKING:
    import pandas as pd

_NO_SETS = "A sweep's table holds no sets found by brute force: `kvviz claims --best-sets` measures them."
HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested here"
CONSTANT = 2.0  # times the best set's error
SMALL = 0.2  # budgets that papers call small end here
BASELINES = ("streaming_llm", "h2o", "snapkv", "tova", "pyramidkv", "adakv", "keydiff", "knorm", "cake")


@dataclass(frozen=True)
class Found:
    """What a table gives for a claim: a value that is held against a limit.

    p  of a true value at the limit, before any correction.
    """

    estimate: Estimate
    p: float
    limit: float
    above: bool  # the claim says above the limit
    how: str

    @property
    def known(self) -> bool:
        """Whether there is an interval to judge by."""
        return not math.isnan(self.estimate.low)

    @classmethod
    def of_mean(cls, values: Sequence[float], documents: Sequence[str], limit: float, how: str) -> Found:
        """A mean that is claimed to lie above the limit."""
        estimate = bootstrap_mean(values, documents)
        return cls(estimate, p_of_mean(values, limit, documents), limit, True, how)


@dataclass(frozen=True)
class Claim:
    """A paper's headline. `test` gives what was found in the rows of one model and protocol, or why not."""

    paper: str
    claim: str
    test: Callable[[pd.DataFrame], Found | str]


def claims(table: pd.DataFrame, best_sets: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Every claim for every model and protocol of a table, as plain values.

    best_sets  rows of `kvviz.evaluate.best_sets`, where they were measured.
    """
    tried = []
    for model, protocol, rows in parts(table):
        sets = [row for row in best_sets if (row["model"], row["protocol"]) == (model, protocol)]
        for claim in CLAIMS:
            said = {"paper": claim.paper, "claim": claim.claim, "model": model, "protocol": protocol}
            tried.append((said, _near_best(sets) if claim.test is _best_sets else claim.test(rows)))
    # What has no interval decides nothing, and counts among the comparisons that were made all the same.
    made = {i: found for i, (_, found) in enumerate(tried) if isinstance(found, Found)}
    corrected = dict(zip(made, holm([found.p for found in made.values()])))
    return [{**said, **_judged(found, corrected.get(i))} for i, (said, found) in enumerate(tried)]


def correction(rows: Sequence[dict[str, Any]]) -> str:
    """What was done about so many claims being held against one table, in words."""
    return holm_words(sum(row["p"] is not None for row in rows))


def _judged(found: Found | str, p: float | None) -> dict[str, Any]:
    """The verdict on one claim; p is corrected, None where nothing could be compared."""
    if isinstance(found, str):
        return {"n": 0, "interval": [None, None], "value": None, "p": None, "verdict": UNTESTED,
                "reason": found}  # fmt: skip
    e = found.estimate
    verdict, more = UNTESTED, "Too few items for an interval, or all alike."
    if p is not None and found.known:
        over, under = e.low > found.limit, e.high < found.limit
        if not (over or under):
            more = f"Too few to tell: the interval holds {found.limit:g}."
        elif p >= ALPHA:
            more = f"Too few to tell: alone the interval would, among so many claims it does not (p {p:.2f})."
        else:
            verdict, more = HOLDS if over == found.above else FAILS, ""
    value = None if math.isnan(e.value) else e.value
    interval = [e.low, e.high] if found.known else [None, None]
    reason = f"{found.how}. {more}".rstrip()
    return {"n": e.n, "interval": interval, "value": value, "p": p, "verdict": verdict, "reason": reason}


def _of(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """A method's rows with its own settings; options in the name make another method."""
    return rows[rows.method == method]


def _near(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """Rows of the one budget nearest to a share, within a third of it."""
    near = rows[(rows.share >= share * 2 / 3) & (rows.share <= share * 4 / 3) & (rows.method != FULL)]
    if near.empty:
        return near
    distance = (near.groupby("budget_name").share.mean() - share).abs()
    return near[near.budget_name == distance.idxmin()]


def _measure(rows: pd.DataFrame) -> str:
    """Scores where ten or more items tell, else KL, which every item has."""
    t = with_full(rows)
    telling_items = telling(t[t.method != FULL], "score")["item"].nunique()
    return "score" if telling_items >= 10 else "kl"


def _heads(**options: float) -> Callable[[pd.DataFrame], Found | str]:
    """CriticalKV's share of improved heads; with `options`, in the version that has them."""

    def test(rows: pd.DataFrame) -> Found | str:
        small = rows[(rows.share <= SMALL) & rows.heads_improved.notna()]
        names = [m for m in small.method.unique() if _is(m, "criticalkv", options)]
        mine = small[small.method.isin(names)]
        if mine.empty:
            given = "".join(f":{name}={value:g}" for name, value in options.items())
            what = f"criticalkv{given} with its base snapkv"
            return f"The table has no {what}, with output errors, at 20 % or less."
        per_item = mine.groupby("item").agg({"heads_improved": "mean", "document": "first"})
        return Found.of_mean(
            per_item.heads_improved.astype(float).tolist(), list(per_item.document), 0.92,
            "Share of query heads whose output error at the answer's tokens is more than 1 % below SnapKV's, "
            "mean over items and budgets up to 20 %; L2 here, L1 in the paper, on Llama models of 7B and up",
        )  # fmt: skip

    return test


def _is(name: str, method: str, options: dict[str, float]) -> bool:
    """Is this the method with these options given and no others?"""
    ref = MethodRef.parse(name)
    return ref.id == method and dict(ref.given) == options


def _halves_loss(rows: pd.DataFrame) -> Found | str:
    t = with_full(rows[(rows.share <= SMALL) | (rows.method == FULL)])
    a, b = (telling(_of(t, m), "score").set_index(["item", "budget_name"]) for m in ("snapkv", "criticalkv"))
    both = a.index.intersection(b.index)
    if both.empty:
        return "No item that the full cache answers rightly was answered by both criticalkv and snapkv."
    a, b = a.loc[both], b.loc[both]
    base = (a.full_score - a.score).astype(float)
    if base.sum() <= 0:
        return f"SnapKV lost nothing on these {len(both)} answers, so there is no loss to halve."
    loss = (b.full_score - b.score).astype(float)
    saved, ratio = base / 2 - loss, loss.sum() / base.sum()
    return Found.of_mean(
        saved.tolist(), list(a.document), 0.0,
        f"Half of SnapKV's loss of score minus CriticalKV's, budgets up to 20 %; CriticalKV's loss is "
        f"{ratio:.0%} of SnapKV's",
    )  # fmt: skip


def _against_best(method: str, share: float) -> Callable[[pd.DataFrame], Found | str]:
    """The method against the best baseline of the table at one budget, paired."""

    def test(rows: pd.DataFrame) -> Found | str:
        near = _near(rows, share)
        others = [m for m in near.method.unique() if MethodRef.parse(m).id in BASELINES]
        if method not in set(near.method) or not others:
            return f"The table has no {method} with a baseline at a budget near {share:.0%}."
        here = _with_full_rows(rows, near)
        measure = _measure(here)
        better = MEASURES[measure][1]
        t = with_full(here)
        means = {m: telling(_of(t, m), measure)[measure].astype(float).mean() for m in others}
        best = (max if better == "higher" else min)(means, key=lambda m: means[m])
        found = paired(here, best, method, measure)
        return Found(
            found.difference, found.p, 0.0, better == "higher",
            f"{MEASURES[measure][0]}, {method} minus {best} (the best baseline of this table) on the same "
            f"items at {near.budget_name.iloc[0]}",
        )  # fmt: skip

    return test


def _with_full_rows(rows: pd.DataFrame, near: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([rows[rows.method == FULL], near])


def _global_over_layers(rows: pd.DataFrame) -> Found | str:
    near = _near(rows, 0.05)
    layered = [m for m in near.method.unique() if MethodRef.parse(m).id == "laprox" and "across_heads" in m]
    if "laprox" not in set(near.method) or not layered:
        return "The table has no laprox beside laprox:allocation=across_heads at a budget near 5 %."
    found = paired(_with_full_rows(rows, near), layered[0], "laprox", "kl")
    words = "Mean KL, LaProx with one ranking over all layers minus one ranking a layer, on the same items"
    return Found(found.difference, found.p, 0.0, False, f"{words} at {near.budget_name.iloc[0]}")


def _retains(method: str, share: float, least: float) -> Callable[[pd.DataFrame], Found | str]:
    """Share of the full cache's score that a method keeps."""

    def test(rows: pd.DataFrame) -> Found | str:
        near = _near(rows, share)
        if near.empty or method not in set(near.method):
            return f"The table has no {method} at a budget near {share:.0%}."
        used = telling(_of(with_full(_with_full_rows(rows, near)), method), "score")
        if used.empty:
            return "There is no item that the full cache answers rightly from its document."
        kept = (used.score / used.full_score).astype(float)
        words = "Score as a share of the full cache's, over items that the full cache answers rightly"
        name = near.budget_name.iloc[0]
        return Found.of_mean(kept.tolist(), list(used.document), least, f"{words}, at {name}")

    return test


def _needles(rows: pd.DataFrame) -> Found | str:
    tiny = _of(rows, "compresskv")
    tiny = tiny[tiny.task.str.contains("needle|niah", case=False) & (tiny.share <= 0.007)]
    used = telling(_of(with_full(_with_full_rows(rows, tiny)), "compresskv"), "right")
    if used.empty:
        return "The table has no needle that the full cache finds, with compresskv at 0.7 % or less."
    right, n, least = int(used.right.sum()), len(used), 0.9
    return Found(wilson(right, n), p_of_share(right, n, least), least, True, "Share of needles still found")


def _best_sets(rows: pd.DataFrame) -> str:
    return _NO_SETS


def _near_best(sets: Sequence[dict[str, Any]]) -> Found | str:
    """Errors of DropKV's sets against the best ones of the same size."""
    if not sets:
        return _NO_SETS
    documents = [row["document"] for row in sets]
    times = [-row["ratio"] for row in sets]
    least, cone = (sum(row[name] for row in sets) / len(sets) for name in ("attention_ratio", "cone"))
    found = Found.of_mean(
        times, documents, -CONSTANT,
        "Squared error of its set over that of the best set, 6 of 12 neighbouring tokens dropped, all sets "
        f"tried in {sum(row['heads'] for row in sets):,} heads; the paper proves a constant without a "
        f"number, held here against {CONSTANT:g}. Tokens of least attention: {least:.2f} times. Pairs of "
        f"dropped tokens whose errors point the same way (cone): {cone:.0%}",
    )  # fmt: skip
    e = found.estimate
    return replace(found, estimate=Estimate(-e.value, -e.high, -e.low, e.n), limit=CONSTANT, above=False)


def _not_in_a_table(why: str) -> Callable[[pd.DataFrame], str]:
    return lambda rows: why


_PERTURBATION, _LOSS = "CriticalKV (arXiv 2502.03805v1)", "CriticalKV (arXiv 2502.03805v2)"
_LAPROX = "LaProx (arXiv 2605.07234)"
_DROP, _INDEX = "DropKV (NeurIPS 2026)", "IndexMem (arXiv 2605.25475)"
_COMPRESS = "CompressKV (arXiv 2508.02401, 2606.24467)"
_LOWER = "Lower output perturbation than its base in more than 92 % of heads"
_VERSIONS: tuple[tuple[str, dict[str, float]], ...] = (
    ("epsilon 1e-4, stage 1 of 50 % (the paper's)", {}),
    ("epsilon 0", {"epsilon": 0}),
    ("epsilon 1e-2", {"epsilon": 0.01}),
    ("stage 1 of 0 %", {"stage1": 0}),
    ("stage 1 of 80 %", {"stage1": 0.8}),
)
CLAIMS = (
    *(
        Claim(_PERTURBATION, f"{_LOWER}: {words}", _heads(**options))
        for words, options in _VERSIONS
    ),
    Claim(_LOSS, "Less than half of its base's loss", _halves_loss),
    Claim(_LAPROX, "At 5 %, a smaller loss than the best baseline", _against_best("laprox", 0.05)),
    Claim(_LAPROX, "One ranking over all layers loses less than one a layer", _global_over_layers),
    Claim(_DROP, "Better than the baselines at an equal budget (10 %)", _against_best("dropkv", 0.1)),
    Claim(_DROP, "Single-token scores come within a constant of the best set (cone condition)", _best_sets),
    Claim(
        _DROP, "Scoring kernel 19.8 times faster, prefill up to 9.9 % faster",
        _not_in_a_table("Speed of kernels needs a GPU: see `kvviz bench gpu`."),
    ),
    Claim(_INDEX, "Better than the baselines at small budgets (5 %)", _against_best("indexmem", 0.05)),
    Claim(_COMPRESS, "More than 97 % of the full score with 3 % kept", _retains("compresskv", 0.03, 0.97)),
    Claim(_COMPRESS, "90 % of needles found with 0.07 % (first version) or 0.7 % (second) kept", _needles),
    Claim(_COMPRESS, "Better than the baselines at small budgets (5 %)", _against_best("compresskv", 0.05)),
)  # fmt: skip
