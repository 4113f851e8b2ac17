"""Needle texts (length, place, variety) and the right/wrong verdict."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvviz.errors import InputError
from kvviz.evaluate.grid import grid_items
from kvviz.evaluate.needles import (
    CODE,
    DEPTHS,
    N_TEXTS,
    NEEDLE,
    NEEDLES,
    QUESTION,
    needle_cases,
    needle_text,
)
from kvviz.results.verdict import contains_expected, judge


class WordTokenizer:
    """Counts like the real ones do: single digits, words with their space, punctuation, breaks."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [hash(token) for token in re.findall(r" ?[A-Za-z]+|\d|\n+|[^\w\s]", text)]


class PrependTokenizer:
    """As Llama 2's and Phi-3's: a "▁" more before whatever is encoded by itself."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) for c in re.sub(r"▁?[A-Za-z]+", "w", "▁" + text.replace(" ", "▁"))]


class CharacterTokenizer:
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) for c in text]


WORDS = WordTokenizer()


def sentences(document: str) -> list[str]:
    return re.split(r"(?<=\.)\s+", document)


@pytest.mark.parametrize("text", range(N_TEXTS))
@pytest.mark.parametrize("length", [100, 256, 1000, 1024, 4000, 8192])
def test_length_is_met_within_two_percent(length, text):
    for case in needle_cases(length, DEPTHS, WORDS, (text,)):
        assert case.tokens == len(WORDS.encode(case.document))
        assert abs(case.tokens - length) <= 0.02 * length


def test_length_is_met_in_other_tokens():
    case = needle_text(3000, 0.5, CharacterTokenizer())
    assert abs(len(case.document) - 3000) <= 60


@pytest.mark.parametrize("length", [100, 300, 1000, 4000])
def test_a_tokenizer_that_puts_a_blank_before_every_text_is_counted_right(length):
    tokenizer = PrependTokenizer()
    for case in needle_cases(length, DEPTHS, tokenizer):
        assert case.tokens == len(tokenizer.encode(case.document))
        assert abs(case.tokens - length) <= 0.02 * length


@pytest.mark.parametrize("text", range(N_TEXTS))
@pytest.mark.parametrize("depth", [0, *DEPTHS, 1])
def test_needle_stands_at_the_nearest_sentence_boundary(depth, text):
    case = needle_text(1000, depth, WORDS, text)
    parts = sentences(case.document)
    assert parts.count(NEEDLE) == 1
    place = parts.index(NEEDLE)
    counts = [len(WORDS.encode(" " + part)) for part in parts if part != NEEDLE]
    misses = [abs(sum(counts[:i]) - depth * sum(counts)) for i in range(len(counts) + 1)]
    # A paragraph break counts as a token here and not there, hence the slack of a few tokens.
    assert misses[place] <= min(misses) + 10
    assert case.reached == pytest.approx(sum(counts[:place]) / sum(counts), abs=0.01)
    if depth in (0, 1):
        assert place == depth * len(counts) and case.reached == depth


def test_the_span_points_into_the_document():
    case = needle_text(500, 0.7, WORDS, text=2, seed=3)
    start, end = case.needle_span
    assert case.document[start:end] == case.needle_sentence == NEEDLE
    assert case.expected == CODE and NEEDLE.count(CODE) == 1
    assert case.question == QUESTION


@pytest.mark.parametrize("text", range(N_TEXTS))
def test_no_sentence_occurs_twice_and_none_gives_the_code_away(text):
    parts = sentences(needle_text(8000, 0.5, WORDS, text).document)
    assert len(parts) == len(set(parts))
    assert not contains_expected(" ".join(part for part in parts if part != NEEDLE), CODE)


@pytest.mark.parametrize("text", range(N_TEXTS))
def test_a_text_is_full_of_distracting_numbers(text):
    document = needle_text(1000, 0.5, WORDS, text).document
    numbers = re.findall(r"\d+", document)
    assert len(numbers) > 60
    assert len(set(numbers)) > 40
    assert "{" not in document and "}" not in document
    assert "  " not in document and "\n\n" in document


@pytest.mark.parametrize("text", range(N_TEXTS))
def test_a_thousand_tokens_hardly_repeat_a_phrasing(text):
    shapes = [re.sub(r"\d+", "0", part)[:25] for part in sentences(
        needle_text(1000, 0.5, WORDS, text).document)]  # fmt: skip
    assert len(set(shapes)) >= 0.9 * len(shapes)


def test_only_the_needle_moves_between_depths():
    rests = {tuple(part for part in sentences(case.document) if part != NEEDLE)
             for case in needle_cases(1000, DEPTHS, WORDS, (1,))}  # fmt: skip
    assert len(rests) == 1


def test_same_arguments_same_text_and_each_argument_matters():
    first = needle_text(1000, 0.3, WORDS, 0, 0)
    assert first == needle_text(1000, 0.3, WORDS, 0, 0)
    others = [needle_text(1000, 0.3, WORDS, 1, 0), needle_text(1000, 0.3, WORDS, 0, 1),
              needle_text(1000, 0.9, WORDS, 0, 0)]  # fmt: skip
    assert len({case.document for case in [first, *others]}) == 4


def test_cases_come_texts_outermost():
    cases = needle_cases(300, (0.1, 0.9), WORDS, (2, 0), seed=5)
    assert [(case.text, case.depth, case.seed) for case in cases] == [
        (2, 0.1, 5), (2, 0.9, 5), (0, 0.1, 5), (0, 0.9, 5)]  # fmt: skip
    assert cases[3] == needle_text(300, 0.9, WORDS, 0, 5)


def test_very_long_texts_end():
    """Sentences with few slots run out of variations; the text must go on without them."""
    case = needle_text(150_000, 0.5, WORDS)
    assert abs(case.tokens - 150_000) <= 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((99, 0.5, WORDS), "needs 100 tokens or more, not 99"),
        ((500, 1.1, WORDS), "between 0 .start. and 1 .end., not 1.1"),
        ((500, float("nan"), WORDS), "not nan"),
        ((500, 0.5, WORDS, 3), "0 to 2, not 3"),
        ((500, 0.5, WORDS, -1), "0 to 2, not -1"),
        ((500, 0.5, None), "hand over the model's tokenizer"),
    ],
)
def test_what_cannot_be_built_is_said(arguments, message):
    with pytest.raises(InputError, match=message):
        needle_text(*arguments)


RIGHT = [
    ("58213", "58213"),
    ("58213.", "58213"),
    ("58,213", "58213"),
    ("58.213", "58213"),
    ("58 213", "58213"),
    ("58\u202f213", "58213"),
    ("5 8 2 1 3", "58213"),
    ("5, 8, 2, 1, 3", "58213"),
    ("5-8-2-1-3", "58213"),
    ("582-13", "58213"),
    ("**58213**", "58213"),
    ("_58213_", "58213"),
    ("(58213)", "58213"),
    ("code:58213", "58213"),
    ("58213, 4 boats", "58213"),
    ("58213 4", "58213"),
    ("\uff15\uff18\uff12\uff11\uff13", "58213"),
    ("\u4ee3\u7801\u662f58213\u3002", "58213"),
    ("582134 or 58213", "58213"),
    ("It is $450.00.", "450"),
    ("$450", "450.00"),
    ("1200.5", "1,200.5"),
    ("18400 euros", "18,400"),
    ("18,400", "18400"),
    ("18'400", "18,400"),
    ("1,200.50", "1200.50"),
    ("the SILVER  tern!", "Silver Tern"),
    ("Silver-Tern", "silver tern"),
    ("thirty (30) days", "30 days"),
    ("30days", "30 days"),
    ("on March 3, 1902", "March 3 1902"),
    ("2,5 seconds", "2.5"),
    ("The value is 2.5.", "2.5"),
    ("\u5728\u4e0a\u6d77\u5e02", "\u4e0a\u6d77"),
    ("the keeper\u2019s boat", "keeper's boat"),
    ("a -> b", "->"),
]
WRONG = [
    ("", "58213"),
    ("582134", "58213"),
    ("158213", "58213"),
    ("158,213", "58213"),
    ("58,2134", "58213"),
    ("58213.4", "58213"),
    ("58213,400", "58213"),
    ("58 213 400", "58213"),
    ("58213-4", "58213"),
    ("5 8 2 1 3 4", "58213"),
    ("1 5 8 2 1 3", "58213"),
    ("58213kg", "58213"),
    ("x58213", "58213"),
    ("5821", "58213"),
    ("58312", "58213"),
    ("clause 5. 8213", "58213"),
    ("5, 8213", "58213"),
    ("1, 5", "15"),
    ("1.5", "15"),
    ("15", "1.5"),
    ("1200.5", "1200"),
    ("11,200.5", "1200.5"),
    ("1,200.55", "1200.5"),
    ("175 days", "75 days"),
    ("75 daysailers", "75 days"),
    ("partner", "art"),
    ("March 31902", "March 3 1902"),
    ("Silver", "Silver Tern"),
]


@pytest.mark.parametrize(("answer", "expected"), RIGHT)
def test_right(answer, expected):
    assert contains_expected(answer, expected)


@pytest.mark.parametrize(("answer", "expected"), WRONG)
def test_wrong(answer, expected):
    assert not contains_expected(answer, expected)


AS_WRITTEN = (
    "2024-05-06", "555-1234", "3-5", "2-1", "9-11", "2019-2020", "pp. 3-7", "1-800-555-0199",
    "(555) 123-4567", "ISBN 978-3-16-148410-0", "5'11", "5'11\"", "12'5", "\u0665-\u0666", "-5", "+5",
    "\u22125", "1\u20132", ".5", "3.", "1/2", "\u00bd", "12:30", "v1.2-3", "10-12 June 2024", "$1,200.50",
    "B-52", "3'-5'", "e\u0301t\u00e9-3",
)  # fmt: skip


@pytest.mark.parametrize("expected", AS_WRITTEN)
def test_what_is_written_as_expected_is_right(expected):
    assert contains_expected(expected, expected)
    assert contains_expected(f"The answer is {expected}.", expected)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=20), st.text("0123456789-.,'\u0665 ()/ab", max_size=14)))
def test_any_text_with_a_letter_or_digit_is_right_as_written(expected):
    assume(any(c.isalpha() or c.isdecimal() for c in expected))
    assert contains_expected(f"The answer is {expected}.", expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("5", "-5"), ("-5", "5"), ("It is -5 degrees.", "5"), ("It is \u22125.", "5"), ("It is 5.", "-5"),
        ("(-5)", "5"), ("3-5", "-5"), ("13-5", "3-5"), ("3-51", "3-5"), ("2024-05-061", "2024-05-06"),
        ("2024-05-07", "2024-05-06"), ("5'12", "5'11"), ("-1,200", "1200"),
    ],
)  # fmt: skip
def test_another_sign_or_a_longer_number_is_wrong(answer, expected):
    assert not contains_expected(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("It fell to minus 5.", "-5"), ("It fell to \u22125.", "-5"), ("room B-5", "5"),
        ("2024/05/06", "2024-05-06"), ("on 2024\u201105\u201106", "2024-05-06"),
        ("call 555 1234", "555-1234"), ("-1200 kg", "-1,200"),
    ],
)  # fmt: skip
def test_the_same_number_otherwise_written_is_right(answer, expected):
    assert contains_expected(answer, expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Maybe 58213. No.</think> The code is 99999.", "wrong"),
        ("<think>Maybe 99999.</think>The code is 58213.", "right"),
        ("<think>The number 58213 is mentioned. Let me", ""),  # cut off while thinking
        ("The code is 58213.", "right"),
    ],
)
def test_thoughts_are_no_answer(text, said):
    assert judge(SimpleNamespace(text=text, finished="length"), "58213") == said


@pytest.mark.parametrize("expected", ["", "  \n"])
def test_an_empty_expectation_is_refused(expected):
    with pytest.raises(InputError, match="expected answer is empty"):
        contains_expected("58213", expected)


def test_the_verdict_takes_no_time_on_a_hostile_answer():
    """No backtracking beyond a few characters: a long answer of digits and spaces is quick."""
    assert not contains_expected("5 8 2 1 " * 20_000, "58213")
    assert not contains_expected("a " * 50_000, "a b c d e f")


def test_a_grid_is_one_item_a_needle_length_seed_and_depth():
    items = grid_items(WORDS, (200, 300), (0.0, 1.0), (0,), (0, 1), (0, 2))
    assert len(items) == len({item.id for item in items}) == len({item.document for item in items}) == 16
    for item in items:
        (needle,) = item.meta["needles"]
        assert item.document.count(needle) == 1 and item.answers[0] in needle
        others = [n.expected for n in NEEDLES if n.sentence != needle]
        assert not any(contains_expected(item.document, other) for other in others)
        share = item.document.index(needle) / (len(item.document) - len(needle))
        assert share == pytest.approx(item.meta["depth"], abs=1e-9)
        assert abs(item.meta["tokens"] - item.meta["asked_tokens"]) <= 0.02 * item.meta["asked_tokens"]
    with pytest.raises(InputError, match="There are 3 needles, 0 to 2, not 7"):
        grid_items(WORDS, needles=(7,))


@pytest.mark.slow
def test_the_full_cache_finds_most_needles(smollm):
    """1,000 tokens, 3 texts x 3 places, greedy, 24 tokens. Below 7 of 9 the texts are no use."""
    found = sum(
        contains_expected(_answer(smollm, case), case.expected)
        for case in needle_cases(1000, (0.1, 0.5, 0.9), smollm.tokenizer)
    )
    assert found >= 7


def _answer(model, case) -> str:
    user = {"role": "user", "content": f"{case.document}\n\n{case.question}"}
    inputs = model.tokenizer.apply_chat_template(
        [user], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.hf.generate(**inputs, max_new_tokens=24, do_sample=False)
    return model.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
