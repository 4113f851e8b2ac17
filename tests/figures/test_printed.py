"""Plots for print: their numbers, their files, and names that would be markup elsewhere."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from kvviz.cli import main
from kvviz.errors import InputError
from kvviz.figures import printed
from kvviz.results.plots import KINDS, plots
from kvviz.results.scoreboard import scoreboard
from kvviz.results.study import COLUMNS, table_files

LOSS = {"snapkv": 1.0, "criticalkv": 0.5, "laprox": 0.98}


def table(models=("m",), documents=8, losses=LOSS, full_right=lambda d: True, **columns) -> pd.DataFrame:
    """Three questions a document; KL is the method's loss times what a budget drops, and a little noise."""
    noise = np.random.default_rng(0)
    rows = []
    for model in models:
        for d in range(documents):
            for q in range(3):
                head = dict.fromkeys(COLUMNS) | {
                    "model": model, "protocol": "question-aware", "item": f"{d}-{q}", "document": f"d{d}",
                    "task": "t", "reason": "", "knew": "", "empty": False, "answer": "x",
                    "metric": "contains", "length": (500, 1000, 2000)[q], "depth": d / 7,
                }  # fmt: skip
                known = full_right(d)
                word = "right" if known else "wrong"
                rows.append(head | {"method": "full", "budget": 1.0, "budget_name": "100%", "share": 1.0,
                                    "verdict": word, "score": float(known), "kl": 0.0})  # fmt: skip
                for method, loss in losses.items():
                    for share in (0.5, 0.1):
                        right = known and loss * (1 - share) < 0.6
                        rows.append(head | {
                            "method": method, "budget": share, "budget_name": f"{share:.0%}", "share": share,
                            "verdict": "right" if right else "wrong", "score": float(right),
                            "kl": loss * (1 - share) + 0.01 * noise.normal(),
                        } | columns)  # fmt: skip
    return pd.DataFrame(rows)


def test_a_line_has_the_scoreboards_numbers():
    (plot,) = plots(table(), "kl-budget")
    assert list(plot.rows.method) == [m for m in LOSS for _ in range(2)]
    assert list(plot.rows.budget) == ["50%", "10%"] * 3
    line = next(x for x in scoreboard(table(), "kl") if (x.method, x.budget_name) == ("snapkv", "10%"))
    row = plot.rows.set_index(["method", "budget"]).loc["snapkv", "10%"]
    e = line.estimate
    assert (row.value, row.low, row.high, row.n) == (e.value, e.low, e.high, 24)
    assert row.low < row.value < row.high and plot.words.startswith("24 items, 8 documents")


def test_models_and_protocols_have_plots_of_their_own():
    both = pd.concat([table(("a", "b")), table(("a",)).assign(protocol="question-agnostic")])
    assert [(p.model, p.protocol) for p in plots(both, "kl-budget")] == [
        ("a", "question-aware"), ("b", "question-aware"), ("a", "question-agnostic"),
    ]  # fmt: skip


def test_pairs_are_corrected_for_the_comparisons_that_are_shown():
    (all_of_them,) = plots(table(), "pairs")
    assert len(all_of_them.rows) == 4 and set(all_of_them.rows.base) == {"snapkv"}
    assert "4 comparisons were made" in all_of_them.words
    (fewer,) = plots(table(), "pairs", budgets=[0.1], methods=["snapkv", "criticalkv"])
    row = fewer.rows.iloc[0]
    assert len(fewer.rows) == 1 and row.p_holm == row.p and row.verdict == "criticalkv is ahead"
    assert row.value == pytest.approx(-0.45, abs=0.02) and row.high < 0
    (held,) = plots(table(), "pairs", base="criticalkv", budgets=["10%"])
    assert list(held.rows.method) == ["snapkv", "laprox"]


def test_needles_are_counted_apart_where_the_full_cache_misses_them():
    (plot,) = plots(table(full_right=lambda d: d != 3), "needle-grid", methods=["criticalkv", "snapkv"])
    cells = plot.rows.set_index(["method", "budget", "length", "depth"])
    assert cells.loc["full", "100%", 500, 3 / 7].value == 0
    lost = cells.loc["snapkv", "10%", 500, 3 / 7]
    assert lost.n == 0 and np.isnan(lost.value)
    assert cells.loc["snapkv", "10%", 500, 0].value == 0 and cells.loc["criticalkv", "10%", 500, 0].value == 1
    assert list(dict.fromkeys(plot.rows.method)) == ["full", "criticalkv", "snapkv"]


MANY = {f"m{i}": 1.0 + i / 10 for i in range(7)} | {"m0:window=8": 1.0, "m0:window=16": 0.9, "m1:x=1": 0.7}


def test_many_methods_have_a_panel_a_family_and_all_others_behind_it():
    from matplotlib.figure import Figure

    (plot,) = plots(table(losses=MANY), "kl-budget")
    figure = Figure()
    printed._DRAW["kl-budget"](figure, plot)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.axison}
    assert list(panels) == [f"m{i}" for i in range(7)]
    first = panels["m0"]
    assert [t.get_text() for t in first.get_legend().get_texts()] == ["as it is", "window=8", "window=16"]
    assert len(first.containers) == 3 and len(panels["m2"].containers) == 1  # lines with intervals
    assert all(axes.get_ylim() == first.get_ylim() for axes in panels.values())
    assert all(len(axes.lines) >= len(MANY) for axes in panels.values())
    assert figure.get_size_inches()[0] == printed.PAGE
    printed.files(plot)


def drawn(plot):
    from matplotlib.figure import Figure

    figure = Figure()
    printed._DRAW[plot.kind](figure, plot)
    return figure


def test_a_point_at_0_stands_whole_above_the_axis_and_has_an_interval():
    (plot,) = plots(table(losses={"snapkv": 1.0, "criticalkv": 0.1}), "score-budget")
    worst = plot.rows.set_index(["method", "budget"]).loc["snapkv", "10%"]
    assert worst.value == worst.low == 0 and 0.3 < worst.high < 0.35  # Wilson's of 0 of 8
    low, high = drawn(plot).axes[0].get_ylim()
    assert -0.1 < low < 0 and 1 < high < 1.1
    (kl,) = plots(table(losses={"snapkv": 1.0}), "kl-budget")
    assert drawn(kl).axes[0].get_ylim()[0] == 0  # nothing lies there


def test_cells_of_a_needle_grid_stand_apart_and_depth_0_is_on_top():
    (plot,) = plots(table(), "needle-grid")
    axes = drawn(plot).axes[0]
    (mesh,) = axes.collections
    assert mesh.get_linewidth()[0] > 0 and axes.yaxis_inverted()
    assert axes.get_yticklabels()[0].get_text() == "0%" and axes.get_yticks()[0] == 0.5


def test_depths_drawn_at_random_are_put_together_in_fifths():
    t = table(documents=16).assign(length=500)
    t["depth"] = t.document.str[1:].astype(float) / 15
    (plot,) = plots(t, "needle-grid")
    own = plot.rows[plot.rows.method == "snapkv"]
    assert sorted(own.depth.unique()) == [0.1, 0.3, 0.5, 0.7, 0.9] and own.n.sum() == 2 * 16 * 3
    assert set(own.depths) == {"0 to 20%", "20 to 40%", "40 to 60%", "60 to 80%", "80 to 100%"}
    assert "16 depths" in plot.words
    (few,) = plots(table(), "needle-grid")
    assert "fifths" not in few.words and "28.6%" in set(few.rows.depths)


def test_what_cannot_be_plotted_is_said():
    for kind, how, sentence in [
        ("pie", {}, "There is no plot 'pie'. Choose from: kl-budget"),
        ("kl-budget", {"measure": "speed"}, "There is no measure 'speed'"),
        ("kl-budget", {"methods": ["tova"]}, "The table has no tova. It has: snapkv"),
    ]:
        with pytest.raises(InputError, match=sentence):
            plots(table(), kind, **how)
    with pytest.raises(InputError, match="Run the sweep with --measures kl"):
        plots(table(kl=np.nan), "kl-budget")
    with pytest.raises(InputError, match="needle-grid. Its items do not say"):
        plots(table().assign(depth=np.nan), "needle-grid")
    with pytest.raises(InputError, match="no method but the full cache"):
        plots(table(losses={}), "kl-budget")


def test_the_same_numbers_give_the_same_files():
    (plot,) = plots(table(documents=6, losses={"snapkv": 1}), "kl-budget")
    assert printed.files(plot) == printed.files(plot)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_and_written_as_a_table(kind):
    (plot,) = plots(table(documents=6), kind, methods=["snapkv", "laprox"])
    made = printed.files(plot)
    assert set(made) == {"svg", "pdf", "csv", "tex"}
    assert made["pdf"].startswith(b"%PDF")
    wide, tall = (float(ET.fromstring(made["svg"]).get(name)[:-2]) for name in ("width", "height"))
    assert wide in (pytest.approx(72 * printed.COLUMN), pytest.approx(72 * printed.PAGE)) and tall < 72 * 9
    rows = list(csv.DictReader(io.StringIO(made["csv"].decode("utf-8-sig"))))
    assert len(rows) == len(plot.rows) and {"method", "value", "low", "high", "n"} <= set(rows[0])


def test_names_are_drawn_as_they_are_and_never_run():
    name = "a/$\\frac{1}{$ <script>alert(1)</script> & \n% 50_0"
    (plot,) = plots(table((name,), 6), "kl-budget")
    made = printed.files(plot)
    tree = ET.fromstring(made["svg"])
    assert not [e for e in tree.iter() if e.tag.rpartition("}")[2] in ("script", "foreignObject", "a")]
    tex = made["tex"].decode()
    assert tex.startswith("% ") and "\n% 50" not in tex and tex.split("\n")[1].startswith("\\begin{tabular}")
    (lines,) = plots(table(losses={"a_b%:c=1&d": 0.5}, documents=6), "kl-budget")
    assert "a\\_b\\%:c=1\\&d & " in printed.latex(lines)


def test_the_command_writes_files_for_each_kind(tmp_path, capsys):
    for name, data in table_files(table(("org/model",), 6).to_dict("records")).items():
        (tmp_path / name).write_bytes(data)
    arguments = ["--kind", "kl-budget,pairs", "--budgets", "0.1", "--methods", "snapkv,laprox"]
    assert main(["plot", str(tmp_path), *arguments]) == 0
    found = {path.name for path in (tmp_path / "plots").iterdir()}
    endings = ("svg", "pdf", "csv", "tex")
    assert found == {f"{k}-model-question-aware.{e}" for k in ("kl-budget", "pairs") for e in endings}
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["plot", str(tmp_path), "--kind", "pie"]) == 2
    assert "There is no plot 'pie'" in capsys.readouterr().err


def test_a_kind_that_cannot_be_drawn_is_said_and_the_others_are_drawn(tmp_path, capsys):
    for name, data in table_files(table(documents=6, kl=np.nan).to_dict("records")).items():
        (tmp_path / name).write_bytes(data)
    # the file of the table is as good as its folder
    assert main(["plot", str(tmp_path / "table.parquet"), "--kind", "kl-budget,score-budget"]) == 2
    said = capsys.readouterr()
    assert "nothing to plot as kl-budget" in said.err and "score-budget-m-question-aware.svg" in said.out
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == {"score-budget-m-question-aware"}


def test_a_plot_of_scores_says_how_many_items_it_is_over():
    (plot,) = plots(table(documents=8, full_right=lambda d: d > 1), "score-budget")
    assert plot.words.startswith("24 items, 8 documents; 95 % intervals over 18: those that the full")


def test_a_negative_number_has_a_minus_in_latex():
    (plot,) = plots(table(), "pairs", budgets=[0.1], methods=["snapkv", "criticalkv"])
    tex = printed.latex(plot)
    assert "& $-$0.4" in tex and "[$-$0.4" in tex and " -0" not in tex and "[-" not in tex
