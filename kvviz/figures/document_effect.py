"""The text coloured by what its passages do to the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.causes import PUT_BACK
from kvviz.results.comparison import Comparison

NONE, AGAINST, UNTRIED = 0, 5, 6  # 1 to 4: the share of the strongest effect, in square-root steps
STEPS = 4
GUIDES = {
    "put_back": "Solid: with all that {} lost of this passage put back, more of the answer comes back.",
    "taken_out": "Solid: without this passage, the whole cache loses more of the answer.",
}


@dataclass(frozen=True)
class TextEffects:
    """A code a token of the whole prompt (uint8 [N]), and each passage's (start, end, words)."""

    code: np.ndarray
    passages: list[tuple[int, int, str]]
    guide: str


def text_effects(c: Comparison, method: str, k: float | int, direction: str) -> TextEffects:
    """Every token in the colour of its passage; of the token itself where only tokens were tried."""
    found = said.need_causes(c, method, k)
    rows = found.of(direction, "passage")
    spans = [(e.passage.start, e.passage.end, e) for e in rows if e.passage is not None]
    if not spans:
        spans = [(e.token, e.token + 1, e) for e in found.of(direction, "token") if e.token is not None]
    code = np.full(len(c.prompt.tokens), UNTRIED, np.uint8)
    top = max((abs(e.effect) for *_, e in spans), default=0.0)
    for start, end, e in spans:
        step = int(np.clip(np.ceil(STEPS * np.sqrt(abs(e.effect) / top)), 1, STEPS)) if top else NONE
        code[start:end] = NONE if abs(e.effect) < said.LEAST else step if e.effect > 0 else AGAINST
    way = "put back" if direction == PUT_BACK else "taken out"
    words = [(start, end, f"{way}: {said.effect_words(e, direction)}") for start, end, e in spans]
    return TextEffects(code, words, GUIDES[direction].format(text.label(c, method)))
