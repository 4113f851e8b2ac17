"""Budget sweeps and decode-time eviction."""

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.steps import steps_figure, steps_table
from kvviz.figures.sweep import MEASURES, sweep_figure, sweep_table


def series(table, method):
    return next(s for s in table.series if s.method == method)


def test_marks_held_at_every_stored_budget(run):
    s = series(sweep_table(run, "mark_held", "snapkv", "dropkv"), "dropkv")
    mark = run.marks[0]
    for share, value in zip(s.share, s.value):
        kept = run.kept("dropkv", share)[:, :, mark.start : mark.end].all(-1)
        assert value == pytest.approx(kept.mean())
    chosen = series(sweep_table(run, "mark_held", "snapkv", None, tok=(7, 21)), "snapkv")
    expected = [run.kept("snapkv", s)[:, :, 7:21].all(-1).mean() for s in chosen.share]
    assert np.allclose(chosen.value, expected)


def test_overlap_is_that_of_the_masks(run):
    table = sweep_table(run, "overlap", "snapkv", "dropkv")
    assert {s.method for s in table.series} == {"dropkv", "streaming_llm"}
    s = series(table, "dropkv")
    for share, value in zip(s.share, s.value):
        a, b = run.kept("snapkv", share), run.kept("dropkv", share)
        assert value == pytest.approx((a & b).sum() / (a | b).sum())


def test_error_is_the_median_head(run):
    s = series(sweep_table(run, "output_error", "snapkv", "dropkv"), "snapkv")
    at = s.share.index(0.15)
    errors = run.stop_errors["snapkv"][7]
    assert (s.low[at], s.value[at], s.high[at]) == pytest.approx(tuple(np.percentile(errors, (25, 50, 75))))
    assert s.decoded[at] is False
    assert s.decoded[s.share.index(0.2)] is True


def test_missing_answers_break_the_line():
    c = synthetic_comparison()
    c.variants.remove(c.variant("snapkv", 0.1))
    s = series(sweep_table(c, "kl", "snapkv", "dropkv"), "snapkv")
    assert s.share == [0.05, 0.1, 0.2, 0.5]
    assert s.value[1] is None
    figure = sweep_figure(sweep_table(c, "kl", "snapkv", "dropkv"))
    line = next(t for t in figure.data if (t.meta or {}).get("method") == "snapkv")
    assert line.connectgaps is False
    assert line.y[1] is None


def test_expected_answer_is_never_joined(run):
    table = sweep_table(run, "expected", "snapkv", "dropkv")
    assert series(table, "dropkv").value == [1, 1, 1, 1]
    assert series(table, "snapkv").value == [0, 0, 1, 1]
    figure = sweep_figure(table)
    assert {t.mode for t in figure.data if t.meta} == {"markers"}
    symbols = next(t for t in figure.data if (t.meta or {}).get("method") == "snapkv").marker.symbol
    assert list(symbols) == ["circle-open", "circle-open", "circle", "circle"]


def test_what_cannot_be_measured_is_said():
    bare = synthetic_comparison(marked=False, expected=None)
    said = sweep_figure(sweep_table(bare, "mark_held", "snapkv", None)).layout.meta["message"]
    assert said == "Mark a passage in the text to see who holds it."
    assert sweep_table(bare, "expected", "snapkv", None).message == "No expected answer was given."
    with pytest.raises(InputError, match="kl, output_error"):
        sweep_table(bare, "speed", "snapkv", None)


@pytest.mark.parametrize("measure", MEASURES)
def test_figure(run, measure):
    figure = sweep_figure(sweep_table(run, measure, "snapkv", "dropkv"), 0.1)
    assert figure.layout.title.text == "Loss against budget, this document"
    assert figure.layout.xaxis.title.text == "share kept (log scale)"
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.yaxis.title.text
    assert figure.layout.shapes[0].x0 == 0.1
    colours = {t.meta["method"]: t.line.color for t in figure.data if t.meta}
    assert colours["dropkv"] == "role:b"
    assert colours["streaming_llm"] == "role:muted"
    if measure != "overlap":
        assert colours["snapkv"] == "role:a"


def test_labels_at_line_ends_keep_apart(run):
    figure = sweep_figure(sweep_table(run, "bytes", "snapkv", "dropkv"))
    top = max(max(v for v in t.y if v is not None) for t in figure.data if t.meta)
    places = sorted(270 * a.y / top + a.yshift for a in figure.layout.annotations)
    assert len(places) == 3
    assert np.diff(places).min() >= 13 - 1e-6
    assert {a.text for a in figure.layout.annotations} == {"SnapKV", "DropKV", "StreamingLLM"}


def test_steps():
    c = synthetic_comparison(evict_every=3)
    table = steps_table(c, "snapkv", 0.1)
    records = c.variant("snapkv", 0.1).evictions
    assert table.steps.tolist() == [3, 6, 9]
    assert table.dropped[:, 1].tolist() == np.sum(records[1]["dropped"], -1).tolist()
    figure = steps_figure(table)
    assert figure.layout.xaxis.title.text == "generated step"
    assert list(figure.layout.xaxis.ticktext) == ["3", "6", "9"]
    assert np.array_equal(figure.data[0].customdata, table.dropped)
    assert table.tokens_at(0) == []


def test_steps_with_recorded_tokens():
    c = synthetic_comparison(L=2, evict_every=3)
    for record in c.variant("snapkv", 0.1).evictions:
        record["dropped"] = [2, 1]
        record["tokens"] = [[5, 9], [5]]
    table = steps_table(c, "snapkv", 0.1)
    assert table.tokens_at(0) == [5, 9]
    assert table.tokens_at(0, layer=1) == [5]


def test_no_steps_without_eviction(run):
    with pytest.raises(InputError, match="SnapKV evicted nothing while generating at 10%"):
        steps_table(run, "snapkv", 0.1)
