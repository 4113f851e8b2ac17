"""Why: scatter data, cut-offs, the card against brute force, the head shown by default."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import kept_changed, synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures import why_table as data
from kvviz.figures.why import why_figure
from kvviz.figures.why_card import why_card
from kvviz.figures.why_minimap import why_minimap_figure, why_minimap_table
from kvviz.figures.why_table import axis_choices, default_head, rank_correlation, why_table

METHODS = ("snapkv", "criticalkv", "dropkv", "streaming_llm")
RUN = synthetic_comparison(methods=METHODS)


def card_of(c, token, *rest):
    """The card of one token."""
    return why_card(c, (token, token + 1), *rest)


def test_states_match_the_masks():
    table = why_table(RUN, 2, 1, "snapkv", "dropkv", 0.2)
    a, b = RUN.at("snapkv", 0.2).kept.mask()[2, 1], RUN.at("dropkv", 0.2).kept.mask()[2, 1]
    protected = RUN.at("snapkv", 0.2).kept.protected()[2, 1]
    for row, token in enumerate(table.token):
        expected = (
            data.PROTECTED
            if protected[token]
            else {
                (True, True): data.KEPT,
                (True, False): data.A_ONLY,
                (False, True): data.B_ONLY,
                (False, False): data.EVICTED,
            }[bool(a[token]), bool(b[token])]
        )
        assert table.state[row] == expected


def test_without_b_kept_or_evicted():
    table = why_table(RUN, 2, 1, "snapkv", None, 0.2)
    assert set(np.unique(table.state)) <= {data.KEPT, data.EVICTED, data.PROTECTED}
    names = [t.name for t in why_figure(table).data]
    assert "kept" in names
    assert "evicted" in names


def test_axes_have_titles_and_zeros_a_rail():
    figure = why_figure(why_table(RUN, 2, 1, "snapkv", None, 0.2))
    x = figure.layout.xaxis
    title = x.title.text.replace("<br>", " ")
    assert title.startswith("attention of the last 32 prompt queries (mean over them and the head's")
    assert title.endswith("(log scale)")
    assert x.ticktext[0] == "0"
    attention = RUN.lenses["attention"][2, 1]
    at_rail = sum(
        int(np.isclose(np.asarray(t.x), x.tickvals[0]).sum()) for t in figure.data if t.hoverinfo == "none"
    )
    assert at_rail == int((attention == 0).sum()) == 10
    assert figure.layout.title.text == "Attention against effect, layer 2, KV head 1"


def test_switches():
    full = why_table(RUN, 0, 0, "snapkv", None, 0.2)
    without = why_table(RUN, 0, 0, "snapkv", None, 0.2, sinks=False)
    assert len(full.token) - len(without.token) == 4
    assert without.token.min() == 4
    ranked = why_table(RUN, 0, 0, "snapkv", None, 0.2, ranks=True)
    assert ranked.x.min() >= 1
    assert ranked.x.max() <= len(ranked.token)
    assert "log" not in why_figure(ranked).layout.xaxis.title.text


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
def test_rank_correlation_against_brute_force(pairs):
    x, y = (np.array(v, dtype=float) for v in zip(*pairs))

    def rank(v):
        return np.array([(v < e).sum() + ((v == e).sum() + 1) / 2 for e in v])

    ours = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert ours is None
    else:
        assert ours == pytest.approx(np.corrcoef(rank(x), rank(y))[0, 1], abs=1e-9)


def test_cut_off_lines():
    """A line stands on the axis that the method itself cuts, and nowhere else."""
    assert why_table(RUN, 1, 1, "snapkv", None, 0.2).cutoffs == []
    for k in (0.2, 0.3):  # decoded, and a slider stop
        table = why_table(RUN, 1, 1, "snapkv", None, k, x="snapkv")
        ((side, value, label),) = table.cutoffs
        kept = RUN.at("snapkv", k).kept.mask()[1, 1] & ~RUN.at("snapkv", k).kept.protected()[1, 1]
        assert (side, label) == ("x", "cut-off of SnapKV")
        assert value == pytest.approx(RUN.scores["snapkv"][1, 1][kept].min())
        assert len(why_figure(table).layout.shapes) == 1


def test_two_stage_methods_draw_both_lines():
    table = why_table(RUN, 1, 1, "criticalkv", None, 0.2, x="criticalkv", y="criticalkv#first")
    assert [(side, label) for side, _, label in table.cutoffs] == [
        ("x", "cut-off of CriticalKV, stage 2"),
        ("y", "cut-off of CriticalKV, stage 1"),
    ]
    names = [name for name, _ in axis_choices(RUN, 0.2)]
    assert "criticalkv#first" in names
    assert "streaming_llm" not in names  # it gives no scores


def test_an_unknown_axis_lists_the_known():
    with pytest.raises(InputError, match="attention, effect, snapkv"):
        why_table(RUN, 1, 1, "snapkv", None, 0.2, x="beauty")
    with pytest.raises(InputError, match="layers 0 to 5 and KV heads 0 to 2"):
        why_table(RUN, 6, 1, "snapkv", None, 0.2)


@pytest.mark.parametrize("k", [0.2, 0.3])
@pytest.mark.parametrize("token", [3, 50, 117, 200, 290])
def test_card_against_brute_force(token, k):
    card = card_of(RUN, token, 2, 1, k, METHODS)
    for column in card.columns:
        m = column.method
        kept, protected = RUN.at(m, k).kept.mask(), RUN.at(m, k).kept.protected()
        here = kept[2, 1, token]
        expected = "rule" if here and protected[2, 1, token] else "score" if here else "evicted"
        assert column.state in (expected, "unscored")
        assert card.held[m] == (int(kept[:, :, token].sum()), 18)
        if column.score is None:
            assert column.rank_words == "–"
            assert column.reason
            continue
        variant = RUN.variant(m, k)
        layer = variant.selection.scores[2] if variant else RUN.scores[m][2]
        scores = layer if m == "dropkv" else layer[1:2]
        finite = np.isfinite(scores)
        assert column.of == finite.sum()
        assert column.rank == 1 + (scores[finite] > column.score).sum()
        chosen = (kept & ~protected)[2] if m == "dropkv" else (kept & ~protected)[2, 1]
        assert column.places == chosen.sum()
        for neighbour, state in ((column.nearest_kept, True), (column.nearest_evicted, False)):
            if neighbour:
                assert neighbour.token != token
                assert kept[2, 1, neighbour.token] == state


def test_smallest_budget_lies_between_the_stored_ones():
    card = card_of(RUN, 117, 2, 1, 0.2, METHODS)
    for column in card.columns:
        if column.method == "snapkv":
            continue  # a rank tells it exactly
        shares = sorted({*RUN.stops, *RUN.budgets})
        here = [s for s in shares if RUN.at(column.method, s).kept.mask()[2, 1, 117]]
        half = [s for s in shares if RUN.at(column.method, s).kept.mask()[:, :, 117].sum() >= 9]
        assert column.smallest_here == min(here)
        assert column.smallest_half == min(half)
        before = shares[shares.index(min(here)) - 1]
        assert column.smallest_words.startswith(f"between {before:.0%} and {min(here):.0%} here, ")


def test_smallest_budget_follows_exactly_from_a_rank():
    """Rank 60 behind 32 tokens kept by rule takes 92 tokens: 31% of 300, not the next stop, 40%."""
    c = synthetic_comparison(n=300)
    order = np.argsort(-c.variant("snapkv", 0.5).selection.scores[2][1, : 300 - 32], kind="stable")
    token = int(order[59])
    for k in (0.5, 0.4):  # decoded, and a stop
        column = card_of(c, token, 2, 1, k, ["snapkv"]).columns[0]
        assert column.rank == 60
        assert column.smallest_here == pytest.approx(92 / 300)
        assert column.smallest_words.startswith("31% (92 tokens) here, ")
        kept = [bool(c.at("snapkv", s).kept.token(token)[2, 1]) for s in c.stops]
        assert kept == [int(s * 300 + 1e-9) >= 92 for s in c.stops]


def test_no_exact_claim_where_what_is_kept_by_rule_shrinks():
    """At 15% fewer tokens are kept by rule than at 50%: the rank there says nothing of 15%."""
    c = synthetic_comparison(n=300)
    order = np.argsort(-c.variant("snapkv", 0.5).selection.scores[2][1, : 300 - 32], kind="stable")
    words = card_of(c, int(order[18]), 2, 1, 0.5, ["snapkv"]).columns[0].smallest_words
    assert words.startswith("between 10% and 15% here, ")


def test_ties_follow_the_selection_order():
    c = synthetic_comparison(methods=("dropkv",))
    c.variant("dropkv", 0.2).selection.scores[2][:, :200] = 1.0
    ranks = [card_of(c, t, 2, h, 0.2, ["dropkv"]).columns[0].rank for t, h in ((0, 0), (0, 1), (1, 0))]
    assert ranks[1] == ranks[0] + 1
    assert ranks[2] == ranks[0] + 3  # earlier position first, then lower KV head


def test_pooling_is_told_where_a_neighbour_raised_the_score():
    c = synthetic_comparison(methods=("snapkv",))
    selection = c.variant("snapkv", 0.2).selection
    raw, pooled = selection.scores_raw[2], selection.scores[2]
    raw[1, 95:110] = 0.1
    raw[1, 102] = 9
    pooled[1, 99:106] = 9
    words = {t: card_of(c, t, 2, 1, 0.2, ["snapkv"]).columns[0].pooling_words for t in (100, 102)}
    assert words == {100: "raised by token +2 (pool 7)", 102: ""}


def test_margin_words():
    column = card_of(RUN, 117, 2, 1, 0.2, ["snapkv"]).columns[0]
    ratio = column.score / column.cutoff
    assert column.margin_words.startswith("score is ")
    assert column.margin_words.endswith(" x the cut-off")
    assert float(column.margin_words.split()[2]) == pytest.approx(ratio, rel=0.01)
    c = synthetic_comparison(methods=("snapkv",))
    for layer in c.variant("snapkv", 0.2).selection.scores:
        layer -= 100
    assert card_of(c, 117, 2, 1, 0.2, ["snapkv"]).columns[0].margin_words.endswith("the cut-off")
    assert " x " not in card_of(c, 117, 2, 1, 0.2, ["snapkv"]).columns[0].margin_words


def test_a_range_shows_its_least_held_token():
    held = RUN.at("snapkv", 0.2).kept.mask()[:, :, 100:140].sum((0, 1))
    assert why_card(RUN, (100, 140), 2, 1, 0.2, METHODS).token == 100 + held.argmin()
    with pytest.raises(InputError, match="token between 0 and 299"):
        card_of(RUN, 300, 2, 1, 0.2, METHODS)


def test_held_line_and_marks():
    card = card_of(RUN, RUN.marks[0].start, 2, 1, 0.2, ["snapkv", "dropkv"])
    a, b = card.held["snapkv"][0], card.held["dropkv"][0]
    assert card.held_line == f"SnapKV kept it in {a} of 18 KV heads, DropKV in {b}"
    assert card.marks == ["M1"]


def test_outside_and_unscored_are_told_apart():
    c = synthetic_comparison(windows=(101,) + (None,) * 5)
    c.variant("snapkv", 0.2).selection.scores[1][0, 60] = np.nan
    with kept_changed(c, "snapkv", 0.2) as mask:
        mask[1, 0, 60] = False
    assert card_of(c, 60, 0, 0, 0.2, ["snapkv"]).columns[0].state == "outside"
    assert card_of(c, 60, 1, 0, 0.2, ["snapkv"]).columns[0].state == "unscored"


def test_default_head():
    c = synthetic_comparison()
    span = (c.marks[0].start, c.marks[0].end)
    a = c.at("snapkv", 0.2).kept.mask()[:, :, slice(*span)].sum(-1).astype(int)
    b = c.at("dropkv", 0.2).kept.mask()[:, :, slice(*span)].sum(-1).astype(int)
    layer, head = default_head(c, "snapkv", "dropkv", 0.2, span)
    assert abs(a - b)[layer, head] == abs(a - b).max()
    layer, head = default_head(c, "snapkv", "dropkv", 0.2, None)
    gap = abs(c.variant("snapkv", 0.2).output_error - c.variant("dropkv", 0.2).output_error)
    assert gap[layer, 2 * head : 2 * head + 2].max() == gap.max()
    layer, head = default_head(c, "snapkv", None, 0.2, span)
    assert a[layer, head] == a.min()
    assert default_head(c, "snapkv", "dropkv", 0.12, None) == (0, 0)


def test_minimap():
    table = why_minimap_table(RUN, (117, 118), "snapkv", "dropkv", 0.2, 2, 1)
    a, b = RUN.at("snapkv", 0.2).kept.mask()[:, :, 117], RUN.at("dropkv", 0.2).kept.mask()[:, :, 117]
    assert np.array_equal(table.code == 1, a & b)
    assert np.array_equal(table.code == 2, a & ~b)
    assert np.array_equal(table.code == 3, b & ~a)
    figure = why_minimap_figure(table)
    assert figure.layout.shapes[0].line.color == "role:selection"
    assert figure.layout.xaxis.title.text == "KV head"


@pytest.mark.parametrize(("n", "kind"), [(500, "scatter"), (2500, "scattergl")])
def test_dots_move_to_webgl(n, kind):
    c = synthetic_comparison(n=n, L=1, methods=("snapkv",), budgets=(0.2,))
    figure = why_figure(why_table(c, 0, 0, "snapkv", None, 0.2))
    assert {t.type for t in figure.data if t.hoverinfo == "none"} == {kind}
    assert sum(len(t.x) for t in figure.data if t.hoverinfo == "none") == n


def test_very_long_texts_become_a_density_with_extremes():
    c = synthetic_comparison(n=25_000, L=1, methods=("snapkv",), budgets=(0.2,))
    table = why_table(c, 0, 0, "snapkv", None, 0.2)
    figure = why_figure(table)
    assert figure.data[0].type == "heatmap"
    assert figure.data[0].z.shape == (200, 200)
    dots = np.concatenate(
        [t.customdata for t in figure.data if t.hoverinfo == "none" and t.type == "scatter"]
    )
    assert 500 <= len(dots) <= 1005
    assert int(table.token[table.x.argmax()]) in dots
    assert set(range(c.marks[0].start, c.marks[0].end)) <= set(dots.tolist())
    assert len(figure.to_json()) < 200_000


def test_scores_not_stored_at_a_stop_are_not_called_unscored():
    """At 2% only 3 tokens are kept by rule, but the stored scores leave out the last 32."""
    column = card_of(RUN, 280, 2, 1, 0.02, ["snapkv"]).columns[0]
    assert column.state == "evicted"
    assert "was not stored" in column.reason


def test_both_axes_say_at_which_queries_they_were_read():
    c = synthetic_comparison()
    figure = why_figure(why_table(c, 2, 1, "snapkv", None, 0.2))
    titles = [figure.layout[name].title.text.replace("<br>", " ") for name in ("xaxis", "yaxis")]
    assert titles[0].startswith("attention of the last 32 prompt queries")
    assert titles[1].startswith("effect at the answer's queries")
    assert "High and left: little attended, yet it matters" not in figure.layout.meta["guide"]
    assert "before the answer" in figure.layout.meta["guide"]
    later = synthetic_comparison(protocol="question-agnostic")
    names = dict(axis_choices(later, 0.2))
    assert names["attention"].startswith("attention of the last 32 document queries")


def test_attention_at_the_answers_queries_comes_first_where_it_was_measured():
    c = synthetic_comparison()
    c.lenses["attention_answer"] = c.lenses["effect"] * 2
    table = why_table(c, 2, 1, "snapkv", None, 0.2)
    assert table.x_name == "attention_answer"
    assert axis_choices(c, 0.2)[0][0] == "attention_answer"
    figure = why_figure(table)
    assert figure.layout.xaxis.title.text.replace("<br>", " ").startswith("attention at the answer's queries")
    assert figure.layout.meta["guide"].endswith("High and left: little attended, yet it matters.")
    assert table.correlation == pytest.approx(1)


def test_a_run_that_was_stopped_says_why_there_are_no_dots():
    c = dataclasses.replace(synthetic_comparison(), lenses={})
    with pytest.raises(InputError, match="made without measuring"):
        why_table(c, 2, 1, "snapkv", None, 0.2)
    c.variants[-1].finished = "cancelled"
    with pytest.raises(InputError, match="This run was stopped before attention and effects were measured"):
        why_table(c, 2, 1, "snapkv", None, 0.2)
