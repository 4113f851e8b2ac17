"""The same checks on SmolLM2-135M: every method against its definition, and CriticalKV's bound."""

import numpy as np
import pytest

import kvviz
from kvviz.methods.layer import LayerView
from methods.fixtures import Exact
from methods.test_all import METHODS, agree
from methods.test_criticalkv import l1_change, theta

pytestmark = pytest.mark.slow

DOCUMENT = (
    "The keeper of the lighthouse wrote the weather in the ledger every evening. On the third of May "
    "the wind came from the north and the code of the door was changed to 58213."
)


@pytest.fixture(scope="module")
def trace(smollm):
    prompt = kvviz.build_prompt(smollm, document=DOCUMENT, question="What is the code of the door?")
    trace = kvviz.prefill(smollm, prompt, methods=[method.id for method in METHODS])
    assert trace.n <= 128  # every query is at hand for the references
    return trace


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)
def test_agrees_on_real_heads(method, trace):
    options = method.resolve({"window": 8} if "window" in method.options else {})
    for index in (0, 15, 29):
        layer = LayerView(trace, index, trace.n - 8, {})
        agree(method.score(layer, options), method, layer, options)


@pytest.mark.parametrize("method", ["criticalkv", "snapkv", "random"])
@pytest.mark.parametrize("budget", [0.5, 0.1])
def test_bound_holds_on_every_real_head(method, budget, trace):
    selection = kvviz.select(trace, method, budget=budget)
    for index in range(trace.model.n_layers):
        x = Exact(LayerView(trace, index, trace.n, {}))
        for head, row in enumerate(x.p(1)[:, 0]):
            kv = head // x.g
            kept = selection.mask[index][kv].cpu().numpy()
            bound = theta(row, x.projected(head, 1), kept)
            assert l1_change(row, x.v[kv], x.w_o[head], kept) <= bound + 1e-9 * (1 + abs(bound))


@pytest.mark.parametrize("index", [0, 10, 20, 29])
def test_removal_on_real_heads(index, trace):
    """DropKV's score of a token is the squared change that leaving it out makes, sinks included."""
    from methods.fixtures import score, without

    layer = LayerView(trace, index, trace.n, {})
    x = Exact(layer)
    p = x.p(1)[:, 0]
    values = score("dropkv", layer, window=1, epsilon=0.0, pool_kind="none").values
    for kv in range(x.hkv):
        wanted = [
            np.mean([((without(p[h], x.v[kv], [j]) - p[h] @ x.v[kv]) ** 2).sum() for h in x.heads(kv)])
            for j in range(x.n)
        ]
        assert np.allclose(values[kv], wanted, rtol=2e-3, atol=1e-6 * max(wanted))
