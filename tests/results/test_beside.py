"""Two runs beside each other: aligned by characters, whatever their tokens are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.beside import NONE, beside_figure, beside_table
from kvviz.results.beside import _pairs, agreement_words, aligned, kept_shares

OTHER = 2  # characters a token of the second model


def other_tokens(document, **changes):
    """A run on this document by a model whose tokens are two characters each."""
    spans = [(i, min(i + OTHER, len(document))) for i in range(0, len(document), OTHER)]
    n = len(spans) + 4
    c = synthetic_comparison(n=n, L=3, Hq=4, Hkv=2, marked=False, **changes)
    prompt = replace(
        c.prompt, document=document, tokens=["<s>", *(document[s:e] for s, e in spans), *["?"] * 3],
        offsets=[None, *spans, None, None, None], input_ids=np.arange(n), n_compressible=n,
        document_span=(1, n - 3), question_span=(n - 3, n),
    )  # fmt: skip
    return replace(c, prompt=prompt)


@pytest.fixture(scope="module")
def one():
    return synthetic_comparison(n=300, L=4)


def _end(prompt, offset):
    """A token's last character, the white space behind a word left out."""
    s, e = offset
    return s + (len(prompt.document[s:e].rstrip()) or e - s) - 1


@pytest.mark.parametrize("grain", ["word", "sentence", "paragraph"])
def test_passages_are_the_same_characters_in_both_runs(one, grain):
    two = other_tokens(one.prompt.document)
    found = aligned(one.prompt, two.prompt, grain)
    assert len(found.characters) and (found.characters == found.other).all()
    for (s, e), a, b in zip(found.characters.tolist(), found.one.tolist(), found.two.tolist()):
        for prompt, (first, last) in ((one.prompt, a), (two.prompt, b)):
            ends = [_end(prompt, o) for o in prompt.offsets[first:last]]
            assert all(s <= end < e for end in ends)
            around = [prompt.offsets[t] for t in (first - 1, last) if 0 <= t < prompt.n_compressible]
            assert not any(o and s <= _end(prompt, o) < e for o in around)


def test_shares_are_those_of_the_passages_entries(one):
    found = aligned(one.prompt, other_tokens(one.prompt.document).prompt, "sentence")
    shares = kept_shares(one, "dropkv", 0.2, found.one)
    mask = one.need("dropkv", 0.2).kept.mask()
    for (s, e), share in zip(found.one.tolist(), shares):
        assert share == pytest.approx(mask[:, :, s:e].mean())


def test_texts_that_differ_are_paired_by_equal_sentences():
    first = "Alpha one. Beta two. Gamma three. Delta four."
    second = "New start. Alpha one.  Gamma three. Beta 2. Delta four. End."
    a, b = other_tokens(first).prompt, other_tokens(second).prompt
    found = aligned(a, b, "sentence")
    pairs = [(first[s:e], second[t:u]) for (s, e), (t, u) in zip(found.characters, found.other)]
    assert pairs == [(w, w) for w in ("Alpha one.", "Gamma three.", "Delta four.")]
    words = aligned(a, b, "word")
    assert [first[s:e] for s, e in words.characters] == [second[s:e] for s, e in words.other]
    with pytest.raises(InputError, match="no sentence in common"):
        aligned(a, other_tokens("Something else.").prompt, "sentence")


@settings(max_examples=60, deadline=None)
@given(*[st.lists(st.sampled_from("abcd"), max_size=7)] * 2)
def test_pairs_of_equal_sentences_rise_in_both_texts(a, b):
    pairs = _pairs(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in zip(pairs, pairs[1:]))
    if a == b:
        assert pairs == [(i, i) for i in range(len(a))]


def test_long_texts_of_equal_lines_are_aligned_at_once():
    line = "The same again. "
    assert len(_pairs([line] * 50_000, [line] * 49_000)) == 49_000  # by all pairs it would take an hour


def test_a_stretch_that_the_second_text_has_not_is_no_share():
    first = "Alpha one. Beta two."
    one, two = other_tokens(first), other_tokens("Beta two. And something quite different.")
    rows = [("1", "snapkv", 0.5, "1"), ("2", "snapkv", 0.5, "2")]
    table = beside_table(one, two, rows, "sentence")
    figure = beside_figure(table, 20)
    code = np.asarray(figure.data[0].z)
    assert (code[:, :10] == NONE).all() and (code[:, 12:] != NONE).all()
    assert figure.layout.meta["columns"][:10] == [-1] * 10


def test_agreement_is_a_rank_correlation_or_too_few():
    x = np.array([0.1, 0.2, 0.3, 0.9])
    assert "rank correlation 1.00" in agreement_words(x, x**2, "sentence")
    assert "Too few" in agreement_words(x[:2], x[:2], "sentence")
