"""Output errors: stops, scale, comparison per head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import kept_changed, synthetic_comparison

from kvviz.figures import effect
from kvviz.figures.effect import effect_map_figure, effect_table, error_codes
from kvviz.figures.effect_layers import effect_layers_figure, effect_layers_table
from kvviz.figures.effect_scatter import effect_scatter_figure
from kvviz.results.points import PROBE_CUT
from kvviz.results.words import relative_error


def test_errors_of_decoded_budgets_and_stops(run):
    decoded = effect_table(run, "snapkv", "dropkv", 0.1)
    assert np.array_equal(decoded.a, run.variant("snapkv", 0.1).output_error)
    stop = effect_table(run, "snapkv", "dropkv", 0.15)
    assert np.array_equal(stop.b, run.at("dropkv", 0.15).error)
    assert not stop.message


def test_between_stops_the_neighbours_are_named(run):
    table = effect_table(run, "snapkv", "dropkv", 0.12)
    assert table.message == "Output error was not computed at 12%; nearest are 10% and 15%."
    for figure in (effect_map_figure(table), effect_scatter_figure(table)):
        assert figure.layout.meta["message"] == table.message
        assert figure.layout.annotations[0].text == table.message
    assert table.rows() == []


def test_compared_counts_against_brute_force(run):
    c = synthetic_comparison()
    a, b = c.variant("snapkv", 0.1).output_error, c.variant("dropkv", 0.1).output_error
    b[0, :3] = a[0, :3] * 1.005
    b[1, 1] = np.nan
    table = effect_table(c, "snapkv", "dropkv", 0.1)
    lower = equal = 0
    for x, y in zip(a.ravel(), b.ravel()):
        if np.isnan(y):
            continue
        same = abs(x - y) <= 0.01 * max(x, y)
        equal += same
        lower += y < x and not same
    assert table.compared() == (lower, equal, 35)
    words = f"B lower in {lower} of 35 heads, equal (within 1%) in {equal}"
    assert table.compared_words == words
    assert effect_scatter_figure(table).layout.meta["compared"] == words


@given(st.lists(st.floats(0, 50, width=32), min_size=1, max_size=60))
def test_codes_keep_zero_clipped_and_missing_apart(values):
    errors = np.array([*values, np.nan], np.float32)
    positive = errors[np.isfinite(errors) & (errors > 0)]
    top = float(np.percentile(positive, 99)) if len(positive) else 0.0
    bottom = max(float(positive.min()), top / 1000) if len(positive) else 0.0
    code = error_codes(errors, bottom, top)
    assert (code[errors == 0] == 0).all()
    assert (code[np.isnan(errors)] == effect.MISSING).all()
    assert ((code == effect.CLIPPED) == (errors > top)).all() or not len(positive)
    order = np.argsort(errors[:-1])
    assert (np.diff(code[:-1][order].astype(int)) >= 0).all()


def test_map_says_what_it_shows():
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).output_error[3, 2] = 40
    table = effect_table(c, "snapkv", "dropkv", 0.1)
    figure = effect_map_figure(table, "a")
    assert figure.layout.title.text == "How much each head's output changed · A: SnapKV, 10%"
    assert figure.layout.xaxis.title.text == "query head (grouped by KV head)"
    assert "at the full cache's 4 answer tokens" in figure.layout.meta["summary"]
    assert any((t.name or "").startswith("clipped: ") for t in figure.data)
    bar = next(t for t in figure.data if t.type == "scatter" and t.marker.colorbar.ticktext)
    assert bar.marker.colorbar.ticktext[-1].endswith("or more")
    assert figure.data[0].customdata[3, 2] == 40  # the read-out keeps the true value
    assert len(figure.layout.shapes) == 2  # borders of three KV heads
    other = effect_map_figure(table, "b")
    assert table.top == pytest.approx(np.percentile(np.concatenate([table.a.ravel(), table.b.ravel()]), 99))
    assert other.data[0].zmax == figure.data[0].zmax


def test_heads_that_kept_nothing_are_named():
    c = synthetic_comparison()
    with kept_changed(c, "snapkv", 0.1) as mask:
        mask[4, 2] = False
    table = effect_table(c, "snapkv", None, 0.1)
    assert table.empty == {"A": ["layer 4, KV head 2"]}
    assert "layer 4, KV head 2" in effect_map_figure(table).layout.meta["summary"]


def test_scatter_diagonal_and_axes(run):
    table = effect_table(run, "snapkv", "dropkv", 0.1)
    figure = effect_scatter_figure(table)
    assert figure.layout.title.text == "Error per head: A against B"
    assert figure.layout.meta["guide"] == ("Dots below the line: B changes that head less. Above: A does.")
    assert figure.layout.xaxis.title.text == "relative change by A (log scale)"
    dots = figure.data[1]
    assert len(dots.x) == 36
    assert np.allclose(10 ** np.asarray(dots.x, float), table.a.ravel(), rtol=1e-5)
    layer, head, kv, a, b = dots.customdata[7]
    assert (layer, head, kv) == (1, 1, 0)
    assert (a, b) == (table.a[1, 1], table.b[1, 1])  # the read-out has the values themselves


def test_no_change_is_said_instead_of_an_empty_scale(run):
    table = effect_table(run, "snapkv", "dropkv", 1.0)
    for figure in (effect_map_figure(table), effect_scatter_figure(table)):
        said = figure.layout.meta["message"]
        assert said == "No head's output changed at 100%, at the full cache's 4 answer tokens."
        assert not figure.data


def test_one_tiny_error_does_not_press_the_others_into_a_corner():
    c = synthetic_comparison()
    a, b = (c.variant(m, 0.1).output_error for m in ("snapkv", "dropkv"))
    a[2, 3], b[0, 0] = 1e-9, 0
    figure = effect_scatter_figure(effect_table(c, "snapkv", "dropkv", 0.1))
    low, high = figure.layout.xaxis.range
    assert high - low <= 4 + 0.8 + 1e-6  # four decades, and the edge
    dots = figure.data[1]
    assert min(dots.x) == pytest.approx(low + 0.2)
    assert not any("e-" in words for words in figure.layout.xaxis.ticktext)
    assert figure.layout.xaxis.ticktext[0].startswith("&lt;0.0")


def test_heads_are_counted_where_something_was_evicted():
    """A sliding layer that keeps all it can hold cannot change; counted in, it makes every median 0."""
    c = synthetic_comparison(windows=(40,) * 4 + (None,) * 2, budgets=(0.5,))
    for method in ("snapkv", "dropkv"):
        c.variant(method, 0.5).output_error[:4] = 0
        with kept_changed(c, method, 0.5) as mask:
            mask[:4, :, -39:] = True
    table = effect_table(c, "snapkv", "dropkv", 0.5)
    assert table.evicting.tolist() == [False] * 4 + [True] * 2
    assert table.compared()[2] == 12
    assert table.compared_words.endswith("in the 2 of 6 layers where something was evicted")
    median = np.median(c.variant("snapkv", 0.5).output_error[4:])
    assert f"head's output {relative_error(median)}," in effect_map_figure(table).layout.meta["summary"]


def test_errors_say_whether_cuts_while_writing_count_in_them():
    """They do where an answer was written, and in older runs not even there."""
    plain, cut = synthetic_comparison(), synthetic_comparison(evict_every=1)
    assert effect_table(plain, "snapkv", None, 0.1).queries == "at the full cache's 4 answer tokens"
    said = effect_table(cut, "snapkv", None, 0.1).queries
    before = "at the full cache's 4 answer tokens, before anything was evicted while writing"
    assert said == before
    cut.settings["probe"] = PROBE_CUT
    said = effect_table(cut, "snapkv", "dropkv", 0.1).queries
    assert said == "at the full cache's 4 answer tokens, with what each cache held then"
    assert effect_layers_table(cut, "snapkv", None, 0.1).queries == said
    at_stop = next(p.budget for p in cut.at_stops if cut.variant(p.method, p.budget) is None)
    assert effect_table(cut, "snapkv", "dropkv", at_stop).queries == before


def test_layer_lines_only_where_decoded(run):
    table = effect_layers_table(run, "snapkv", "dropkv", 0.1)
    lines = effect_layers_figure(table)
    rows = table.rows()
    assert [row["layer"] for row in rows] == list(range(6))
    assert rows[2]["error of B"] == pytest.approx(run.variant("dropkv", 0.1).layer_error[2])
    assert [t.name for t in lines.data] == ["A: SnapKV", "B: DropKV"]
    assert [t.line.color for t in lines.data] == ["role:a", "role:b"]
    assert lines.layout.yaxis.title.text == "relative change, %"
    stop = effect_layers_figure(effect_layers_table(run, "snapkv", "dropkv", 0.15))
    assert "15% was not decoded" in stop.layout.meta["message"]
