import numpy as np
import pytest
import torch
from tiny import make_model

import kvviz
from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Probes, Wave
from kvviz.engine.measures import output_errors
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.indexmem import (
    Memory,
    index_scores,
    indexer_sizes,
    phi,
    read,
    shapes,
    state_entries,
    write,
)
from methods.fixtures import GROUPS, Exact, random_layer, score

TEXT = "The keeper wrote 58213 in the ledger. The door was blue, the sea was grey and the lamp lit. " * 2


def normed(x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def reference(x, options):
    """Written out query by query."""
    learned = {k: v[x.view.index].double().numpy() for k, v in x.view.artefact("indexmem").items()}
    hidden = x.view.extra("hidden").double().numpy()
    heads = learned["w_w"].shape[-1]
    keys = normed(hidden @ learned["w_k"])
    sums, counts = np.zeros(x.n), np.zeros(x.n)
    for s in range(x.n - min(options["window"], x.n), x.n):
        q = normed((hidden[s] @ learned["w_q"]).reshape(heads, -1))
        w = hidden[s] @ learned["w_w"]
        for t in range(s + 1):
            sums[t] += sum(w[h] * max(0.0, q[h] @ keys[t]) for h in range(heads))
            counts[t] += 1
    return [[sums[j] / counts[j] for j in x.context]] * x.hkv


def random_artefact(info, seed=0, gamma=1.0):
    draw = torch.Generator().manual_seed(seed)
    tensors = {k: torch.randn(s, generator=draw) for k, s in shapes(info).items()}
    tensors["gamma"] = torch.full_like(tensors["gamma"], gamma)
    return Artefact("indexmem", tensors, {})


@pytest.fixture(scope="module")
def trace():
    model = make_model("llama")
    prompt = kvviz.build_prompt(
        model, document=TEXT, question="Which code is it?", protocol="question-agnostic"
    )
    return kvviz.prefill(model, prompt, methods=["indexmem"])


# -- indexer ------------------------------------------------------------------------------------------


def test_indexer_worked_example():
    # heads (1, 0) and (0, -1), k = (2, 3), w = (.5, 2): .5 ReLU(2) + 2 ReLU(-3) = 1
    q = torch.tensor([[[1.0, 0], [0, -1]]])
    assert index_scores(q, torch.tensor([[2.0, 3]]), torch.tensor([[0.5, 2]])).item() == 1.0


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("window", [2, 5, 9, 128])
def test_agrees_with_its_definition(group, window):
    layer = random_layer(group, seed=group)
    draw = torch.Generator().manual_seed(group)
    layer.trace._extras["hidden"] = torch.randn(layer.n, 6, generator=draw)
    tensors = {"w_q": 8, "w_k": 4, "w_w": 2}
    tensors = {k: torch.randn(1, 6, width, generator=draw) for k, width in tensors.items()}
    with lend(Artefact("indexmem", tensors, {})):
        values = score("indexmem", layer, window=window).values
        wanted = reference(Exact(layer), {"window": window})
    assert np.allclose(values, wanted, rtol=1e-3, atol=1e-4)
    assert torch.equal(values, values[:1].expand(2, -1))


def test_sizes_follow_the_model():
    assert indexer_sizes(make_model("llama").info) == (2, 4)  # 4 query heads of 16


def test_sinks_and_recent_tokens_are_kept_and_counts_are_exact(trace):
    with lend(random_artefact(trace.model.info)):
        for budget in (1, 5, 20, 0.3, 1.0):
            selection = kvviz.select(trace, "indexmem", budget)
            assert (selection.budgets == selection.entries).all()
        selection = kvviz.select(trace, "indexmem", 20)
    assert selection.protected[0, 0].nonzero()[:, 0].tolist() == [0, 1, 2, 3, *range(trace.n - 10, trace.n)]


# -- memory -------------------------------------------------------------------------------------------


def vectors(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_memory_worked_example():
    a, z = torch.zeros(2, 2), torch.zeros(2)
    a, z = write(a, z, vectors([1, 0]), vectors([2, -1]), 0.9, 1.0)  # phi(k) = (2, 1)
    assert a.tolist() == [[4, -2], [2, -1]]
    assert z.tolist() == [4, 1]
    # phi(q) = (1, 2): (4 + 4, -2 - 2) / (1 * 4 + 4 * 1)
    assert read(a, z, vectors([0, 1]))[0].tolist() == [1, -0.5]
    a, z = write(a, z, vectors([0, 1]), vectors([0, 3]), 0.9, 1.0)  # phi(k) = (1, 2), after decay
    assert torch.allclose(a, vectors([3.6, 1.2], [1.8, 5.1]))
    assert torch.allclose(z, torch.tensor([4.6, 4.9]))
    assert read(a, z, vectors([0, 1]))[0].tolist() == pytest.approx([0.297521, 0.471074], abs=1e-6)


def test_a_stored_pair_does_not_read_back_as_its_value():
    # phi = (2, 1), v = (3, -1): v (4 + 1) / (16 + 1)
    a, z = write(torch.zeros(2, 2), torch.zeros(2), vectors([1, 0]), vectors([3, -1]), 1.0, 1.0)
    assert read(a, z, vectors([1, 0]))[0].tolist() == pytest.approx([0.882353, -0.294118], abs=1e-6)


def test_without_decay_writes_commute():
    keys, values = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    one = (torch.zeros(4, 4), torch.zeros(4))
    other = one
    one = write(*one, keys[:2], values[:2], 1.0, 1.0)
    one = write(*one, keys[2:], values[2:], 1.0, 1.0)
    other = write(*other, keys[2:], values[2:], 1.0, 1.0)
    other = write(*other, keys[:2], values[:2], 1.0, 1.0)
    whole = write(torch.zeros(4, 4), torch.zeros(4), keys, values, 1.0, 1.0)
    for x, y, w in zip(one, other, whole):
        assert torch.allclose(x, y, atol=1e-6)
        assert torch.allclose(x, w, atol=1e-6)


def test_an_empty_memory_reads_nothing(trace):
    assert read(torch.zeros(4, 4), torch.zeros(4), torch.randn(3, 4)).abs().max() == 0
    with lend(random_artefact(trace.model.info)):
        assert kvviz.select(trace, "indexmem", 1.0).readout is None


def test_state_is_that_of_the_evicted_entries_unrotated(trace):
    with lend(random_artefact(trace.model.info)):
        selection = kvviz.select(trace, "indexmem", 0.3)
    memory, model, n = selection.readout, trace.model, trace.n
    assert isinstance(memory, Memory)
    for index in range(model.n_layers):
        cos, sin = model.rotary(index, torch.arange(n))
        for head in range(model.n_kv_heads):
            a, z = 0, 0
            for j in (~selection.mask[index][head]).nonzero()[:, 0].tolist():
                k, v = trace.keys[index][head, j], trace.values[index][head, j]
                half = torch.cat([k[8:], -k[:8]])  # rotating back by the same angle
                f = phi(k * cos[j] + half * sin[j])
                a, z = a + f[:, None] * v, z + f * f
            assert torch.allclose(memory.a[index][head], a, rtol=1e-3, atol=1e-3)
            assert torch.allclose(memory.z[index][head], z, rtol=1e-3, atol=1e-3)


def logits_of(trace, selection):
    suffix = trace.prompt.input_ids[trace.n :]
    wave = Wave(trace.model, build_cache(trace, [None, selection]), len(suffix))
    return wave.feed(suffix.expand(2, -1))


def test_gamma_zero_is_pure_eviction(trace):
    with lend(random_artefact(trace.model.info, gamma=0.0)):
        silent = logits_of(trace, kvviz.select(trace, "indexmem", 0.3))
        off = kvviz.select(trace, "indexmem", 0.3, memory=False)
    assert off.readout is None
    assert torch.allclose(silent, logits_of(trace, off), atol=1e-5)


def test_the_readout_enters_decoding_and_the_measured_error(trace):
    """One layer by hand: with gamma = 1 the outputs of layer 0 move by exactly the readout."""
    with lend(random_artefact(trace.model.info, gamma=1.0)):
        on = kvviz.select(trace, "indexmem", 0.3)
        off = kvviz.select(trace, "indexmem", 0.3, memory=False)
    outs = []
    for selection in (on, off):
        suffix = trace.prompt.input_ids[trace.n :]
        wave = Wave(trace.model, build_cache(trace, [selection]), len(suffix))
        seen = {}
        attend = wave._attend

        def watched(index, query, key, value, attend=attend, seen=seen):
            seen[index] = (query.clone(), attend(index, query, key, value))
            return seen[index][1]

        wave._attend = watched
        wave.feed(suffix[None])
        outs.append(seen[0])
    (query, with_memory), (_, without) = outs
    positions = torch.arange(trace.n, trace.n + query.shape[2])
    added = on.readout.read(0, query[0], positions)
    assert added.abs().max() > 1e-3
    assert torch.allclose(with_memory[0] - without[0], added, atol=1e-5)

    generator = torch.Generator().manual_seed(0)
    model, t = trace.model, 3
    probes = Probes(
        [torch.randn(model.n_query_heads, t, model.head_dim, generator=generator)] * model.n_layers,
        [tuple(torch.randn(2, model.n_kv_heads, t, model.head_dim, generator=generator))] * model.n_layers,
    )
    *_, (_, (plain, moved)) = output_errors(trace, probes, [on.mask, on.mask], [None, on.readout])
    assert (plain.l2 != moved.l2).all()


def test_bytes_are_counted_and_can_be_charged(trace):
    model, d = trace.model, 16
    assert state_entries(model) == (d * d + d) * 4 // (2 * d * 4) + 1  # 8.5 entries
    with lend(random_artefact(model.info)):
        free = kvviz.select(trace, "indexmem", 30)
        off = kvviz.select(trace, "indexmem", 30, memory=False)
        paid = kvviz.select(trace, "indexmem", 30, charge_memory=True)
        poor = kvviz.select(trace, "indexmem", 5, charge_memory=True)
        whole = kvviz.select(trace, "indexmem", 1.0, charge_memory=True)
    state = model.n_layers * model.n_kv_heads * (d * d + d) * 4
    assert free.readout.bytes == state
    assert build_cache(trace, [free]).bytes[0] == build_cache(trace, [off]).bytes[0] + state
    assert (free.budgets == 30).all()
    assert (paid.budgets == 30 - 9).all()
    assert paid.entries == 30
    assert any("taken from the budget" in note for note in paid.notes)
    assert (poor.budgets == 5).all()
    assert any("left out" in note for note in poor.notes)
    assert poor.readout.bytes == 0
    assert (whole.budgets == trace.n).all()


def test_runs_to_an_answer(trace):
    with lend(random_artefact(trace.model.info, gamma=0.1)):
        result = kvviz.compare(
            trace.model, trace.prompt, ["indexmem", "indexmem:memory=false"], [0.3], max_new_tokens=3
        )
    on, off = result.variants
    assert on.bytes > off.bytes
    assert not np.allclose(on.kl, off.kl)
