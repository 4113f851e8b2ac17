"""Maps of kept tokens: exact counts in every binning, states, track, figure objects."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import kept_changed, synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures import versus
from kvviz.figures.all_methods import all_methods_figure, all_methods_table
from kvviz.figures.heads import heads_figure, heads_table
from kvviz.figures.kept import kept_figure, kept_table, opening_range
from kvviz.figures.per_layer import per_layer_figure, per_layer_table
from kvviz.figures.strip import strip_spans
from kvviz.figures.versus import versus_figure, versus_table

RUN = synthetic_comparison(n=257)
ranges = st.tuples(st.integers(0, 255), st.integers(1, 257)).filter(lambda r: r[0] < r[1])


@given(ranges, st.integers(1, 300), st.sampled_from([0.1, 0.15, 0.5]))
@settings(deadline=None)
def test_binned_counts_sum_to_the_exact_counts(span, columns, k):
    table = kept_table(RUN, "snapkv", k, *span, columns=columns)
    exact = RUN.at("snapkv", k).kept.mask()[:, :, span[0] : span[1]]
    assert table.kept.shape[1] <= columns
    assert np.array_equal(table.kept.sum(1), exact.sum((1, 2)))
    assert table.entries.sum() == exact[0].size
    starts = table.bins.starts
    assert np.array_equal(table.strongest, np.maximum.reduceat(exact.sum(1), starts, axis=-1))


@given(ranges, st.integers(1, 300), st.sampled_from([0.1, 0.15, 0.5]))
@settings(deadline=None)
def test_differences_are_counted_before_pooling(span, columns, k):
    table = versus_table(RUN, "snapkv", "dropkv", k, *span, columns=columns)
    a = RUN.at("snapkv", k).kept.mask()[:, :, span[0] : span[1]]
    b = RUN.at("dropkv", k).kept.mask()[:, :, span[0] : span[1]]
    for column in range(table.code.shape[1]):
        first, last = table.bins.span(column)
        cell = slice(first - span[0], last - span[0] + 1)
        one, other = a[:, :, cell], b[:, :, cell]
        assert np.array_equal(table.only_a[:, column], (one & ~other).sum((1, 2)))
        assert np.array_equal(table.only_b[:, column], (other & ~one).sum((1, 2)))
        assert np.array_equal(table.both[:, column], (one & other).sum((1, 2)))


@given(st.lists(st.sampled_from("ab+-"), min_size=1, max_size=60), st.booleans())
def test_class_of_a_cell_against_the_rule(kinds, pooled):
    a, b, both, neither = (kinds.count(kind) for kind in "ab+-")
    total = len(kinds)
    code = int(versus.cell_classes(*(np.array([x]) for x in (a, b, both, total)), pooled)[0])
    name = versus.class_name(code)
    if a + b < 0.05 * total or a + b == 0:
        assert name == ("both" if both >= neither and both > 0 else "neither")
    elif min(a, b) >= max(a, b) / 2:
        assert name == "mixed"
    else:
        assert name == ("A only" if a > b else "B only")
        strength = code - (versus.A if a > b else versus.B)
        share = max(a, b) / total
        value = share**0.5 if pooled else share
        assert strength == min(2, max(0, int(np.ceil(3 * value - 1e-9)) - 1))


def test_methods_that_keep_different_halves_are_not_equal():
    c = synthetic_comparison(n=120, Hkv=2, Hq=2)
    for method, offset in (("snapkv", 0), ("dropkv", 1)):
        with kept_changed(c, method, 0.2) as mask:
            mask[:] = False
            mask[:, 0, offset::2] = True
    table = versus_table(c, "snapkv", "dropkv", 0.2, columns=10)
    assert set(np.unique(table.code)) == {versus.MIXED}
    shares = [kept_table(c, m, 0.2, columns=10).kept for m in ("snapkv", "dropkv")]
    assert np.array_equal(*shares)


def test_codes_of_shares_are_exact_at_the_ends():
    share = np.array([0, 1e-6, 0.25, 0.5, 0.999999, 1, np.nan])
    for root in (False, True):
        code = codes.share_codes(share, root)
        assert code[0] == code[-1] == codes.EVICTED
        assert code[5] == codes.KEPT
        assert ((code[1:5] > codes.EVICTED) & (code[1:5] < codes.KEPT)).all()
        assert (np.diff(code[:6].astype(int)) >= 0).all()
    assert codes.share_codes(np.array([0.04]), True) > codes.share_codes(np.array([0.04]))


def test_one_cell_is_one_token_up_to_1500():
    assert kept_table(RUN, "snapkv", 0.1).bins.size == 1
    c = synthetic_comparison(n=3001, L=2)
    table = kept_table(c, "snapkv", 0.1)
    assert table.bins.chip == "1 cell = 3 tokens"
    assert table.bins.span(1000) == (3000, 3000)  # the last cell is smaller
    assert kept_figure(table).layout.meta["chip"] == "1 cell = 3 tokens"
    assert kept_table(c, "snapkv", 0.1, 100, 1600).bins.chip == ""


def traces(figure):
    return [trace.to_plotly_json() for trace in figure.data]


def bar_title(figure):
    bar = next(t for t in traces(figure) if "colorbar" in t.get("marker", {}))
    return bar["marker"]["colorbar"]["title"]["text"].replace("<br>", " ")


def test_strongest_token_rule():
    c = synthetic_comparison(n=3000, L=2, marked=False)
    with kept_changed(c, "snapkv", 0.1) as mask:
        mask[:] = False
        mask[:, :, 7] = True
    mean = kept_table(c, "snapkv", 0.1, columns=30)
    strongest = kept_table(c, "snapkv", 0.1, columns=30, rule="max")
    assert (strongest.code[:, 0] == codes.KEPT).all()
    assert (mean.code[:, 0] < codes.KEPT).all()
    assert (mean.code[:, 0] > codes.EVICTED).all()
    assert "square-root" in bar_title(kept_figure(mean))
    assert "strongest" in bar_title(kept_figure(strongest))


def test_every_special_state_has_its_own_code_and_legend():
    c = synthetic_comparison(n=400, windows=(None,) * 5 + (101,))
    c.variant("snapkv", 0.2).selection.scores[1][:, 50:60] = np.nan  # a stretch without a score
    with kept_changed(c, "snapkv", 0.2) as mask:
        mask[1, :, 50:60] = False
    table = kept_table(c, "snapkv", 0.2)
    assert (table.code[:5, -32:] == codes.PROTECTED).all()
    assert (table.code[5, : 400 - 100] == codes.OUTSIDE).all()
    assert (table.code[1, 50:60] == codes.UNSCORED).all()
    assert table.unscored.sum() == 30
    figure = kept_figure(table)
    legend = [t.name for t in figure.data if t.showlegend]
    for name in ("evicted", "kept by all", "kept by rule", "outside the sliding window"):
        assert legend.count(name) == 1
    assert "not scored" in legend
    patterns = {t["name"]: t["fillpattern"]["shape"] for t in traces(figure) if "fillpattern" in t}
    assert patterns == {"outside the sliding window": "/", "not scored": "."}
    rows = table.rows(None)
    assert next(r for r in rows if (r["layer"], r["first token"]) == (1, 55))["not scored"] == 3
    assert next(r for r in rows if (r["layer"], r["first token"]) == (5, 0))["outside window"] == 3


def test_legend_lists_only_states_that_occur():
    legend = [t.name for t in kept_figure(kept_table(RUN, "snapkv", 1.0)).data if t.showlegend]
    assert "evicted" not in legend
    assert "not scored" not in legend


def test_a_method_without_scores_is_not_called_unscored():
    assert kept_table(RUN, "streaming_llm", 0.1).unscored.sum() == 0


def test_full_layers_say_so():
    assert set(kept_table(RUN, "snapkv", 1.0).row_labels.values()) == {"full"}
    assert kept_table(RUN, "snapkv", 0.5).row_labels == {}
    c = synthetic_comparison(windows=(41,) + (None,) * 5)
    table = kept_table(c, "snapkv", 0.2)
    assert table.row_labels == {0: "▨"}
    assert "0 ▨" in kept_figure(table).layout.yaxis.ticktext


def test_kept_figure_says_what_is_seen(run):
    figure = kept_figure(kept_table(run, "snapkv", 0.1), "A")
    assert figure.layout.title.text == "Which tokens each layer kept · A: SnapKV, 10%"
    assert figure.layout.xaxis.title.text == "token position"
    assert figure.layout.yaxis.title.text == "layer"
    assert tuple(figure.layout.yaxis.range) == (5.5, -0.5)  # layer 0 on top
    assert figure.layout.meta["summary"].startswith("SnapKV, 10% kept, 6 layers by 300 tokens. M1 held in ")
    grid = figure.data[0]
    assert grid.z.dtype == np.uint8
    assert len(codes.COLOURS) <= 16
    assert grid.customdata.shape == (6, 300, 2)
    assert len(figure.layout.shapes) == 1
    assert figure.layout.shapes[0].line.color == "role:mark"


def test_the_strip_is_exact(run):
    spans = {span.kind: span for span in strip_spans(run, "snapkv", 0.5)}
    assert (spans["mark"].start, spans["mark"].end) == (run.marks[0].start, run.marks[0].end)
    assert (spans["protected"].start, spans["protected"].end) == (run.n - 32, run.n)
    assert (spans["question"].start, spans["question"].end) == run.prompt.question_span
    assert spans["window"].start == run.n - 32
    at_stop = [s for s in strip_spans(run, "snapkv", 0.3) if s.kind == "protected"]
    assert [(s.start, s.end) for s in at_stop] == [(run.n - 32, run.n)]


@pytest.mark.parametrize("k", [0.2, 0.3])
def test_heads_of_a_layer(run, k):
    table = heads_table(run, "dropkv", k, 3, columns=50)
    assert np.array_equal(table.kept.sum(1), run.at("dropkv", k).kept.mask()[3].sum(1))
    figure = heads_figure(table, "B")
    assert figure.layout.title.text == (f"Which tokens each head of layer 3 kept · B: DropKV, {k:.0%}")
    assert figure.layout.yaxis.title.text == "KV head"
    with pytest.raises(InputError, match="layers 0 to 5"):
        heads_table(run, "dropkv", k, 6)


def test_bars_show_uneven_budgets(run):
    table = per_layer_table(run, "dropkv", 0.2)
    counts = run.at("dropkv", 0.2).kept.mask().sum(-1)
    assert np.allclose(table.mean, counts.mean(1))
    assert np.array_equal(table.fewest, counts.min(1))
    assert np.array_equal(table.most, counts.max(1))
    figure = per_layer_figure(table, "B")
    assert figure.data[0].marker.color == "role:b"
    assert "error_x" in traces(figure)[0]
    assert figure.layout.xaxis.title.text == "tokens per KV head"


def test_equal_layers_are_one_sentence(run):
    figure = per_layer_figure(per_layer_table(run, "snapkv", 0.2))
    assert not figure.data
    assert figure.layout.meta["message"] == "SnapKV keeps 60 tokens in every KV head of every layer."


def test_all_methods_share_their_axis(run):
    table = all_methods_table(run, 0.3)
    figure = all_methods_figure(table)
    gap = figure.layout.meta["gap"]
    assert figure.data[0].z.shape[0] == 3 * 6 + 2 * gap
    assert list(figure.layout.yaxis.ticktext) == ["SnapKV", "DropKV", "StreamingLLM"]
    assert len(table.rows(None)) == 3 * 6 * 300


def test_versus_figure_names_its_colours(run):
    figure = versus_figure(versus_table(run, "snapkv", "dropkv", 0.2))
    legend = {t["name"]: t["marker"]["symbol"] for t in traces(figure) if "symbol" in t.get("marker", {})}
    assert legend["A only (SnapKV)"] == "triangle-up"
    assert legend["B only (DropKV)"] == "triangle-down"
    table = versus_table(run, "snapkv", "dropkv", 0.2)
    row = table.rows(1, around=100, where={"layer": 2})[0]
    assert (row["layer"], row["first token"]) == (2, 100)
    a = int(table.only_a[2, 100] + table.both[2, 100])
    assert (row["only A"] + row["both"], row["entries"]) == (a, 3)


def test_swapping_a_and_b_mirrors_the_map(run):
    one = versus_table(run, "snapkv", "dropkv", 0.2, columns=40)
    other = versus_table(run, "dropkv", "snapkv", 0.2, columns=40)
    assert np.array_equal(one.only_a, other.only_b)
    swap = np.arange(len(versus.COLOURS))
    swap[[2, 3, 4, 5, 6, 7]] = [5, 6, 7, 2, 3, 4]
    assert np.array_equal(swap[one.code], other.code)


def test_long_texts_open_around_the_mark():
    assert opening_range(RUN) == (0, 257)
    c = synthetic_comparison(n=30_000, L=1, methods=("snapkv",), budgets=(0.1,))
    start, end = opening_range(c)
    assert end - start == 1500
    assert start < c.marks[0].start < end


@pytest.mark.parametrize("method", ["snapkv", "dropkv", "streaming_llm"])
@pytest.mark.parametrize("rule", ["mean", "max"])
def test_no_kept_token_is_lost_between_pixels(method, rule):
    """A map is drawn one column a cell and then stretched to the page's pixels, nearest to nearest."""
    c = synthetic_comparison(n=1009, L=3)
    mask = c.at(method, 0.1).kept.mask().any(axis=1)  # [L, n], by some head
    for width in range(300, 1501, 13):
        table = kept_table(c, method, 0.1, columns=width, rule=rule)
        b = table.bins
        assert len(b.starts) <= width
        low, high = kept_figure(table).layout.xaxis.range
        places = low + 0.5 + (np.arange(width) + 0.5) * (high - low) / width  # at the middle of each pixel
        drawn = np.unique((places // b.size).astype(int))
        assert np.array_equal(drawn, np.arange(len(b.starts)))
        layer, token = np.nonzero(mask)
        assert (table.code[layer, token // b.size] != codes.EVICTED).all()
        assert (b.chip == "") == (b.size == 1)


def test_ranges_are_checked(run):
    with pytest.raises(InputError, match="range of tokens"):
        kept_table(run, "snapkv", 0.2, 300, 400)
    with pytest.raises(InputError, match="mean"):
        kept_table(run, "snapkv", 0.2, rule="median")
    with pytest.raises(InputError, match="nearest are 10% and 15%"):
        kept_table(run, "snapkv", 0.12)
