"""`kvviz causes` on a tiny model: the fields outside checks read, sentences for bad input."""

import json

import pytest
from tiny import make_model

from kvviz import cli
from kvviz.errors import InputError


@pytest.fixture
def document(tmp_path, monkeypatch):
    monkeypatch.setattr("kvviz.models.load_model", lambda *a, **k: make_model("llama"))
    path = tmp_path / "text.txt"
    path.write_text("The keeper wrote the code. The code is 58213! Nobody came.\nThe lamp was lit.")
    return path


def test_writes_every_field(document, tmp_path, capsys):
    out = tmp_path / "causes.json"
    code = cli.main(["causes", "--document", str(document), "--question", "What is the code?", "--method",
                     "streaming_llm", "--budget", "10%", "--by", "head,passage", "--rescue", "--would-do",
                     "--max-new-tokens", "3", "--json", str(out), "--quiet"])  # fmt: skip
    assert code == 0
    found = json.loads(out.read_text())
    assert {"answer", "gap", "put_back", "taken_out", "rescue", "would_do"} <= set(found)
    for direction in ("put_back", "taken_out"):
        heads = [r for r in found[direction] if r["unit"] == "head"]
        assert len(heads) == 3 * 2 and {"layer", "head", "effect", "kl"} <= set(heads[0])
        passages = [r for r in found[direction] if r["unit"] == "passage"]
        assert {"start", "end", "text", "effect", "kl"} <= set(passages[0])
        assert [p["text"] for p in passages if p["kind"] == "document"][1] == "The code is 58213!"
    rescue = found["rescue"]
    if rescue is not None:
        assert {"entries", "text", "verdict", "necessary", "controls"} <= set(rescue)
        assert set(rescue["controls"]) == {"added", "same_size"}
        assert all(len(entry) == 3 for entry in rescue["entries"])
    printed = capsys.readouterr().out
    assert "Full cache:" in printed and "By head, put back, nats returned" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--by", "heads"], "Causes are found by head, layer, passage, token, passage-head, not by 'heads'."),
        (["--method", "snapkv,tova"], "Give one method; run the command again for another."),
        (["--rescue", "--rescue-trials", "0"], "A search takes at least one trial."),
        (["--budget", "0"], "A budget is a share"),
        (["--method", "snapvk"], "snapkv"),
        (["--json", "/nowhere/out.json"], "There is no folder"),
    ],
)
def test_bad_input_is_one_sentence(document, capsys, arguments, sentence):
    assert cli.main(["causes", "--document", str(document), "--question", "?", *arguments]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and "Traceback" not in printed


def test_searches_take_no_more_trials_than_they_are_given(document, tmp_path, capsys):
    out = tmp_path / "causes.json"
    given = ["--document", str(document), "--question", "What is the code?", "--method", "streaming_llm",
             "--budget", "2%", "--by", "layer", "--rescue", "--rescue-trials", "1", "--would-do",
             "--would-do-trials", "7", "--max-new-tokens", "2", "--json", str(out), "--quiet"]  # fmt: skip
    assert cli.main(["causes", *given]) == 0
    found = json.loads(out.read_text())
    assert found["would_do"]["trials"] <= found["would_do"]["most"] == 7
    assert any("limit of 1 trials" in note for note in found["notes"])


def test_ablate_reads_no_more_than_this_installation_allows(document, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_MAX_TOKENS", "16")
    code = cli.main(["ablate", "--document", str(document), "--question", "What is the code?", "--methods",
                     "snapkv", "--max-new-tokens", "1", "--quiet"])  # fmt: skip
    assert code != 0
    assert "this installation" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "causes", "ablate"])
def test_commands_about_a_document_take_the_same_system_turn(document, monkeypatch, capsys, command):
    def build_prompt(model, text, question, *, system, **options):
        raise InputError(f"{question} {system}")

    monkeypatch.setattr("kvviz.engine.prompts.build_prompt", build_prompt)
    given = ["--document", str(document), "--question", "What?", "--system", "Be brief.", "--quiet"]
    assert cli.main([command, *given]) == 2
    assert "What? Be brief." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [("compare", "--json"), ("compare", "--save"), ("causes", "--json"), ("ablate", "--csv")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    document, monkeypatch, capsys, command, option
):
    monkeypatch.setattr("kvviz.models.load_model", lambda *a, **k: pytest.fail("loaded"))
    given = ["--document", str(document), "--question", "What?", option, "/nowhere/out"]
    assert cli.main([command, *given]) == 2
    assert "There is no folder" in capsys.readouterr().err
