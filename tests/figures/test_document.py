"""The document: counts against brute force, classes, characters of several tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import kept_changed, synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures import document as doc


@pytest.mark.parametrize("colour_by", ["a", "b", "ab"])
@pytest.mark.parametrize(("layer", "head"), [(None, None), (2, None), (2, 1), (None, 1)])
def test_counts_match_the_masks(run, colour_by, layer, head):
    table = doc.document_tokens(run, "snapkv", "dropkv", 0.2, colour_by, layer, head)
    rows = slice(None) if layer is None else [layer]
    columns = slice(None) if head is None else [head]
    a = run.at("snapkv", 0.2).kept.mask()[rows][:, columns].reshape(-1, run.n)
    b = run.at("dropkv", 0.2).kept.mask()[rows][:, columns].reshape(-1, run.n)
    assert np.array_equal(table.held_a, a.sum(0))
    assert np.array_equal(table.held_b, b.sum(0))
    assert np.array_equal(table.only_a, (a & ~b).sum(0))
    assert np.array_equal(table.only_b, (b & ~a).sum(0))
    assert set(table.heads) == {len(a)}
    expected = b if colour_by == "b" else a
    assert np.allclose(table.share, expected.mean(0))


counts = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.sampled_from(["a", "b", "both", "none"]), min_size=n, max_size=n)
    )
)


@given(counts)
def test_class_of_a_token(case):
    heads, kinds = case
    a, b, both = (kinds.count(kind) for kind in ("a", "b", "both"))
    code = doc.CLASSES[doc.classes(*(np.array([x]) for x in (a, b, both)), np.array([heads]))[0]]
    if a != b and 10 * abs(a - b) >= heads:
        assert code == ("a" if a > b else "b")
    else:
        neither = kinds.count("none")
        assert code == ("both" if both >= neither and both > 0 else "neither")


def test_shades_never_claim_all_or_nothing():
    shades = doc.steps(np.array([0, 0.001, 0.4, 0.7, 0.999, 1]))
    assert shades.tolist() == [0, 1, 2, 3, 3, 4]


def test_a_character_of_three_tokens_is_one_glyph():
    c = synthetic_comparison()
    parts = [i for i, token in enumerate(c.prompt.tokens) if token == "🦊"]
    with kept_changed(c, "snapkv", 0.2) as mask:
        mask[:, :, parts] = [True, False, True]
    table = doc.document_tokens(c, "snapkv", None, 0.2)
    glyph = int(np.flatnonzero(table.glyph_parts == 3)[0])
    assert (table.glyph_first[glyph], table.glyph_last[glyph]) == (parts[0], parts[-1])
    assert table.glyph_partial[glyph]
    assert doc.glyph_line(table, glyph) == "2 of 3 parts kept"
    assert table.glyph_parts.sum() == len(c.prompt.tokens)


def test_what_follows_the_text(run):
    table = doc.document_tokens(run, "snapkv", None, 0.2)
    rules = {name: (start, end) for name, start, end in doc.rules(table)}
    assert rules["Question"] == run.prompt.question_span
    assert rules["Window (last 32 tokens, read by SnapKV)"] == (run.n - 32, run.n)
    assert table.part.count("document") == np.subtract(*run.prompt.document_span[::-1])


def test_question_agnostic_tokens_after_n_are_held_by_all():
    c = synthetic_comparison(protocol="question-agnostic")
    table = doc.document_tokens(c, "snapkv", "dropkv", 0.1, "ab")
    assert len(table.tokens) > c.n
    assert (table.held_a[c.n :] == 18).all()
    assert (table.share[c.n :] == 1).all()


def test_sliding_layers_count_inside_their_window_only():
    c = synthetic_comparison(windows=(None,) * 5 + (101,))
    table = doc.document_tokens(c, "snapkv", None, 1.0)
    assert (table.heads[: c.n - 100] == 15).all()
    assert (table.heads[c.n - 100 :] == 18).all()
    assert (table.share == 1).all()


def test_an_unstored_budget_names_its_neighbours(run):
    with pytest.raises(InputError, match="at 12%; nearest are 10% and 15%"):
        doc.document_tokens(run, "snapkv", None, 0.12)


def test_rows_around_a_token(run):
    rows = doc.document_tokens(run, "snapkv", "dropkv", 0.2, "ab").rows(5, around=100)
    assert [row["token"] for row in rows] == [98, 99, 100, 101, 102]
