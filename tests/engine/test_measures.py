"""Measures against brute force: the softmax written out over what is kept, renormalised, projected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import attention_rows, prompt_of, sparse_masks, window_of

from kvviz.engine.decode import Probes
from kvviz.engine.measures import (
    answer_attention,
    first_difference,
    kl_divergence,
    output_errors,
    token_effects,
)
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill

N, S, T = 40, 7, 5  # prompt rows, rows after it, probe queries (the last of those rows)


def made(model, sharp: float = 1.0):
    """A trace, and probes that are the plain model's own rows for S more tokens; all as (trace, probes)."""
    prompt = prompt_of(model, N)
    trace = prefill(model, prompt)
    later = torch.randint(4, 320, (S,), generator=torch.Generator().manual_seed(3))
    rows = attention_rows(model.id.removeprefix("tiny-"), torch.cat([prompt.input_ids, later]))
    queries = [sharp * q[:, N + S - T :] for q, *_ in rows]
    return trace, Probes(queries, [(k[:, N:], v[:, N:]) for _, k, v, _ in rows])


def outputs(trace, probes, index: int, keep: torch.Tensor) -> torch.Tensor:
    """o W_O of each query head and probe with only the kept prompt rows: float64 [Hq, T, D]."""
    model = trace.model
    layer, window = model.layer(index), window_of(model.hf.config, index)
    keys = torch.cat([trace.keys[index], probes.tail[index][0]], 1).double()
    values = torch.cat([trace.values[index], probes.tail[index][1]], 1).double()
    out = torch.zeros(model.n_query_heads, T, model.hidden_size, dtype=torch.float64)
    for head in range(model.n_query_heads):
        kv = head // model.group
        for t in range(T):
            position = N + S - T + t
            columns = [
                j
                for j in range(position + 1)
                if (j >= N or keep[kv, j]) and (window is None or j > position - window)
            ]
            query = probes.queries[index][head, t].double()
            p = (keys[kv, columns] @ query * layer.scaling).softmax(0)
            out[head, t] = (p @ values[kv, columns]) @ layer.w_o[head].double()
    return out


def everything(model) -> list[torch.Tensor]:
    return [torch.ones(model.n_kv_heads, N, dtype=torch.bool)] * model.n_layers


def relative(change: torch.Tensor, full: torch.Tensor) -> np.ndarray:
    norms = change.norm(dim=-1) / full.norm(dim=-1)
    return norms.mean(-1).numpy()


@pytest.mark.parametrize("sharp", [1.0, 60.0])
def test_output_errors_are_brute_force(tiny_model, sharp):
    """Also where next to nothing is left of a query's attention (sharp queries: below e^-100)."""
    trace, probes = made(tiny_model, sharp)
    masks = [sparse_masks(tiny_model, N, seed) for seed in (0, 1)]
    *_, (done, errors) = output_errors(trace, probes, masks)
    assert done == tiny_model.n_layers
    for index in range(tiny_model.n_layers):
        full = outputs(trace, probes, index, everything(tiny_model)[index])
        for mask, error in zip(masks, errors):
            change = outputs(trace, probes, index, mask[index]) - full
            np.testing.assert_allclose(error.l2[index], relative(change, full), rtol=2e-3, atol=1e-5)
            layer = relative(change.sum(0)[None], full.sum(0)[None])[0]
            np.testing.assert_allclose(error.layer[index], layer, rtol=2e-3, atol=1e-5)


def test_errors_follow_what_is_cut_while_writing(tiny_llama):
    """From each cut on a query sees only what was held then, and the rows that came after."""
    trace, probes = made(tiny_llama)
    heads, layers = tiny_llama.n_kv_heads, range(tiny_llama.n_layers)
    draw = torch.Generator().manual_seed(5)
    first = sparse_masks(tiny_llama, N, 0)
    cuts = []
    for fed in (3, 5):  # rows of the tail before the cut; probes are the rows 2 to 6
        kept = [torch.rand(heads, N + fed, generator=draw).topk(9).indices.sort(1).values for _ in layers]
        cuts.append((fed, kept))
    *_, (_, (error, plain)) = output_errors(trace, probes, [first, first], cuts=[cuts, []])
    for index in layers:
        layer = tiny_llama.layer(index)
        keys = torch.cat([trace.keys[index], probes.tail[index][0]], 1).double()
        values = torch.cat([trace.values[index], probes.tail[index][1]], 1).double()
        for head in range(tiny_llama.n_query_heads):
            kv, wanted = head // tiny_llama.group, []
            for t in range(T):
                row = S - T + t
                rows = [*first[index][kv].nonzero()[:, 0].tolist(), *range(N, N + row + 1)]
                for fed, kept in cuts:
                    if fed <= row:
                        rows = [*kept[index][kv].tolist(), *range(N + fed, N + row + 1)]
                out = []
                query = probes.queries[index][head, t].double() * layer.scaling
                for columns in (rows, list(range(N + row + 1))):
                    p = (keys[kv, columns] @ query).softmax(0)
                    out.append(p @ values[kv, columns] @ layer.w_o[head].double())
                wanted.append(float((out[0] - out[1]).norm() / out[1].norm()))
            assert error.l2[index, head] == pytest.approx(np.mean(wanted), rel=2e-3, abs=1e-5)
    assert not np.allclose(plain.l2, error.l2, rtol=0.05)


def test_nothing_evicted_is_no_error(tiny_model):
    trace, probes = made(tiny_model)
    *_, (_, (error,)) = output_errors(trace, probes, [everything(tiny_model)])
    for values in (error.l2, error.layer):
        assert values.dtype == np.float32
        assert values.max() < 1e-5
        assert values.min() >= 0


def test_rows_behind_every_probes_sliding_window_do_not_count(tiny_models):
    model = tiny_models["gemma3"]
    trace, probes = made(model)
    masks = [m.clone() for m in everything(model)]
    first = N + S - T  # the earliest probe's position sees keys above first - 8
    masks[0][:, : first - 7] = False
    *_, (_, (error,)) = output_errors(trace, probes, [masks])
    assert error.l2.max() < 1e-5


def test_each_layer_is_reported_as_it_is_done(tiny_llama):
    trace, probes = made(tiny_llama)
    steps = [done for done, _ in output_errors(trace, probes, [everything(tiny_llama)])]
    assert steps == [1, 2, 3]


def test_answer_attention_is_that_of_the_probe_queries(tiny_model):
    """Beside a softmax written out, over the prompt and the rows after it."""
    trace, probes = made(tiny_model)
    found = answer_attention(trace, probes)
    group = tiny_model.group
    for index in range(tiny_model.n_layers):
        layer, window = tiny_model.layer(index), window_of(tiny_model.hf.config, index)
        keys = torch.cat([trace.keys[index], probes.tail[index][0]], 1).double()
        wanted = np.zeros((tiny_model.n_kv_heads, N))
        for head in range(tiny_model.n_query_heads):
            for t in range(T):
                position = N + S - T + t
                first = 0 if window is None else max(0, position - window + 1)
                rows = keys[head // group, first : position + 1]
                p = (rows @ probes.queries[index][head, t].double() * layer.scaling).softmax(0).numpy()
                wanted[head // group, first:] += p[: N - first] / (group * T)
        np.testing.assert_allclose(found[index], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sharp", [1.0, 4.0, 12.0, 60.0])
def test_token_effects_are_brute_force_removal(tiny_model, sharp):
    """Also where one key takes nearly all the attention (sharp queries: p near 1)."""
    trace, probes = made(tiny_model, sharp)
    effects = token_effects(trace, probes)
    assert effects.shape == (tiny_model.n_layers, tiny_model.n_kv_heads, N)
    group = tiny_model.group
    for index in range(tiny_model.n_layers):
        keep = everything(tiny_model)[index]
        full = outputs(trace, probes, index, keep)
        for j in range(0, N, 3):
            without = keep.clone()
            without[:, j] = False
            change = outputs(trace, probes, index, without) - full
            wanted = (change.norm(dim=-1) / full.norm(dim=-1)).mean(-1)
            wanted = wanted.view(-1, group).mean(1).numpy()
            np.testing.assert_allclose(effects[index, :, j], wanted, rtol=5e-3, atol=2e-4)


def test_the_probability_of_a_removed_row_really_comes_near_1(tiny_llama):
    """Guards the tests above: with sharp queries some prompt row has p > 0.999, and at 60 leads by e^90."""
    trace, probes = made(tiny_llama, 12.0)
    q, k = probes.queries[0].double(), trace.keys[0].repeat_interleave(tiny_llama.group, 0).double()
    tail = probes.tail[0][0].repeat_interleave(tiny_llama.group, 0).double()
    logits = torch.cat([q @ k.transpose(1, 2), q @ tail.transpose(1, 2)], -1) * tiny_llama.layer(0).scaling
    assert logits.softmax(-1)[..., :N].max() > 0.999
    best = 5 * logits[..., :N].topk(2).values
    assert (best[..., 0] - best[..., 1]).max() > 90


# -- distributions ------------------------------------------------------------------------------------


@given(
    a=st.lists(st.floats(-30, 30), min_size=5, max_size=5),
    b=st.lists(st.floats(-30, 30), min_size=5, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_kl_is_its_definition(a, b):
    p, q = np.exp(np.array(a) - max(a)), np.exp(np.array(b) - max(b))
    p, q = p / p.sum(), q / q.sum()
    wanted = float((p * (np.log(p) - np.log(q))).sum())
    got = float(kl_divergence(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)))
    assert got == pytest.approx(max(0.0, wanted), abs=1e-9)
    assert got >= 0


def test_kl_of_equal_logits_is_zero_and_shifts_do_not_count():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 20
    assert not kl_divergence(logits, logits).any()
    assert kl_divergence(logits, logits + 5).max() < 1e-6
    assert kl_divergence(logits, logits.roll(1, -1)).min() > 1


# -- words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "index"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([], [], None),
        ([], [4], 0),
    ],
)
def test_first_difference(a, b, index):
    assert first_difference(a, b) == index
    assert first_difference(b, a) == index


# -- CriticalKV's bound -------------------------------------------------------------------------------


def bound_and_change(p, values, w_o, kept) -> tuple[float, float]:
    """theta = C - (2 - 1 / sigma) sum_kept A with A = p ||v W_O||_1, and the true L1 change: float64."""
    sizes = p * (values @ w_o).abs().sum(-1)
    sigma = p[kept].sum()
    theta = sizes.sum() - (2 - 1 / sigma) * sizes[kept].sum()
    change = (p[kept] / sigma) @ values[kept] - p @ values
    return float(theta), float((change @ w_o).abs().sum())


def test_the_bound_on_the_worked_example():
    p = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    values = torch.tensor([[1, 0], [0, 1], [2, 0], [0, -2]], dtype=torch.float64)
    w_o = torch.tensor([[1, 0], [0, 3]], dtype=torch.float64)
    for kept, theta, change in (([0, 1], 17 / 12, 13 / 12), ([0, 3], 1.75, 1.25)):
        assert bound_and_change(p, values, w_o, kept) == (pytest.approx(theta), pytest.approx(change))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_criticalkvs_bound_holds_on_every_real_head(smollm, budget):
    document = " ".join(f"Entry {i}: the keeper noted {i * 37 % 101} casks of oil." for i in range(40))
    ids = smollm.tokenizer(document, return_tensors="pt").input_ids[0, :300]
    trace = prefill(smollm, replace(prompt_of(smollm, 300), input_ids=ids))
    selection = select(trace, "criticalkv", budget)
    for index in range(smollm.n_layers):
        rows = trace.window_attention(index, 2)[:, -1].double()
        for head in range(smollm.n_query_heads):
            kv = head // smollm.group
            values, w_o = trace.values[index][kv].double(), smollm.layer(index).w_o[head].double()
            theta, change = bound_and_change(rows[head], values, w_o, selection.mask[index][kv])
            assert 0 <= change <= theta * (1 + 1e-9), (index, head)
