"""Tokens and numbers as they are written."""

import dataclasses
import html
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import synthetic_comparison

from kvviz.results import words as text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.2, "20%"),
        (0.125, "13%"),
        (0.015, "1.5%"),
        (0.0199, "2%"),
        (0.02, "2%"),
        (0.0, "0%"),
        (0.0001, "<0.1%"),
        (0.9999, ">99%"),
        (1.0, "100%"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_shares(value, shown):
    assert text.share(value) == shown


def test_other_numbers():
    assert text.count(1024) == "1,024"
    assert text.mb(47_244_000) == "47.2 MB"
    assert text.kl(0.2134) == "0.21 nats/token"
    assert text.kl(0.0004) == "<0.001 nats/token"
    assert text.kl_number(1.44) == "1.4"
    assert text.kl_number(12.6) == "13"
    assert text.relative_error(0.18) == "18%"
    assert text.relative_error(10.01) == ">1,000%"
    assert text.relative_error(float("nan")) == "–"
    assert text.score(0.0012345) == "0.00123"
    assert text.score(123.45) == "123"
    assert text.seconds(0.83) == "0.8 s"
    assert text.share_of(3, 18) == "3 of 18"
    assert text.share_of(20, 90) == "22%"


@given(st.floats(1e-3, 1e5))
def test_kl_has_two_significant_digits(x):
    shown = float(text.kl_number(x).replace(",", ""))
    assert shown == pytest.approx(x, rel=0.051)


@given(st.floats(0, 1))
def test_a_share_never_claims_all_or_nothing_falsely(x):
    shown = text.share(x)
    assert (shown == "0%") == (x == 0)
    if shown == "100%":
        assert x == pytest.approx(1)


@given(st.text(max_size=60))
def test_any_token_is_inert_and_readable(token):
    shown = text.visible(token)
    assert "<" not in shown
    assert ">" not in shown
    assert "$" not in shown
    plain = html.unescape(shown)
    assert plain == text.plain(token)
    assert len(plain) <= 20
    assert not any(unicodedata.category(ch)[0] in "CZ" for ch in plain)
    plain.encode("utf-8")  # a lone surrogate would break every file and message


def test_whitespace_is_visible_and_long_tokens_are_cut():
    assert text.plain(" a\n\t") == "·a⏎⇥"
    assert text.plain("\u202eevil\x00\ud800") == "▯evil▯▯"
    assert text.plain("x" * 21) == "x" * 19 + "…"
    assert text.visible("<s>") == "&lt;s&gt;"


def test_a_budget_is_three_figures(run):
    said = "20% kept · 60 tokens per KV head · 0.1 of 0.7 MB after reading, +2.3 kB a token"
    assert text.budget_triple(run, "snapkv", 0.2) == said
    assert text.budget_triple(run, "snapkv", 0.01).startswith("1% kept · 3 tokens per KV head")
    assert text.budget_triple(run, "snapkv", 30).startswith("10% kept · 30 tokens per KV head")


def test_uneven_heads_give_average_and_range(run):
    counts = run.at("dropkv", 0.2).kept.mask().sum(-1)
    said = f"60 on average ({counts.min()} to {counts.max()}) tokens per KV head"
    assert said in text.budget_triple(run, "dropkv", 0.2)


def test_bytes_between_decoded_budgets_follow_the_entries(run):
    kept = run.at("snapkv", 0.3).kept.mask()
    assert text.kept_bytes(run, "snapkv", 0.3) == pytest.approx(run.bytes_full * kept.mean())
    assert text.kept_bytes(run, "snapkv", 0.12) is None


def test_names_of_budgets():
    assert text.budget_name(0.1) == "10%"
    assert text.budget_name(102) == "102 tokens"
    assert text.budget_name(1) == "1 token"
    assert text.budget_name(1.0) == "100%"
    assert text.place(7, 1, 412) == "layer 7, KV head 1, token 412"


def test_two_variations_of_one_method_are_told_apart():
    c = synthetic_comparison()
    for v in c.variants:
        if v.method == "dropkv":
            v.method, v.label = "snapkv:window=16", "SnapKV"
    assert text.label(c, "snapkv:window=16") == "SnapKV (window=16)"
    assert text.label(c, "snapkv") == "SnapKV"
    assert text.label(c, "streaming_llm") == "StreamingLLM"


def labelled(*pairs):
    """A run of these (method, label) pairs."""
    c = synthetic_comparison(methods=("snapkv",), budgets=(0.2,))
    one = c.variants[0]
    c.variants[:] = [dataclasses.replace(one, method=m, label=label) for m, label in pairs]
    return text.labels(c)


def test_a_method_is_called_by_its_own_name_whatever_signs_stand_in_it():
    c = synthetic_comparison()
    assert text.plain_label(c, "snapkv") == "SnapKV"
    for v in c.variants:
        v.label = "Sink (mine) with care (window=16)" if v.method == "snapkv" else v.label
    assert text.plain_label(c, "snapkv") == "Sink"  # all that a label can give
    c.settings["methods"] = {"snapkv": {"label": "Sink (mine) with care"}}
    assert text.plain_label(c, "snapkv") == "Sink (mine) with care"
    c.variants[0].method = "snapkv+edit1"
    assert text.plain_label(c, "snapkv+edit1") == "Sink (mine) with care"


def test_methods_keep_a_short_label_that_fits():
    assert labelled(("snapkv", "SnapKV"), ("dropkv:window=16", "DropKV (window=16)")) == {
        "snapkv": "SnapKV",
        "dropkv:window=16": "DropKV (window=16)",
    }


def test_long_labels_say_only_what_sets_them_apart():
    shared = "allocation=global,pool=5,pool_kind=max,window=16"
    methods = [f"snapkv:group={g},{shared}" for g in ("max", "mean")]
    made = labelled(*((m, f"SnapKV with global ({m.partition(':')[2]})") for m in methods))
    assert list(made.values()) == ["SnapKV (group=max)", "SnapKV (group=mean)"]


def test_labels_that_would_be_long_are_numbered():
    options = [f"allocation=global,group=max,pool={p},pool_kind=max,window={p}" for p in (5, 7, 9)]
    made = labelled(("snapkv", "SnapKV"), *((f"snapkv:{o}", f"SnapKV with global ({o})") for o in options))
    assert list(made.values()) == ["SnapKV", "SnapKV 2", "SnapKV 3", "SnapKV 4"]
    assert all(len(name) <= 30 for name in made.values())


def test_every_label_is_short_and_its_own():
    pairs = [("snapkv", "SnapKV"), ("snapkv:window=16", "SnapKV"), ("snapkv:window=32", "SnapKV")]
    pairs += [("snapkv+edit1", "SnapKV + edit 1"), ("dropkv", "D" * 80), ("keydiff", "D" * 80)]
    made = labelled(*pairs)
    assert len(set(made.values())) == len(pairs)
    assert all(len(name) <= 30 for name in made.values())
    assert made["snapkv:window=16"] == "SnapKV (window=16)"


def test_entries_of_sliding_layers_are_beside_what_the_full_cache_holds():
    """Half of 300 tokens may be 84% of what there is, where most layers hold but the last 40."""
    c = synthetic_comparison(budgets=(0.5,))
    windows = tuple(41 if layer % 3 else None for layer in range(6))
    c = dataclasses.replace(c, model=dataclasses.replace(c.model, windows=windows))
    held = (2 * 300 + 4 * 40) / 6
    said = text.entries_words(c, "snapkv", 0.5)
    assert said.endswith(f" per KV head, of {text.count(held)} that the full cache holds")
    assert text.entries_words(c, "full", 1.0).endswith(f", of {text.count(held)} that the full cache holds")
