"""Generated tasks: their lengths, what they hide, and that the same arguments give the same items."""

from __future__ import annotations

import json
import re

import pytest

from kvviz.errors import InputError
from kvviz.evaluate import haystacks
from kvviz.evaluate.items import read_items
from kvviz.evaluate.judging import judged
from kvviz.evaluate.lengths import Sample, fit
from kvviz.evaluate.tasks import NEEDLES, TASKS

GENERATED = [name for name in TASKS if name not in ("qa", "documents")]


class PieceTokenizer:
    """Words in pieces of four characters, with what stands between them: about as fine as a real one."""

    def encode(self, text, add_special_tokens=False):
        return re.findall(r"\s?\w{1,4}|\s|[^\w\s]", text)

    def decode(self, ids, clean_up_tokenization_spaces=False):
        return "".join(ids)


TOKENIZER = PieceTokenizer()
TEXT = "It says little. "


def length(item):
    return len(TOKENIZER.encode(f"{item.document}\n{item.question}"))


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("tokens", [1000, 4200])
def test_a_task_meets_its_length_and_is_right_by_its_own_answers(name, tokens):
    items = TASKS[name](TOKENIZER, tokens=tokens, count=2, seed=3)
    assert items == TASKS[name](TOKENIZER, tokens=tokens, count=2, seed=3)
    assert items != TASKS[name](TOKENIZER, tokens=tokens, count=2, seed=4)
    assert len({item.id for item in items}) == len({item.document for item in items}) == 2
    for item in items:
        assert abs(length(item) - tokens) <= 0.02 * tokens
        assert item.meta["tokens"] == length(item) and item.meta["asked_tokens"] == tokens
        assert all(item.document.count(needle) == 1 for needle in item.meta["needles"])
        assert judged(item, "They are " + ", ".join(item.answers)) == ("right", 1.0)
        assert judged(item, "I do not know.") == ("wrong", 0.0)


@pytest.mark.parametrize(
    ("name", "needles", "answers"),
    [
        ("niah_single_1", 1, 1),
        ("niah_multikey_1", 4, 1),
        ("niah_multivalue", 4, 4),
        ("niah_multiquery", 4, 4),
    ],
)
def test_needles_and_answers_are_as_many_as_the_task_says(name, needles, answers):
    (item,) = TASKS[name](TOKENIZER, count=1)
    assert len(item.meta["needles"]) == item.document.count("One of the special magic") == needles
    assert len(item.answers) == answers
    half = judged(item, " ".join(item.answers[: (answers + 1) // 2]))
    assert half == (("right", 1.0) if answers == 1 else ("wrong", 0.5))


def test_distracting_needles_fill_the_whole_text():
    (item,) = TASKS["niah_multikey_2"](TOKENIZER, count=1)
    lines = item.document.split("\n")[1:]
    assert all(line.startswith("One of the special magic numbers for ") for line in lines)
    asked = item.question.removeprefix("What is the special magic number for ").split(" mentioned")[0]
    assert [line for line in lines if f" {asked} " in line] == item.meta["needles"]


def test_the_chain_of_variables_ends_at_the_asked_value():
    (item,) = TASKS["vt"](TOKENIZER, count=1)
    value = re.search(r"value (\d+) ", item.question)[1]
    owner = dict(re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", item.document))
    assert len(owner) == 5
    for name in item.answers:
        while name in owner:
            name = owner[name]
        assert name == value


def test_counted_words_are_the_most_frequent():
    (item,) = TASKS["cwe"](TOKENIZER, count=1)
    words = re.findall(r"\d+\. (\S+)", item.document.split("Below is a numbered list")[-1])
    assert {word for word in words if words.count(word) == 6} == set(item.answers)
    assert {words.count(word) for word in words} == {1, 6}
    (item,) = TASKS["fwe"](TOKENIZER, count=1)
    words = item.document.split("coded words. ")[1].split()
    ranked = sorted(set(words) - {"..."}, key=words.count, reverse=True)
    assert [words.count(word) for word in item.answers] == [words.count(word) for word in ranked[:3]]


def test_what_cannot_be_made_is_refused_in_a_sentence(tmp_path):
    for options, words in (
        ({"tokens": 10}, "length in tokens is a whole number from 100"),
        ({"tokens": 1000.5}, "length in tokens"),
        ({"count": 0}, "number of items"),
        ({"seed": -1}, "seed"),
        ({"haystack": "web"}, "choose own or essays"),
    ):
        with pytest.raises(InputError, match=words):
            TASKS["niah_single_2"](TOKENIZER, **options)
    with pytest.raises(InputError, match="needs a folder"):
        TASKS["qa"](TOKENIZER)
    with pytest.raises(InputError, match=r"comes within 2% of 100 tokens .* nearest has \d+"):
        TASKS["niah_multiquery"](TOKENIZER, tokens=100)
    with pytest.raises(InputError, match="^task:niah_multiquery:tokens=100: No text of this task"):
        read_items("task:niah_multiquery:tokens=100", TOKENIZER)  # one of several, on a command line
    with pytest.raises(InputError, match="no option 'depth'"):
        read_items("task:vt:depth=3", TOKENIZER)


def test_a_needle_that_does_not_survive_the_tokenizer_is_refused():
    class Lossy(PieceTokenizer):
        def decode(self, ids, clean_up_tokenization_spaces=False):
            return "".join(ids).replace("7", "1")

    def build(units, rng):
        return Sample("word " * units + "The code is 7.", "Which?", ("7",), hidden=("The code is 7.",))

    assert fit(build, TOKENIZER, 500, "s").tokens in range(490, 501)
    with pytest.raises(InputError, match="with what it hides whole"):
        fit(build, Lossy(), 500, "s")


def test_tasks_are_items_like_any_other():
    items = read_items("task:niah_multikey_3:tokens=2000,count=3", TOKENIZER)
    assert [item.id for item in items] == [f"niah_multikey_3-2000-0-{number}" for number in range(3)]
    assert {item.metric for item in items} == {"contains_all"}


def test_questions_over_several_documents_from_files(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(
            f"Text {number}. " + "It says little. " * (4 + number % 3) + "Yes. " * (number % 7)
        )
    questions = [
        {"document": f"{n}.txt", "question": f"Q{n}?", "answers": [f"A{n}", "other"]} for n in range(30)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    items = TASKS["qa"](TOKENIZER, folder=str(tmp_path), tokens=400, count=3)
    for number, item in enumerate(items):
        assert 392 <= length(item) <= 400
        assert f"Text {number}." in item.document
        assert item.question.endswith(f"Question: Q{number}?")
        documents = re.findall(r"Document \d+:\n(Text \d+)", item.document)
        assert len(documents) == len(set(documents)) > 3
        assert judged(item, f"It is a{number}.") == ("right", 1.0)
    with pytest.raises(InputError, match=r"alone has \d+ tokens"):
        TASKS["qa"](TOKENIZER, folder=str(tmp_path), tokens=100)
    with pytest.raises(InputError, match="more or shorter documents"):
        TASKS["qa"](TOKENIZER, folder=str(tmp_path), tokens=9000)


def test_essays_are_a_haystack_once_they_are_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(haystacks, "essays", lambda: "An essay has many words. " * 400)
    (item,) = TASKS["niah_single_3"](TOKENIZER, count=1, haystack="essays")
    assert item.document.count("An essay has many words.") > 50
    assert re.search(r"is: [0-9a-f-]{36}\.", item.meta["needles"][0])
    with pytest.raises(InputError, match="too few for this; choose haystack=own"):
        TASKS["niah_single_3"](TOKENIZER, count=1, tokens=8000, haystack="essays")


def test_a_single_needle_says_how_deep_it_lies():
    items = TASKS["niah_single_2"](TOKENIZER, tokens=800, count=4)
    for item in items:
        before = item.document[: item.document.index(item.meta["needles"][0])]
        assert item.meta["depth"] == pytest.approx(len(before) / len(item.document), abs=1e-3)
    assert len({item.meta["depth"] for item in items}) > 1


def test_the_documents_that_come_along_hold_their_answers():
    items = read_items("task:documents", TOKENIZER)
    assert len(items) == 24 and len({item.document for item in items}) == 8
    for item in items:
        assert any(answer in item.document for answer in item.answers)
        assert judged(item, f"It is {item.answers[0]}.") == ("right", 1.0)


def test_every_needle_task_has_a_row():
    assert set(NEEDLES) < set(TASKS)
    assert set(TASKS) - set(NEEDLES) == {"vt", "cwe", "fwe", "qa", "documents"}
