"""Figures over a sweep: values and counts as in the table, intervals, inert text, no mixing of protocols."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from many import sweep_rows
from test_every_figure import HOSTILE, parsed, strings

from kvviz.errors import InputError
from kvviz.figures import palette
from kvviz.figures.evidence import EVIDENCE, figure_of_sweep
from kvviz.figures.evidence_pairs import bins
from kvviz.results import evidence as said
from kvviz.results.scoreboard import paired
from kvviz.results.sweeps import Sweep, tidy

ROW = {row.id: row for row in EVIDENCE}


def sweep_of(rows) -> Sweep:
    return Sweep("A made-up sweep", tidy({name: [r[name] for r in rows] for name in rows[0]}))


@pytest.fixture(scope="module")
def sweep():
    return sweep_of(sweep_rows(protocols=("question-aware", "question-agnostic")))


def drawn(name, sweep, pick):
    table = ROW[name].table(sweep, pick)
    figure = figure_of_sweep(ROW[name], sweep, pick, table)
    parsed(figure)  # strict JSON
    return table, figure.to_plotly_json()


def test_every_figure_says_what_it_is_of_in_every_measure(sweep):
    for measure in said.MEASURES:
        for row in EVIDENCE:
            table, figure = drawn(row.id, sweep, replace(said.usual(sweep), measure=measure))
            layout = figure["layout"]
            assert layout["title"]["text"] and layout["meta"]["guide"].endswith(".")
            assert "n = " in layout["meta"]["chip"] and layout["meta"]["summary"]
            assert len(table.rows(None)) == len(table) and len(json.dumps(figure, default=list)) < 200_000
            for _, text in strings(figure):
                if text.startswith(palette.PREFIX):
                    assert text.removeprefix(palette.PREFIX) in palette.COLOURS


def test_a_strangers_names_are_text():
    rows = [r | {"label": HOSTILE, "task": HOSTILE, "item": HOSTILE + r["item"]} for r in sweep_rows()]
    sweep = sweep_of(rows)
    for row in EVIDENCE:
        _, figure = drawn(row.id, sweep, said.usual(sweep))
        for path, text in strings(figure):
            if not {"meta", "customdata"} & set(path):
                assert "<a" not in text and "<b>" not in text and "$" not in text, (row.id, path, text)


def test_a_line_a_method_of_one_protocol_with_its_interval(sweep):
    pick = said.usual(sweep)
    table, figure = drawn("evidence_budget", sweep, pick)
    assert len(figure["data"]) == 3 and len(table) == 9  # the other protocol's nine are not there
    line = next(t for t in figure["data"] if t["name"] == "B: CriticalKV")
    at = [x.budget_name for x in table.lines if x.method == "criticalkv"].index("20%")
    found = said.line_of(sweep, pick, "criticalkv")
    assert line["y"][at] == pytest.approx(found.value)
    assert line["error_y"]["array"][at] == pytest.approx(found.high - found.value)
    assert "question-aware" in figure["layout"]["title"]["text"]


def test_the_histogram_holds_every_item_and_its_band_is_the_interval(sweep):
    for measure in ("right", "kl"):
        pick = replace(said.usual(sweep), measure=measure)
        table, figure = drawn("evidence_pairs", sweep, pick)
        assert sum(sum(t["y"]) for t in figure["data"]) == len(table.pairs.items)
        found = paired(said.here(sweep, pick), pick.a, pick.b, measure).difference
        band = next(s for s in figure["layout"]["shapes"] if s["type"] == "rect")
        assert (band["x0"], band["x1"]) == pytest.approx((found.low, found.high))
        blue = next(t for t in figure["data"] if t["name"].startswith("B better"))
        assert all(x > 0 if measure == "right" else x < 0 for x, y in zip(blue["x"], blue["y"]) if y)


@pytest.mark.parametrize("d", [[0.0] * 5, [1, 0, -1, 0, 1], [0.5], list(np.linspace(-3, 1, 40)), [1e-12, 2]])
def test_bars_lose_no_difference(d):
    d = np.array(d, float)
    middles, counts, width = bins(d)
    assert counts.sum() == len(d) and counts[middles == 0].sum() == (d == 0).sum()
    assert counts[middles > 0].sum() == (d > 0).sum() and width > 0


def test_bars_of_many_methods_are_those_of_a_and_b_alone(sweep):
    few = drawn("evidence_budget", sweep, said.usual(sweep))[1]
    assert all(t["error_y"]["visible"] for t in few["data"])
    t = sweep.table
    more = [t.assign(method=t.method + f":x={i}", label=t.label + f" {i}") for i in range(3)]
    many = Sweep("many", pd.concat([t, *(x[~x.method.str.startswith("full")] for x in more)]))
    figure = drawn("evidence_budget", many, said.usual(many))[1]
    barred = {t["name"][:2] for t in figure["data"] if t["error_y"]["visible"]}
    assert len(figure["data"]) > 6 and barred == {"A:", "B:"}
    assert figure["layout"]["xaxis"]["tickvals"] == sorted({round(s, 3) for s in t.share if s < 1})


def test_a_dot_an_item_says_what_became_of_it(sweep):
    table, figure = drawn("evidence_items", sweep, said.usual(sweep))
    state = dict(zip(table.items, table.states))
    assert (state["item-0"], state["item-2"]) == ("full", "knew")
    assert sum(len(t["x"]) for t in figure["data"] if t.get("customdata")) == 24
    words = [c[0] for t in figure["data"] for c in t.get("customdata") or []]
    assert all("a click runs it again" in w for w in words)


def test_cells_of_the_needle_grid_count_what_the_full_cache_finds(sweep):
    table, figure = drawn("evidence_needles", sweep, said.usual(sweep))
    cells = [c for c in table.cells if c.row == ("snapkv", "20%")]
    assert len(cells) == 6 and sum(len(c.items) for c in cells) == 24 and sum(c.full for c in cells) == 22
    hit = next(iter(figure["data"]))["customdata"][1][0]
    assert hit[2:] == ["snapkv", "50%"]
    assert "SnapKV, 50%, 500 tokens, depth 10%: mixed, 2 of 3 found" in hit[0]


@pytest.mark.parametrize("depths", [3, 8])
def test_depths_of_many_columns_are_written_upwards(depths):
    rows = [r | {"depth": int(r["item"][5:]) % depths / 10} for r in sweep_rows()]
    sweep = sweep_of(rows)
    _, figure = drawn("evidence_needles", sweep, said.usual(sweep))
    axis = figure["layout"]["xaxis"]
    assert axis["tickangle"] == (0 if len(axis["tickvals"]) <= 11 else -90)
    lengths = [t for t in axis["ticktext"] if "500" in t]
    assert len(lengths) == 1 and ("<br>" in lengths[0]) == (axis["tickangle"] == 0)


def test_a_table_without_depths_has_no_needle_grid():
    flat = sweep_of([r | {"depth": None} for r in sweep_rows()])
    with pytest.raises(InputError, match="do not say at which depth"):
        ROW["evidence_needles"].table(flat, said.usual(flat))
