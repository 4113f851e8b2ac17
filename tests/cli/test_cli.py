"""The command line on a tiny model: what it prints, what it writes, how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvviz import cli, load_comparison
from kvviz.cli import terminal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text(
        "The code of the door is 58213. " * 6 + "Nothing else was decided that day.", encoding="utf-8"
    )
    return path


@pytest.fixture
def tiny_model_loads(monkeypatch, tiny_llama):
    monkeypatch.setattr("kvviz.models.load_model", lambda *args, **kwargs: tiny_llama)


def compare(document, *more):
    arguments = [
        "compare",
        "--document",
        str(document),
        "--question",
        "What is the code?",
        "--max-new-tokens",
        "4",
    ]
    return cli.main([*arguments, "--quiet", *more])


def test_prints_a_table_and_the_answers(document, tiny_model_loads, capsys):
    assert compare(document, "--methods", "snapkv,criticalkv", "--budgets", "0.5,20%,7") == 0
    out = capsys.readouterr().out
    assert "Full cache" in out and "SnapKV" in out and "CriticalKV" in out
    table = [line for line in out.splitlines() if line.startswith(("Full cache ", "SnapKV ", "CriticalKV "))]
    assert len([line for line in table if "MB" not in line and "%" in line]) >= 7
    assert "tokens under compression" in out


def test_writes_what_it_found(document, tiny_model_loads, tmp_path):
    out, saved = tmp_path / "out.json", tmp_path / "run.zip"
    assert compare(document, "--budgets", "0.5", "--json", str(out), "--save", str(saved)) == 0
    manifest = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert [row["method"] for row in manifest["table"]] == ["full", "snapkv", "criticalkv"]
    for path in (out, saved):
        loaded = load_comparison(path)
        assert loaded.methods == ["snapkv", "criticalkv"]
        assert loaded.kept("snapkv", 0.1).shape == (loaded.model.n_layers, loaded.model.n_kv_heads, loaded.n)


@pytest.mark.parametrize(
    "more, sentence",
    [
        (["--methods", "snapcv"], "There is no method 'snapcv'"),
        (["--methods", "snapkv,snapkv"], "snapkv is chosen twice"),
        (["--methods", "snapkv:widow=3"], "has no option 'widow'"),
        (["--budgets", "0"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "1.5"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "nan"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "half"], "tokens per KV head from 1 up, not 'half'"),
        (["--budgets", ""], "Choose at least one budget"),
        (["--max-new-tokens", "0"], "a whole number from 1 up, not 0"),
        (["--measures", "accuracy"], "There is no measure 'accuracy'"),
        (["--question", "  "], "Ask a question about the document."),
        (["--json", "no/such/folder/out.json"], "There is no folder"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(document, tiny_model_loads, capsys, more, sentence):
    assert compare(document, *more) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.startswith("kvviz: ")
    assert captured.err.strip().count("\n") == 0 and "Traceback" not in captured.err


def test_a_missing_or_empty_document(tmp_path, tiny_model_loads, capsys):
    assert compare(tmp_path / "none.txt") == 2
    assert "There is no file" in capsys.readouterr().err
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert compare(empty) == 2
    assert "Paste or upload a document first." in capsys.readouterr().err


def test_unknown_model_is_refused(document, capsys, monkeypatch):
    monkeypatch.setenv("KVVIZ_PUBLIC", "1")
    assert compare(document, "--model", "somebody/something") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_control_characters_of_an_answer_do_not_reach_the_terminal():
    assert terminal.printable("a\x1b[31mb\nc") == "a?[31mb c"


def test_help_and_list_of_methods(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "--help"])
    assert stop.value.code == 0
    assert "tokens per KV head" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["methods"]) == 0
    assert "criticalkv" in capsys.readouterr().out


def test_a_wrong_flag_ends_with_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "kvviz", "compare"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "required" in done.stderr
