"""A run whose text has joined characters and lines that run from right to left."""

from __future__ import annotations

PIECES = ["The ", "first ", "fox ", "🦊", "🦊", "🦊", " ran ", "58213 ", "steps", ".\n"]
PIECES += ["שלום ", "עולם", ".\n"]


def scripts_comparison():
    """A short text with a character of three tokens and a line that runs from right to left."""
    import dataclasses

    from fake_engine import synthetic_comparison

    from kvviz.types import Mark

    c = synthetic_comparison(n=160, L=4)
    placed = [i for i, offset in enumerate(c.prompt.offsets) if offset is not None]
    pieces = [*PIECES, *(f"word{i} " for i in range(len(placed) - len(PIECES)))]
    text, offsets, tokens = "", list(c.prompt.offsets), list(c.prompt.tokens)
    for i, piece in zip(placed, pieces):
        if piece == "🦊" and text.endswith(piece):
            offsets[i] = (len(text) - 1, len(text))
        else:
            text, offsets[i] = text + piece, (len(text), len(text) + len(piece))
        tokens[i] = piece
    c.prompt = dataclasses.replace(c.prompt, document=text, offsets=offsets, tokens=tokens)
    number = placed[PIECES.index("58213 ")]
    c.marks = [Mark("M1", number, number + 1, "58213", "marked because it matches the expected answer")]
    c.settings.update(title="Several scripts", date="2026-11-30")
    return c
