"""Effects by experiment, against the plain model with the same rows hidden."""

import dataclasses
import threading
from itertools import product

import numpy as np
import pytest
import torch
from reference import masked_logits, masked_model, prompt_of, trace_of
from tiny import make_model

import kvviz
from kvviz.engine.causes import _Pace, causes, causes_stream, smallest_rescue
from kvviz.engine.ground import Ground
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill
from kvviz.engine.trials import Trials
from kvviz.engine.units import trials_needed, units
from kvviz.engine.would_do import orders
from kvviz.errors import InputError
from kvviz.results.causes import Controls
from kvviz.results.passages import passages
from kvviz.settings import settings


def logp_of(family, prompt, answer, mask):
    """Log-probability of each answer token when rows outside `mask` are hidden after the prompt."""
    ids = torch.cat([prompt.input_ids, torch.tensor(answer)])
    keep = [torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in mask]
    logits = masked_logits(masked_model(family), ids[None], prompt.n_compressible, keep)[0]
    at = torch.arange(len(prompt.input_ids) - 1, len(ids) - 1)
    return logits[at].double().log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0].numpy()


def kept_of(trace, method="snapkv", budget=0.3):
    return np.stack([m.numpy() for m in select(trace, method, budget).mask])


@pytest.mark.parametrize("suffix", [0, 6])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_effects_equal_the_plain_model_with_rows_hidden(family, suffix):
    model = make_model(family)
    trace = trace_of(model, 40, suffix)
    ask = {"scored": Scored(trace), "max_new_tokens": 6}
    found = causes(model, trace.prompt, "snapkv", 0.3, by=("head", "layer"), **ask)
    kept = kept_of(trace)
    held = np.zeros_like(kept)
    for layer in range(model.n_layers):
        held[layer, :, trace.n - trace.rows(layer) :] = True
    answer = found_answer(model, trace)
    assert len(answer) == len(found.tokens)
    whole = logp_of(family, trace.prompt, answer, np.ones_like(kept))
    base = logp_of(family, trace.prompt, answer, kept)
    assert found.gap == pytest.approx(whole.sum() - base.sum(), abs=2e-3)
    for effect in found.put_back:
        trial = kept.copy()
        place = (effect.layer, slice(None) if effect.head is None else effect.head)
        trial[place] = held[place]
        wanted = logp_of(family, trace.prompt, answer, trial).sum() - base.sum()
        assert effect.effect == pytest.approx(wanted, abs=2e-3)
    for effect in found.taken_out:
        trial = held.copy()
        trial[effect.layer, slice(None) if effect.head is None else effect.head] = False
        wanted = whole.sum() - logp_of(family, trace.prompt, answer, trial).sum()
        assert effect.effect == pytest.approx(wanted, abs=2e-3)


def found_answer(model, trace):
    return kvviz.compare(model, trace.prompt, ["snapkv"], [0.3], 6).full.token_ids


def test_all_put_back_is_the_whole_cache_and_all_taken_out_is_the_method():
    model = make_model("llama")
    trace = trace_of(model, 50)
    kept, trials = kept_of(trace), Trials(trace)
    answer = found_answer(model, trace)
    whole, back, method = trials.force([np.ones_like(kept), kept | ~kept, kept], answer)
    assert back.logp == pytest.approx(whole.logp, abs=1e-5)
    assert whole.kl == pytest.approx(0, abs=1e-5)
    lost_taken_out = np.ones_like(kept) & ~(~kept)
    (same,) = trials.force([lost_taken_out], answer)
    assert same.logp == pytest.approx(method.logp, abs=1e-5)


@pytest.mark.parametrize("suffix", [0, 5])
def test_waves_change_nothing(suffix, monkeypatch):
    model = make_model("llama")
    trace = trace_of(model, 40, suffix)
    rng = np.random.default_rng(0)
    shares = (0.1, 0.2, 0.9, 0.8, 0.3, 0.4, 0.1, 0.5, 1)
    masks = [rng.random(kept_of(trace).shape) < share for share in shares]
    answer = found_answer(model, trace)
    together = list(Trials(trace).force(masks, answer))
    written = [a.token_ids for a in Trials(trace).write(masks, 8)]
    for look in (1, 3):  # what is out goes on no further, and nothing else changes
        monkeypatch.setattr("kvviz.engine.trials.LOOK", look)
        for whole in written[:3]:
            assert list(Trials(trace).agree(masks, whole)) == [a == whole for a in written]
    narrow = dataclasses.replace(settings(), wave_bytes=1)
    monkeypatch.setattr("kvviz.engine.cache.settings", lambda: narrow)
    alone = Trials(trace)
    for one, other in zip(together, alone.force(masks, answer)):
        assert one.logp == pytest.approx(other.logp, abs=1e-5)
        assert one.kl == pytest.approx(other.kl, abs=1e-5)
    assert written == [a.token_ids for a in alone.write(masks, 8)]
    for whole in written:
        assert list(alone.agree(masks, whole)) == [a == whole for a in written]


@pytest.mark.parametrize("suffix", [0, 5])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_kept_sets_that_are_masked_decode_as_those_that_are_gathered(family, suffix, monkeypatch):
    """Also where answers outgrow a sliding window, and where a head holds nothing."""
    model = make_model(family)
    trace = trace_of(model, 40, suffix)
    rng = np.random.default_rng(1)
    masks = [rng.random(kept_of(trace).shape) < share for share in (0.05, 0.5, 0.95)]
    masks[1][1, 0] = False
    answer = rng.integers(4, 300, 20).tolist()
    found = []
    for share in (2, -1):  # all gathered, all masked
        monkeypatch.setattr("kvviz.engine.trials.DENSE", share)
        trials = Trials(trace)
        found.append([*trials.force(masks, answer), *(a.token_ids for a in trials.write(masks, 8))])
    for gathered, masked in zip(*found):
        if isinstance(gathered, list):
            assert gathered == masked
        else:
            assert masked.logp == pytest.approx(gathered.logp, abs=1e-5)
            assert masked.kl == pytest.approx(gathered.kl, abs=1e-5)


def lossy(budget=0.1):
    """(model, trace, method) where the cut cache answers differently from the whole one."""
    model = make_model("llama")
    for seed in range(20):
        trace = trace_of(model, 30, seed=seed)
        result = kvviz.compare(model, trace.prompt, ["streaming_llm"], [budget], 3)
        if result.variants[0].token_ids != result.full.token_ids:
            return model, trace, result
    raise AssertionError("no case in which something is lost")


def test_rescue_is_minimal_necessary_and_sufficient_by_brute_force():
    model, trace, result = lossy()
    found = causes(
        model, trace.prompt, "streaming_llm", 0.1, by=(), rescue=True, scored=Scored(trace), max_new_tokens=3
    ).rescue
    kept = np.stack([m.numpy() for m in result.variants[0].selection.mask])
    trials = Trials(trace)
    assert found.minimal and found.entries and all(found.necessary)
    assert not any(kept[entry] for entry in found.entries)
    whole = result.full.token_ids
    # Every subset: the full one works, none that lacks one entry does.
    some = found.entries[:8]
    rest = [e for e in found.entries if e not in some]
    for chosen in product([False, True], repeat=len(some)):
        trial = kept.copy()
        for entry in [*rest, *(e for e, yes in zip(some, chosen) if yes)]:
            trial[entry] = True
        (answer,) = trials.write([trial], 3)
        if all(chosen):
            assert answer.token_ids == whole
        elif sum(chosen) == len(some) - 1:
            assert answer.token_ids != whole
    assert len(found.controls.added) == len(found.controls.same_size) == 20


def test_a_rescue_that_is_stopped_is_kept_and_gone_on_from():
    model, trace, _ = lossy()
    ask = {"by": (), "rescue": True, "scored": Scored(trace), "max_new_tokens": 3}
    cancel = threading.Event()
    for event in causes_stream(model, trace.prompt, "streaming_llm", 0.1, cancel=cancel, **ask):
        if "so far" in event.message:
            cancel.set()
    half = event.result
    assert half.stopped and half.rescue.stopped and not half.rescue.minimal
    assert half.rescue.entries and half.rescue.controls == Controls([], [])
    whole = causes(model, trace.prompt, "streaming_llm", 0.1, before=half, **ask)
    assert whole.rescue.minimal and set(whole.rescue.entries) <= set(half.rescue.entries)
    assert len(whole.rescue.controls.added) == 20 and not whole.rescue.stopped


def test_a_rescue_out_of_trials_says_so():
    model, trace, _ = lossy()
    ask = {"by": (), "rescue": True, "scored": Scored(trace), "max_new_tokens": 3}
    found = causes(model, trace.prompt, "streaming_llm", 0.1, rescue_trials=12, **ask)
    assert not found.rescue.minimal and "ended at its limit of 12 trials" in found.notes[0]
    with pytest.raises(InputError, match="at least one trial"):
        causes(model, trace.prompt, "streaming_llm", 0.1, rescue_trials=0, **ask)


def test_what_is_left_is_told_from_the_trials_that_were_timed(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("kvviz.engine.causes.time.perf_counter", lambda: next(clock))
    pace = _Pace({"put_back": 1.0, "taken_out": 4.0}, {"put_back": 100, "taken_out": 50}, later=20)
    assert pace.left() == 100 + 200 + 20
    pace.did("put_back", 20)  # 10 seconds for 20: half as long as was guessed
    assert pace.left() == 80 * 0.5 + 50 * 2 + 20 * 0.5
    pace.did("put_back", 100)
    pace.did("taken_out", 105)
    assert pace.left() == pytest.approx(45 * 2 + 20 * 20 / 100)


def test_would_do_gives_the_answer_and_says_who_holds_it():
    model, trace, result = lossy()
    ask = {"scored": Scored(trace), "max_new_tokens": 3}
    found = causes(model, trace.prompt, "streaming_llm", 0.1, by=(), would_do=True, **ask).would_do
    (answer,) = Trials(trace).write([found.mask], 3)
    assert answer.token_ids == result.full.token_ids
    assert found.minimal and found.entries == found.mask.sum()
    kept = np.stack([m.numpy() for m in select(trace, "snapkv", 0.1).mask])
    assert found.held["snapkv@0.1"] == pytest.approx((kept & found.mask).sum() / found.mask.sum())


def test_nothing_lost_nothing_to_rescue():
    model = make_model("llama")
    trace = trace_of(model, 30)
    assert smallest_rescue(model, trace.prompt, "snapkv", 1.0, scored=Scored(trace), max_new_tokens=3) is None


def test_before_is_not_tried_again_and_stop_keeps_what_is_done(monkeypatch):
    model = make_model("llama")
    trace = trace_of(model, 30)
    ask = {"scored": Scored(trace), "max_new_tokens": 3}
    first = causes(model, trace.prompt, "knorm", 0.2, by=("head",), **ask)
    more = causes(model, trace.prompt, "knorm", 0.2, by=("head", "layer"), before=first, **ask)
    assert more.trials == len([e for e in more.put_back + more.taken_out if e.unit == "layer"]) + 4
    assert [e for e in more.put_back if e.unit == "head"] == first.put_back
    monkeypatch.setattr("kvviz.engine.trials.WIDEST", 8)
    cancel = threading.Event()
    for event in causes_stream(
        model, trace.prompt, "knorm", 0.2, by=("layer", "token"), cancel=cancel, **ask
    ):
        if "token by token, 8" in event.message:
            cancel.set()
    half = event.result
    assert half.stopped and half.taken_out == []
    assert 0 < len([e for e in half.put_back if e.unit == "token"]) < 30
    whole = causes(model, trace.prompt, "knorm", 0.2, by=("layer", "token"), before=half, **ask)
    again = causes(model, trace.prompt, "knorm", 0.2, by=("layer", "token"), **ask)
    assert [e.place for e in whole.put_back] == [e.place for e in again.put_back]
    assert [e.effect for e in whole.put_back] == pytest.approx([e.effect for e in again.put_back], abs=1e-5)


def test_number_of_trials_is_known_beforehand():
    model = make_model("llama")
    trace = trace_of(model, 30)
    pieces = passages(trace.prompt)
    shape = (model.n_layers, model.n_kv_heads, 30)
    ask = {"scored": Scored(trace), "max_new_tokens": 3}
    found = causes(model, trace.prompt, "random", 0.2, by=("head", "passage", "token"), **ask)
    assert trials_needed(("head", "passage", "token"), ("put_back", "taken_out"), shape, pieces) == len(
        found.put_back + found.taken_out
    )
    assert len(units("passage-head", shape, pieces)) == len(pieces) * shape[0] * shape[1]


def test_bad_words_are_named():
    model = make_model("llama")
    prompt = prompt_of(model, 20)
    with pytest.raises(InputError, match="head, layer, passage"):
        causes(model, prompt, "snapkv", 0.2, by=("heads",))
    with pytest.raises(InputError, match="put_back or taken_out"):
        causes(model, prompt, "snapkv", 0.2, directions=("both",))
    with pytest.raises(InputError, match="sentence, a line or a paragraph"):
        causes(model, prompt, "snapkv", 0.2, passage="page")


def test_reads_within_its_events_and_stops_there(monkeypatch):
    model = make_model("llama")
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    cancel, events = threading.Event(), []
    for event in causes_stream(model, prompt_of(model, 40), "snapkv", 0.3, cancel=cancel, max_new_tokens=3):
        events.append(event)
        if event.stage == "prefill" and event.done:
            cancel.set()
    assert [e.stage for e in events] == ["prefill", "prefill", "done"]
    assert 0 < events[1].done < events[1].total == 40
    assert events[-1].result is None


def test_what_was_found_before_must_be_of_this_kept_set():
    model = make_model("llama")
    trace = trace_of(model, 20)
    ask = {"by": (), "scored": Scored(trace), "max_new_tokens": 2}
    first = causes(model, trace.prompt, "snapkv", 0.5, **ask)
    with pytest.raises(InputError, match="another method or budget"):
        causes(model, trace.prompt, "snapkv", 0.4, before=first, **ask)


def test_searches_are_not_made_again():
    model, trace, _ = lossy()
    ask = {"by": (), "scored": Scored(trace), "max_new_tokens": 3, "rescue": True, "would_do": True}
    first = causes(model, trace.prompt, "streaming_llm", 0.1, **ask)
    again = causes(model, trace.prompt, "streaming_llm", 0.1, before=first, **ask)
    assert again.rescue is first.rescue and again.would_do is first.would_do
    assert again.trials == 4


@pytest.mark.parametrize("most", [3000, 9])
def test_the_cache_that_would_do_is_one_of_all_subsets_that_work(most):
    """Every subset of the result by brute force: none that lacks one entry gives the answer."""
    model, trace, result = lossy()
    ask = {"by": (), "scored": Scored(trace), "max_new_tokens": 3}
    found = causes(model, trace.prompt, "streaming_llm", 0.1, would_do=True, would_do_trials=most, **ask)
    w, trials = found.would_do, Trials(trace)
    assert w.trials <= w.most == most
    assert next(trials.write([w.mask], 3)).token_ids == result.full.token_ids
    less = []
    for place in np.argwhere(w.mask):
        less.append(w.mask.copy())
        less[-1][tuple(place)] = False
    works = [a.token_ids == result.full.token_ids for a in trials.write(less, 3)]
    assert w.minimal == (most == 3000) and (not w.minimal or not any(works))
    assert "not the smallest there is" in w.notes[0]


def test_orders_of_the_answers_queries():
    model = make_model("gemma3")
    trace = trace_of(model, 40, 5)
    held = np.ones((model.n_layers, model.n_kv_heads, 40), bool)
    for layer in range(model.n_layers):
        held[layer, :, : 40 - trace.rows(layer)] = False
    found = orders(Ground(Scored(trace), "snapkv", 0.5, {}, None, 3, None))
    for order in found.values():
        assert sorted(order) == np.flatnonzero(held).tolist()
    by_head = found["attention by head"]
    first = by_head[: model.n_layers * model.n_kv_heads] // 40
    assert sorted(first) == list(range(model.n_layers * model.n_kv_heads))


@pytest.mark.slow
def test_one_head_and_three_entries_on_the_real_model(smollm):
    """As checked by hand on the first stored example: 10.1 nats, 7.7 of them in one head."""
    from kvviz.resources import asset

    stored = kvviz.load_comparison(asset("runs", "1-lighthouse-ledger.zip"))
    p = stored.prompt
    prompt = kvviz.build_prompt(smollm, p.document, p.question)
    trace = prefill(smollm, prompt, ["snapkv"])
    found = causes(smollm, prompt, "snapkv", 0.1, by=("head", "passage"), expected=stored.expected,
                   rescue=True, directions=("put_back",), scored=Scored(trace))  # fmt: skip
    heads = sorted((e for e in found.put_back if e.unit == "head"), key=lambda e: -e.effect)
    assert found.gap == pytest.approx(10.1, abs=0.1)
    assert (heads[0].layer, heads[0].head) == (18, 2)
    assert heads[0].effect == pytest.approx(7.74, abs=0.05)
    assert heads[3].effect < 0.4
    assert len(found.rescue.entries) == 3
    assert {(layer, head) for layer, head, _ in found.rescue.entries} == {(18, 2)}
    assert found.rescue.verdict == "right" and "58213" in found.rescue.text
    assert not any(found.rescue.controls.added + found.rescue.controls.same_size)
