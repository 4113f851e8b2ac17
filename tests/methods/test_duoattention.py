import numpy as np
import pytest
import torch
from tiny import make_model

import kvviz
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.duoattention import streaming_tokens
from methods.fixtures import Exact, random_layer, score

TEXT = "The keeper wrote 58213 in the ledger. The door was blue, the sea was grey and the lamp lit. " * 3


def lent(gates, path=None):
    gates = torch.tensor(gates, dtype=torch.float32)
    path = torch.zeros_like(gates) if path is None else torch.tensor(path, dtype=torch.float32)
    return lend(Artefact("duoattention", {"gates": gates, "path": path}, {}))


def reference(x, options):
    learned = x.view.artefact("duoattention")
    gates = learned["gates"] + 1e-4 * learned["path"]
    return [[float(gates[x.view.index, h])] * len(x.context) for h in range(x.hkv)]


def test_score_is_the_gate():
    layer = random_layer(2)
    with lent([[0.25, 0.75]], [[1.0, 0.5]]):
        values = score("duoattention", layer).values
        assert np.allclose(values, reference(Exact(layer), {}))


def test_sinks_and_recent_tokens_shrink_together_into_half_the_budget():
    options = {"sinks": 64, "recent": 256}
    assert streaming_tokens(1000, options) == (256, 64)
    assert streaming_tokens(640, options) == (256, 64)
    assert streaming_tokens(100, options) == (40, 10)  # 50: a fifth sinks
    assert streaming_tokens(1, options) == (1, 0)


def test_worked_example():
    """Gates [.9, .1, .4, .2], n = 20, 4 sinks and 6 recent: half of the heads streaming is a ratio of .25,
    30 of 80 entries saved half: (20 + 20 + 10 + 10) / 80 kept. Streaming heads are 1 and 3."""
    model = make_model("llama", num_hidden_layers=1, num_key_value_heads=4)
    ids = torch.arange(20) + 10
    from kvviz.calibrate.reading import plain_prompt

    trace = kvviz.prefill(model, plain_prompt(model, ids, 20))
    with lent([[0.9, 0.1, 0.4, 0.2]]):
        chosen = {"sinks": 4, "recent": 6}
        # b = 15: 60 entries. Half of b is 7 < 10, so the rule shrinks to 2 sinks and 5 recent; `protect`
        # and `sinks` as they are need b >= 20, so the example's counts are checked with 7 streaming rows:
        # 60 - 28 = 32 context entries, heads cost 13: two whole heads, 26.
        selection = kvviz.select(trace, "duoattention", 15, **chosen)
        assert selection.budgets.tolist() == [[20, 7, 20, 7]]
        assert selection.mask[0][1].nonzero()[:, 0].tolist() == [0, 1, 15, 16, 17, 18, 19]
        assert any("54 of the 60 entries" in note for note in selection.notes)
        # the published arithmetic: streaming share x (1 - (sinks + recent) / n)
        assert 0.5 * (1 - (4 + 6) / 20) == 0.25


def test_never_above_the_budget_and_within_one_head_of_it():
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, document=TEXT, question="Which code?")
    trace = kvviz.prefill(model, prompt)
    with lent([[0.3, 0.0], [1.0, 0.0], [0.0, 0.6]], [[0.5, 0.2], [1.0, 0.1], [0.3, 0.8]]):
        for budget in (1, 2, 3, 9, 50, 0.3, 0.7, 1.0):
            selection = kvviz.select(trace, "duoattention", budget)
            kept, wanted = int(selection.budgets.sum()), 6 * selection.entries
            assert wanted - trace.n < kept <= wanted
            assert len(set(selection.budgets.flatten().tolist())) <= 2
        assert all(mask.all() for mask in kvviz.select(trace, "duoattention", 1.0).mask)
        # gates first, equal gates by their mean over training
        order = []
        for budget in range(1, trace.n + 1):
            whole = (kvviz.select(trace, "duoattention", budget).budgets == trace.n).nonzero().tolist()
            order += [tuple(w) for w in whole if tuple(w) not in order]
        assert order == [(1, 0), (2, 1), (0, 0), (2, 0), (0, 1), (1, 1)]
        result = kvviz.compare(model, prompt, ["duoattention"], [0.5], max_new_tokens=3)
    assert result.variants[0].tokens_kept <= result.variants[0].entries
    with pytest.raises(kvviz.KvvizError, match="recent is a whole number"):
        kvviz.select(trace, "duoattention", 0.5, recent=0)
