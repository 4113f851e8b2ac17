"""What was dropped while the answer was written, where it came from, and what is said where nothing was."""

import dataclasses

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.palette import AMOUNT_STEPS
from kvviz.figures.steps import NOTHING, steps_figure, steps_table


def run_with(records, tokens=20, **more):
    c = synthetic_comparison(L=2, **more)
    v = c.variant("snapkv", 0.1)
    v.token_ids, v.evictions = list(range(tokens)), records
    return c


def record(step, *layers):
    """A cut that dropped these positions in each layer, each by two heads."""
    counts = [[len(tokens), len(tokens), 0] for tokens in layers]
    return {"step": step, "dropped": counts, "tokens": [list(tokens) for tokens in layers]}


def test_colour_is_the_share_that_came_from_the_document():
    c = run_with([record(3, (5, 9, 300, 301), (2, 3)), record(6, (299, 305), ())])
    start, end = c.prompt.document_span
    assert (start, end) == (2, 293)
    table = steps_table(c, "snapkv", 0.1)
    assert table.steps.tolist() == [3, 6]
    assert table.dropped.tolist() == [[8, 4], [4, 0]]
    assert table.positions.tolist() == [[4, 2], [2, 0]]
    assert table.document.tolist() == [[2, 0], [2, 0]]
    figure = steps_figure(table)
    assert figure.data[0].z.tolist() == [[AMOUNT_STEPS // 2, 0], [AMOUNT_STEPS, NOTHING]]
    assert figure.data[0].customdata.tolist() == [[[8, 4, 2], [4, 2, 0]], [[4, 2, 2], [0, 0, 0]]]
    assert figure.layout.meta["channels"] == ["entries", "tokens", "document"]
    assert figure.layout.meta["steps"] == [3, 6]
    said = figure.layout.meta["summary"]
    assert said.endswith("16 entries in 2 cuts while writing; 50% of the tokens dropped lie in the document.")
    assert figure.data[1].marker.colorbar.ticktext == ("0%", "50%", "100%")
    first = {"layer": 0, "phase": "answer", "step": 3, "dropped": 8, "tokens": 4, "tokens of the document": 2}
    assert table.rows()[0] == first


def test_runs_that_recorded_no_tokens_show_counts():
    c = synthetic_comparison(evict_every=1)
    table = steps_table(c, "snapkv", 0.1)
    records = c.variant("snapkv", 0.1).evictions
    assert table.steps.tolist() == [1, 2, 3]
    assert table.dropped[:, 1].tolist() == np.sum(records[1]["dropped"], -1).tolist()
    figure = steps_figure(table)
    assert list(figure.layout.xaxis.ticktext) == ["1", "2", "3"]
    assert figure.layout.meta["channels"] == ["entries"]


def test_cuts_after_the_last_token_are_not_of_this_answer():
    c = run_with([record(3, (5,), (6,)), record(7, (8,), (9,))], tokens=1)
    with pytest.raises(InputError, match="SnapKV evicted nothing while writing its answer at 10%"):
        steps_table(c, "snapkv", 0.1)
    c.variant("snapkv", 0.1).token_ids = list(range(7))  # the seventh was generated before the cut
    assert steps_table(c, "snapkv", 0.1).steps.tolist() == [3]


def test_cuts_while_a_later_question_is_read_are_no_generated_steps():
    asked = [record(4, (5,), (6,)) | {"phase": "question"}, record(8, (7,), (8,)) | {"phase": "question"}]
    c = run_with([*asked, record(3, (9,), (10,)) | {"phase": "answer"}])
    table = steps_table(c, "snapkv", 0.1)
    assert table.asking.tolist() == [True, True, False]
    assert table.moments == ["4 tokens of the question", "8 tokens of the question", "3 generated tokens"]
    assert [row["phase"] for row in table.rows()][:3] == ["question", "question", "answer"]
    figure = steps_figure(table)
    assert "1 cut while writing and 2 while the question was read" in figure.layout.meta["summary"]
    assert list(figure.layout.xaxis.ticktext) == ["Q4", "Q8", "3"]
    assert "Q: of the question" in figure.layout.xaxis.title.text.replace("<br>", " ")


def test_older_runs_counted_a_questions_cuts_backwards():
    c = run_with([record(-5, (5,), (6,)), record(0, (7,), (8,)), record(3, (9,), (10,))])
    assert steps_table(c, "snapkv", 0.1).asking.tolist() == [True, True, False]


def test_memory_at_the_end_counts_from_a_cut_within_the_question():
    c = run_with([record(4, (5,), (6,)) | {"phase": "question"}], tokens=3)
    ids = np.arange(c.n + 6)  # a question of 6 tokens follows the document
    c = dataclasses.replace(c, prompt=dataclasses.replace(c.prompt, input_ids=ids))
    v = c.variant("snapkv", 0.1)
    assert c.bytes_at_end(v) == v.bytes + (2 + 2) * c.token_bytes, "two of the question, two of the answer"


def test_what_is_not_known_and_what_did_not_happen_are_told_apart(run):
    with pytest.raises(InputError, match="SnapKV evicted nothing while writing its answer at 10%"):
        steps_table(run, "snapkv", 0.1)
    c = synthetic_comparison(budgets=(0.2, 0.1), evict_every=1)
    with pytest.raises(InputError, match="not decoded at 1%.* Known for SnapKV: 20% and 10%"):
        steps_table(c, "snapkv", 0.01)
