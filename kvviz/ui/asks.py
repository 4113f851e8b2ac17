"""What a visitor asks for: the form's fields, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kvviz.errors import InputError


@dataclass(frozen=True)
class Request:
    """What a visitor asks for, checked by `request`."""

    document: str
    question: str
    methods: list[str]
    budgets: list[float]
    model: str = "smollm2-135m"
    dtype: str = "auto"
    protocol: str = "question-aware"
    expected: str | None = None
    system: str | None = None
    max_new_tokens: int = 48
    window: int = 32
    seed: int = 0
    evict_every: int | None = None
    controlled: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    lenses: bool = True  # also what the views need at every stop of the slider
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def budgets(value: Any) -> list[float]:
    """Shares from "50, 20%, 5" or ["50%", "20%"]: percent of the document's cache that is kept."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[,;\s]+", str(value or ""))
    found: list[float] = []
    for part in parts:
        text = str(part).strip().removesuffix("%").strip()
        if not text:
            continue
        try:
            share = float(text) / 100
        except ValueError:
            share = -1.0
        if not 0.01 - 1e-9 <= share <= 1:
            raise InputError("A budget lies between 1% and 100%.")
        if round(share, 6) not in found:
            found.append(round(share, 6))
    if not found:
        raise InputError("Choose at least one budget between 1% and 100%.")
    return sorted(found, reverse=True)


def request(**fields: Any) -> Request:
    """A checked request; InputError with one sentence where a field cannot be used."""
    document = str(fields.get("document") or "")
    question = str(fields.get("question") or "").strip()
    named = [*(fields.get("methods") or []), *(fields.get("variants") or [])]
    methods = list(dict.fromkeys(str(m).strip() for m in named))
    if not document.strip():
        raise InputError("Paste or upload a document first.")
    if not question:
        raise InputError("Ask a question about the document.")
    if not methods:
        raise InputError("Choose at least one method.")
    return Request(
        document=document,
        question=question,
        methods=methods,
        budgets=budgets(fields.get("budgets")),
        model=str(fields.get("model") or "smollm2-135m").strip(),
        dtype=str(fields.get("dtype") or "auto"),
        protocol=str(fields.get("protocol") or "question-aware"),
        expected=str(fields.get("expected") or "").strip() or None,
        system=str(fields.get("system") or "").strip() or None,
        max_new_tokens=int(fields.get("max_new_tokens") or 48),
        window=int(fields.get("window") or 32),
        seed=int(fields.get("seed") or 0),
        evict_every=int(fields.get("evict_every") or 0) or None,
        controlled=bool(fields.get("controlled")),
        temperature=float(fields.get("temperature") or 0),
        top_p=float(fields.get("top_p") or 1),
        options=dict(fields.get("options") or {}),
    )
