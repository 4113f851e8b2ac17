"""Files that others wrote, as the commands take them: read, or refused in one sentence."""

import csv
import io
import json

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from many import sweep_rows

from kvviz.cli import main
from kvviz.errors import InputError
from kvviz.evaluate.items import read_items

SOME = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = ["", "full", "snapkv", "../x", "\x00", "NaN", "1e999", "a.txt", "<b>", "=1", "[", "9" * 40, "task:x"]
TEXTS = st.text(max_size=8) | st.sampled_from(WORDS)
LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | TEXTS
JUNK = st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXTS, x, max_size=3), max_leaves=5
)


def said_in_a_sentence(words, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code in (0, 2) and "Traceback" not in said, (words, said)
    assert code == 0 or len(said.strip().splitlines()) == 1, said


FIELDS = (
    "document",
    "file",
    "question",
    "answers",
    "expected",
    "id",
    "task",
    "metric",
    "context",
    "input",
    "cue",
    "length",
    "depth",
    "all_classes",
    "max_new_tokens",
    "asked_tokens",
    "dataset",
)
ROWS = st.lists(st.dictionaries(st.sampled_from(FIELDS) | TEXTS, JUNK, max_size=5), max_size=3)
GOOD = {"document": "a.txt", "question": "What?", "answers": ["1"]}


def read(path):
    try:
        for item in read_items(path):
            assert isinstance(item.document, str) and all(isinstance(a, str) for a in item.answers)
    except InputError as error:
        assert "\n" not in str(error) and str(error).rstrip().endswith((".", "?")), str(error)


@SOME
@given(rows=ROWS, good=st.booleans(), beside=st.binary(max_size=40))
def test_question_files(rows, good, beside, tmp_path):
    (tmp_path / "a.txt").write_text("A text.")
    rows = [{**GOOD, **row} if good else row for row in rows]
    lines = "\n".join(json.dumps(row) for row in rows).encode() + beside
    for name in ("questions.jsonl", "narrativeqa.jsonl"):
        (tmp_path / name).write_bytes(lines)
        read(tmp_path / name)
    read(tmp_path)
    (tmp_path / "questions.jsonl").unlink()
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
    (tmp_path / "questions.csv").write_bytes(out.getvalue().encode("utf-8", "surrogatepass") + beside)
    read(tmp_path)
    read(tmp_path / "questions.csv")


@pytest.mark.parametrize("name", ["questions.jsonl", "questions.csv"])
def test_a_text_of_any_length_stands_in_a_question_file(name, tmp_path):
    row = {"document": "word " * 60_000, "question": "What?", "answers": "1"}
    (tmp_path / name).write_text(
        json.dumps(row) if name.endswith("l") else pd.DataFrame([row]).to_csv(index=False)
    )
    (item,) = read_items(tmp_path / name)
    assert item.document == row["document"] and item.answers == ("1",)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"document": ' * 20_000, '{"answers": [' + "9" * 5000 + "]}"]
)
def test_lines_nested_without_end_and_endless_numbers_are_said_with_their_place(line, tmp_path):
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(InputError, match="q.jsonl, line 1"):
        read_items(tmp_path / "q.jsonl")


ROWS_OF_SWEEP = sweep_rows(n=3)


@SOME
@given(data=st.data())
def test_tables_of_sweeps(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "kvviz.figures.printed.files", lambda plot: {}
    )  # drawing is slow, and not what is asked
    table = pd.DataFrame(ROWS_OF_SWEEP)
    for name in data.draw(st.lists(st.sampled_from(list(table)), max_size=3)):
        if name not in table:
            continue
        if data.draw(st.booleans()):
            table = table.drop(columns=name)
            continue
        value = data.draw(LEAVES)
        table[name] = [value] * len(table) if data.draw(st.booleans()) else [value, *table[name].tolist()[1:]]
    try:
        table.to_parquet(tmp_path / "table.parquet")
    except (ValueError, TypeError, OverflowError, UnicodeError):  # what Arrow does not take no file holds
        return
    for words in (["claims"], ["choose"], ["plot", "--kind", "kl-budget,pairs"]):
        said_in_a_sentence([words[0], str(tmp_path), *words[1:]], capsys)


@SOME
@given(table=st.binary(max_size=60), sets=st.binary(max_size=60) | JUNK.map(lambda x: json.dumps(x).encode()))
def test_folders_of_sweeps(table, sets, tmp_path, capsys):
    (tmp_path / "table.parquet").write_bytes(table)
    said_in_a_sentence(["claims", str(tmp_path)], capsys)
    pd.DataFrame(ROWS_OF_SWEEP).to_parquet(tmp_path / "table.parquet")
    (tmp_path / "best_sets.json").write_bytes(sets)
    said_in_a_sentence(["claims", str(tmp_path)], capsys)


def test_what_brute_force_found_nested_without_end_is_one_sentence(tmp_path, capsys):
    pd.DataFrame(ROWS_OF_SWEEP).to_parquet(tmp_path / "table.parquet")
    (tmp_path / "best_sets.json").write_text("[" * 100_000)
    said_in_a_sentence(["claims", str(tmp_path)], capsys)


@SOME
@given(data=st.binary(max_size=80) | st.binary(max_size=60).map(b"PK\x03\x04".__add__))
def test_exports_of_what_is_no_run(data, tmp_path, capsys):
    (tmp_path / "run.zip").write_bytes(data)
    said_in_a_sentence(["export", str(tmp_path / "run.zip"), "--html", str(tmp_path / "out.html")], capsys)


CODE = st.sampled_from(
    [
        "raise ValueError('x\\ny')",
        "raise SystemExit(3)",
        "import nothing_here",
        "1 +",
        "METHOD = 3",
        "from kvviz.methods.spec import Method\nMETHOD = Method()",
        "def f(: pass",
        "\x00",
        "x = '\udc80'",
        "def f(): f()\nf()",
    ]
)


@SOME
@given(code=(CODE | TEXTS).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40))
def test_files_of_own_methods(code, tmp_path, capsys):
    (tmp_path / "own.py").write_bytes(code)
    said_in_a_sentence(["methods", "--plugin", str(tmp_path / "own.py")], capsys)
