"""The command line on a tiny model: what it prints, what it writes, how it refuses."""

import io
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic import synthetic_comparison
from tiny_pdf import pdf

import kvviz
from kvviz import cli, load_comparison
from kvviz.cli import terminal
from kvviz.results.sections import sections
from kvviz.results.story import Opening, Step

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


@pytest.fixture
def no_model_loads(monkeypatch):
    def load(*args, **kwargs):
        raise AssertionError("a model was loaded before the input was checked")

    monkeypatch.setattr("kvviz.models.load_model", load)


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


def refused(capsys, code, sentence):
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert captured.err.startswith("kvviz: ") and captured.err.count("\n") == 1 and sentence in captured.err


def test_prints_a_table_and_the_answers(document, tiny_model_loads, capsys):
    assert compare(document, "--methods", "SnapKV,criticalkv", "--budgets", "0.5,20%,7") == 0
    out = capsys.readouterr().out
    assert "Full cache" in out and "SnapKV" in out and "CriticalKV" in out
    table = [line for line in out.splitlines() if line.startswith(("Full cache ", "SnapKV ", "CriticalKV "))]
    assert len([line for line in table if "MB" not in line and "%" in line]) >= 7
    assert "tokens under compression" in out and "SnapKV 7 tokens: " in out
    full = next(line for line in table if "100%" in line).split()
    assert full[5] == "0"  # the full cache's divergence from itself


def test_one_token_and_everything_are_two_budgets(document, tiny_model_loads, tmp_path):
    assert compare(document, "--budgets", "1,1.0", "--json", str(tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["table"]
    assert [row["entries"] for row in rows[1:3]][0] == 1 and rows[2]["share"] == 1.0


def test_writes_what_it_found(document, tiny_model_loads, tmp_path):
    out, saved = tmp_path / "out.json", tmp_path / "run.zip"
    assert compare(document, "--budgets", "0.5", "--json", str(out), "--save", str(saved)) == 0
    manifest = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert [row["method"] for row in manifest["table"]] == ["full", "snapkv", "criticalkv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "report.txt", "run.zip"]
    for path in (out, saved):
        loaded = load_comparison(path)
        assert loaded.methods == ["snapkv", "criticalkv"]
        shape = loaded.model.n_layers, loaded.model.n_kv_heads, loaded.n
        assert loaded.at("snapkv", 0.1).kept.shape == shape


@pytest.mark.parametrize(
    "more, sentence",
    [
        (["--methods", "snapcv"], "There is no method 'snapcv'. Did you mean snapkv?"),
        (["--methods", "snapkv,snapkv"], "snapkv is chosen twice"),
        (["--methods", "snapkv:widow=3"], "has no option 'widow'"),
        (["--budgets", "0"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "1.5"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "nan"], "A budget is a share above 0 and up to 1"),
        (["--budgets", "half"], "tokens per KV head from 1 up, not 'half'"),
        (["--budgets", ""], "Choose at least one budget"),
        (["--max-new-tokens", "0"], "a whole number from 1 up, not 0"),
        (["--measures", "accuracy"], "There is no measure 'accuracy'"),
        (["--seed", "1180591620717411303424"], "The seed is a whole number from 0 to"),
        (["--seed", "-5"], "The seed is a whole number from 0 to"),
        (["--temperature", "nan"], "The temperature is a number from 0 up"),
        (["--evict-every", "0"], "after which is evicted again is a whole number from 1 up"),
        (["--json", "no/such/folder/out.json"], "There is no folder"),
        (["--save", "/proc/x"], "/proc: No such file"),
        (["--json", "."], "is a folder; give the name of a file"),
        (["--json", "x" * 5000], "cannot be written: File name too long"),
        (["--document", "no/such.txt"], "There is no file no/such.txt."),
        (["--document", "."], ". is a folder; give a text file."),
        (["--document", "x" * 5000], "cannot be read: File name too long"),
        (["--document", "/proc/self/mem"], "/proc/self/mem cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2_before_a_model_is_loaded(
    document, no_model_loads, capsys, more, sentence
):
    refused(capsys, compare(document, *more), sentence)


def test_a_blank_question_or_too_many_answers(document, tiny_model_loads, capsys, monkeypatch):
    refused(capsys, compare(document, "--question", "  "), "Ask a question about the document.")
    monkeypatch.setenv("KVVIZ_MAX_VARIANTS", "2")
    refused(capsys, compare(document), "2 methods at 3 budgets are 6 answers; at most 2 are decoded")
    monkeypatch.setenv("KVVIZ_MAX_TOKENS", "abc")
    refused(capsys, compare(document), "KVVIZ_MAX_TOKENS is 'abc'")


def test_an_empty_document(tmp_path, no_model_loads, capsys, monkeypatch):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    refused(capsys, compare(empty), f"There is no text in {empty}.")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    refused(capsys, compare("-"), "There is no text in standard input.")


def test_a_pipe_is_read_as_a_document(document, tiny_model_loads, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["cp", str(document), str(pipe)])
    assert compare(pipe, "--budgets", "0.5") == 0
    assert writer.wait() == 0


def test_a_pdf_is_read_as_its_text(tiny_model_loads, tmp_path, capsys):
    (tmp_path / "a.pdf").write_bytes(pdf("The code is 58213.", "It was opened at noon."))
    assert compare(tmp_path / "a.pdf", "--budgets", "0.5", "--save", str(tmp_path / "run.zip")) == 0
    document = load_comparison(tmp_path / "run.zip").prompt.document
    assert [part.label for part in sections(document)] == ["page 1", "page 2"]


def test_an_endless_document_is_refused(no_model_loads, capsys, monkeypatch):
    monkeypatch.setenv("KVVIZ_MAX_UPLOAD_BYTES", "1M")
    refused(capsys, compare("/dev/zero"), "at most 1,048,576 are read")


def test_a_full_disk_leaves_no_half_of_a_file(document, tiny_model_loads, tmp_path, capsys, monkeypatch):
    assert compare(document, "--budgets", "0.5", "--json", "/dev/full") == 2
    captured = capsys.readouterr()
    assert "/dev/full cannot be written: No space left on device." in captured.err

    def full(comparison, path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kvviz.Comparison, "to_json", full)
    out = tmp_path / "out.json"
    out.write_text("before")
    assert compare(document, "--budgets", "0.5", "--json", str(out)) == 2
    assert out.read_text() == "before" and len(list(tmp_path.iterdir())) == 2


def test_unknown_model_is_refused(document, capsys, monkeypatch):
    monkeypatch.setenv("KVVIZ_PUBLIC", "1")
    assert compare(document, "--model", "somebody/something") == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meta", "mps", "xyz"])
def test_a_device_that_is_not_served_is_refused(document, capsys, device):
    refused(capsys, compare(document, "--device", device), "choose auto, cpu or cuda")


def test_control_characters_of_an_answer_do_not_reach_the_terminal():
    assert terminal.printable("a\x1b[31mb\nc") == "a?[31mb c"


def test_notes_say_whose_they_are(document, tiny_model_loads, capsys):
    assert compare(document, "--methods", "dropkv,snapkv", "--budgets", "0.5") == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: ")]
    assert any(line.startswith("Note: DropKV: ") for line in notes)


def test_help_version_and_list_of_methods(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "--help"])
    assert stop.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "what is kept: shares (0.2 or 20%) or whole numbers of tokens per KV head" in told
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.strip() == f"kvviz {kvviz.__version__}"
    assert cli.main(["methods"]) == 0
    told = capsys.readouterr().out
    assert "criticalkv" in told and "preset=paper: window=16, pool=7, pool_kind=max" in told
    assert re.search(r"window=32 +The last queries of the prompt that score[.] Allowed: a whole number", told)
    assert re.search(r"allocation=global\n  normalise=true +Divide .* Allowed: true or false[.]", told)
    assert cli.main(["methods", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["snapkv"]["label"] == "SnapKV"
    window = {row["name"]: row for row in rows["snapkv"]["options"]}["window"]
    assert window["default"] == 32 and window["help"] and "a whole number from 1" in window["allowed"]


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0 and "usage: kvviz" in said
    assert "%%" not in said and "{," not in said, "written as a person reads it"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["niah", "--texts", "x"], "The texts are of 0, 1 and 2, separated by commas, not 'x'."),
        (["niah", "--texts", ""], "The texts are of 0, 1 and 2"),
        (["niah", "--texts", "0.5"], "The texts are of 0, 1 and 2"),
        (["niah", "--tokens", "0"], "The lengths in tokens are whole numbers from 100 up, separated"),
        (["niah", "--depths", ".5,2"], "The depths are numbers from 0 to 1, separated by commas, not '.5,2"),
        (["niah", "--seeds", "-1"], "The seeds are whole numbers from 0 up"),
        (["niah", "--needles", "3"], "The needles are of 0, 1 and 2"),
        (["niah", "--plot", "kl-budget"], "Name a folder for the plots with --out."),
        (["niah", "--methods", "snapk"], "Did you mean snapkv?"),
        (["niah", "--budgets", "2.5"], "A budget is a share above 0 and up to 1"),
        (["niah", "--json", "/nope/x"], "There is no folder /nope"),
        (["bench", "peers", "--json", "/nope/x"], "There is no folder /nope"),
        (["bench", "peers", "--tokens", "0"], "The prompt length in tokens is a whole number from 200 up"),
        (["calibrate", "indexmem", "--seed", str(10**20)], "The seed is a whole number from 0 to"),
        (["calibrate", "qfilters", "--steps", "0"], "The number of steps is a whole number from 1 up"),
        (["calibrate", "qfilters", "--out", __file__], "is a file; give a folder."),
        (["calibrate", "qfilters", "--out", "/proc/x"], "Nothing can be written to /proc/x"),
        (["serve", "--port", "99999"], "A port lies between 1 and 65535, not 99999."),
        (["serve", "--port", "-1"], "A port lies between 1 and 65535, not -1."),
        (["serve", "--host", "no.such.host.invalid"], "Port 7860 at no.such.host.invalid cannot be used"),
    ],
)
def test_other_commands_check_before_they_compute(no_model_loads, capsys, monkeypatch, arguments, sentence):
    monkeypatch.delenv("GRADIO_SERVER_PORT", raising=False)
    refused(capsys, cli.main(arguments), sentence)


def test_a_text_longer_than_the_model_reads_is_refused_before_it_is_written(tiny_model_loads, capsys):
    assert cli.main(["niah", "--tokens", "100000000", "--quiet"]) == 2
    assert "tokens; a text of 100,000,000 does not fit." in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(capsys, cli.main(["serve", "--port", str(port)]), f"Port {port} at 127.0.0.1 is in use.")


@pytest.mark.parametrize("port", ["abc", ""])
def test_a_port_that_is_none_is_one_sentence(capsys, monkeypatch, port):
    """Before the page is imported: Gradio reads the variable when it is, and fails."""
    monkeypatch.setenv("GRADIO_SERVER_PORT", port)
    monkeypatch.setitem(sys.modules, "kvviz.ui", None)
    refused(capsys, cli.main(["serve"]), f"GRADIO_SERVER_PORT is '{port}'; it must be a whole number.")


@pytest.fixture
def one_place(monkeypatch):
    """A needle at two places of a text short enough for a tiny model."""
    words = {"document": "The code is 58213. " * 9, "question": "Which?", "expected": "58213"}
    words |= {"text": 0, "tokens": 90, "needle_sentence": ""}
    cases = [SimpleNamespace(**words, depth=depth, reached=depth) for depth in (0, 0.5)]
    monkeypatch.setattr("kvviz.evaluate.grid.needle_cases", lambda *args: cases)


def test_an_interrupt_before_the_first_row_of_a_grid_ends_with_130(
    tiny_model_loads, one_place, capsys, monkeypatch
):
    monkeypatch.setattr("kvviz.evaluate.sweep._work", lambda jobs, *args: args[-1].set() or iter(()))
    assert cli.main(["niah", "--methods", "snapkv", "--tokens", "200", "--quiet"]) == 130
    assert capsys.readouterr().err == "kvviz: interrupted.\n"


def test_a_needle_grid_is_a_sweep_that_goes_on(tiny_model_loads, one_place, tmp_path, capsys, monkeypatch):
    grid = ["niah", "--methods", "snapkv", "--budgets", "0.5", "--lengths", "200", "--quiet"]
    assert cli.main([*grid, "--out", str(tmp_path / "g"), "--json", str(tmp_path / "g.json")]) == 0
    out = capsys.readouterr().out
    assert "| `snapkv` | 0 |" in out and "2 of 2 cells are in" in out
    rows = json.loads((tmp_path / "g.json").read_text())
    assert [(row["method"], row["depth"]) for row in rows] == [
        ("full", 0.0), ("snapkv", 0.0), ("full", 0.5), ("snapkv", 0.5),
    ]  # fmt: skip
    assert {"text", "label", "budget", "hit", "mean_kl", "error", "improved"} <= set(rows[0])
    monkeypatch.setattr("kvviz.evaluate.workers.measure", None)  # nothing is left to measure
    assert cli.main([*grid, "--out", str(tmp_path / "g")]) == 0


def kvviz_process(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "kvviz", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_wrong_flag_ends_with_code_2():
    done = kvviz_process("compare")
    _, err = done.communicate()
    assert done.returncode == 2 and b"required" in err


def test_a_reader_that_goes_away_is_no_error():
    process = kvviz_process("methods")
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


def test_a_full_output_is_one_sentence():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvviz", "methods"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2 and done.stderr == b"kvviz: No space left on device.\n"


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_letters_that_an_old_code_page_lacks_are_replaced(encoding):
    code = "import sys; from kvviz import cli; print; cli.main(['methods']); print('\\u4f60 ⏎')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == b"" and b"? ?" in done.stdout


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 640. MiB"), RuntimeError("CUDA out of memory. Tried ...")]
)
def test_memory_that_runs_out_is_one_sentence(document, capsys, monkeypatch, error):
    def load(*args, **kwargs):
        raise error

    monkeypatch.setattr("kvviz.models.load_model", load)
    refused(capsys, compare(document), "There is not enough memory for this.")


def test_quiet_silences_the_bars_of_libraries():
    """They read the environment when they are imported, which is after the arguments were read."""
    code = (
        "import sys\n"
        "from kvviz import cli\n"
        "cli.main(['compare', '--document', 'no such file', '--question', 'q', '--quiet'])\n"
        "assert 'tqdm' not in sys.modules\n"
        "from tqdm.auto import tqdm\n"
        "assert tqdm(range(3)).disable\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1


def test_questions_of_a_file_are_asked_of_the_same_caches(tiny_model_loads, document, tmp_path, capsys):
    asked, out = tmp_path / "questions.txt", tmp_path / "run.zip"
    asked.write_text("What is the code?\t58213\nWho opened it?\n\nWhat else?\tNothing\n")
    arguments = ["compare", "--document", document, "--questions", asked, "--methods", "snapkv", "--budgets",
                 "50%", "--max-new-tokens", 3, "--protocol", "question-agnostic", "--save", out,
                 "--quiet"]  # fmt: skip
    assert cli.main(list(map(str, arguments))) == 0
    said = capsys.readouterr().out
    assert "Further questions" in said and "1. Who opened it?" in said and "2. What else?" in said
    run = load_comparison(out)
    assert (run.prompt.question, run.expected) == ("What is the code?", "58213")
    asked = [(t.question, t.expected) for t in run.turns]
    assert asked == [("Who opened it?", None), ("What else?", "Nothing")]


def test_a_saved_run_is_exported_as_one_page(no_model_loads, tmp_path, capsys):
    step = Step("Look here.", "kept", Opening("snapkv", "dropkv", 0.1))
    c = synthetic_comparison(n=60, L=2)
    replace(c, story=replace(c.story, steps=(step,))).save(tmp_path / "run.zip")
    out = tmp_path / "page.html"
    assert cli.main(["export", str(tmp_path / "run.zip"), "--html", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and '"words":"Look here."' in page
    refused(capsys, cli.main(["export", str(out), "--html", str(out)]), "")
    assert out.read_text(encoding="utf-8") == page
    there = str(tmp_path / "none" / "x.html")
    refused(capsys, cli.main(["export", str(tmp_path / "run.zip"), "--html", there]), "There is no folder")
    bare = replace(c, variants=[], at_stops=[])
    bare.save(tmp_path / "bare.zip")
    code = cli.main(["export", str(tmp_path / "bare.zip"), "--html", str(tmp_path / "x.html")])
    refused(capsys, code, "there is nothing to show")


def test_a_comparison_without_any_question_is_refused(no_model_loads, document, capsys):
    assert cli.main(["compare", "--document", str(document)]) == 2
    assert "--questions FILE" in capsys.readouterr().err
