"""Passages: every token under compression in exactly one, cut where a reader would."""

import pytest
from tiny import make_model

import kvviz
from kvviz.errors import InputError
from kvviz.results.passages import passages

DOCUMENT = 'One ship came, at 3.5 knots. "Two left!" she said.\nA line without an end'
DOCUMENT += "\n\nLast: is it 58213? Yes."


@pytest.fixture(scope="module")
def prompt():
    return kvviz.build_prompt(make_model("llama"), DOCUMENT, "Which number is it?")


def texts(prompt, unit):
    return [p.text for p in passages(prompt, unit) if p.kind == "document"]


def test_sentences_lines_and_paragraphs(prompt):
    assert texts(prompt, "sentence") == [
        "One ship came, at 3.5 knots.", '"Two left!"', "she said.", "A line without an end",
        "Last: is it 58213?", "Yes.",
    ]  # fmt: skip
    assert texts(prompt, "line") == DOCUMENT.replace("\n\n", "\n").split("\n")
    assert texts(prompt, "paragraph") == DOCUMENT.split("\n\n")


@pytest.mark.parametrize("unit", ["sentence", "line", "paragraph"])
def test_every_token_lies_in_exactly_one(prompt, unit):
    found = passages(prompt, unit)
    assert [p.start for p in found] == [0, *(p.end for p in found[:-1])]
    assert found[-1].end == prompt.n_compressible
    kinds = [p.kind for p in found]
    assert kinds[0] == kinds[-1] == "template" and kinds.count("question") == 1


def test_scripts_without_spaces():
    prompt = kvviz.build_prompt(make_model("llama"), "一艘船来了。两艘走了！号码是58213。", "号码？")
    assert texts(prompt, "sentence") == ["一艘船来了。", "两艘走了！", "号码是58213。"]


def test_an_unknown_unit_is_named(prompt):
    with pytest.raises(InputError, match="not 'page'"):
        passages(prompt, "page")
