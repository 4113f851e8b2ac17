"""The registry: every file is listed, every method says what a person needs to know."""

from pathlib import Path

import pytest

from kvviz.engine.budgets import ALLOCATORS
from kvviz.engine.observers import OBSERVERS
from kvviz.errors import InputError
from kvviz.methods import METHODS, get_method, methods_table, parse_method

FOLDER = Path(__import__("kvviz.methods").methods.__file__).parent
SHARED = {"__init__", "spec", "layer", "parts", "removal", "artefacts"}

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
        ({"window": 0}, "window is a whole number from 1 up"),
        ({"window": True}, "window is a whole number"),
        ({"pool": 0}, "pool is a whole number from 1 up"),
        ({"pool_kind": "mean"}, "pool_kind is one of avg, max, none"),
        ({"group": "median"}, "group is one of mean, max, sum"),
        ({"safeguard": 1.5}, "safeguard lies between 0 and 1"),
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
