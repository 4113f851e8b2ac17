"""Methods x windows x poolings: the same runs as one by one, and what moves the result."""

import pandas as pd
import pytest
from reference import prompt_of
from tiny import make_model

import kvviz
from kvviz import cli
from kvviz.errors import InputError
from kvviz.evaluate.ablation import ablate, settings_of
from kvviz.results.ablation import Ablation, AblationRow


def test_each_row_is_that_run():
    model = make_model("llama")
    prompt = prompt_of(model, 60)
    table = ablate(model, prompt, ["snapkv", "criticalkv"], [0.2], (4, 8), (("avg", 3), ("none", 1)),
                   max_new_tokens=4).to_frame()  # fmt: skip
    assert len(table) == 1 + 2 * 2 * 2 and table.method[0] == "full"
    row = table[(table.method == "criticalkv") & (table.window == 8) & (table.pool_kind == "avg")].iloc[0]
    alone = kvviz.compare(model, prompt, ["criticalkv:window=8,pool=3,pool_kind=avg"], [0.2], 4)
    assert row.text == alone.variants[0].text
    assert row.mean_kl == pytest.approx(alone.to_frame().mean_kl[1], abs=1e-5)


def test_spread_by_hand():
    rows = [
        AblationRow(m, w, "avg", 7, 0.1, "", kl, "")
        for m, w, kl in [("a", 8, 0.1), ("a", 32, 0.5), ("b", 8, 0.2), ("b", 32, 0.8)]
    ]
    moved = Ablation(rows, "", "").spread()
    assert moved["method"] == pytest.approx((0.1 + 0.3) / 2)
    assert moved["window"] == pytest.approx((0.4 + 0.6) / 2)
    assert moved["pooling"] == 0


def test_methods_without_a_window_are_refused():
    with pytest.raises(InputError, match="no option 'window'"):
        settings_of(["snapkv", "knorm"])


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kvviz.models.load_model", lambda *a, **k: make_model("llama"))
    text = tmp_path / "text.txt"
    text.write_text("The code is 58213. " * 6)
    out = tmp_path / "grid.csv"
    ask = ["ablate", "--document", str(text), "--question", "?", "--max-new-tokens", "3", "--quiet"]
    assert cli.main([*ask, "--windows", "4", "--pools", "max3,none", "--csv", str(out)]) == 0
    assert len(pd.read_csv(out)) == 1 + 3 * 2
    assert out.read_bytes().startswith(b"\xef\xbb\xbf")  # as every table of ours: see csv_text
    shown = capsys.readouterr().out
    table, _, moved = shown.partition("\n\n")
    assert "when one thing alone changes" in moved
    assert [line.split()[0] for line in table.splitlines()] == ["method", *pd.read_csv(out).method]
    for wrong, sentence in ((["--pools", "min3"], "avg7, max11 or none"), (["--windows", "x"], "window")):
        assert cli.main([*ask, *wrong]) == 2
        assert sentence in capsys.readouterr().err
