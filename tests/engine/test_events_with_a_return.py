"""Streams of events and the plain calls that run them to their end."""

import inspect

import pytest

import kvviz
from kvviz.engine.conversation import ask_more, ask_stream
from kvviz.engine.experiment import try_edits, try_edits_stream
from kvviz.engine.steps import Steps, called_as, heard, result_of
from kvviz.types import Event


def counted(to: int, *, start: int = 0):
    """Numbers as steps; an error at the call where there are none."""
    if start >= to:
        raise ValueError("nothing to count")
    return (Event("count", str(i), result=i) for i in range(start, to))


@called_as(counted)
def counting(stream) -> int:
    """The last number."""
    return result_of(stream)


def test_steps_are_looped_over_and_leave_their_result():
    def work():
        yield 1
        yield 2
        return "made"

    steps = Steps(work())
    assert list(steps) == [1, 2] and steps.result == "made"


def test_a_plain_call_takes_what_its_stream_takes():
    assert counting(5) == 4 and counting(5, start=3) == 4
    assert counting.__doc__ == "The last number." and counting.__name__ == "counting"
    assert str(inspect.signature(counting)) == "(to: int, *, start: int = 0) -> int"
    with pytest.raises(ValueError, match="nothing to count"):
        counting(1, start=1)


@pytest.mark.parametrize(
    ("call", "stream"),
    [(kvviz.compare, kvviz.compare_stream), (try_edits, try_edits_stream), (ask_more, ask_stream)],
)
def test_calls_that_editors_complete(call, stream):
    given = inspect.signature(call)
    assert given.parameters == inspect.signature(stream).parameters
    assert all(p.kind is not p.VAR_KEYWORD for p in given.parameters.values())
    assert given.return_annotation == "Comparison" and call.__doc__


def test_each_event_is_told_before_it_is_passed_on():
    seen = []
    for event in heard(counted(3), seen.append):
        assert seen[-1] is event
    assert len(seen) == 3
