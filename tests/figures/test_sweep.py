"""Budget sweeps: values, gaps, lines that can be told apart."""

import dataclasses

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.sweep import sweep_figure
from kvviz.figures.sweep_table import sweep_table
from kvviz.results.measures import MEASURE


def series(table, method):
    return next(s for s in table.series if s.method == method)


def test_marks_held_at_every_stored_budget(run):
    s = series(sweep_table(run, "mark_held", "snapkv", "dropkv", 0.1), "dropkv")
    mark = run.marks[0]
    for share, value in zip(s.share, s.value):
        kept = run.at("dropkv", share).kept.mask()[:, :, mark.start : mark.end].all(-1)
        assert value == pytest.approx(kept.mean())
    chosen = series(sweep_table(run, "mark_held", "snapkv", None, 0.1, tok=(7, 21)), "snapkv")
    expected = [run.at("snapkv", s).kept.mask()[:, :, 7:21].all(-1).mean() for s in chosen.share]
    assert np.allclose(chosen.value, expected)


def test_overlap_is_that_of_the_masks(run):
    table = sweep_table(run, "overlap", "snapkv", "dropkv", 0.1)
    assert {s.method for s in table.series} == {"dropkv", "streaming_llm"}
    s = series(table, "dropkv")
    for share, value in zip(s.share, s.value):
        a, b = run.at("snapkv", share).kept.mask(), run.at("dropkv", share).kept.mask()
        assert value == pytest.approx((a & b).sum() / (a | b).sum())


def test_error_is_the_median_head(run):
    s = series(sweep_table(run, "output_error", "snapkv", "dropkv", 0.1), "snapkv")
    at = s.share.index(0.15)
    errors = run.at("snapkv", 0.15).error
    assert (s.low[at], s.value[at], s.high[at]) == pytest.approx(tuple(np.percentile(errors, (25, 50, 75))))
    assert s.decoded[at] is False
    assert s.decoded[s.share.index(0.2)] is True


def test_missing_answers_break_the_line():
    c = synthetic_comparison()
    c.variants.remove(c.variant("snapkv", 0.1))
    s = series(sweep_table(c, "kl", "snapkv", "dropkv", 0.1), "snapkv")
    assert s.share == [0.05, 0.1, 0.2, 0.5]
    assert s.value[1] is None
    figure = sweep_figure(sweep_table(c, "kl", "snapkv", "dropkv", 0.1))
    line = next(t for t in figure.data if (t.meta or {}).get("method") == "snapkv")
    assert line.connectgaps is False
    assert line.y[1] is None


def test_expected_answer_is_never_joined(run):
    table = sweep_table(run, "expected", "snapkv", "dropkv", 0.1)
    assert series(table, "dropkv").value == [1, 1, 1, 1]
    assert series(table, "snapkv").value == [0, 0, 1, 1]
    figure = sweep_figure(table)
    assert {t.mode for t in figure.data if t.meta} == {"markers"}
    symbols = next(t for t in figure.data if (t.meta or {}).get("method") == "snapkv").marker.symbol
    assert list(symbols) == ["circle-open", "circle-open", "circle", "circle"]


def test_what_cannot_be_measured_is_said():
    bare = synthetic_comparison(marked=False, expected=None)
    said = sweep_figure(sweep_table(bare, "mark_held", "snapkv", None, 0.1)).layout.meta["message"]
    assert said == "Mark a passage in the text to see who holds it."
    assert sweep_table(bare, "expected", "snapkv", None, 0.1).message == "No expected answer was given."
    with pytest.raises(InputError, match="kl, output_error"):
        sweep_table(bare, "speed", "snapkv", None, 0.1)


@pytest.mark.parametrize(
    ("measure", "title"),
    [
        ("kl", "Mean KL against budget, this document"),
        ("output_error", "Output error against budget, this document"),
        ("mark_held", "M1 held against budget, this document"),
        ("overlap", "Overlap with SnapKV against budget, this document"),
        ("bytes", "Memory against budget, this document"),
        ("expected", "Expected answer against budget, this document"),
    ],
)
def test_figure(run, measure, title):
    figure = sweep_figure(sweep_table(run, measure, "snapkv", "dropkv", 0.1))
    assert figure.layout.title.text == title
    assert ("dots show" if measure == "expected" else "lines show") in figure.layout.meta["guide"]
    assert figure.layout.xaxis.title.text == "share kept (log scale)"
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.yaxis.title.text
    assert figure.layout.shapes[0].x0 == 0.1
    colours = {t.meta["method"]: t.line.color for t in figure.data if t.meta}
    assert colours["dropkv"] == "role:b"
    assert colours["streaming_llm"] == "role:muted"
    if measure != "overlap":
        assert colours["snapkv"] == "role:a"


def keyed(figure):
    """{name: (symbol, dash, colour)} of the legend's lines."""
    return {
        t.name: (t.marker.symbol, t.line.dash, t.line.color)
        for t in figure.data
        if t.showlegend and t.mode == "lines+markers"
    }


def test_every_line_has_its_own_look_and_the_legend_shows_it():
    methods = ("snapkv", "dropkv", "streaming_llm", "adakv", "criticalkv", "keydiff")
    c = synthetic_comparison(methods=methods)
    figure = sweep_figure(sweep_table(c, "mark_held", "snapkv", "dropkv", 0.1))
    keys = keyed(figure)
    assert len(keys) == len(set(keys.values())) == 6
    for line in (t for t in figure.data if t.meta):
        symbol, dash, colour = keys[line.name]
        assert {s.removesuffix("-open") for s in line.marker.symbol} == {symbol}
        assert (line.line.dash, line.line.color) == (dash, colour)
        for filled, decoded in zip((not s.endswith("-open") for s in line.marker.symbol), line.x):
            assert filled == any(abs(decoded - k) < 1e-9 for k in c.budgets)
    names = [t.name for t in figure.data if t.showlegend]
    assert names[-2:] == ["filled: decoded", "open: from stored scores"]
    assert not figure.layout.annotations  # nothing at the lines' ends that could lie on each other


@pytest.mark.parametrize("measure", [m for m in MEASURE if m not in ("expected", "improved")])
def test_no_line_lies_on_the_edge_of_the_plot(run, measure):
    figure = sweep_figure(sweep_table(run, measure, "snapkv", "dropkv", 0.1))
    low, high = figure.layout.yaxis.range
    values = [y for t in figure.data if t.meta for y in t.y if y is not None]
    assert low < min(values)
    assert max(values) < high


def test_methods_that_keep_the_same_are_one_line_and_said():
    c = synthetic_comparison()
    c.scores["snapkv:window=32"] = c.scores["snapkv"]
    mine = [p for p in c.at_stops if p.method == "snapkv"]
    c.at_stops += [dataclasses.replace(p, method="snapkv:window=32") for p in mine]
    other = {"method": "snapkv:window=32", "label": "SnapKV (window=32)"}
    c.variants += [dataclasses.replace(v, **other) for v in c.variants if v.method == "snapkv"]
    for measure in ("mark_held", "kl", "bytes"):
        table = sweep_table(c, measure, "dropkv", None, 0.1)
        assert [(s.label, s.same) for s in table.series] == [
            ("SnapKV", ("SnapKV (window=32)",)), ("DropKV", ()), ("StreamingLLM", ())
        ]  # fmt: skip
        assert "SnapKV = SnapKV (window=32)" in keyed(sweep_figure(table))
        assert table.rows(1)[0]["method"] == "SnapKV = SnapKV (window=32)"
    table = sweep_table(c, "kl", "snapkv", "snapkv:window=32", 0.1)  # A and B stay two lines
    assert len(table.series) == 4
