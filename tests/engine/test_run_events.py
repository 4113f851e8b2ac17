"""What a run tells while it goes, and stopping it."""

from __future__ import annotations

import threading

import torch
from reference import (
    prompt_of,
)
from test_run import NEW, N, generated, small_waves

import kvviz.engine.cache
import kvviz.engine.run
from kvviz.engine.run import compare, compare_stream
from kvviz.engine.trace import prefill

STAGES = ["prefill", "score", "decode", "measure", "done"]


def test_events_come_in_order_and_count_up(tiny_llama, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    for lenses in (False, True):
        prompt = prompt_of(tiny_llama, N)
        events = list(compare_stream(tiny_llama, prompt, ["snapkv", "h2o"], [0.5, 0.1], NEW, lenses=lenses))
        stages = list(dict.fromkeys(e.stage for e in events))
        assert stages == STAGES
        assert [e.stage for e in events] == sorted((e.stage for e in events), key=STAGES.index)
        reading = [e.done for e in events if e.stage == "prefill"]
        assert reading == sorted(reading)
        assert reading[-1] == N
        writing = [e.done / e.total for e in events if e.stage == "decode"]
        assert writing == sorted(writing)
        assert writing[-1] == 1.0
        for e in events:
            assert 0 <= e.done <= e.total
            assert e.message
            assert e.seconds_left is None or e.seconds_left >= 0
        assert [e.result is not None for e in events] == [False] * (len(events) - 1) + [True]
        assert events[-1].message == "Done"


def test_decoding_counts_up_over_waves_too(tiny_llama, monkeypatch):
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    small_waves(monkeypatch, 1)
    prompt = prompt_of(tiny_llama, N)
    events = list(compare_stream(tiny_llama, prompt, ["snapkv"], [0.5, 0.1], NEW, measures=()))
    writing = [e.done / e.total for e in events if e.stage == "decode"]
    assert writing == sorted(writing)
    assert writing[-1] == 1.0
    assert any("part 2 of" in e.message for e in events)


def test_answers_stream_in_as_they_are_written(tiny_llama, monkeypatch):
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    seen = []
    prompt, asked = prompt_of(tiny_llama, N), (["snapkv:window=16"], [0.5, 12], NEW)
    result = compare(tiny_llama, prompt, *asked, events=seen.append)
    texts = [e.answers for e in seen if e.answers]
    names = ["Full cache", "SnapKV (window=16) · 50%", "SnapKV (window=16) · 12 tokens"]
    assert all(list(t) == names for t in texts)
    assert list(texts[-1].values()) == [v.text for v in (result.full, *result.variants)]
    lengths = [len(t["Full cache"]) for t in texts]
    assert lengths == sorted(lengths)


def stopped_at(model, prompt, when, **settings):
    """The result of a run whose Stop was pressed at the first event for which when(event) holds."""
    cancel = threading.Event()
    last = None
    for event in compare_stream(
        model, prompt, ["snapkv", "random"], [0.5, 0.1], 12, cancel=cancel, lenses=True, **settings
    ):
        last = event
        if when(event):
            cancel.set()
    assert cancel.is_set(), "the stop was never pressed"
    assert last.stage == "done"
    return last


def test_a_stop_while_reading_has_no_result(tiny_llama, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    last = stopped_at(tiny_llama, prompt_of(tiny_llama, N), lambda e: e.stage == "prefill" and e.done >= 16)
    assert last.message == "Stopped. 0 of 4 answers are finished and shown."
    assert last.result is None


def test_a_stop_while_scoring(tiny_llama):
    last = stopped_at(tiny_llama, prompt_of(tiny_llama, N), lambda e: e.stage == "score")
    assert last.message == "Stopped. 0 of 4 answers are finished and shown."
    assert last.result.variants == []


def test_a_stop_while_scoring_does_not_spoil_the_trace(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    trace = prefill(tiny_llama, prompt, ["snapkv"])
    wanted = compare(tiny_llama, prompt, ["snapkv"], [0.3], 4)
    cancel = threading.Event()
    for event in compare_stream(tiny_llama, prompt, ["snapkv"], [0.3], 4, cancel=cancel, trace=trace):
        if event.stage == "score":
            cancel.set()
    again = compare(tiny_llama, prompt, ["snapkv"], [0.3], 4, trace=trace)
    assert again.variants[0].token_ids == wanted.variants[0].token_ids
    assert torch.equal(again.variants[0].selection.budgets, wanted.variants[0].selection.budgets)


def test_a_stop_while_writing_keeps_what_is_written(tiny_llama, monkeypatch):
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    prompt = prompt_of(tiny_llama, N)
    whole = compare(tiny_llama, prompt, ["snapkv", "random"], [0.5, 0.1], 12, measures=())
    last = stopped_at(tiny_llama, prompt, lambda e: e.stage == "decode" and e.done >= 5)
    result = last.result
    ended = [v for v in result.variants if v.finished != "cancelled"]
    assert last.message == f"Stopped. {len(ended)} of 4 answers are finished and shown."
    assert last.message in result.notes
    assert result.full.finished == "cancelled"
    for part, complete in zip([result.full, *result.variants], [whole.full, *whole.variants]):
        assert len(part.token_ids) >= 5 or part.finished == "stop token"
        assert part.token_ids == complete.token_ids[: len(part.token_ids)]
    assert result.to_json()


def test_a_stop_between_waves_keeps_the_finished_ones(tiny_llama, monkeypatch):
    small_waves(monkeypatch, 1)

    def pressed(event):
        return "written" in event.message and "Random · 50%" in event.answers

    last = stopped_at(tiny_llama, prompt_of(tiny_llama, N), pressed)
    assert last.message == "Stopped. 3 of 4 answers are finished and shown."
    assert [v.key for v in last.result.variants] == ["snapkv@0.5", "snapkv@0.1", "random@0.5"]


def test_a_stop_while_measuring_keeps_every_answer(tiny_llama):
    wanted = compare(tiny_llama, prompt_of(tiny_llama, N), ["snapkv", "random"], [0.5, 0.1], 12, measures=())
    for words in ("next-token", "single tokens", "at every budget"):

        def pressed(event, words=words):
            return event.stage == "measure" and words in event.message

        last = stopped_at(tiny_llama, prompt_of(tiny_llama, N), pressed)
        assert last.message == "Stopped. 4 of 4 answers are finished and shown."
        assert [v.token_ids for v in last.result.variants] == [v.token_ids for v in wanted.variants]
        assert last.result.to_json()


def test_the_model_is_free_again_after_a_stop(tiny_llama):
    stopped_at(tiny_llama, prompt_of(tiny_llama, N), lambda e: e.stage == "decode")
    assert tiny_llama.hf.config._attn_implementation != "kvviz"
    assert generated(tiny_llama, prompt_of(tiny_llama, N))


def test_closing_the_stream_ends_the_run(tiny_llama):
    stream = compare_stream(tiny_llama, prompt_of(tiny_llama, N), ["snapkv"], [0.5], 12)
    for event in stream:
        if event.stage == "decode":
            break
    stream.close()
    assert tiny_llama.hf.config._attn_implementation != "kvviz"
