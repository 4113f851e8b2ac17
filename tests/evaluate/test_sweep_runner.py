"""Sweeps: cells that are kept, failures as rows, the same table whoever measured it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pandas as pd
import pytest
from tiny import make_model

import kvviz
from kvviz.engine.ask import Ask
from kvviz.engine.run import compare
from kvviz.errors import InputError
from kvviz.evaluate import cells, workers
from kvviz.evaluate.cells import Study, measure, shown
from kvviz.evaluate.items import Item, lines_of
from kvviz.evaluate.sweep import parse_shard, run_sweep
from kvviz.results.study import COLUMNS, read_table

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The keeper of the lighthouse wrote the code in the ledger every evening. "


def items(count: int = 2, questions: int = 1) -> list[Item]:
    return [
        Item(f"i{d}-{q}", "t", TEXT * (2 + d), f"What is number {q}?", ("58213",))
        for d in range(count)
        for q in range(questions)
    ]


def study(**changes) -> Study:
    ask = {"methods": ["snapkv", "random"], "budgets": [0.5, 8], "max_new_tokens": 2}
    own = {k: changes.pop(k) for k in list(changes) if k in ("protocol", "keep_runs")}
    return Study(Ask(**(ask | changes)), **own)


@pytest.fixture
def tiny(monkeypatch):
    """Models called "a" and "b" are tiny ones, made in no time; "gone" cannot be loaded."""
    from kvviz.errors import ModelError

    made = {}

    def load(name, **kwargs):
        if name == "gone":
            raise ModelError("There is no model 'gone'.")
        return made.setdefault(name, make_model("llama", seed=len(made)))

    monkeypatch.setattr("kvviz.models.load_model", load)


def sweep(out, models=("a",), what=None, done=None, **kwargs):
    return run_sweep(list(models), what or items(), done or study(), out, **kwargs)


TIMES = ["seconds", "read_seconds"]


def test_one_row_an_item_method_and_budget_with_the_full_cache_first(tiny, tmp_path):
    outcome = sweep(tmp_path)
    table = read_table(tmp_path)
    assert (outcome.cells, outcome.of, outcome.failed) == (2, 2, 0)
    assert list(table.columns) == list(COLUMNS)
    assert list(table.method[:5]) == ["full", "snapkv", "snapkv", "random", "random"]
    assert list(table.budget_name[:5]) == ["100%", "50%", "8 tokens", "50%", "8 tokens"]
    assert len(table) == 2 * 5 and not table.duplicated(["model", "item", "method", "budget_name"]).any()
    kept = table[table.method != "full"]
    assert (kept.kl > 0).all() and (kept.output_error > 0).all() and (kept.verdict == "wrong").all()
    assert (kept[kept.budget_name == "8 tokens"].entries == 8).all()
    csv = pd.read_csv(tmp_path / "table.csv")
    assert list(csv.columns) == list(COLUMNS) and len(csv) == len(table)
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").open()]
    assert [line["answer"] for line in lines] == list(table.answer)


def test_the_table_says_asked_length_and_depth_where_an_item_was_made_so(tiny, tmp_path):
    others = [{"depth": 1, "length": 7}, {"asked_tokens": "many", "depth": True}]  # of files of other people
    metas = [{"asked_tokens": 500, "depth": 0.25}, *others]
    sweep(tmp_path, what=[Item(f"i{n}", "t", TEXT * 2, "Who?", meta=meta) for n, meta in enumerate(metas)])
    rows = read_table(tmp_path).drop_duplicates("item")
    assert rows.depth.fillna(-1).tolist() == [0.25, 1.0, -1]
    assert rows.length.fillna(-1).tolist() == [500, -1, -1]


def test_a_model_from_a_file_is_named_without_its_place(tmp_path):
    (tmp_path / "small-q4.gguf").touch()
    assert shown(str(tmp_path / "small-q4.gguf")) == "small-q4"
    assert shown("owner/name") == "owner/name" and shown("smollm2-135m") == "smollm2-135m"


def test_two_files_of_one_name_are_not_one_model_in_a_table(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "small-q4.gguf").touch()
    files = [str(tmp_path / place / "small-q4.gguf") for place in ("one", "two")]
    with pytest.raises(InputError, match="Two models would be called small-q4 in the table"):
        sweep(tmp_path / "out", models=files)
    assert not (tmp_path / "out").exists(), "before anything is written"


def test_the_manifest_says_what_was_measured_with_what(tiny, tmp_path):
    sweep(tmp_path, command=["kvviz", "sweep"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (about,) = manifest["measured_with"]["a"]
    assert about["weights"] == make_model("llama", seed=0).weights_hash
    assert {"template", "dtype", "versions", "threads"} <= set(about)
    assert manifest["command"] == ["kvviz", "sweep"] and manifest["settings"]["ask"]["budgets"] == [0.5, 8]


def test_what_is_there_is_not_measured_again(tiny, tmp_path, monkeypatch):
    cancel = threading.Event()

    def stop(done, total, left):
        if done == 1:
            cancel.set()

    first = sweep(tmp_path, say=stop, cancel=cancel)
    assert first.cells == 1
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    measured = []
    real = workers.measure

    def counting(model, name, what, done, cancel):
        measured.extend(item.id for item in what)
        return real(model, name, what, done, cancel)

    monkeypatch.setattr(workers, "measure", counting)
    assert sweep(tmp_path).cells == 2
    assert measured == ["i1-0"]
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert {name: after[name] for name in before} == before and len(after) == 2
    whole = read_table(tmp_path)
    sweep(tmp_path / "at_once")
    pd.testing.assert_frame_equal(
        whole.drop(columns=TIMES), read_table(tmp_path / "at_once").drop(columns=TIMES)
    )


def test_half_a_cell_is_no_cell(tiny, tmp_path):
    sweep(tmp_path)
    path = sorted((tmp_path / "cells").iterdir())[0]
    path.write_bytes(path.read_bytes()[:100])
    assert sweep(tmp_path).cells == 2
    assert json.loads(path.read_text())["rows"]


def test_a_full_disk_is_said_and_the_same_sweep_goes_on(tiny, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="written: No space left on device. Finished cells stay"):
            sweep(tmp_path)
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob(".*"))
    assert sweep(tmp_path).cells == 2


def test_parts_in_one_folder_make_the_whole_table(tiny, tmp_path):
    for number in (2, 1):
        sweep(tmp_path / "parts", ["a", "b"], shard=(number, 2))
    sweep(tmp_path / "whole", ["a", "b"])
    parts, whole = read_table(tmp_path / "parts"), read_table(tmp_path / "whole")
    pd.testing.assert_frame_equal(parts.drop(columns=TIMES), whole.drop(columns=TIMES))
    assert list(whole.model.unique()) == ["a", "b"]


def test_failures_are_rows_with_a_reason(tiny, tmp_path):
    what = [*items(1), Item("long", "t", TEXT * 500, "Where?"), Item("blank", "t", TEXT, " ")]
    done = study(methods=["snapkv:window=30", "expected_attention", "duoattention"])
    outcome = sweep(tmp_path, ["a", "gone"], what, done)
    table = read_table(tmp_path)
    assert outcome.unloaded == {"gone": "There is no model 'gone'."}
    assert table[table.model == "gone"].reason.unique().tolist() == ["There is no model 'gone'."]
    mine = table[table.model == "a"]
    assert len(mine) == 3 * 7  # every row is there, whether it came to an answer or not
    assert outcome.failed == 2
    assert mine[mine["item"] == "long"].reason.str.contains("tokens").all()
    assert mine[mine["item"] == "blank"].reason.eq("Ask a question about the document.").all()
    rest = mine[mine["item"] == "i0-0"].set_index("method").reason
    assert rest["duoattention"].str.len().gt(0).all()  # what it needs was never calibrated for this model
    assert rest[["full", "snapkv:window=30", "expected_attention"]].eq("").all()


def test_a_crash_of_one_item_is_a_row_and_retry_measures_it_again(tiny, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such\nkernel")

    with monkeypatch.context() as patch:
        patch.setattr("kvviz.evaluate.cells.compare", broken)
        assert sweep(tmp_path).failed == 2
    assert set(read_table(tmp_path).reason) == {"RuntimeError: no such kernel"}
    assert sweep(tmp_path).failed == 2
    assert sweep(tmp_path, retry=True).failed == 0


def test_questions_of_one_document_share_its_reading(tiny, tmp_path, monkeypatch):
    import kvviz.evaluate.cells as cells

    read = []
    real = cells.prefill
    monkeypatch.setattr(cells, "prefill", lambda *a, **k: read.append(k) or real(*a, **k))
    done = study(protocol="question-agnostic")
    alone = sweep(tmp_path / "alone", what=[items(1, 2)[1]], done=done)
    read.clear()
    sweep(tmp_path / "both", what=items(1, 2), done=done)
    assert len([k for k in read if "needs" in k]) == 1  # the others read a question without its document
    both, one = read_table(tmp_path / "both"), read_table(alone.out)
    both = both[both["item"] == "i0-1"].reset_index(drop=True)
    pd.testing.assert_frame_equal(both.drop(columns=TIMES), one.drop(columns=TIMES))


def test_items_that_need_no_document_are_marked(tiny, monkeypatch):
    model, item = make_model("llama"), items(1)[0]

    def told(*args, guest, **more):
        found = compare(*args, guest=guest, **more)
        assert guest.text
        guest.text = "It is 58213."
        return found

    monkeypatch.setattr("kvviz.evaluate.cells.compare", told)
    (knew,) = measure(model, "a", [item], study())
    assert {row["knew"] for row in knew.cell["rows"]} == {"without the document"}
    monkeypatch.undo()
    (needed,) = measure(model, "a", [item], study())
    assert {row["knew"] for row in needed.cell["rows"]} == {""}
    (unknown,) = measure(model, "a", [Item("x", "t", TEXT, "What?")], study())
    assert {row["knew"] for row in unknown.cell["rows"]} == {None}


def test_a_kept_run_opens_again(tiny, tmp_path):
    import kvviz

    sweep(tmp_path, what=items(1), done=study(keep_runs="all"))
    (path,) = (tmp_path / "runs").iterdir()
    run = kvviz.load_comparison(path)
    table = read_table(tmp_path)
    assert run.full.text == table.answer[0] and run.lenses
    assert (tmp_path / "cells" / f"{path.stem}.json").is_file()
    sweep(tmp_path / "none", what=items(1), done=study(keep_runs="failures"))
    assert not (tmp_path / "none" / "runs").exists()  # the full cache was wrong as well


def test_an_item_may_say_how_long_its_answer_is(tiny, tmp_path):
    what = [Item("a", "t", TEXT, "What?", meta={"max_new_tokens": 1}), Item("b", "t", TEXT, "What?")]
    sweep(tmp_path, what=what)
    cut = read_table(tmp_path)
    assert (cut[cut["item"] == "a"].kl.isna()).all()  # one token: chosen before anything was evicted
    assert (cut[(cut["item"] == "b") & (cut.method != "full")].kl > 0).all()


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_a_shard_is_one_of_its_parts(text):
    assert parse_shard("3/16") == (3, 16)
    with pytest.raises(InputError, match="such as 3/16"):
        parse_shard(text)


KVPRESS_FIELDS = [  # as its EvaluationConfig saves them
    "dataset", "data_dir", "model", "device", "press_name", "compression_ratio",
    "key_channel_compression_ratio", "fraction", "max_new_tokens", "max_context_length", "query_aware",
    "needle_depth", "compression_interval", "target_size", "hidden_states_buffer_size", "output_dir",
    "log_level", "model_kwargs", "press_init_command", "seed", "fp8",
]  # fmt: skip


def test_the_layout_of_kvpress(tiny, tmp_path):
    import yaml

    from kvviz.evaluate.kvpress_layout import write_kvpress

    sweep(tmp_path)
    folders = write_kvpress(tmp_path, items())
    names = [folder.name for folder in folders[:2]]
    assert names == ["t__a__no_press__0.00__query_aware", "t__a__snapkv__0.50__query_aware"]
    assert len(folders) == 5
    table = read_table(tmp_path)
    half = pd.read_csv(folders[1] / "predictions.csv", keep_default_na=False)
    mine = table[(table.method == "snapkv") & (table.budget == 0.5)]
    assert list(half.predicted_answer) == list(mine.answer) and "context" not in half
    assert json.loads((folders[1] / "metrics.json").read_text()) == {"t": {"contains": 0.0}}
    config = yaml.safe_load((folders[1] / "config.yaml").read_text())
    assert (config["press_name"], config["compression_ratio"], config["data_dir"]) == ("snapkv", 0.5, None)
    assert list(config) == KVPRESS_FIELDS


def test_ruler_and_longbench_lie_where_kvpress_puts_them(tiny, tmp_path):
    from kvviz.evaluate.kvpress_layout import write_kvpress

    what = [
        Item("v", "vt", TEXT, "Which?", ("a", "zz"), "contains_all", {"asked_tokens": 1000, "cue": "It is"}),
        Item("n", "niah_single_1", TEXT, "Which?", ("x9",), "contains_all", {"asked_tokens": 1000}),
        Item("h", "hotpotqa", TEXT, "Who?", ("x9",), "f1", {"language": "en"}),
    ]
    sweep(tmp_path, what=what, done=study(methods=["snapkv"], budgets=[0.5], max_new_tokens=1))
    full, _, longbench, _ = write_kvpress(tmp_path, what)
    assert full.name == "ruler__1000__a__no_press__0.00__query_aware"
    assert longbench.name == "longbench__hotpotqa__a__no_press__0.00__query_aware"
    metrics = json.loads((full / "metrics.json").read_text())
    assert set(metrics) == {"vt", "niah_single_1"} and set(metrics["vt"]) == {"string_match"}
    assert isinstance(json.loads((longbench / "metrics.json").read_text()), float)
    rows = pd.read_csv(full / "predictions.csv", keep_default_na=False)
    assert list(rows.answer_prefix) == ["It is", ""] and "cue" not in rows


def test_methods_stand_under_the_names_of_kvpress_and_no_folder_twice(tiny, tmp_path):
    from kvviz.evaluate.kvpress_layout import write_kvpress

    what = [
        Item(f"h{n}", "hotpotqa_e", TEXT * 3, "Who?", ("x9",), "f1", {"length": n, "all_classes": ["a"]})
        for n in (100, 5000)
    ]
    methods = ["adakv", "criticalkv", "expected_attention", "expected_attention:preset=kvpress"]
    sweep(tmp_path, what=what, done=study(methods=methods, budgets=[0.5, 0.501], max_new_tokens=1))
    folders = write_kvpress(tmp_path, what)
    assert len(set(folders)) == len(folders) == 1 + 4 * 2
    assert folders == write_kvpress(tmp_path, what)  # the same command writes the same folders
    names = [folder.relative_to(tmp_path / "kvpress").as_posix().split("__a__")[1] for folder in folders]
    assert names[:4] == [
        "no_press__0.00__query_aware", "adakv_snapkv__0.50__query_aware",
        "adakv_snapkv__0.50__query_aware/1", "critical_snapkv__0.50__query_aware",
    ]  # fmt: skip
    # its own "expected_attention" lets heads compete
    assert names[5].startswith("expected_attention_uniform__") and names[7].startswith("expected_attention__")
    assert folders[0].name.startswith("longbench-e__hotpotqa_e__")
    metrics = json.loads((folders[0] / "metrics.json").read_text())
    assert metrics == {"0-4k": 0.0, "4-8k": 0.0, "8k+": None}
    rows = pd.read_csv(folders[0] / "predictions.csv", keep_default_na=False)
    assert list(rows.answers) == ['["x9"]'] * 2 and list(rows.task) == ["hotpotqa"] * 2


def test_an_items_cue_begins_the_answer_and_what_follows_is_judged():
    model = make_model("llama")
    plain = Item("i", "t", TEXT * 3, "What is it?", ("58213",))
    cued = Item("i", "t", TEXT * 3, "What is it?", ("58213",), meta={"cue": "The code 58213 is"})
    (done,) = measure(model, "a", [cued], study())
    prompt = kvviz.build_prompt(model, TEXT * 3, "What is it?", cue="The code 58213 is")
    answer = kvviz.compare(model, prompt, ["snapkv"], [0.5], 2).full.text
    row = done.cell["rows"][0]
    assert row["answer"] == answer and row["verdict"] == "wrong" and row["n"] == prompt.n_compressible
    (other,) = measure(model, "a", [plain], study())
    assert other.cell["key"] != done.cell["key"] and other.cell["rows"][0]["n"] < row["n"]


COMMAND = ["sweep", "--methods", "snapkv,random", "--budgets", "0.5,8", "--max-new-tokens", "1", "--model=a"]


def test_a_dry_run_says_what_is_to_do_and_writes_nothing(tiny, tmp_path, capsys):
    from kvviz.cli import main

    where, out = tmp_path / "items.jsonl", tmp_path / "out"
    where.write_text(lines_of(items(3)))
    command = [*COMMAND, "--items", str(where), "--out", str(out)]
    assert main([*command, "--dry-run"]) == 0 and not out.exists()
    said = capsys.readouterr().out
    assert "of 3 cells 0 are in" in said and "3 are to do: 3 texts to read" in said and "5 answers" in said
    assert "--limit 1" in said
    assert main([*command, "--limit", "1"]) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "of 3 cells 1 are in" in said and "2 are to do: 2 texts" in said and "s on one worker" in said
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_a_dry_run_reads_a_document_once_for_its_questions(tmp_path):
    from kvviz.evaluate.sweep import ahead

    what = items(2, questions=3)
    both = [ahead(["a"], what, study(protocol=p), tmp_path) for p in ("question-aware", "question-agnostic")]
    assert [(a.cells, a.readings) for a in both] == [(6, 6), (6, 2)]
    assert both[1].characters == sum(len(TEXT) * (2 + d) for d in range(2))


def test_a_task_or_option_that_is_not_there_is_said_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    from kvviz.cli import main

    monkeypatch.setattr("kvviz.models.load_model", None)
    for task, sentence in [
        ("task:nope", "There is no task 'nope'"),
        ("task:vt:toke=5", "The task vt has no option 'toke'. Its options: tokens, count, seed."),
    ]:
        assert main([*COMMAND, "--items", task, "--out", str(tmp_path)]) == 2
        assert sentence in capsys.readouterr().err


def test_a_model_that_was_left_out_is_not_counted_as_done(tiny, tmp_path, capsys):
    from kvviz.cli import main

    said = []
    sweep(tmp_path / "one", ["gone", "a"], say=lambda done, total, left: said.append((done, total)))
    assert said == [(0, 4), (1, 4), (2, 4)]
    (tmp_path / "items.jsonl").write_text(lines_of(items(1)))
    more = ["--items", str(tmp_path / "items.jsonl"), "--out", str(tmp_path / "two"), "--models", "gone,a"]
    assert main([*COMMAND, *more]) == 2  # not all of what was asked for
    assert "gone was left out" in capsys.readouterr().err


def test_stopping_does_not_wait_for_the_end_of_a_cell(tiny, tmp_path, monkeypatch):
    cancel = threading.Event()
    real = cells.compare

    def compare_and_stop(*args, **kwargs):
        cancel.set()
        return real(*args, **kwargs)

    monkeypatch.setattr(cells, "compare", compare_and_stop)
    assert sweep(tmp_path, cancel=cancel).cells == 0
    monkeypatch.setattr(cells, "compare", real)
    assert sweep(tmp_path).cells == 2


def test_a_log_is_not_filled_with_a_line_a_cell(tiny, tmp_path, capsys):
    from kvviz.cli import main

    (tmp_path / "items.jsonl").write_text(lines_of(items(4)))
    assert main([*COMMAND, "--items", str(tmp_path / "items.jsonl"), "--out", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "cells (item x model)" in line]
    assert lines == ["0 of 4 cells (item x model) done", "4 of 4 cells (item x model) done"]


def test_cells_of_other_settings_are_not_dropped_in_silence(tiny, tmp_path, capsys):
    assert sweep(tmp_path).notes == []
    outcome = sweep(tmp_path, done=study(methods=["tova"]))
    assert outcome.cells == 2 and "2 cells in this folder are of other" in outcome.notes[0]
    assert len(read_table(tmp_path)) == 2 * 3
    before = sorted((tmp_path / "cells").iterdir())
    assert sweep(tmp_path, what=items(3)).cells == 3 and len(read_table(tmp_path)) == 3 * 5  # one is new
    assert len(set((tmp_path / "cells").iterdir()) - set(before)) == 1


def test_rows_without_an_answer_are_told_with_the_commonest_reason(tiny, tmp_path, capsys):
    from kvviz.cli import main

    odd = Item("odd", "t", TEXT, "?", ("x",), "classification")
    (tmp_path / "items.jsonl").write_text(lines_of([*items(1), odd]))
    assert main([*COMMAND, "--items", str(tmp_path / "items.jsonl"), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 cells are in" in said and "1 of them failed" in said
    assert "5 rows have a reason in place of an answer, most often: Item odd is scored by classes but" in said


def test_parts_from_folders_of_their_own_are_joined_without_measuring(tiny, tmp_path, monkeypatch):
    whole, *apart = (tmp_path / name for name in ("whole", "one", "two"))
    sweep(whole)
    for number, out in enumerate(apart, 1):
        sweep(out, shard=(number, 2))
        shutil.copytree(out / "cells", tmp_path / "joined" / "cells", dirs_exist_ok=True)
    monkeypatch.setattr("kvviz.models.load_model", None)
    assert sweep(tmp_path / "joined").cells == 2
    one, other = (read_table(where).drop(columns=TIMES) for where in (whole, tmp_path / "joined"))
    assert one.to_csv() == other.to_csv()
