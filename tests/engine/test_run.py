"""A whole comparison: answers, measures, waves, seeds, reuse."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import (
    METHOD_IDS,
    attention_rows,
    masked_logits,
    masked_model,
    masks_of,
    prompt_of,
    window_of,
    with_suffix,
)
from tiny import FAMILIES

import kvviz.engine.cache
import kvviz.engine.run
from kvviz.engine.ask import Ask
from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Answer, Wave, generate
from kvviz.engine.lenses import STOPS
from kvviz.engine.prompts import build_prompt
from kvviz.engine.run import Guest, compare
from kvviz.engine.trace import prefill
from kvviz.methods.artefacts import Artefact, lend

N, SUFFIX, NEW = 50, 11, 8


def prompts(model):
    """One prompt of each protocol, longer than every sliding window of the tiny models."""
    return [prompt_of(model, N, suffix) for suffix in (0, SUFFIX)]


@torch.no_grad()
def generated(model, prompt, new=NEW) -> list[int]:
    ids = prompt.input_ids[None]
    out = model.hf.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


def forced_logits(result, variants, family: str) -> torch.Tensor:
    """Logits of the masked model for each variant's own answer: what predicts its tokens, [V, T, .]."""
    rows = [torch.cat([result.prompt.input_ids, torch.tensor(v.token_ids)]) for v in variants]
    length = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(r, (0, length - len(r))) for r in rows])
    logits = masked_logits(masked_model(family), ids, result.n, masks_of(v.selection for v in variants))
    return logits[:, len(result.prompt.input_ids) - 1 :]


# -- answers ------------------------------------------------------------------------------------------


def test_the_full_cache_and_a_full_budget_are_generate(tiny_model):
    for prompt in prompts(tiny_model):
        wanted = generated(tiny_model, prompt, 20)
        result = compare(tiny_model, prompt, ["adakv", "criticalkv", "random"], [1.0, N], 20, measures=())
        assert result.full.token_ids == wanted
        for variant in result.variants:
            assert variant.token_ids == wanted
            assert variant.first_difference is None


def test_the_same_in_several_chunks(tiny_model, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    for prompt in prompts(tiny_model):
        result = compare(tiny_model, prompt, ["snapkv"], [1.0], NEW, measures=())
        assert result.full.token_ids == result.variants[0].token_ids == generated(tiny_model, prompt)


@pytest.mark.parametrize("suffix", [0, SUFFIX], ids=["aware", "agnostic"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_what_the_masked_model_says(tiny_models, family, suffix):
    """Every method, both protocols: each token is the masked model's own next token, and KL is its KL."""
    model = tiny_models[family]
    prompt = prompt_of(model, N, suffix)
    result = compare(model, prompt, METHOD_IDS, [0.15, 20], NEW, measures=("kl",))
    assert len(result.variants) == 2 * len(METHOD_IDS)
    logits = forced_logits(result, result.variants, family)
    for variant, rows in zip(result.variants, logits):
        for step, token in enumerate(variant.token_ids):
            assert rows[step].max() - rows[step, token] < 1e-3, (variant.key, step)

    whole = torch.cat([prompt.input_ids, torch.tensor(result.full.token_ids)])
    full = masked_logits(masked_model(family), whole[None], 0, None)[0]
    full = full[len(prompt.input_ids) - 1 : -1].double()
    forced = [replace(v, token_ids=result.full.token_ids) for v in result.variants]
    for variant, rows in zip(result.variants, forced_logits(result, forced, family)):
        q = rows[: len(full)].double().log_softmax(-1)
        p = full.log_softmax(-1)
        wanted = (p.exp() * (p - q)).sum(-1).numpy()
        assert len(variant.kl) == len(result.full.token_ids)
        np.testing.assert_allclose(variant.kl, wanted, atol=2e-4, rtol=5e-3)
        if not suffix:
            assert variant.kl[0] == 0.0  # the first token comes from the full prefill
    assert not result.full.kl.any()


@pytest.mark.parametrize("suffix", [0, SUFFIX], ids=["aware", "agnostic"])
def test_output_errors_are_brute_force_on_the_plain_models_rows(tiny_model, suffix):
    model, prompt = tiny_model, prompt_of(tiny_model, N, suffix)
    result = compare(model, prompt, ["adakv", "random"], [0.2], 5)
    answer = result.full.token_ids
    sequence = torch.cat([prompt.input_ids, torch.tensor(answer)])
    first = len(prompt.input_ids)  # position of the answer's first token: the first probe query
    for index, (q, k, v, _) in enumerate(attention_rows(model.id.removeprefix("tiny-"), sequence)):
        q, k, v = q.double(), k.double(), v.double()
        window, w_o = window_of(model.hf.config, index), model.layer(index).w_o.double()
        for variant in result.variants:
            l2, layer = [], []
            for position in range(first, len(sequence)):
                changes, fulls = [], []
                for head in range(model.n_query_heads):
                    kv = head // model.group
                    seen = torch.arange(position + 1)
                    if window is not None:
                        seen = seen[seen > position - window]
                    kept = seen[(seen >= N) | variant.selection.mask[index][kv][seen.clamp(max=N - 1)]]
                    out = []
                    for columns in (seen, kept):
                        p = (k[kv, columns] @ q[head, position] * model.layer(index).scaling).softmax(0)
                        out.append(p @ v[kv, columns] @ w_o[head])
                    fulls.append(out[0])
                    changes.append(out[1] - out[0])
                change, full = torch.stack(changes), torch.stack(fulls)
                l2.append(change.norm(dim=-1) / full.norm(dim=-1))
                layer.append(change.sum(0).norm() / full.sum(0).norm())
            for got, wanted in (
                (variant.output_error[index], torch.stack(l2).mean(0)),
                (variant.layer_error[index], torch.stack(layer).mean(0)),
            ):
                np.testing.assert_allclose(got, wanted.numpy(), rtol=3e-3, atol=2e-5)


def test_a_real_prompt_of_both_protocols(tiny_llama):
    text = "The keeper wrote the code 58213 in the ledger. The weather was fair. " * 4
    for protocol in ("question-aware", "question-agnostic"):
        prompt = build_prompt(tiny_llama, text, "What is the code?", protocol=protocol)
        result = compare(tiny_llama, prompt, ["snapkv"], [1.0, 0.3], NEW, expected="58213")
        assert result.full.token_ids == generated(tiny_llama, prompt)
        assert [m.name for m in result.marks] == ["M1a", "M1b", "M1c", "M1d"]
        for variant in result.variants:
            assert len(variant.tokens) == len(variant.token_ids)
            assert variant.text == tiny_llama.tokenizer.decode(variant.token_ids, skip_special_tokens=True)


def test_what_a_result_states(tiny_llama):
    result = compare(tiny_llama, prompt_of(tiny_llama, N), ["snapkv", "adakv"], [0.5, 7], NEW)
    assert [v.key for v in result.variants] == ["snapkv@0.5", "snapkv@7", "adakv@0.5", "adakv@7"]
    assert [v.entries for v in result.variants] == [25, 7, 25, 7]
    assert [v.tokens_kept for v in result.variants] == [25, 7, 25, 7]
    for v in result.variants:
        assert 0 < v.bytes < result.bytes_full
        assert v.output_error.shape == (3, 4)
        assert v.layer_error.shape == (3,)
        assert v.finished in ("length", "stop token")
    assert result.full.bytes == result.bytes_full
    assert Ask.of_settings(result.settings) == Ask(["snapkv", "adakv"], [0.5, 7], NEW)
    assert result.settings["methods"]["snapkv"]["used"]["window"] == 32
    assert {"prefill", "decode", "score", "errors"} <= set(result.seconds)


def test_any_end_token_stops(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    free = compare(tiny_llama, prompt, ["random"], [0.1], 12, measures=())
    stops = {free.full.token_ids[3], free.variants[0].token_ids[6]}
    model = replace(tiny_llama, stop_ids=frozenset(stops))
    result = compare(model, prompt, ["random"], [0.1], 12, measures=("kl",))
    for variant, whole in zip([result.full, *result.variants], [free.full, *free.variants]):
        cut = next(i for i, token in enumerate([*whole.token_ids, *stops]) if token in stops)
        assert variant.token_ids == whole.token_ids[: cut + 1]
    assert result.full.finished == "stop token"
    assert len(result.variants[0].kl) == len(result.full.token_ids)


def test_without_measures_answers_are_the_same(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    plain = compare(tiny_llama, prompt, ["snapkv", "adakv"], [0.2], NEW, measures=())
    measured = compare(tiny_llama, prompt, ["snapkv", "adakv"], [0.2], NEW)
    for a, b in zip(plain.variants, measured.variants):
        assert a.token_ids == b.token_ids
        assert a.kl is a.output_error is a.layer_error is None
        assert b.kl is not None
        assert b.output_error is not None
    only_errors = compare(tiny_llama, prompt, ["snapkv"], [0.2], NEW, measures=("output_error",))
    assert only_errors.variants[0].kl is None
    assert only_errors.variants[0].output_error is not None


@pytest.mark.parametrize("decoding", [{}, {"temperature": 1.0}])
def test_a_guest_is_answered_as_it_is_alone(tiny_model, decoding):
    """In the wave of the others or after it; nothing of them changes."""
    trace = prefill(tiny_model, prompt_of(tiny_model, 21, seed=5))
    wave, alone = Wave(tiny_model, build_cache(trace, [None]), NEW), [Answer()]
    for _ in generate(wave, trace.last_logits[None], NEW, tiny_model.stop_ids, answers=alone):
        pass
    text = tiny_model.tokenizer.decode(alone[0].token_ids, skip_special_tokens=True)
    for prompt in prompts(tiny_model):
        asked = (tiny_model, prompt, ["snapkv"], [0.5, 0.1], NEW)
        guest = Guest(trace)
        with_it, without = compare(*asked, guest=guest, **decoding), compare(*asked, **decoding)
        assert guest.text == text
        for a, b in zip([with_it.full, *with_it.variants], [without.full, *without.variants], strict=True):
            assert (a.token_ids, a.bytes) == (b.token_ids, b.bytes)
            np.testing.assert_allclose(a.kl, b.kl, atol=1e-5)


# -- waves, seeds, threads, reuse ---------------------------------------------------------------------


def small_waves(monkeypatch, size: int) -> list[int]:
    """Lets a wave hold `size` bytes (fewer than the environment may ask for); lists the waves' variants."""
    waves, build = [], kvviz.engine.run.build_cache
    monkeypatch.setattr(kvviz.engine.run, "build_cache", lambda t, s: waves.append(len(s)) or build(t, s))
    narrow = replace(kvviz.settings.settings(), wave_bytes=size)
    monkeypatch.setattr(kvviz.engine.cache, "settings", lambda: narrow)
    return waves


def test_several_waves_give_what_one_gives(tiny_model, monkeypatch):
    for prompt in prompts(tiny_model):
        methods, budgets = ["snapkv", "laprox", "random"], [0.5, 0.1]
        whole = compare(tiny_model, prompt, methods, budgets, NEW)
        waves = small_waves(monkeypatch, 20_000)
        parts = compare(tiny_model, prompt, methods, budgets, NEW)
        monkeypatch.undo()
        assert len(waves) > 1
        assert sum(waves) == 7
        for a, b in zip(whole.variants, parts.variants):
            assert a.token_ids == b.token_ids
            assert a.bytes == b.bytes
            np.testing.assert_allclose(a.kl, b.kl, atol=1e-5)
            np.testing.assert_allclose(a.output_error, b.output_error, atol=1e-5)


def test_sampling_follows_its_seed(tiny_llama, monkeypatch):
    prompt = prompt_of(tiny_llama, N)
    warm = {"temperature": 1.5, "top_p": 0.9, "measures": ()}

    def answers(**more):
        result = compare(tiny_llama, prompt, ["snapkv", "random"], [0.3], NEW, **{**warm, **more})
        return [v.token_ids for v in (result.full, *result.variants)]

    first = answers(seed=1)
    assert answers(seed=1) == first
    assert answers(seed=2) != first
    waves = small_waves(monkeypatch, 1)
    assert answers(seed=1) == first
    assert len(waves) == 2


def test_two_runs_in_two_threads_are_what_each_is_alone(tiny_llama):
    asked = [prompt_of(tiny_llama, N, suffix, seed=seed) for seed, suffix in ((1, 0), (2, SUFFIX))]
    alone = [compare(tiny_llama, p, ["snapkv", "h2o"], [0.2], NEW) for p in asked]
    together = [None, None]

    def work(i):
        together[i] = compare(tiny_llama, asked[i], ["snapkv", "h2o"], [0.2], NEW)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together):
        assert [v.token_ids for v in (a.full, *a.variants)] == [v.token_ids for v in (b.full, *b.variants)]
        for x, y in zip(a.variants, b.variants):
            np.testing.assert_allclose(x.kl, y.kl, atol=1e-6)


def test_a_second_question_on_the_same_trace(tiny_model, monkeypatch):
    first = prompt_of(tiny_model, N, SUFFIX)
    second = with_suffix(first, [9, 17, 33, 60, 121])
    alone = compare(tiny_model, second, METHOD_IDS[:6], [0.2], NEW)
    trace = prefill(tiny_model, first, METHOD_IDS[:6])
    compare(tiny_model, first, METHOD_IDS[:6], [0.2, 0.5], NEW, trace=trace)

    def read_again(*args):
        raise AssertionError("the prompt was read a second time")

    monkeypatch.setattr(kvviz.engine.run, "prefill_events", read_again)
    again = compare(tiny_model, second, METHOD_IDS[:6], [0.2], NEW, trace=trace)
    assert again.full.token_ids == alone.full.token_ids == generated(tiny_model, second)
    for a, b in zip(again.variants, alone.variants):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.kl, b.kl, atol=1e-5)


def test_reuse_reads_no_prompt_token_again(tiny_llama):
    """Counted on the model itself: tokens in forward passes that are not question, answer or probe."""
    prompt = prompt_of(tiny_llama, N, SUFFIX)
    trace = prefill(tiny_llama, prompt, ["snapkv"])
    fed = []
    handle = tiny_llama.hf.register_forward_pre_hook(
        lambda m, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    result = compare(tiny_llama, prompt, ["snapkv"], [0.2], NEW, measures=(), trace=trace)
    handle.remove()
    steps = max(len(v.token_ids) for v in (result.full, *result.variants))
    assert sum(fed) == SUFFIX + steps - 1


def test_order_of_methods_and_budgets_does_not_matter(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    forth = compare(tiny_llama, prompt, ["snapkv", "laprox", "h2o"], [0.5, 0.1], NEW)
    back = compare(tiny_llama, prompt, ["h2o", "laprox", "snapkv"], [0.1, 0.5], NEW)
    for variant in forth.variants:
        other = back.variant(variant.method, variant.budget)
        assert other.token_ids == variant.token_ids
        np.testing.assert_allclose(other.kl, variant.kl, atol=1e-5)


# -- lenses -------------------------------------------------------------------------------------------


def test_a_run_names_the_machine_and_the_calibrated_files_it_used(tiny_llama):
    """Two machines round otherwise, and a file calibrated again gives other scores."""
    lent = Artefact("qfilters", {"filters": torch.randn(3, 2, 16)}, {"sha256": "f00d"})
    with lend(lent):
        result = compare(tiny_llama, prompt_of(tiny_llama, 30), ["qfilters", "snapkv"], [0.5], 2)
    assert result.settings["calibrated"] == {"qfilters": "f00d"}
    machine = result.settings["machine"]
    assert (machine["device"], machine["threads"]) == ("cpu", torch.get_num_threads())
    assert machine["kernels"]["gather_rows"] == "torch"


def test_lenses_hold_what_the_views_need(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    methods = ["snapkv", "laprox"]
    result = compare(tiny_llama, prompt, methods, [0.3], NEW, lenses=True)
    assert result.stops == STOPS
    trace = prefill(tiny_llama, prompt, methods)
    for method in methods:
        for stop in STOPS:
            selection = kvviz.select(trace, method, stop)
            assert np.array_equal(result.at(method, stop).kept.mask(), torch.stack(selection.mask).numpy())
            assert np.array_equal(result.at(method, stop).kept.protected(), selection.protected.numpy())
            assert result.at(method, stop).entries == selection.entries
        errors = np.stack([p.error for p in result.at_stops if p.method == method])
        assert errors.shape == (len(STOPS), 3, 4)
        at = errors[STOPS.index(0.3)]
        np.testing.assert_allclose(at, result.variant(method, 0.3).output_error, atol=1e-5)
        assert errors[-1].max() < 1e-5
    grouped = torch.stack([trace.window_attention(i, 32).mean(1) for i in range(3)])
    wanted = grouped.unflatten(1, (2, 2)).mean(2).numpy()
    np.testing.assert_allclose(result.lenses["attention"], wanted, atol=1e-6)
    assert result.lenses["effect"].shape == result.lenses["attention_answer"].shape == (3, 2, N)
