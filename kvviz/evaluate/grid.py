"""Needle grids: one sentence hidden in texts of several lengths, at several depths, several times.

The items go through the sweep's runner, so a grid is resumed, shared out and plotted like any other sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from kvviz.errors import InputError
from kvviz.evaluate.items import Item
from kvviz.evaluate.needles import DEPTHS, NEEDLES, needle_cases
from kvviz.results.comparison import FULL

if TYPE_CHECKING:
    from kvviz.models.adapters import Model

TASK = "needle"
NEW_TOKENS = 24  # room for every needle's answer
FEW = 20  # places: an exact test of two methods needs six at which only one finds it, a third of these


def check_lengths(model: Model, lengths: Sequence[int]) -> None:
    """InputError where the model does not read a text of these lengths, in tokens."""
    longest, most = max(lengths), model.info.max_tokens
    if longest >= most:
        raise InputError(f"{model.id} reads {most:,} tokens; a text of {longest:,} does not fit.")


def grid_items(
    tokenizer: Any,
    lengths: Sequence[int] = (1000,),
    depths: Sequence[float] = DEPTHS,
    texts: Sequence[int] = (0,),
    seeds: Sequence[int] = (0,),
    needles: Sequence[int] = (0,),
) -> list[Item]:
    """An item a needle, length, text, seed and depth, depths innermost.

    texts    which of the proses (`needles.N_TEXTS`).
    seeds    draw the text's numbers, names and order anew.
    needles  places in `NEEDLES`.
    """
    for number in needles:
        if number not in range(len(NEEDLES)):
            raise InputError(f"There are {len(NEEDLES)} needles, 0 to {len(NEEDLES) - 1}, not {number}.")
    return [
        Item(
            id=f"needle{number}-{length}-text{case.text}-seed{seed}-{case.depth:g}",
            task=TASK,
            document=case.document,
            question=case.question,
            answers=(case.expected,),
            meta={
                "depth": case.depth, "reached": case.reached, "asked_tokens": length, "tokens": case.tokens,
                "text": case.text, "seed": seed, "needle": number, "needles": [case.needle_sentence],
                "max_new_tokens": NEW_TOKENS,
            },
        )
        for number in needles
        for length in lengths
        for seed in seeds
        for case in needle_cases(length, tuple(depths), tokenizer, tuple(texts), seed, NEEDLES[number])
    ]  # fmt: skip


def grid_rows(table: pd.DataFrame, items: Sequence[Item]) -> pd.DataFrame:
    """A sweep's table over `grid_items` as one row a place, method and budget; failures are left out.

    depth      where the needle was asked for; `reached` is the place it has, between two sentences.
    budget     as it was asked for ("20%", "10 tokens"); `share` is what it is of a text.
    hit        the answer contains what was hidden.
    mean_kl    nats a token against the full cache (first step left out where it is shared).
    error      mean over query heads, in layers where something was evicted, of the relative L2 output error.
    improved   share of those heads whose error is below that of the method's attention-only base at the same
               budget by more than 1%; NaN where the base is not among the methods.
    """
    known = {item.id: item.meta for item in items}
    t = table[table.reason.fillna("") == ""]
    made = {name: [known[item][name] for item in t["item"]] for name in ("text", "seed", "needle", "reached")}
    return pd.DataFrame(
        {
            "model": t.model, "length": t.length, **made, "depth": t.depth, "method": t.method,
            "label": t.label, "budget": t.budget_name, "share": t.share, "hit": t.verdict == "right",
            "finished": t.finished_by, "mean_kl": t.kl, "error": t.mean_output_error,
            "improved": t.heads_improved,
        }
    )  # fmt: skip


def summary(grid: pd.DataFrame) -> pd.DataFrame:
    """Means over places: one row a method, columns (measure, budget); hits are counts."""
    kept = grid[grid.method != FULL]
    table = kept.pivot_table(
        index="method",
        columns="budget",
        values=["hit", "mean_kl", "error", "improved"],
        aggfunc={"hit": "sum", "mean_kl": "mean", "error": "mean", "improved": "mean"},
        sort=False,
    )
    return table.reindex(list(dict.fromkeys(kept.method)))


def in_words(grid: pd.DataFrame) -> str:
    """What the hits are of, where the needle stood, and how far they may be trusted."""
    full = grid[grid.method == FULL]
    places, found = len(full), int(full.hit.sum())
    said = [f"Full cache: {found} of {places} found. Hits are of {places} places."]
    cut = int((~full.hit & (full.finished == "length")).sum())
    if cut:
        one = "One of its misses was" if cut == 1 else f"{cut} of its misses were"
        said.append(f"{one} cut off at the longest answer: no loss of what was read.")
    asked, stood = (f"{x.min():.0%} to {x.max():.0%}" for x in (full.depth, full.reached))
    said.append(f"The needle stood at {stood} of the text, asked for at {asked}.")
    if found < FEW:
        said.append("Too few to rank methods.")
    return " ".join(said)


def as_markdown(grid: pd.DataFrame) -> str:
    """The summary as a markdown table: hits, KL, output error and share of heads improved at each budget."""
    table = summary(grid)
    shares = grid[grid.method != FULL].groupby("budget", sort=False).share.mean()
    budgets = list(shares.sort_values(ascending=False, kind="stable").index)
    lines = [
        in_words(grid),
        "",
        "| method | " + " | ".join(f"hits {b}" for b in budgets)
        + " | " + " | ".join(f"KL {b}" for b in budgets)
        + " | " + " | ".join(f"error {b}" for b in budgets)
        + " | " + " | ".join(f"heads improved {b}" for b in budgets) + " |",
        "|---" * (1 + 4 * len(budgets)) + "|",
    ]  # fmt: skip
    for method, row in table.iterrows():
        cells = [f"`{method}`"]
        cells += [f"{int(row['hit', b])}" for b in budgets]
        cells += [f"{row['mean_kl', b]:.2f}" for b in budgets]
        cells += [f"{row['error', b]:.0%}" for b in budgets]
        cells += [_share(row.get(("improved", b))) for b in budgets]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(x: float | None) -> str:
    return "–" if x is None or x != x else f"{x:.0%}"
