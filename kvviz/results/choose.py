"""Which method for me? The cheapest method and budget that keeps the quality a person names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvviz.errors import InputError
from kvviz.results.scoreboard import Line, scoreboard

if TYPE_CHECKING:
    import pandas as pd


def choose(table: pd.DataFrame, quality: float) -> list[dict[str, Any]]:
    """For every model and protocol: {"model", "protocol", "chosen", "sentence", "candidates"}.

    quality  share of the full cache's right answers that must still be right, in (0, 1]. It counts as kept
             where the lower end of the 95 % interval reaches it; chosen is the smallest such budget, of those
             the method with the highest share.
    """
    if not 0 < quality <= 1:
        raise InputError(f"The quality to keep is a share above 0 and up to 1, not {quality:g}.")
    found: dict[tuple[str, str], list[Line]] = {}
    for line in scoreboard(table, "right"):
        found.setdefault((line.model, line.protocol), []).append(line)
    out = []
    for (model, protocol), lines in found.items():
        lines.sort(key=lambda x: (x.share, -x.estimate.value if x.estimate.n else 0))
        kept = [x for x in lines if x.estimate.n and x.estimate.low >= quality]
        chosen = kept[0] if kept else None
        out.append({
            "model": model, "protocol": protocol, "quality": quality,
            "chosen": _plain(chosen) if chosen else None, "sentence": _sentence(lines, chosen, quality),
            "candidates": [_plain(x) for x in lines],
        })  # fmt: skip
    return out


def _plain(x: Line) -> dict[str, Any]:
    e = x.estimate
    known = bool(e.n)
    return {
        "method": x.method, "budget": x.budget_name, "share": x.share, "n": e.n,
        "kept": e.value if known else None, "interval": [e.low, e.high] if known else None,
        "full_failed": x.full_failed, "knew": x.knew,
    }  # fmt: skip


def _sentence(lines: list[Line], chosen: Line | None, quality: float) -> str:
    if chosen is not None:
        e = chosen.estimate
        return (
            f"{chosen.method} at {chosen.budget_name}: {e.value:.0%} of {e.n} answers that the full cache "
            f"gets right are still right (95 % interval {e.low:.0%} to {e.high:.0%})."
        )
    usable = [x for x in lines if x.estimate.n]
    if not usable:
        return "Nothing can be said: there is no item that the full cache answers rightly from its document."
    maybe = [x for x in usable if x.estimate.value >= quality]
    if maybe:
        e = maybe[0].estimate
        return (
            f"Too few to tell: {maybe[0].method} at {maybe[0].budget_name} keeps {e.value:.0%} of {e.n} "
            f"right answers, but the 95 % interval begins at {e.low:.0%}. Run more items."
        )
    top = max(usable, key=lambda x: x.estimate.value)
    return (
        f"No method in this table keeps {quality:.0%}: the best, {top.method} at {top.budget_name}, keeps "
        f"{top.estimate.value:.0%} of {top.estimate.n} right answers."
    )
