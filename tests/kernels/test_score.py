"""Score pass: twin and kernel against the definition in float64, near-one attention above all."""

from __future__ import annotations

import pytest
import torch
from plain import Case, Inputs, assert_close, attention, make, scores

from kvviz import kernels
from kvviz.errors import KvvizError

CASES = [
    Case(3, 1, 5, 63, 80),
    Case(4, 1, 32, 100, 64, strong=12),
    Case(7, 1, 1, 1000, 96),
    Case(16, 1, 2, 70, 128, sinks=True, strong=9),
    Case(4, 2, 20, 130, 64, sliding=40, sinks=True),
    Case(2, 2, 64, 64, 64),
    Case(4, 2, 8, 100, 64, dtype=torch.float16, strided=True, strong=8),
    Case(4, 2, 8, 100, 128, dtype=torch.bfloat16, strong=8),
    Case(2, 1, 4, 300, 64, sliding=20),
    Case(2, 1, 4, 200, 64, start=10),
    Case(3, 3, 6, 40, 80, start=45, sliding=8),
]


def score(x: Inputs, kind: str, **options) -> torch.Tensor:
    lse, out = kernels.window_pass(x.query, x.keys, x.values, x.scaling, x.start, x.sliding, x.sinks)
    return kernels.score_pass(
        x.query, x.keys, x.values, lse, out, x.scaling, x.start, kind, x.sliding, x.sinks, **options
    )


@pytest.mark.parametrize("kind", ["mean", "square", "dropkv", "caote"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_score_pass(case, kind, implementation, device):
    x = make(case, device)
    got = score(x, kind)
    assert kernels.last_used()["score_pass"] == implementation
    assert got.dtype == torch.float32
    assert_close(got, scores(x, kind), kind)


@pytest.mark.parametrize("kind", ["dropkv", "caote"])
@pytest.mark.parametrize("rest", [1e-2, 1e-4, 1e-6])
def test_one_key_holds_nearly_everything(rest, kind, implementation, device):
    """1 - p is tiny for key 3: its score must keep float32's digits, as the plain expansion does not."""
    x = make(Case(2, 1, 4, 80, 64), device)
    query = x.query.clone()
    query[:] = query[:1, :1]  # all rows alike, so that one key can dominate them all
    logits = x.keys[0].double() @ query[0, 0].double() * x.scaling
    others = torch.cat([logits[:3], logits[4:77]]).logsumexp(0)
    wanted = others - torch.tensor(rest, dtype=torch.float64).log()
    x.keys[0, 3] *= 0
    x.keys[0, 3] += (query[0, 0] * (wanted / (query[0, 0].double().square().sum() * x.scaling))).float()
    x = Inputs(query, x.keys, x.values, None, x.scaling, x.start, None)
    p, _, _ = attention(x)
    assert 0.3 * rest < 1 - p[0, 0, 3] < 3 * rest
    got, expected = score(x, kind).double().cpu(), scores(x, kind)
    error = ((got - expected) / expected).abs()
    assert error[:, 3].max() < 1e-4, f"relative error {float(error[:, 3].max()):.1e} of the dominant key"
    assert_close(got[:, 4:], expected[:, 4:], "the other keys", 1e-4)


def test_caote_is_what_removing_the_key_does(implementation, device):
    """Brute force: drop the key, renormalise, compare outputs."""
    x = make(Case(2, 1, 3, 40, 64, strong=10), device)
    got = score(x, "caote").cpu()
    p, out, _ = attention(x)
    values = x.values[0].double().cpu()
    for key in (0, 7, 38):
        kept = p.clone()
        kept[:, :, key] = 0
        change = kept / kept.sum(-1, keepdim=True) @ values - out
        assert_close(got[:, key], change.norm(dim=-1).sum(1), f"key {key}")


def test_rows_that_share_their_dominant_key_add_up(implementation, device):
    x = make(Case(4, 2, 6, 50, 64, strong=40), device)
    p, _, _ = attention(x)
    assert (p[:, :, 0] > 0.6).sum() > 8
    assert_close(score(x, "dropkv")[:, 0], scores(x, "dropkv")[:, 0], "shared key")


def test_mean_attention_sums_to_one_and_to_less_beside_a_sink(implementation, device):
    plain = score(make(Case(4, 2, 5, 77, 64), device), "mean").sum(1)
    assert_close(plain, torch.ones(4), "sum over keys")
    assert score(make(Case(4, 2, 5, 77, 64, sinks=True), device), "mean").sum(1).max() < 0.999


def test_epsilon_caps_dropkv(implementation, device):
    x = make(Case(2, 1, 3, 40, 64, strong=10), device)
    assert_close(score(x, "dropkv", epsilon=0.5), scores(x, "dropkv", 0.5), "epsilon 0.5")


def test_an_unknown_score_is_refused(device):
    x = make(Case(2, 1, 1, 8, 64), device)
    with pytest.raises(KvvizError, match="Unknown score 'snap'.*mean, square"):
        score(x, "snap")
