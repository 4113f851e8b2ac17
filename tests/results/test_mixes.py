"""Recipes of mixes: what they may be, in words, and in a run's Python lines."""

import dataclasses

import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.exports import python_lines
from kvviz.results.mix import Mix, name_in

BAD = [None, [], {"power": 1}, {"attention": "1"}, {"attention": True}, {"attention": -1}, {"value": 3.01},
       {"key": float("nan")}, {"recency": float("inf")}, {"pool": 0}, {"pool": 7.0}, {"pool_kind": "x"},
       {"sinks": -1}, {"sinks": True}, {"across": 1}]  # fmt: skip


@pytest.mark.parametrize("given", BAD, ids=str)
def test_what_is_no_mix_is_refused_in_a_sentence(given):
    with pytest.raises(InputError, match=r"mix.*\.$"):
        Mix.of(given)


@pytest.mark.parametrize(
    "mix, words",
    [(Mix(), "attention"), (Mix(0, across=True), "nothing, across heads"),
     (Mix(2, 0.5, -1, 1), "attention^2 × value size^0.5 × key norm^-1 × recency")],
)  # fmt: skip
def test_words(mix, words):
    assert mix.words == words
    assert Mix.of(mix.to_dict()) == mix


def test_python_lines_make_the_mixes_again():
    c, mix = synthetic_comparison(n=60, L=2), Mix(value=1.0)
    row = {"name": name_in(c, mix), "budget": 0.2, "mix": mix.to_dict()}
    c = dataclasses.replace(c, settings={**c.settings, "mixes": [row]})
    lines = python_lines(c)
    compile(lines, "lines", "exec")
    assert f"mix = {mix!r}\nresult = with_mix(result, mix, try_mix(model, result, mix, 0.2))" in lines
    assert name_in(c, mix) == row["name"] != name_in(c, Mix())
