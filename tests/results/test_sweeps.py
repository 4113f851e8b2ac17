"""A sweep is opened from its folder, its zip or its table; a stranger's file is bounded or refused."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from many import sweep_folder, sweep_rows, zipped

from kvviz.errors import InputError
from kvviz.results import sweeps
from kvviz.results.sweeps import open_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sweep_folder(tmp_path_factory.mktemp("sweeps") / "a-sweep", run=b"a run")


def test_folder_zip_parquet_and_csv_give_the_same_table(folder, tmp_path):
    whole = open_sweep(folder)
    (tmp_path / "sent.zip").write_bytes(zipped(folder))
    packed = open_sweep(tmp_path / "sent.zip")
    for other in (packed, open_sweep(folder / "table.parquet"), open_sweep(folder / "table.csv")):
        pd.testing.assert_frame_equal(other.table, whole.table)
    assert (whole.table.answer == "=1947 <b>no</b>").any()  # the spreadsheet's guard is taken off again
    for sweep in (whole, packed):
        assert sweep.title == "A made-up sweep" and sweep.items["item-3"]["question"] == "What is the code?"
        assert sweep.run_of(("tiny", "question-aware", "item-3")) == b"a run"
        assert sweep.run_of(("tiny", "question-aware", "item-4")) is None


def test_what_a_table_does_not_say_is_filled_in():
    t = sweeps.tidy({"model": ["m", "m"], "item": ["i", "i"], "method": ["full", "snapkv"],
                     "budget": [1.0, 128.0], "n": [None, 512], "verdict": ["right", "maybe"]})  # fmt: skip
    assert list(t.budget_name) == ["100%", "128 tokens"] and list(t.share) == [1.0, 0.25]
    assert list(t.label) == ["full", "snapkv"] and list(t.document) == ["i", "i"]
    assert list(t.verdict) == ["right", ""] and t.kl.isna().all()


def parquet(columns) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def zip_of(**files) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "."), data)
    return out.getvalue()


BASE = {"model": ["m"], "item": ["i"], "method": ["snapkv"], "budget": [0.5]}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.parquet", b"PAR1 no parquet", "x.parquet is no sweep"),
        ("x.parquet", pickle.dumps({"a": 1}), "x.parquet is no sweep"),
        ("x.csv", b"a,b\n1,2\n", "it has no column 'model'"),
        ("x.csv", b"\x00\xff\xfe" * 50, "is no"),
        ("x.csv", b"model,item,method,budget\nm,i,snapkv,0\n", "no number above 0"),
        ("x.csv", b"model,item,method,budget\n", "no rows"),
        ("x.zip", b"PK no zip", "x.zip is no sweep"),
        ("x.zip", zip_of(readme__txt=b"nothing"), "There is no table.parquet"),
        ("x.parquet", parquet({**BASE, "answer": [{"deep": ["er"]}]}), "'answer' of this table holds"),
        ("x.parquet", parquet({k: v for k, v in BASE.items() if k != "budget"}), "no column 'budget'"),
        ("x.parquet", parquet({**BASE, "budget": ["much"]}), "no number above 0"),
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_refused_in_a_sentence(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as refused:
        open_sweep(tmp_path / name)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "MOST_BYTES", 100_000)
    (tmp_path / "bomb.zip").write_bytes(zip_of(table__csv=b"0" * 10_000_000))
    with pytest.raises(InputError, match="table.csv is larger than"):
        open_sweep(tmp_path / "bomb.zip")
    monkeypatch.setattr(sweeps, "MOST_ROWS", 10)
    many = {name: value * 11 for name, value in BASE.items()}
    for name, data in (("rows.parquet", parquet(many)), ("rows.csv", pd.DataFrame(many).to_csv().encode())):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="11 rows"):
            open_sweep(tmp_path / name)
    monkeypatch.setattr(sweeps, "MOST_ROWS", 10**6)
    monkeypatch.setattr(sweeps, "MOST_UNPACKED", 1000)
    (tmp_path / "wide.parquet").write_bytes(parquet({**BASE, "answer": ["x" * 5000]}))
    with pytest.raises(InputError, match="unpacks to more than"):
        open_sweep(tmp_path / "wide.parquet")


def test_one_long_text_said_often_takes_no_memory(tmp_path):
    """A dictionary holds it once; in the table it is cut."""
    n = 20_000
    said = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array(["x" * 1_000_000]))
    many = {name: value * n for name, value in BASE.items()}
    (tmp_path / "long.parquet").write_bytes(parquet({**many, "answer": said}))
    table = open_sweep(tmp_path / "long.parquet").table
    assert len(table) == n and set(table.answer.str.len()) == {sweeps.MOST_ANSWER}


def test_a_link_in_a_folder_and_files_beside_the_table_do_not_matter(tmp_path):
    folder = sweep_folder(tmp_path / "sweep", n=4)
    (folder / "cells" / "abc.json").write_text(json.dumps({"rows": "no rows"}))
    (folder / "runs" / "abc.zip").write_bytes(b"x")
    (folder / "items.jsonl").write_text('{"id": 1}\n[]\n{"document": "d", "question": 3}\n')
    (folder / "runs" / "other.zip").symlink_to("/etc/hostname")
    sweep = open_sweep(folder)
    assert sweep.items == {} and "runs/other.zip" not in sweep.runs.values()
    assert len(sweep.table) == len(sweep_rows(n=4))
