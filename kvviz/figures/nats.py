"""Effects in nats as colours: what comes back or is lost in steps of one hue, the other way in another."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvviz.figures.kit import colour_bar, legend_entry, patches
from kvviz.figures.palette import AMOUNT_STEPS, STRENGTHS
from kvviz.results import words as text
from kvviz.results.cause_words import LEAST

STEPS = AMOUNT_STEPS // 2
NONE, AGAINST, EMPTY, MISSING = 0, STEPS + 1, STEPS + STRENGTHS + 1, STEPS + STRENGTHS + 2
COLOURS = [
    *(f"amount-{2 * i}" for i in range(STEPS + 1)),
    *(f"against-{i}" for i in range(1, STRENGTHS + 1)),
    "page",
    "unscored",
]
SCALE = "nats (square-root scale)"


def nats_codes(effect: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Codes of effects, uint8: 0 for less than 0.01 nats, then square-root steps up to the largest; those of
    the other sign; EMPTY where there was no entry to change, MISSING where nothing was tried (NaN)."""
    size = np.abs(np.nan_to_num(effect))
    top = max(float(size.max(initial=0)), LEAST)
    forth = np.ceil(STEPS * np.sqrt(size / top)).clip(1, STEPS)
    back = AGAINST - 1 + np.ceil(STRENGTHS * np.sqrt(size / top)).clip(1, STRENGTHS)
    code = np.where(size < LEAST, NONE, np.where(np.nan_to_num(effect) > 0, forth, back))
    code = np.where(entries == 0, EMPTY, code)
    return np.where(np.isnan(effect), MISSING, code).astype(np.uint8)


def nats_traces(code: np.ndarray, top: float, words: tuple[str, str], empty: str) -> list[dict[str, Any]]:
    """Colour bar, legend and patterns of a heatmap of `nats_codes`.

    words  what the two signs mean, such as ("returned", "taken away");  empty  what EMPTY means.
    """
    ticks = {0: "0", STEPS // 2: text.nats(top / 4), STEPS: text.nats(top)}
    traces = [colour_bar(COLOURS[: STEPS + 1], ticks, f"nats {words[0]} (square-root scale)", len=0.7)]
    against = (code >= AGAINST) & (code < EMPTY)
    traces += patches(against, 0, 1, words[1], "against-2", "page", "-")
    traces += patches(code == EMPTY, 0, 1, empty, "page", "unscored-line", "/")
    traces += patches(code == MISSING, 0, 1, "not tried", "unscored", "unscored-line", ".")
    if (code == NONE).any():
        traces.append(legend_entry(f"less than {LEAST} nats", "evicted"))
    return traces
