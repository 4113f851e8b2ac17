"""Question answering over several documents, RULER's `qa` task, from files that the user brings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.evaluate.items import Item, read_items
from kvviz.evaluate.lengths import TRIES, Sample, check_size
from kvviz.evaluate.needles import TOLERANCE

_ASK = "Answer the question based on the given documents. "
_ASK += "Only give me the answer and do not output any other words."


def several_sample(documents: Sequence[str], question: str, answers: Sequence[str]) -> Sample:
    """The numbered `documents` and a question about them."""
    context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(documents, 1))
    return Sample(
        document=f"{_ASK}\n\nThe following are given documents.\n\n{context}",
        question=f"{_ASK}\n\nQuestion: {question}",
        answers=tuple(answers),
        cue="Answer:",
    )


def several_documents(
    tokenizer: Any, folder: str = "", tokens: int = 4000, count: int = 10, seed: int = 0
) -> list[Item]:
    """`qa`: the document that holds the answer among others of the folder, in shuffled order.

    folder  texts beside a question file, as `read_items` reads it: every question names its document.

    Whole documents only: as many others as fit into `tokens`, drawn again until they come within 2%. Raises
    InputError where a question's own document does not fit, or no draw comes that near.
    """
    check_size(tokens, count, seed)
    if not folder:
        raise InputError("The task qa needs a folder of texts with a question file: task:qa:folder=PATH.")
    asked = read_items(Path(str(folder)))
    texts = sorted({item.document for item in asked})
    items = []
    for number, one in enumerate(asked[:count]):
        others = [text for text in texts if text != one.document]
        for attempt in range(TRIES):
            seeded = f"qa/{seed}/{number}/{attempt}"
            random.Random(seeded).shuffle(others)
            sample, length = _filled(one, others, tokenizer, tokens, seeded)
            if length >= (1 - TOLERANCE) * tokens:
                break
        if length > tokens:
            raise InputError(f"The document of {one.id} alone has {length:,} tokens, more than {tokens:,}.")
        if length < (1 - TOLERANCE) * tokens:
            raise InputError(
                f"Whole documents of {Path(folder).name} come to {length:,} of {tokens:,} tokens for "
                f"{one.id}; ask for another length, or bring more or shorter documents."
            )
        meta = {**one.meta, "seed": seed, "max_new_tokens": 32, "tokens": length, "asked_tokens": tokens,
                "cue": sample.cue}  # fmt: skip
        items.append(
            Item(f"qa-{tokens}-{seed}-{one.id}", "qa", sample.document, sample.question, sample.answers,
                 "contains_part", meta)
        )  # fmt: skip
    return items


def _filled(one: Item, others: list[str], tokenizer: Any, tokens: int, seed: str) -> tuple[Sample, int]:
    """The item's document with every other one that still fits, taken in the drawn order."""

    def made(chosen: list[str]) -> tuple[Sample, int]:
        documents = [one.document, *chosen]
        random.Random(seed).shuffle(documents)
        sample = several_sample(documents, one.question, one.answers)
        text = f"{sample.document}\n{sample.question}"
        return sample, len(tokenizer.encode(text, add_special_tokens=False))

    chosen: list[str] = []
    best = made(chosen)
    for other in others:
        with_it = made([*chosen, other])
        if with_it[1] <= tokens:
            chosen.append(other)
            best = with_it
    return best
