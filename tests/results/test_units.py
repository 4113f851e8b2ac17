"""Texts seen by word, sentence and paragraph: counts against plain loops."""

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.document import BOTH, CLASSES, by_units, document_tokens
from kvviz.figures.kept import kept_figure, kept_table
from kvviz.figures.versus import versus_table
from kvviz.results.passages import GRAINS, passages
from kvviz.results.units import held_by_b, units


@pytest.fixture(scope="module")
def c():
    return synthetic_comparison(n=300, L=4)


def spans_of(c, grain):
    cut = units(c.prompt, grain)
    return list(zip(cut.starts.tolist(), cut.ends.tolist()))


def test_units_part_the_tokens_and_words_are_words(c):
    for grain in GRAINS:
        spans = spans_of(c, grain)
        assert [s for s, _ in spans] == [0, *(e for _, e in spans[:-1])] and spans[-1][1] == c.n
    sentences = [(p.start, p.end) for p in passages(c.prompt, "sentence")]
    assert spans_of(c, "sentence") == sentences
    words = ["".join(c.prompt.tokens[s:e]).strip() for s, e in spans_of(c, "word")]
    assert "58213" in words  # five tokens
    document = [w for w, (s, _) in zip(words, spans_of(c, "word")) if c.prompt.offsets[s]]
    assert [w for w in document if w] == c.prompt.document.replace("🦊", "🦊" * 3).split()
    with pytest.raises(InputError, match="not by 'page'"):
        units(c.prompt, "page")


@pytest.mark.parametrize("grain", ["word", "sentence", "paragraph"])
@pytest.mark.parametrize("x0, x1, columns", [(0, None, 1500), (0, None, 70), (95, 187, 1500), (95, 187, 40)])
def test_a_map_by_units_shows_each_units_share(c, grain, x0, x1, columns):
    table = kept_table(c, "dropkv", 0.2, x0, x1, columns, grain=grain)
    mask = c.need("dropkv", 0.2).kept.mask()
    share = np.empty((4, c.n))
    for start, end in spans_of(c, grain):
        share[:, start:end] = mask[:, :, start:end].mean(axis=(1, 2))[:, None]
    b = table.bins
    for column in range(len(b.starts)):
        first, last = b.span(column)
        mean = table.by.means[0][:, column] / 3
        np.testing.assert_allclose(mean, share[:, first : last + 1].mean(axis=1))
        start, end = table.by.spans[column]
        middle = (first + last) // 2
        assert (start, end) == next(s for s in spans_of(c, grain) if s[0] <= middle < s[1])
        assert table.by.totals[0][:, column].tolist() == mask[:, :, start:end].sum(axis=(1, 2)).tolist()
    shown = kept_figure(table).layout.meta
    assert shown["chip"].startswith(f"by {grain}") and len(shown["cells"]["units"]) == len(b.starts)


def test_a_whole_unit_of_one_method_is_its_colour(c):
    table = versus_table(c, "snapkv", "dropkv", 0.2, grain="sentence")
    a, b = (c.need(m, 0.2).kept.mask() for m in ("snapkv", "dropkv"))
    for column, (start, end) in enumerate(table.by.spans.tolist()):
        counts = [x[:, :, start:end].sum(axis=(1, 2)) for x in (a & ~b, b & ~a, a & b)]
        assert [t[:, column].tolist() for t in table.by.totals] == [x.tolist() for x in counts]


def test_the_text_by_units_counts_entries_of_the_whole_unit(c):
    plain = document_tokens(c, "snapkv", "dropkv", 0.2, "ab")
    table = by_units(plain, units(c.prompt, "sentence"))
    for start, end in spans_of(c, "sentence"):
        for name in ("held_a", "held_b", "only_a", "only_b", "heads"):
            whole = {int(getattr(plain, name)[start:end].sum())}
            assert set(getattr(table, name)[start:end].tolist()) == whole
        a, b, all_ = (int(getattr(plain, n)[start:end].sum()) for n in ("held_a", "held_b", "heads"))
        if abs(a - b) >= max(0.1 * max(a, b), 0.02 * all_, 1):
            expected = "a" if a > b else "b"
        else:
            expected = "both" if a + b >= all_ else "neither"
        assert {CLASSES[i] for i in table.code[start:end].tolist()} == {expected}
    assert table.code[c.n :].tolist() == [BOTH] * (len(table.code) - c.n)


def test_passages_that_only_b_holds_are_counted_head_by_head(c):
    found = held_by_b(c, "snapkv", "dropkv", 0.2, "word", most=10**6)
    masks = {m: c.need(m, 0.2).kept.mask() for m in ("snapkv", "dropkv")}

    def holding(method, start, end, mask=None):
        mask = masks[method] if mask is None else mask
        return np.mean([[2 * row[start:end].sum() >= end - start for row in layer] for layer in mask])

    expected = {}
    for start, end in spans_of(c, "word"):
        a, b = holding("snapkv", start, end), holding("dropkv", start, end)
        if c.prompt.offsets[start] and b > a:
            expected[start, end] = (round(a, 9), round(b, 9))
    assert {(p.start, p.end): (round(p.a, 9), round(p.b, 9)) for p in found} == expected
    differences = [p.b - p.a for p in found]
    assert differences == sorted(differences, reverse=True)
    for p in found[:5]:
        firsts = []
        for method in ("snapkv", "dropkv"):
            at = [s for s in c.shares(method)
                  if holding(method, p.start, p.end, c.need(method, s).kept.mask()) >= 0.5]  # fmt: skip
            firsts.append(at[0] if at else None)
        assert [p.first_a, p.first_b] == firsts
        assert p.only_b == (p.b >= 0.5 > p.a)
