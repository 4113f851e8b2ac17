"""Right or wrong: does an answer contain the expected one?"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from kvviz.errors import InputError

if TYPE_CHECKING:
    from kvviz.results.comparison import Variant

# Scripts written without spaces (Thai to Khmer, kana, Han): their letters do not make a longer word
# of what stands beside them.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W_{_UNSPACED}]"
_SIGN = r"(?<![\w)'])-(?=\d)"  # a hyphen behind a word or number, as in 3-5, is none
# Nothing before a number makes it longer (12.5 is not 5), nor negative.
_NUMBER_START = r"(?<!\d)(?<!\d[.,'-])(?<![^\w)']-)(?<!\A-)"
# 450.00 is 450, while 58213.5 and 58213-4 are something longer.
_NUMBER_END = r"(?:(?=\.0+(?!\d))|(?![.,'-]?\d))"
_HYPHENS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")
# A character with what composes with it: combining marks (as listed by the blocks of marks) and Hangul jamo.
_PIECE = re.compile(
    r".[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0903\u093a-\u094d\u09be-\u09cd\u0dca-\u0ddf"
    r"\u1160-\u11ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u3099\u309a\ufe20-\ufe2f]*",
    re.S,
)
_GROUPED = re.compile(r"\d{1,3}(?:[,']\d{3})+(?:\.\d+)?")  # 1,200 or 1'200 or 1,200.50


def contains_expected(answer: str, expected: str) -> bool:
    """Does `answer` contain `expected`? The right/wrong verdict on an answer.

    Case, spaces and punctuation do not count, but a match must not be part of a longer word or
    number: 58213 is in "58,213", "58213." and "5 8 2 1 3", not in "582134", "158,213" or "58213.4". A sign
    counts: 5 is not in "-5". What is written as expected is always found: 2024-05-06, 5'11, (555) 123-4567.
    """
    return _pattern(expected).search(_plain(answer)) is not None


def spans_of(text: str, expected: str) -> list[tuple[int, int]]:
    """(start, end) of every place in `text` where `expected` stands verbatim; if nowhere, of every place that
    `contains_expected` would take for it."""
    expected = expected.strip()
    if not expected:
        return []
    verbatim = [found.span() for found in re.finditer(re.escape(expected), text)]
    if verbatim:
        return verbatim
    # A letter and the marks that compose with it are one piece, so that forms can be unified piece by piece.
    pieces = [found.span() for found in _PIECE.finditer(text)]
    owners: list[int] = []  # of each plain character, its piece
    parts = []
    for number, (start, end) in enumerate(pieces):
        part = _plain(text[start:end])
        parts.append(part)
        owners += [number] * len(part)
    plain = "".join(parts)
    found = (match.span() for match in _pattern(expected).finditer(plain) if match.group())
    return [(pieces[owners[start]][0], pieces[owners[end - 1]][1]) for start, end in found]


def _pattern(expected: str) -> re.Pattern[str]:
    expected = _plain(expected)
    if not expected.strip():
        raise InputError("Nothing to look for: the expected answer is empty.")
    words = re.findall(rf"(?:{_SIGN})?\d+(?:[.,']\d+)*|[^\W\d_]+", expected)
    if not words:  # only punctuation, such as an arrow: taken literally
        return re.compile(re.escape(expected.strip()))
    pattern = ""
    for number, word in enumerate(words):
        is_number = word[-1].isdigit()
        if number:
            # Words may touch (30days), two numbers may not: 3, 1902 is not 31902.
            touching = is_number and words[number - 1][-1].isdigit()
            pattern += r"[\W_]{1,6}?" if touching else r"[\W_]{0,6}?"
        pattern += _number_pattern(word) if is_number else re.escape(word)
    ways = rf"{pattern}|{_as_written(expected)}"
    return re.compile(rf"(?<!{_LETTER})(?:{ways})(?!{_LETTER})")


def _as_written(expected: str) -> str:
    """A regular expression for `expected` character by character, whatever its white space."""
    written = r"\s+".join(re.escape(part) for part in expected.split())
    start, end = expected.strip()[0], expected.strip()[-1]
    return (_NUMBER_START if start.isdigit() else "") + written + (_NUMBER_END if end.isdigit() else "")


def _plain(text: str) -> str:
    """Case folded, compatibility forms unified, digits of all scripts as 0-9."""
    text = unicodedata.normalize("NFKC", text).casefold().translate(_HYPHENS).replace("\u2019", "'")
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def _number_pattern(number: str) -> str:
    """A regular expression for the ways a number is written, never as part of a longer number."""
    if number.startswith("-"):
        return rf"(?:{_SIGN}|minus ?){_number_pattern(number[1:]).removeprefix(_NUMBER_START)}"
    if _GROUPED.fullmatch(number):
        number = re.sub(r"[,']", "", number)
    whole, *rest = re.split(r"[.,']", number.removesuffix(".00"))
    forms = [("", whole)]  # separator and the number written with it
    if len(whole) > 3:
        head = len(whole) % 3 or 3
        groups = [whole[:head], *(whole[i : i + 3] for i in range(head, len(whole), 3))]
        forms += [(mark, re.escape(mark).join(groups)) for mark in ",'."]
        # Any hyphen or space, then digit by digit. Shorter numbers are not split: "1, 5" is not 15.
        forms += [(mark, f"{mark}?".join(whole)) for mark in " -"]
        forms += [(mark, re.escape(mark).join(whole)) for mark in (", ", ",", ".", " - ", "\n")]
    # The points of a decimal or a version must stand where they stood: 1.5 is not 15.
    tail = "".join(f"[.,]{part}" for part in rest)
    ways = []
    for mark, form in forms:
        if mark:  # a further digit behind the same separator makes it part of a longer number
            mark = re.escape(mark)
            form = rf"(?<!\d{mark}){form}" + ("" if rest else rf"(?!{mark}\d)")
        ways.append(form + tail)
    return rf"{_NUMBER_START}(?:{'|'.join(ways)}){_NUMBER_END}"


def verdict(answer: str, expected: str | None) -> str:
    """ "right", "wrong", or "" without an expected answer."""
    if not expected or not expected.strip():
        return ""
    return "right" if contains_expected(answer, expected) else "wrong"


def answer_part(text: str) -> str | None:
    """What follows a model's thoughts in `text`; None where it was cut off while thinking."""
    *_, answer = text.split("</think>")
    return None if answer.lstrip().startswith("<think>") else answer


# A negation a few words before what it denies, in the languages that answers are mostly written in.
_NEGATED = re.compile(r"(?:\b(?:not|never|no|nor|nicht|kein\w*|pas|non)|n't)\b[ ,:]*(?:[^\W\d]+ ){0,2}\Z")


def verdict_notice(v: Variant, expected: str | None) -> str:
    """What is to be said beside the verdict on an answer, else "": it never came to an answer, the expected
    one stands only in what the model thought, behind a negation, or beside another number of its kind."""
    answer = answer_part(v.text)
    if answer is None:
        return "Cut off while thinking: there is no answer to judge."
    if not expected or not expected.strip():
        return ""
    if verdict(answer, expected) == "right":
        return _doubt(_plain(answer), expected)
    if verdict(v.text, expected) == "right":
        what = "number" if re.search(r"\d", expected) else "expected answer"
        return f"The {what} stands only in the thoughts."
    return ""


def _doubt(answer: str, expected: str) -> str:
    """Why an answer that contains the expected one may be wrong all the same, "" where nothing says so."""
    pattern = _pattern(expected)
    if all(_NEGATED.search(answer[: found.start()]) for found in pattern.finditer(answer)):
        return "The expected answer stands behind a negation: read the answer itself."
    digits = re.sub(r"[ ,.'-]", "", _plain(expected))
    if digits.isdigit() and len(digits) > 2:
        others = re.findall(r"(?<![\w,.'-])\d[\d,']*(?!\w)", pattern.sub(" ", answer))
        for other in others:
            if sum(c.isdigit() for c in other) == len(digits):
                return f"It names another number as well, {other.rstrip(',')}: read the answer itself."
    return ""


def judge(v: Variant | None, expected: str | None) -> str:
    """The verdict on an answer, thoughts left out; "" also for one that was cut off when the run was stopped
    or while the model was thinking, or is missing."""
    if v is None or v.finished == "cancelled":
        return ""
    answer = answer_part(v.text)
    return "" if answer is None else verdict(answer, expected)
