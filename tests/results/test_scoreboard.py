"""Estimates, choices and claims from made-up tables of a sweep."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from kvviz.cli import main
from kvviz.results.choose import choose
from kvviz.results.claims import claims, correction
from kvviz.results.scoreboard import paired, scoreboard
from kvviz.results.study import COLUMNS, table_files


def made(n=20, methods=None, failed=(), knew=(), budget=0.05, **columns):
    """A table of n items: {method: share of items still right}; the full cache fails on `failed`."""
    rows = []
    for i in range(n):
        for method, right in {"full": 1.0, **(methods or {})}.items():
            full = method == "full"
            is_right = i not in failed and i < right * n
            rows.append(dict.fromkeys(COLUMNS) | {
                "model": "m", "protocol": "question-aware", "item": f"i{i}", "document": f"d{i}", "task": "t",
                "method": method, "budget": 1.0 if full else budget, "share": 1.0 if full else budget,
                "budget_name": "100%" if full else f"{budget:.0%}", "metric": "contains",
                "verdict": "right" if is_right else "wrong", "score": float(is_right), "reason": "",
                "empty": False, "knew": "without the document" if i in knew else "",
                "kl": 0.0 if full else 2 - right + 0.01 * i, "answer": "x",
                **{name: None if full else value(method, i) for name, value in columns.items()},
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_items_the_full_cache_fails_on_are_no_methods_loss():
    (line,) = scoreboard(made(20, {"snapkv": 0.5}, failed=range(4), knew=(4, 5)), "right")
    assert line.estimate.n == 14 and line.estimate.value == pytest.approx(4 / 14)
    assert (line.full_failed, line.knew) == (4, 2)
    (kl,) = scoreboard(made(20, {"snapkv": 0.5}, failed=range(4)), "kl")
    assert kl.estimate.n == 20  # KL needs no right answer


def test_all_of_a_few_documents_is_no_certainty():
    table = made(8, {"snapkv": 0.0, "criticalkv": 1.0})
    none, every = (line.estimate for line in scoreboard(table, "score"))
    assert (none.value, none.low, none.high) == (0, 0, pytest.approx(0.324, abs=1e-3))  # Wilson's of 0 of 8
    assert (every.value, every.low, every.high) == (1, pytest.approx(0.676, abs=1e-3), 1)
    asked_twice = pd.concat([table, table.assign(item=table["item"] + "b")])  # the same eight documents
    line = scoreboard(asked_twice, "score")[0]
    assert line.estimate.n == 16 and line.estimate.high == none.high
    assert math.isnan(scoreboard(made(5, {"snapkv": 0.0}), "score")[0].estimate.high)


def test_scores_that_judge_nobody_count_wherever_the_full_cache_has_any():
    """Summaries are alike or not, none is right."""
    table = made(10, {"snapkv": 1.0}).assign(metric="rouge_l", verdict="", score=0.25)
    table.loc[(table.method == "full") & (table["item"] == "i3"), "score"] = 0.0
    (line,) = scoreboard(table, "score")
    assert (line.estimate.n, line.estimate.value, line.full_failed) == (9, 0.25, 1)
    assert paired(table.assign(budget_name="5%"), "snapkv", "snapkv", "score").difference.n == 9
    assert scoreboard(table, "right")[0].estimate.n == 0


def test_pairs_are_of_the_same_items():
    table = made(20, {"snapkv": 0.3, "criticalkv": 0.9})
    found = paired(table[table["item"] != "i3"], "snapkv", "criticalkv", "right")
    assert (found.a_ahead, found.b_ahead) == (0, 12) and found.p == pytest.approx(2 / 2**12)
    lower = paired(table, "snapkv", "criticalkv", "kl")
    assert lower.difference.value == pytest.approx(-0.6)
    assert lower.verdict("snapkv", "criticalkv", better="lower") == "criticalkv is ahead"


def test_the_cheapest_method_that_keeps_the_quality():
    small, large = made(60, {"a": 0.5, "b": 1.0}, budget=0.05), made(60, {"a": 1.0, "b": 1.0}, budget=0.2)
    table = pd.concat([small, large[large.method != "full"]])
    (found,) = choose(table, 0.9)
    assert (found["chosen"]["method"], found["chosen"]["budget"]) == ("b", "5%")
    assert found["chosen"]["n"] == 60 and found["chosen"]["interval"][0] >= 0.9
    (few,) = choose(made(8, {"b": 1.0}), 0.9)  # 8 of 8 still allows 68 %
    assert few["chosen"] is None and few["sentence"].startswith("Too few to tell: b at 5%")
    (none,) = choose(made(60, {"a": 0.5}), 0.9)
    assert none["sentence"].startswith("No method in this table keeps 90%: the best, a at 5%")
    (moot,) = choose(made(5, {"a": 1.0}, failed=range(5)), 0.9)
    assert moot["chosen"] is None and moot["sentence"].startswith("Nothing can be said")


def verdicts(table):
    return {(row["paper"].split()[0], row["claim"]): row for row in claims(table)}


def of(rows, paper, start):
    return next(row for (p, claim), row in rows.items() if p == paper and claim.startswith(start))


@pytest.mark.parametrize(("share", "verdict"), [(0.97, "holds"), (0.6, "does not hold")])
def test_the_share_of_heads_is_held_against_the_papers(share, verdict):
    noise = np.random.default_rng(0).uniform(-0.02, 0.02, 30)
    table = made(30, {"snapkv": 0.5, "criticalkv": 0.5},
                 heads_improved=lambda m, i: share + noise[i] if m == "criticalkv" else None)  # fmt: skip
    row = of(verdicts(table), "CriticalKV", "Lower output")
    assert row["verdict"] == verdict and row["n"] == 30
    assert row["interval"][0] < row["value"] < row["interval"][1]
    assert row["value"] == pytest.approx(share + noise.mean())


def test_a_gain_over_the_best_baseline_is_paired_and_may_be_too_small_to_tell():
    methods = {"snapkv": 0.2, "tova": 0.5, "laprox": 0.9, "indexmem": 0.55}
    rows = verdicts(made(40, methods))
    assert of(rows, "LaProx", "At 5 %")["verdict"] == "holds"
    assert "laprox minus tova" in of(rows, "LaProx", "At 5 %")["reason"]
    row = of(rows, "IndexMem", "Better")
    assert row["verdict"] == "cannot be tested here" and "Too few to tell" in row["reason"]
    assert of(rows, "DropKV", "Better")["reason"].startswith("The table has no dropkv")
    worse = verdicts(made(40, {"snapkv": 0.9, "laprox": 0.3}))
    assert of(worse, "LaProx", "At 5 %")["verdict"] == "does not hold"
    halved = verdicts(made(40, {"snapkv": 0.2, "criticalkv": 0.9}))
    assert of(halved, "CriticalKV", "Less than half")["verdict"] == "holds"


def test_claims_are_judged_together():
    """0.97 against 0.92 is just told alone; among claims about four models it is not."""
    noise = np.random.default_rng(0).normal(0, 0.115, 30)
    one = made(30, {"snapkv": 0.5, "criticalkv": 0.5},
               heads_improved=lambda m, i: 0.97 + noise[i] if m == "criticalkv" else None)  # fmt: skip
    alone = of(verdicts(one), "CriticalKV", "Lower output")
    four = claims(pd.concat([one.assign(model=f"m{k}") for k in range(4)]))
    together = [row for row in four if row["claim"] == alone["claim"]]
    assert 0.005 < alone["p"] < 0.05 and alone["verdict"] == "holds"
    for row in together:
        assert row["interval"] == alone["interval"] and row["p"] > 0.05
        assert row["verdict"] == "cannot be tested here" and "among so many claims" in row["reason"]
    assert "comparisons were made" in correction(four) and "Holm" in correction(four)


def test_two_items_decide_no_claim():
    rows = claims(made(2, {"snapkv": 1.0, "criticalkv": 0.0, "laprox": 0.0},
                       heads_improved=lambda m, i: 0.1))  # fmt: skip
    assert {row["verdict"] for row in rows} == {"cannot be tested here"}
    heads = rows[0]
    assert heads["value"] == pytest.approx(0.1) and heads["interval"] == [None, None]
    assert "Too few items for an interval" in heads["reason"]


def test_without_scores_a_gain_is_one_of_kl():
    table = made(40, {"snapkv": 0.2, "laprox": 0.9}).assign(verdict="", score=math.nan, knew=None)
    row = of(verdicts(table), "LaProx", "At 5 %")
    assert row["verdict"] == "holds" and row["value"] == pytest.approx(-0.7) and "KL" in row["reason"]


def test_the_commands_read_the_folder_of_a_sweep(tmp_path, capsys):
    table = made(40, {"snapkv": 0.2, "laprox": 0.9})
    for name, data in table_files(table.astype(object).where(table.notna(), None).to_dict("records")).items():
        (tmp_path / name).write_bytes(data)
    out = tmp_path / "claims.json"
    assert main(["claims", "--table", str(tmp_path), "--json", str(out)]) == 0
    saved = json.loads(out.read_text())
    written = saved["claims"]
    assert written == claims(table)
    assert {"paper", "claim", "protocol", "n", "interval", "value", "verdict", "reason"} <= set(written[0])
    said = capsys.readouterr().out
    assert "cannot be tested here" in said and "corrected p" in said
    assert saved["correction"] == correction(written) and said.rstrip().endswith(saved["correction"])
    assert main(["choose", str(tmp_path), "--quality", "0.7"]) == 0
    assert "laprox at 5%" in capsys.readouterr().out
    assert main(["claims", str(tmp_path / "nowhere")]) == 2
    assert "give the folder that `kvviz sweep` wrote" in capsys.readouterr().err


def test_versions_of_criticalkv_are_claims_of_their_own():
    names = ["snapkv", "criticalkv", "criticalkv:epsilon=0", "criticalkv:stage1=0.8"]
    shares = {"criticalkv": 0.2, "criticalkv:epsilon=0": 0.97, "criticalkv:stage1=0.8": 0.5}
    noise = np.random.default_rng(1)
    table = made(30, dict.fromkeys(names, 0.5),
                 heads_improved=lambda m, i: shares.get(m, np.nan) + noise.uniform(-0.02, 0.02))  # fmt: skip
    found = [row for row in claims(table) if "perturbation" in row["claim"]]
    assert [row["verdict"] for row in found] == [
        "does not hold", "holds", "cannot be tested here", "cannot be tested here", "does not hold",
    ]  # fmt: skip
    assert "no criticalkv:epsilon=0.01" in found[2]["reason"] and "criticalkv:stage1=0" in found[3]["reason"]


@pytest.mark.parametrize(("ratio", "verdict"), [(1.2, "holds"), (3.0, "does not hold")])
def test_sets_found_by_brute_force_are_held_against_a_constant(ratio, verdict):
    head = {"model": "m", "protocol": "question-aware", "heads": 10, "attention_ratio": 2.0, "cone": 0.6}
    sets = [head | {"document": f"d{i}", "ratio": ratio + 0.01 * i} for i in range(12)]
    row = of(verdicts_with(made(20, {"snapkv": 0.5}), sets), "DropKV", "Single-token")
    assert row["verdict"] == verdict and row["interval"][0] < row["value"] < row["interval"][1]
    assert "120 heads" in row["reason"] and "60%" in row["reason"]
    others = [row | {"model": "x"} for row in sets]
    other = of(verdicts_with(made(20, {"snapkv": 0.5}), others), "DropKV", "Single-token")
    assert other["verdict"] == "cannot be tested here" and "--best-sets" in other["reason"]


def verdicts_with(table, sets):
    return {(row["paper"].split()[0], row["claim"]): row for row in claims(table, sets)}
