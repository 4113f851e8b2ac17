"""What a visitor asks for: the form's fields and the web endpoint's arguments, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvviz.engine.ask import Ask, whole
from kvviz.errors import InputError
from kvviz.framing import Framing
from kvviz.identity import BUDGET_WORDS, Budget, MethodRef, model_name, parse_budgets, shown
from kvviz.settings import Settings
from kvviz.types import DTYPES, PROTOCOLS


@dataclass(frozen=True)
class Request(Ask):
    """An `Ask` about a document, and the model that reads it."""

    document: str = ""
    question: str = ""
    model: str = "smollm2-135m"
    dtype: str = "auto"
    protocol: str = "question-aware"
    system: str | None = None
    framing: Framing = Framing()
    questions: tuple[tuple[str, str | None], ...] = ()  # further ones, each with its expected answer
    lenses: bool = True  # also what the views need at every stop of the slider

    @property
    def plain(self) -> Ask:
        """Only what is asked of the model, as it is stored with the run."""
        return Ask(**{f.name: getattr(self, f.name) for f in fields(Ask)})


def percent_budgets(value: Any) -> tuple[Budget, ...]:
    """Budgets of the form's field, largest first: plain numbers are percent, entries are "128 tokens".

    The field is a list of such texts, or one text with commas, semicolons or spaces between them.
    """
    texts = value if isinstance(value, list | tuple) else [str(value or "")]
    found = []
    for text in texts:
        if re.fullmatch(r"\s*0?[.,]\d+\s*", str(text)):
            number = str(text).strip().replace(",", ".")
            raise InputError(
                f"Budgets are percent here: write {Budget.parse(number)} for a share of {number}."
                if float(number) else f"{BUDGET_WORDS}, not {shown(text)}."
            )  # fmt: skip
        joined = re.sub(r"\s+(?=%|t\b|tokens?\b)", "", str(text), flags=re.IGNORECASE)
        found += [_percent(part) for part in re.split(r"[,;\s]+", joined) if part]
    if not found:
        raise InputError("Choose at least one budget.")
    # Shares first, then tokens.
    return tuple(sorted(dict.fromkeys(found), key=lambda b: (b.share is None, -b.value)))


def _percent(text: str) -> Budget:
    if not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text, re.IGNORECASE | re.ASCII):
        return Budget.parse(text)
    try:
        return Budget.parse(f"{text}%")
    except InputError:
        hint = f" Budgets are percent here; {text} tokens per KV head are written {text}t." * text.isdecimal()
        raise InputError(f"{BUDGET_WORDS}, not {text}%.{hint}") from None


def form_request(limits: Settings | None = None, **given: Any) -> Request:
    """A request from the form's fields; InputError with one sentence where a field cannot be used."""
    methods = [*_listed(given.get("methods"), "methods"), *_listed(given.get("variants"), "variants")]
    methods = list(dict.fromkeys(str(m).strip() for m in methods))
    window = given.get("window")
    if window is None or window == 0:
        options = {}  # every method's own
    else:
        options = _windows(methods, whole(window, "The observation window", 1))
    return request(
        limits,
        document=given.get("document"),
        question=given.get("question"),
        model=given.get("model"),
        dtype=given.get("dtype"),
        protocol=given.get("protocol"),
        system=given.get("system"),
        framing=framing_of(**{f.name: given.get(f.name) for f in fields(Framing)}),
        questions=given.get("questions"),
        methods=methods,
        budgets=percent_budgets(given.get("budgets")),
        options=options,
        max_new_tokens=given.get("max_new_tokens"),
        controlled=given.get("controlled"),
        expected=given.get("expected"),
        temperature=given.get("temperature"),
        top_p=given.get("top_p"),
        seed=given.get("seed"),
        evict_every=given.get("evict_every") or None,
    )


def form_fields(ask: Request) -> dict[str, Any]:
    """The form's fields that ask for this: `form_request` the other way round."""
    values = {f.name: getattr(ask, f.name) for f in fields(Request)}
    for name in ("measures", "options", "lenses", "framing"):  # not fields of the form
        del values[name]
    window = {given.get("window") for given in ask.options.values()} - {None}
    framing = ask.framing.to_dict()
    turns = json.dumps([{"role": r, "content": text} for r, text in framing["turns"]], ensure_ascii=False)
    return {
        **values,
        **framing,
        "turns": turns if framing["turns"] else "",
        "methods": [m for m in ask.methods if ":" not in m],
        "variants": [m for m in ask.methods if ":" in m],
        "budgets": [_budget(value) for value in ask.budgets],
        "window": window.pop() if len(window) == 1 else None,
    }


def _budget(value: float | int) -> str:
    budget = Budget.parse(value)
    return f"{100 * budget.share:.10g}%" if budget.share is not None else f"{budget.entries}t"


def _listed(value: Any, what: str) -> Sequence[Any]:
    """A field that holds several names; None and what is empty are none."""
    if value and not isinstance(value, list | tuple):
        raise InputError(f"The {what} are a list of names, not {shown(value)}.")
    return value or ()


def framing_of(**given: Any) -> Framing:
    """What stands around document and question; a field that is None is as usual. Turns may be JSON text."""
    given = {name: value for name, value in given.items() if value is not None}
    turns = given.get("turns")
    if isinstance(turns, str):
        try:
            given["turns"] = json.loads(turns) if turns.strip() else ()
        except ValueError:
            given["turns"] = turns  # refused below, with the form it must have
    return Framing(**given)


def _windows(methods: list[str], window: int) -> dict[str, dict[str, Any]]:
    """The window of the form for every method that has one and names neither its own nor a preset."""
    from kvviz.methods import get_method

    refs = {name: MethodRef.parse(name) for name in methods}
    return {
        name: {"window": window}
        for name, ref in refs.items()
        if "window" in get_method(ref.id).options and not {"window", "preset"} & set(ref.given)
    }


def request(limits: Settings | None = None, **given: Any) -> Request:
    """A request whose fields can all be used on this server, as far as that can be known without the
    model. A field that is None has its default. InputError with one sentence otherwise."""
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("document", "question", "model", "dtype", "protocol", "system"):
        if not isinstance(given.get(name, ""), str):
            raise InputError(f"The {name} is one text, not {shown(given[name])}.")
    if not given.get("document", "").strip():
        raise InputError("Paste or upload a document first.")
    if not given.get("question", "").strip():
        raise InputError("Ask a question about the document.")
    if "budgets" in given:
        given["budgets"] = [b.value for b in parse_budgets(given["budgets"])]
    if limits is not None:
        texts = ("document", "question", "system", "expected")
        check_text(limits, **{name: given[name] for name in texts if isinstance(given.get(name), str)})
    given["questions"] = _questions(given.get("questions", ()), limits)
    given["system"] = given.get("system", "").strip() or None
    given["model"] = model_name(given.get("model", "")) or Request.model
    for name, known in (("protocol", PROTOCOLS), ("dtype", DTYPES)):
        if given.get(name, known[0]) not in known:
            raise InputError(f"There is no {name} {shown(given[name])}. Choose from: {', '.join(known)}.")
    return check(Request(**given), limits)


MOST_QUESTIONS = 20  # asked beside the first one in one run


def _questions(given: Any, limits: Settings | None) -> tuple[tuple[str, str | None], ...]:
    """Further questions to the compressed document, each a text or one with its expected answer."""
    from kvviz.engine.conversation import question_pairs

    if not isinstance(given, list | tuple):
        raise InputError(f"Further questions are a list of texts, not {shown(given)}.")
    if len(given) > MOST_QUESTIONS:
        raise InputError(
            f"{len(given):,} further questions are asked; up to {MOST_QUESTIONS} are answered in one run "
            "here. Leave some out, or ask them afterwards."
        )
    pairs = tuple(question_pairs(given))
    if limits is not None:
        for question, expected in pairs:
            check_text(limits, question=question, expected=expected or "")
    return pairs


MOST_WORDS = 10_000  # characters of a question, a system message, an expected answer


def check_text(limits: Settings, **texts: str) -> None:
    """InputError for a text that is too long to be looked at: even counting its tokens would take long."""
    for name, text in texts.items():
        most = min(limits.max_upload_bytes, 16 * limits.max_tokens) if name == "document" else MOST_WORDS
        if len(text) > most:
            what = {"document": "document", "system": "system message", "expected": "expected answer"}
            raise InputError(
                f"The {what.get(name, name)} has {len(text):,} characters; up to {most:,} are read here. "
                "Shorten it."
            )


def check(ask: Request, limits: Settings | None) -> Request:
    """The request with its methods' ids as they are registered, if this server takes it: its limits, its
    models, known methods with usable options."""
    from kvviz.engine.plan import check_ask

    if limits is not None and limits.public:
        from kvviz.models.catalog import offer, offered

        if offer(ask.model) not in offered(limits):
            raise InputError("This server offers the models of its list only. Choose one.")
    return check_ask(ask, limits)
