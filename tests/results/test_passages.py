"""Passages: every token under compression in exactly one, cut where a reader would."""

import pytest
from tiny import make_model

import kvviz
from kvviz.errors import InputError
from kvviz.results.passages import passage_starts, passages
from kvviz.results.sections import Where, section_starts

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


PAGES = "First page.\n\n\f\n\n\f# Rent\n\n640 crowns.\n\n## Keys\n\nThe master\n\n\fhas them. \f \n"


def test_pages_and_headings_are_sections_and_every_token_says_where_it_stands():
    prompt = kvviz.build_prompt(make_model("llama"), PAGES, "Which number is it?")
    starts, where = section_starts(prompt), Where(prompt)
    assert [part.label for _, part in starts] == [
        "page 1", "page 3 · Rent", "page 3 · Keys", "page 4 · Keys"]  # fmt: skip
    for number, part in ((0, "First"), (1, "# Rent"), (2, "## Keys"), (3, "has them")):
        token = prompt.tokens_of(PAGES.index(part), PAGES.index(part) + 1)[0]
        assert token == starts[number][0] and where(token) == starts[number][1].label
        assert token in passage_starts(prompt, "section")
        assert token in passage_starts(prompt, "paragraph")
    assert where(0) == "" and len(passage_starts(prompt, "section")) == 4 + 4  # and what stands around them


def test_a_text_without_pages_and_headings_is_one_section(prompt):
    assert [part.label for _, part in section_starts(prompt)] == [""]
    assert [p for p in passage_starts(prompt, "section") if prompt.offsets[p]] == [prompt.document_span[0]]


def test_scripts_without_spaces():
    prompt = kvviz.build_prompt(make_model("llama"), "一艘船来了。两艘走了！号码是58213。", "号码？")
    assert texts(prompt, "sentence") == ["一艘船来了。", "两艘走了！", "号码是58213。"]


FILLED = """\
  3. You may copy and distribute the Program in object code, under the
terms of Section 1 above. Accompany it with a written offer, valid for at
least three years, to give any third party a copy of the source. The
General terms hold, as they do
in any case:

b) Items of a list stay items, however long their lines may be here
c) and that goes for the last one too."""

CODE = """\
The gauge sends frames that arrive late, twice or damaged, so
each one is checked.
def level_of(frame: bytes, offset: int) -> int:
    level = struct.unpack(">h", frame[2:4])[0] + OFFSET_MM
    return level + offset"""


FILLED_SENTENCES = [
    "3.",
    "You may copy and distribute the Program in object code, under the\nterms of Section 1 above.",
    "Accompany it with a written offer, valid for at\nleast three years, to give any third party a copy of "
    "the source.",
    "The\nGeneral terms hold, as they do",
    "in any case:",
    "b) Items of a list stay items, however long their lines may be here",
    "c) and that goes for the last one too.",
]
CODE_SENTENCES = [CODE[:82], *(line.strip() for line in CODE.split("\n")[2:])]


@pytest.mark.parametrize(
    ("document", "sentences"), [(FILLED, FILLED_SENTENCES), (CODE, CODE_SENTENCES)], ids=["text", "code"]
)
def test_a_sentence_goes_on_where_an_editor_broke_its_line(document, sentences):
    prompt = kvviz.build_prompt(make_model("llama"), document, "Which number is it?")
    assert texts(prompt, "sentence") == sentences


def test_an_unknown_unit_is_named(prompt):
    with pytest.raises(InputError, match="not 'page'"):
        passages(prompt, "page")
