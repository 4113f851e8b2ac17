"""Budgets and method names: read once, the same wherever they are written."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvviz.errors import InputError
from kvviz.identity import BUDGET_WORDS, Budget, MethodRef, parse_budgets, shown, split_methods


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (1, 1), (128, 128), (1.0, 1.0), (0.2, 0.2), (1e-9, 1e-9), (np.int64(5), 5), (np.uint8(5), 5),
        (np.float32(0.2), 0.2), (np.float64(0.2), 0.2), (np.float16(0.5), 0.5), (Fraction(1, 3), 1 / 3),
        ("1", 1), ("1.0", 1.0), ("0.2", 0.2), (".2", 0.2), ("20%", 0.2), (" 20 % ", 0.2), ("0.5%", 0.005),
        ("0.7%", 0.007), ("100%", 1.0), ("128", 128), ("128t", 128), ("128 tokens", 128), ("1 token", 1),
        ("+7", 7), ("1e-2", 0.01), (Budget(3), 3), (Budget(share=0.3), 0.3),
    ],
)  # fmt: skip
def test_a_budget_is_read(written, value):
    budget = Budget.parse(written)
    assert budget.value == value and type(budget.value) is type(value)


@pytest.mark.parametrize(
    "written",
    [0, -1, 0.0, -0.5, 1.5, 128.0, True, None, [0.5], {}, b"5", np.bool_(True), float("nan"), float("inf"),
     1j, "", "half", "0", "-3", "1.5", "150%", "0%", "nan", "inf", "0,2", "20 percent", "1e999999999%", "９",
     "1_0", "9" * 400],
)  # fmt: skip
def test_what_is_no_budget_is_one_short_sentence(written):
    with pytest.raises(InputError) as error:
        Budget.parse(written)
    assert str(error.value).startswith(f"{BUDGET_WORDS}, not ") and len(str(error.value)) < 200


def test_one_token_and_everything_are_two_budgets():
    one, everything = parse_budgets([1, 1.0])
    assert one != everything and hash(one) != hash(everything)
    assert (one.of(89), everything.of(89)) == (1, 89)
    assert one.share_of(50) == 0.02 and everything.share_of(50) == 1.0


@pytest.mark.parametrize("twice", [[0.5, "50%"], [7, "7 tokens"], [np.float32(0.2), 0.2], ["1.0", 1.0]])
def test_a_budget_chosen_twice_is_named_however_it_is_written(twice):
    with pytest.raises(InputError, match="is chosen twice. Choose each budget once."):
        parse_budgets(twice)


def test_several_budgets_or_one():
    assert [b.value for b in parse_budgets(0.5)] == [0.5]
    assert [b.value for b in parse_budgets("20%")] == [0.2]
    assert [b.value for b in parse_budgets("0.5, 20%,7")] == [0.5, 0.2, 7]
    assert [b.value for b in parse_budgets(np.array([0.5, 0.25]))] == [0.5, 0.25]
    with pytest.raises(InputError, match="not None"):
        parse_budgets(None)


@given(st.one_of(st.integers(1, 10**6), st.floats(1e-12, 1.0)))
def test_what_is_written_is_read_back(value):
    budget = Budget.parse(value)
    assert Budget.parse(str(budget)) == budget


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_a_share_written_in_percent_keeps_as_many_tokens(k, n):
    budget = Budget.parse(min(k, n) / n)
    again = Budget.parse(str(budget))
    assert again.of(n) == budget.of(n)


def test_words():
    assert [str(Budget.parse(b)) for b in (0.2, 0.005, 1.0, 128, 1)] == [
        "20%", "0.5%", "100%", "128 tokens", "1 token"
    ]  # fmt: skip


def test_methods_are_equal_by_method_and_given_options():
    ref = MethodRef.parse("snapkv:window=16,allocation=global")
    assert ref == MethodRef.parse(" snapkv : allocation=global, window=16")
    assert ref != MethodRef.parse("snapkv") and len({ref, MethodRef.parse(str(ref))}) == 1
    assert str(ref) == "snapkv:allocation=global,window=16"
    assert ref.given == {"window": 16, "allocation": "global"}
    assert ref.options_words == "allocation=global, window=16"


def test_option_values_have_a_type():
    ref = MethodRef.parse("x:a=1,b=0.5,c=true,d=none,e=max,f=1e-5")
    assert ref.given == {"a": 1, "b": 0.5, "c": True, "d": None, "e": "max", "f": 1e-5}
    assert MethodRef.parse(str(ref)) == ref


@pytest.mark.parametrize(
    "name", ["snapkv+edit1", "snapkv:window=16+edit12", "tova+control0", "tova+edit", "tova+edit1+edit2"]
)
def test_a_kept_set_changed_by_hand_knows_what_it_was(name):
    ref = MethodRef.parse(name)
    assert str(ref) == name and ref.made and str(ref.base) == name.partition("+")[0]


def test_an_exponent_is_no_edit():
    ref = MethodRef.parse("x:a=1e+5")
    assert ref.made == "" and ref.given == {"a": 1e5}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("snapkv:window", "Write options as name=value"), ("snapkv:=3", "Write options as name=value"),
     ("snapkv:window=1,window=2", "gives window twice"), (3, "A method is named by its id"),
     (object(), "A method is named by its id"), ({"id": "snapkv"}, "A method is named by its id")],
)  # fmt: skip
def test_what_is_no_method_name_is_a_sentence(name, sentence):
    with pytest.raises(InputError, match=sentence):
        MethodRef.parse(name)


def test_a_list_of_methods_keeps_options_with_their_method():
    assert split_methods("snapkv:window=16,allocation=global,tova") == [
        "snapkv:window=16,allocation=global", "tova"
    ]  # fmt: skip
    assert split_methods(" a , b ") == ["a", "b"]


def test_names_need_neither_torch_nor_numpy():
    code = "import sys, kvviz.identity; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Qwen\\Qwen3", "'Qwen\\Qwen3'"), ("a\0\n\u202e\ud800", "'a\\x00\\n\\u202e\\ud800'"), (0.25, "0.25"),
        ("x" * 5000, f"'{'x' * 38}…"), (["a"], "['a']"),
    ],
)  # fmt: skip
def test_a_bad_value_is_said_as_it_was_written(value, said):
    assert shown(value) == said
