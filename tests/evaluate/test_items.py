"""Items from files of several shapes, and the verdict on an answer to one."""

from __future__ import annotations

import json

import pytest

from kvviz.errors import InputError
from kvviz.evaluate.items import Item, lines_of, read_items
from kvviz.evaluate.judging import judged


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_longbench_lines_are_read_and_unknown_fields_kept(tmp_path):
    row = {
        "input": "Who?", "context": "A text.", "answers": ["Ann", "A. Smith"], "length": 900,
        "dataset": "hotpotqa", "language": "en", "all_classes": None, "_id": "7f",
    }  # fmt: skip
    (item,) = read_items(write(tmp_path / "some.jsonl", row))
    assert item == Item("7f", "hotpotqa", "A text.", "Who?", ("Ann", "A. Smith"), "f1", item.meta)
    assert item.meta == {"length": 900, "language": "en", "all_classes": None}


def test_a_known_dataset_is_scored_its_own_way_whatever_its_file_is_called(tmp_path):
    asked = {"context": "A text.", "question": "Which?", "answer": ["ABC", "DEF"]}
    path = write(
        tmp_path / "all.jsonl",
        asked | {"dataset": "qasper_e"},
        asked | {"task": "vt"},
        asked | {"task": "qa_1"},
        asked | {"task": "vt", "metric": "f1"},
        asked,
    )
    assert [item.metric for item in read_items(path)] == [
        "f1", "contains_all", "contains_part", "f1", "contains",
    ]  # fmt: skip


def test_datasets_whose_rows_ask_nothing_are_asked_what_their_benchmark_asks(tmp_path):
    asked = [{"context": "A text.", "input": "", "dataset": name} for name in ("gov_report", "lcc_e", "mine")]
    summary, code, unknown = read_items(write(tmp_path / "a.jsonl", *asked))
    assert "summary of the report" in summary.question and "Next line of code" in code.question
    assert unknown.question == ""  # a row of the table says why it has no answer
    (own,) = read_items(write(tmp_path / "b.jsonl", asked[0] | {"input": "Who?"}))
    assert own.question == "Who?"


@pytest.mark.parametrize("name", ["cue", "answer_prefix", "gen_prefix"])
def test_the_beginning_of_an_answer_is_read_under_the_names_that_others_give_it(tmp_path, name):
    asked = {"context": "A text.", "question": "Who?", name: "The keeper is"}
    first, second = read_items(write(tmp_path / "a.jsonl", asked, asked | {name: ""}))
    assert (first.cue, second.cue) == ("The keeper is", "")
    assert read_items(write(tmp_path / "b.jsonl", first.to_dict()))[0] == first


def test_several_right_answers_in_a_csv_file_are_a_json_list(tmp_path):
    (tmp_path / "one.txt").write_text("Text.")
    (tmp_path / "questions.csv").write_text(
        'document,question,answers\none.txt,Who?,"[""Ann"", ""A. Smith""]"\none.txt,Which?,[sic]\n'
    )
    assert [item.answers for item in read_items(tmp_path)] == [("Ann", "A. Smith"), ("[sic]",)]


def test_other_names_of_the_fields_and_ids_by_line(tmp_path):
    path = write(
        tmp_path / "own.jsonl",
        {"document": "a", "question": "b", "answer": "c"},
        {"context": "a", "question": "b", "answers": 12},
        {"context": "a", "question": "b"},
    )
    items = read_items(path)
    assert [item.id for item in items] == ["own-1", "own-2", "own-3"]
    assert [item.answers for item in items] == [("c",), ("12",), ()]
    assert {item.task for item in items} == {"own"}


def test_a_folder_of_texts_with_a_question_file(tmp_path):
    (tmp_path / "one.txt").write_text("First text.\r\nIts end.", encoding="utf-8")
    (tmp_path / "two.md").write_text("Second text.", encoding="utf-8")
    (tmp_path / "questions.csv").write_text(
        "document,question,answer\none.txt,What?,this\none.txt,Where?,\ntwo.md,Who?,Bo\n", encoding="utf-8"
    )
    items = read_items(tmp_path)
    assert [(i.document, i.question, i.answers) for i in items] == [
        ("First text.\nIts end.", "What?", ("this",)),
        ("First text.\nIts end.", "Where?", ()),
        ("Second text.", "Who?", ("Bo",)),
    ]
    assert items[0].meta == {"file": "one.txt"}


def test_written_items_are_read_back_the_same(tmp_path):
    items = (
        Item("a", "t", "x\u2028y", "q?", ("1", "2"), "f1", {"depth": 0.5, "span": [1, 2]}),
        Item("b", "t", "z", "r?"),
    )
    (tmp_path / "items.jsonl").write_text(lines_of(items), encoding="utf-8")
    assert read_items(tmp_path / "items.jsonl") == items


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "no items"),
        ("{", "line 1 is no JSON"),
        ("[1]", "line 1 is no object"),
        ('{"question": "x"}', "line 1: there is no document or context"),
        ('{"context": "x"}', "line 1: there is no question or input"),
        ('{"context": "x", "input": "y", "answers": {"a": 1}}', "answers are"),
        ('{"context": "x", "input": "y", "metric": "bleu"}', "line 1: there is no metric 'bleu'. Choose"),
        ('{"id": 1, "context": "x", "input": "y"}\n' * 2, "have the id '1'"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path, lines, said):
    (tmp_path / "bad.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_items(tmp_path / "bad.jsonl")


def test_a_question_file_cannot_reach_outside_its_folder(tmp_path):
    (tmp_path / "secret.txt").write_text("no", encoding="utf-8")
    inner = tmp_path / "in"
    inner.mkdir()
    write(inner / "questions.jsonl", {"document": "../secret.txt", "question": "?"})
    with pytest.raises(InputError, match="there is no text"):
        read_items(inner)


def test_of_several_right_answers_the_best_counts():
    item = Item("a", "t", "d", "q", ("Ann", "A. Smith"))
    assert judged(item, "It was A. Smith.") == ("right", 1.0)
    assert judged(item, "It was Bob.") == ("wrong", 0.0)
    assert judged(item, "<think>Ann?</think>Bob") == ("wrong", 0.0)
    assert judged(item, "<think>Ann") == ("", None)
    assert judged(Item("a", "t", "d", "q"), "Ann") == ("", None)


def test_a_graded_metric_is_right_where_the_answer_is_contained():
    item = Item("a", "t", "d", "q", ("the red door", "no"), "f1")
    verdict, score = judged(item, "behind the red door")
    assert verdict == "right" and score == pytest.approx(2 * 2 / 5)  # articles do not count
    assert judged(item, "the blue door")[0] == "wrong"


@pytest.mark.parametrize("metric", ["rouge_l", "edit_similarity"])
def test_how_alike_two_texts_are_is_no_verdict(metric):
    item = Item("a", "t", "d", "q", ("return one",), metric)
    assert judged(item, "return two")[0] == "" and 0 < judged(item, "return two")[1] < 1
    assert judged(item, "return one") == ("", pytest.approx(1))
