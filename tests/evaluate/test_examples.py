"""The example documents: complete, readable, and honest about what the full cache answers."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from kvviz.errors import KvvizError
from kvviz.evaluate.examples import FOLDER, examples, read_examples
from kvviz.evaluate.needles import NEEDLE, needle_text
from kvviz.results.verdict import contains_expected
from kvviz.types import PROTOCOLS


def test_the_three_examples_come_in_the_order_shown():
    assert [example.id for example in examples()] == [
        "lighthouse-ledger", "station-contract", "tide-gauge-code"]  # fmt: skip


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.id)
def test_an_example_is_complete(example):
    assert example.title and example.protocol in PROTOCOLS
    assert "Written for this project" in example.note
    assert example.checked_with
    for question in example.questions:
        assert question.question.endswith("?")
        assert contains_expected(example.document, question.expected)
    with pytest.raises(FrozenInstanceError):
        example.title = "other"


def test_every_file_in_the_folder_is_listed():
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert files == {"index.json", *(example.file for example in examples())}


def test_the_ledger_hides_its_sentence_at_thirty_percent():
    document = examples()[0].document
    assert document.count(NEEDLE) == 1
    assert 0.25 < document.index(NEEDLE) / len(document) < 0.35


def test_the_contract_asks_two_questions_on_one_compression():
    contract = examples()[1]
    assert contract.protocol == "question-agnostic"
    assert len(contract.questions) == 2


def test_the_code_file_is_python_with_the_expected_constants():
    code = examples()[2]
    names: dict = {}
    exec(compile(code.document, code.file, "exec"), names)
    for question in code.questions:
        name = question.question.removesuffix("?").split()[-1]
        assert str(names[name]) == question.expected
    assert not code.questions[0].full_cache_answers  # the case this example is there to show


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(KvvizError, match="example documents are not there"):
        read_examples(tmp_path / "nowhere")


def test_a_missing_document_is_named(tmp_path):
    entry = {"id": "a", "protocol": PROTOCOLS[0], "file": "gone.txt", "questions": []}
    (tmp_path / "index.json").write_text(json.dumps([entry]))
    with pytest.raises(KvvizError, match="gone.txt"):
        read_examples(tmp_path)


@pytest.mark.parametrize(
    "content", ["{", "[1]", "[{}]", '[{"id": "a", "protocol": "none"}]', '{"id": "a"}']
)
def test_a_damaged_list_is_said(tmp_path, content):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(KvvizError, match="list of example documents is damaged"):
        read_examples(tmp_path)


@pytest.mark.slow
def test_the_ledger_is_the_generated_text(smollm):
    assert examples()[0].document == needle_text(1000, 0.3, smollm.tokenizer).document


@pytest.mark.slow
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.id)
def test_what_the_full_cache_answers_is_stated_truly(smollm, example):
    for question in example.questions:
        user = {"role": "user", "content": f"{example.document}\n\n{question.question}"}
        inputs = smollm.tokenizer.apply_chat_template(
            [user], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = smollm.hf.generate(**inputs, max_new_tokens=24, do_sample=False)
        answer = smollm.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
        assert contains_expected(answer, question.expected) == question.full_cache_answers
