"""The registry: every file is listed, every method says what a person needs to know."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvviz.engine.budgets import ALLOCATORS
from kvviz.engine.observers import OBSERVERS
from kvviz.errors import InputError
from kvviz.methods import METHODS, Method, get_method, methods_table, parse_method
from kvviz.options import NUMBER, WHOLE

FOLDER = Path(__import__("kvviz.methods").methods.__file__).parent
SHARED = {"__init__", "own", "spec", "layer", "parts", "removal", "artefacts", "mixing"}

ids = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)


def test_every_file_is_in_the_registry_under_its_own_name():
    files = {f.stem for f in FOLDER.glob("*.py") if not f.stem.startswith("_")} - SHARED
    assert files == {method.id for method in METHODS}
    assert len(METHODS) == len(files)


@ids
def test_says_what_it_is(method):
    module = __import__(f"kvviz.methods.{method.id}", fromlist=["METHOD"])
    assert module.METHOD is method
    assert module.__doc__.strip()
    assert method.paper
    assert method.idea.endswith(".")
    assert method.cost
    assert method.reads
    assert ("[" in module.__doc__ and "reconstructed" in module.__doc__) or not method.reconstructed
    assert "Cost" in module.__doc__


@ids
def test_has_a_test_file_with_a_reference(method):
    assert (Path(__file__).parent / f"test_{method.id}.py").exists()
    module = __import__(f"methods.test_{method.id}", fromlist=["reference"])
    assert callable(module.reference)


@ids
def test_names_others_that_exist(method):
    assert method.allocation in ALLOCATORS
    assert method.needs <= set(OBSERVERS)
    if method.compare_with is not None:
        assert get_method(method.compare_with) is not method


def test_needs_follow_the_options():
    for name in ("caote", "vatp"):
        method = get_method(name)
        assert method.needs_with(method.resolve()) == frozenset()
        assert method.needs_with(method.resolve({"base": "h2o"})) == {"column_sums"}
    assert get_method("h2o").needs_with({}) == {"column_sums"}


@ids
def test_presets_resolve(method):
    for preset, changes in method.presets.items():
        resolved = method.resolve({"preset": preset})
        assert {name: resolved[name] for name in changes} == dict(changes)
        assert resolved["allocation"] in ALLOCATORS


def test_no_pooling_can_be_written_in_a_name():
    method, given = parse_method("snapkv:pool_kind=none")
    assert method.resolve(given)["pool_kind"] == "none"


def test_given_options_go_before_a_preset():
    assert get_method("dropkv").resolve({"preset": "authors", "window": 16})["window"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windw": 3}, "no option 'windw'"),
        ({"preset": "mine"}, "Presets: paper, kvpress"),
        ({"window": 0}, "window is a whole number from 1 to 128, not 0"),
        ({"window": True}, "window is a whole number"),
        ({"pool": 10**9}, "SnapKV: pool is a whole number from 1 to 1,023, not 1000000000"),
        ({"pool_kind": "mean"}, "pool_kind is one of avg, max, none"),
        ({"group": "median"}, "group is one of mean, max, sum"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        get_method("snapkv").resolve(options)


def test_an_unknown_method_is_refused_with_the_one_meant_or_all_there_are():
    with pytest.raises(InputError, match="Did you mean snapkv"):
        get_method("snap")
    with pytest.raises(InputError, match="Choose from: random, streaming_llm"):
        get_method("xyz")
    assert get_method("SnapKV") is get_method("SNAPKV") is get_method("snapkv")


def test_table_has_one_row_a_method():
    lines = methods_table().splitlines()
    assert len(lines) == len(METHODS) + 2
    assert len({line.count("|") for line in lines}) == 1
    for method, line in zip(METHODS, lines[2:]):
        assert line.startswith(f"| `{method.id}` |")
        assert method.idea.rstrip(".") in line


@pytest.mark.parametrize(
    "name, options",
    [("dropkv", {"match_dtype": "maybe"}), ("h2o", {"normalised": 1}), ("snapkv", {"normalise": 0.5})],
)
def test_a_switch_is_true_or_false(name, options):
    with pytest.raises(InputError, match="is true or false, not"):
        get_method(name).resolve(options)


EVERY_OPTION = [(m, row) for m in METHODS for row in m.all_rows().values()]
NUMBERS = [(m, row) for m, row in EVERY_OPTION if row.kind in (WHOLE, NUMBER)]
NONSENSE = [float("nan"), float("inf"), -float("inf"), 10**30, -(10**30), "abc", True, [1], {}, 1 + 2j, b"1"]


def name_of(value):
    return value.id if isinstance(value, Method) else value.name


def allowing(method, row, value):
    """The option with an allocation that reads it."""
    readers = [a.id for a in ALLOCATORS.values() if row.name in {r.name for r in a.rows}]
    chosen = {} if not readers or method.allocation in readers else {"allocation": readers[0]}
    return {**chosen, row.name: value}


@pytest.mark.parametrize(("method", "row"), NUMBERS, ids=name_of)
def test_every_number_has_bounds_that_are_kept(method, row):
    assert math.isfinite(row.low) and math.isfinite(row.high)
    assert row.low <= row.high
    for value in (row.low, row.high):
        assert method.resolve(allowing(method, row, value))[row.name] == value
    for value in (*NONSENSE, row.low - 1, row.high + 1):
        with pytest.raises(InputError, match=f"{method.label}: {row.name} is a .*number from .* to .*, "):
            method.resolve(allowing(method, row, value))


@pytest.mark.parametrize(("method", "row"), EVERY_OPTION, ids=name_of)
def test_every_option_refuses_what_it_is_not_and_says_what_it_does(method, row):
    assert row.help.endswith(".")
    for value in (object(), "no such word", [], {"a": 1}, float("nan"), "x" * 100_000):
        with pytest.raises(InputError) as error:
            method.resolve(allowing(method, row, value))
        assert len(str(error.value)) < 300
        assert row.allowed in str(error.value)


@ids
def test_defaults_are_allowed_and_resolving_twice_changes_nothing(method):
    once = method.resolve()
    assert method.resolve(once) == once
    assert once == {**once, **method.options}


def test_numbers_of_numpy_are_welcome():
    given = {"window": np.int64(16), "stage1": np.float32(0.2)}
    options = get_method("criticalkv").resolve(given)
    assert (options["window"], options["stage1"]) == (16, 0.2)
    assert type(options["window"]) is int
    assert get_method("h2o").resolve({"normalised": np.bool_(True)})["normalised"] is True
    weighed = {"allocation": "calibrated", "layer_weights": np.array([0.5, 0.25])}
    assert get_method("snapkv").resolve(weighed)["layer_weights"] == [0.5, 0.25]


def test_an_allocations_option_is_refused_where_it_is_not_read():
    with pytest.raises(InputError, match="SnapKV: rule belongs to the allocation across_heads or entropy_"):
        get_method("snapkv").resolve({"rule": "interpolate"})
    adapted = get_method("snapkv").resolve({"rule": "interpolate", "allocation": "across_heads"})
    assert adapted["rule"] == "interpolate"
    assert "rule" not in get_method("snapkv").resolve({"rule": "floor"})  # as older runs have it


def test_scoring_options_are_those_that_scores_depend_on():
    snapkv, critical = get_method("snapkv"), get_method("criticalkv")
    names = [name for name, _ in snapkv.scoring_options(snapkv.resolve())]
    assert names == ["group", "pool", "pool_kind", "window"]
    half, third = (critical.scoring_options(critical.resolve({"stage1": s})) for s in (0.5, 0.3))
    assert half == third
    other = critical.resolve({"epsilon": 0.5, "protect": 3})
    assert critical.scoring_options(other) != half


def test_tovas_recent_tokens_are_no_window():
    tova = get_method("tova")
    assert "window" not in tova.options
    assert tova.resolve({"window": 5}) == tova.resolve({"recent": 5})  # its name in older runs


def test_plain_defaults_are_enough_for_a_method_from_outside():
    mine = Method("mine", "Mine", "", "", score=print, options={"share": 0.5, "on": True})
    assert mine.resolve({"share": 2.0})["share"] == 2.0
    with pytest.raises(InputError, match="Mine: share is a number"):
        mine.resolve({"share": float("nan")})
    with pytest.raises(InputError, match="Mine: on is true or false"):
        mine.resolve({"on": 1})


@ids
def test_a_description_holds_plain_values_only(method):
    described = method.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["cost"]
    assert {row["name"] for row in described["options"]} >= set(method.options)


def test_methods_are_listed_without_torch():
    code = (
        "import sys, kvviz; from kvviz.engine.budgets import ALLOCATORS; "
        "[(m.resolve(), m.describe(), m.allocators()) for m in kvviz.list_methods()]; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
