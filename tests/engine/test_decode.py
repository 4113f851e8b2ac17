"""Decoding on the ragged cache: the plain model with the evicted keys masked at their true positions."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
import torch
from reference import METHOD_IDS, masked_logits, masked_model, masks_of, prompt_of, sparse_masks, trace_of
from tiny import FAMILIES, make_model

from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Answer, Sampling, Wave, feed_same, generate
from kvviz.engine.run import compare
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill
from kvviz.errors import Cancelled

N, T = 70, 9  # longer than every sliding window of the tiny models
BUDGETS = (1, 0.29, 33)
CLOSE = {"atol": 3e-4, "rtol": 1e-3}


@pytest.fixture(scope="module")
def traces(tiny_models):
    return {family: trace_of(model, N) for family, model in tiny_models.items()}


def some_tokens(variants: int, t: int = T, seed: int = 5) -> torch.Tensor:
    return torch.randint(4, 320, (variants, t), generator=torch.Generator().manual_seed(seed))


def fed(trace, selections, tokens, pieces=(T,)):
    """Logits of the engine for tokens [V, T], fed in the given pieces."""
    wave = Wave(trace.model, build_cache(trace, selections), tokens.shape[1])
    assert sum(pieces) == tokens.shape[1]
    return torch.cat([wave.feed(part) for part in tokens.split(list(pieces), 1)], 1)


def expected(trace, keep, tokens):
    """The same from the masked model: prompt and tokens in one forward pass."""
    family = trace.model.id.removeprefix("tiny-")
    ids = torch.cat([trace.prompt.input_ids[: trace.n].expand(len(tokens), -1), tokens], 1)
    return masked_logits(masked_model(family), ids, trace.n, keep)[:, trace.n :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHOD_IDS)
def test_an_evicted_variant_is_the_plain_model_with_masked_keys(traces, method, family):
    trace = traces[family]
    selections = [select(trace, method, budget) for budget in BUDGETS]
    tokens = some_tokens(len(BUDGETS))
    wanted = expected(trace, masks_of(selections), tokens)
    torch.testing.assert_close(fed(trace, selections, tokens), wanted, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("allocation", ["global", "across_heads", "pyramid", "entropy_heads"])
def test_ragged_budgets_of_any_allocation(traces, allocation, family):
    trace = traces[family]
    further = {"safeguard": 0.0} if "heads" in allocation else {}
    selections = [select(trace, "snapkv", b, allocation=allocation, **further) for b in (6, 0.4)]
    tokens = some_tokens(2)
    wanted = expected(trace, masks_of(selections), tokens)
    torch.testing.assert_close(fed(trace, selections, tokens), wanted, **CLOSE)


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss"])
def test_heads_and_layers_that_keep_nothing(family):
    trace = prefill(make_model(family), prompt_of(make_model(family), N))
    selections = [
        replace(select(trace, "random", 0.5), mask=sparse_masks(trace.model, N, seed)) for seed in (0, 1)
    ]
    tokens = some_tokens(2)
    wanted = expected(trace, masks_of(selections), tokens)
    torch.testing.assert_close(fed(trace, selections, tokens), wanted, **CLOSE)


def test_the_whole_cache_is_the_plain_model(traces):
    for trace in traces.values():
        tokens = some_tokens(1)
        torch.testing.assert_close(fed(trace, [None], tokens), expected(trace, None, tokens), **CLOSE)


def test_the_whole_cache_beside_evicted_ones(traces):
    for trace in traces.values():
        selections = [None, select(trace, "adakv", 0.2), select(trace, "snapkv", 1.0)]
        tokens = some_tokens(1).expand(3, -1)
        keep = masks_of([selections[2], *selections[1:]])  # everything kept stands for the whole
        torch.testing.assert_close(fed(trace, selections, tokens), expected(trace, keep, tokens), **CLOSE)


@pytest.mark.parametrize("pieces", [(1,) * T, (4, 5), (1, 8), (8, 1), (3, 1, 5)])
def test_several_tokens_at_once_are_one_by_one(traces, pieces):
    for trace in traces.values():
        selections = [None, select(trace, "adakv", 0.2), select(trace, "laprox", 5)]
        tokens = some_tokens(3)
        torch.testing.assert_close(
            fed(trace, selections, tokens, pieces), fed(trace, selections, tokens), atol=1e-4, rtol=1e-4
        )


def test_order_and_company_do_not_matter(traces):
    trace = traces["gemma3"]
    selections = [select(trace, m, b) for m, b in (("adakv", 3), ("snapkv", 0.5), ("laprox", 9), ("tova", 1))]
    tokens = some_tokens(4)
    together = fed(trace, selections, tokens)
    for order in itertools.islice(itertools.permutations(range(4)), 5, None, 7):
        again = fed(trace, [selections[i] for i in order], tokens[list(order)])
        torch.testing.assert_close(again, together[list(order)], atol=1e-4, rtol=1e-4)
    for i in range(4):
        alone = fed(trace, [selections[i]], tokens[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], atol=1e-4, rtol=1e-4)


def test_nan_in_evicted_rows_never_reaches_the_logits(tiny_models):
    for family in FAMILIES:
        trace = trace_of(tiny_models[family], N)
        selections = [select(trace, "adakv", 0.2), select(trace, "criticalkv", 0.2)]
        tokens = some_tokens(2)
        clean = fed(trace, selections, tokens)
        cache = build_cache(trace, selections)
        for index in range(trace.model.n_layers):
            evicted = ~(selections[0].mask[index] | selections[1].mask[index])
            trace.keys[index][evicted] = float("nan")
            trace.values[index][evicted] = float("nan")
        late = Wave(trace.model, cache, T).feed(tokens)  # planted after the cache was built
        assert torch.equal(late, clean)
        assert torch.equal(fed(trace, selections, tokens), clean)  # and before


def test_truncate_forgets_what_was_fed(traces):
    trace = traces["mistral"]
    selections = [None, select(trace, "adakv", 0.2)]
    tokens, other = some_tokens(2), some_tokens(2, seed=6)
    wave = Wave(trace.model, build_cache(trace, selections), 2 * T)
    wave.feed(tokens[:, :3])
    first = wave.feed(tokens[:, 3:])
    wave.feed(other)
    wave.truncate(3)
    assert wave.next_position == N + 3
    assert wave.tail_rows(0)[0].shape[1] == 3
    torch.testing.assert_close(wave.feed(tokens[:, 3:]), first, atol=1e-4, rtol=1e-4)


def test_feed_same_in_pieces_that_fit_memory(traces, monkeypatch):
    trace = traces["llama"]
    selections = [None, select(trace, "adakv", 0.2)]
    tokens = some_tokens(1)[0]
    whole = fed(trace, selections, tokens.expand(2, -1))
    monkeypatch.setattr("kvviz.engine.decode._STEP_LOGITS", 320 * 2 * 4)  # four tokens a piece
    wave = Wave(trace.model, build_cache(trace, selections), T)
    pieces = list(feed_same(wave, tokens.tolist(), every=True))
    assert [p.shape[1] for p in pieces] == [4, 4, 1]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-4, rtol=1e-4)
    wave.truncate(0)
    (last,) = feed_same(wave, tokens.tolist(), every=False)
    torch.testing.assert_close(last, whole[:, -1:], atol=1e-4, rtol=1e-4)
    assert list(feed_same(wave, [], every=True)) == []


GREEDY = Sampling()


def answers_of(trace, selections, steps, stop_ids=frozenset(), sampling=GREEDY):
    wave = Wave(trace.model, build_cache(trace, selections), steps)
    first = trace.last_logits.expand(wave.size, -1)
    answers: list[Answer] = []
    for answers in generate(wave, first, steps, stop_ids, sampling):  # noqa: B007
        pass
    return answers


def test_any_end_token_stops_one_variant_and_not_the_others(traces):
    trace = traces["llama"]
    selections = [None, select(trace, "random", 2), select(trace, "adakv", 3)]
    free = [a.token_ids for a in answers_of(trace, selections, 12)]
    stops = frozenset({free[0][4], free[1][7]})
    answers = answers_of(trace, selections, 12, stops)
    for answer, tokens in zip(answers, free):
        cut = next((i for i, token in enumerate(tokens) if token in stops), None)
        assert answer.token_ids == (tokens if cut is None else tokens[: cut + 1])
        assert answer.finished == ("length" if cut is None else "stop token")
    assert len({len(a.token_ids) for a in answers}) > 1


def test_decoding_ends_when_all_have_ended(traces):
    trace = traces["llama"]
    token = int(trace.last_logits.argmax())
    (answer,) = answers_of(trace, [None], 50, frozenset({token}))
    assert (answer.token_ids, answer.finished) == ([token], "stop token")


def test_sampling_repeats_with_its_seed_and_does_not_depend_on_company(traces):
    trace = traces["llama"]
    selections = [None, select(trace, "adakv", 0.3)]
    warm = Sampling(temperature=1.5, top_p=0.9, seed=7)
    first = [a.token_ids for a in answers_of(trace, selections, 10, sampling=warm)]
    assert first == [a.token_ids for a in answers_of(trace, selections, 10, sampling=warm)]
    assert first[1:] == [a.token_ids for a in answers_of(trace, selections[1:], 10, sampling=warm)]
    other = Sampling(temperature=1.5, top_p=0.9, seed=8)
    assert first != [a.token_ids for a in answers_of(trace, selections, 10, sampling=other)]
    greedy = [a.token_ids for a in answers_of(trace, selections, 10)]
    narrow = Sampling(temperature=1.0, top_p=1e-6, seed=3)  # the best token alone is left
    assert greedy == [a.token_ids for a in answers_of(trace, selections, 10, sampling=narrow)]


def test_top_p_draws_from_the_smallest_set_that_reaches_it(traces):
    trace = traces["llama"]
    p = trace.last_logits.softmax(-1)
    ordered, ids = p.sort(descending=True)
    count = int((ordered.cumsum(0) < 0.5).sum()) + 1  # the token that crosses the line is in
    allowed = set(ids[:count].tolist())
    drawn = {
        answers_of(trace, [None], 1, sampling=Sampling(1.0, 0.5, seed))[0].token_ids[0] for seed in range(40)
    }
    assert drawn <= allowed
    assert len(drawn) > 1


def test_a_stop_is_seen_within_a_step(traces):
    trace = traces["llama"]
    cancel = threading.Event()
    wave = Wave(trace.model, build_cache(trace, [None]), 20, cancel)
    answers = [Answer()]
    with pytest.raises(Cancelled):
        steps = generate(wave, trace.last_logits[None], 20, frozenset(), answers=answers)
        for step, _ in enumerate(steps, 1):
            if step == 5:
                cancel.set()
    assert len(answers[0].token_ids) == 5
    assert answers[0].finished == ""


# -- on the embedded model ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["critical_adakv", "laprox"])
def test_the_embedded_model_with_masked_keys(smollm, method):
    """300 tokens of text, a tenth kept, 12 greedy tokens: the plain model with a mask a layer and head."""
    document = " ".join(f"Entry {i}: the keeper noted {i * 37 % 101} casks of oil." for i in range(40))
    ids = smollm.tokenizer(document, return_tensors="pt").input_ids[0, :300]
    prompt = replace(prompt_of(smollm, 300), input_ids=ids)
    trace = prefill(smollm, prompt, methods=[method])
    selection = select(trace, method, 0.1)
    wave = Wave(smollm, build_cache(trace, [selection]), 12)
    logits, tokens = [trace.last_logits[None]], []
    for _ in range(12):
        tokens.append(logits[-1].argmax(-1))
        logits.append(wave.feed(tokens[-1][:, None])[:, 0])
    before = smollm.hf.config._attn_implementation
    try:
        smollm.hf.config._attn_implementation = "kvviz_test_masked"
        whole = torch.cat([ids, *tokens])[None]
        wanted = masked_logits(smollm.hf, whole, 300, masks_of([selection]))[0, 299:]
    finally:
        smollm.hf.config._attn_implementation = before
    got = torch.cat(logits)
    torch.testing.assert_close(got, wanted, atol=5e-3, rtol=1e-3)
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [0, 20], ids=["aware", "agnostic"])
def test_the_embedded_model_with_a_full_budget_is_generate(smollm, suffix):
    prompt = prompt_of(smollm, 200, suffix)
    ids = prompt.input_ids[None]
    out = smollm.hf.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, repetition_penalty=1.0
    )
    result = compare(smollm, prompt, ["criticalkv", "laprox"], [1.0], 16, measures=())
    for variant in (result.full, *result.variants):
        assert variant.token_ids == out[0, ids.shape[1] :].tolist()
