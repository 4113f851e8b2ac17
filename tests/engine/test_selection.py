"""Selection: exact totals for every method, budget and shape; the agreed order; notes."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import METHOD_IDS, NEEDS, prompt_of
from tiny import make_model

import kvviz.methods
from kvviz.engine.budgets import ALLOCATORS, entries_of
from kvviz.engine.scoring import Scored, protected_counts
from kvviz.engine.selection import label_of, select, select_from
from kvviz.engine.trace import Trace, prefill
from kvviz.errors import InputError, NeedError
from kvviz.methods import get_method, parse_method
from kvviz.methods.spec import Method, Scores

EXACT = [name for name, allocator in ALLOCATORS.items() if allocator.exact]

HKV, D, LAYERS = 2, 8, 3


@cache
def model_of(group: int, family: str = "llama"):
    shape = {"num_attention_heads": group * HKV, "head_dim": D, "hidden_size": group * HKV * D}
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        shape |= {"num_hidden_layers": LAYERS, "layer_types": kinds}
    return make_model(family, num_key_value_heads=HKV, **shape)


@cache
def made_trace(group: int, n: int, family: str = "llama", seed: int = 0) -> Trace:
    """A trace of random numbers with the shapes that a prefill of n tokens leaves."""
    generator = torch.Generator().manual_seed(1000 * group + n + seed)

    def rand(*shape):
        return torch.randn(*shape, generator=generator)

    hq = group * HKV
    rows = [rand(HKV, n, D) for _ in range(2 * LAYERS)]
    layers = range(LAYERS)
    return Trace(
        model=model_of(group, family),
        prompt=SimpleNamespace(
            n_compressible=n, input_ids=torch.zeros(n), document_span=(0, n), question_span=(n, n)
        ),
        n=n,
        keys=rows[:LAYERS],
        values=rows[LAYERS:],
        queries=[rand(hq, min(n, 128), D) for _ in layers],
        last_logits=rand(320),
        needs=frozenset(NEEDS),
        extras={
            "column_sums": [rand(hq, n).abs() for _ in layers],
            "query_stats": [{"mean": rand(hq, D), "cov": torch.eye(D).repeat(hq, 1, 1)} for _ in layers],
            "repeat": [rand(hq, n).abs() for _ in layers],
            "repeat_plus": [rand(hq, n).abs() for _ in layers],
            "repeat_moved": [False for _ in layers],
            "hidden": [rand(n, hq * D) for _ in layers],
        },
        padded=([], []),
    )


# -- exact totals -------------------------------------------------------------------------------------


def check_counts(trace: Trace, selection, b: int, in_layer: bool) -> None:
    rows = torch.tensor([trace.rows(i) for i in range(LAYERS)])
    wanted = HKV * rows.clamp(max=b)  # a sliding layer has no more than its visible rows
    counts = torch.stack([m.sum(-1) for m in selection.mask])
    assert torch.equal(selection.budgets, counts)
    assert int(counts.sum()) == int(wanted.sum())
    if in_layer:
        assert torch.equal(counts.sum(1), wanted)
    mask, protected = torch.stack(selection.mask), selection.protected
    assert mask.dtype == protected.dtype == torch.bool
    assert mask.shape == protected.shape == (LAYERS, HKV, trace.n)
    assert (mask | ~protected).all()  # what is protected is kept
    for index in range(LAYERS):
        hidden = trace.n - int(rows[index])
        assert not mask[index, :, :hidden].any()  # behind the sliding window there is nothing to keep
    assert torch.equal(selection.stage > 0, mask)
    assert torch.equal(selection.stage == 3, protected)


@given(
    group=st.sampled_from([1, 3, 4, 7, 8]),
    n=st.integers(1, 300),
    share=st.floats(0, 1),
    method=st.sampled_from(METHOD_IDS),
    allocation=st.sampled_from([None, *EXACT]),
)
@settings(max_examples=500, deadline=None)
def test_every_method_and_allocation_keeps_exactly_its_budget(group, n, share, method, allocation):
    b = 1 + int(share * (n - 1))
    trace = made_trace(group, n)
    given_options = {} if allocation is None else {"allocation": allocation}
    if allocation == "calibrated":
        given_options["layer_weights"] = [3.0, 1.0, 2.0]
    selection = select(trace, method, b, **given_options)
    name = allocation or get_method(method).allocation
    check_counts(trace, selection, b, in_layer=name in ("uniform", "across_heads"))
    if name == "uniform":
        assert (selection.budgets == b).all()
    assert selection.entries == b
    assert selection.scope == ALLOCATORS[name].scope


@given(
    n=st.integers(1, 60),
    share=st.floats(0, 1),
    method=st.sampled_from(METHOD_IDS),
    allocation=st.sampled_from(sorted(EXACT)),
)
@settings(max_examples=120, deadline=None)
def test_the_same_where_layers_slide(n, share, method, allocation):
    b = 1 + int(share * (n - 1))
    trace = made_trace(3, n, "gemma3")
    weights = {"layer_weights": [1.0, 1.0, 1.0]} if allocation == "calibrated" else {}
    selection = select(trace, method, b, allocation=allocation, **weights)
    check_counts(trace, selection, b, in_layer=allocation in ("uniform", "across_heads"))


@pytest.mark.parametrize("method", METHOD_IDS)
def test_small_prompts_at_every_budget(method):
    for n in (1, 2, 3, 5, 9):
        for b in range(1, n + 1):
            trace = made_trace(3, n)
            check_counts(trace, select(trace, method, b), b, in_layer=False)


@pytest.mark.parametrize("method", METHOD_IDS)
def test_a_full_budget_keeps_everything_and_says_so(method):
    trace = made_trace(4, 40)
    for budget in (1.0, 40, 10**6):
        selection = select(trace, method, budget)
        assert all(mask.all() for mask in selection.mask)
        label = selection.label
        assert f"{label} kept everything at this budget: nothing was evicted." in selection.notes


@pytest.mark.parametrize("method", METHOD_IDS)
def test_the_same_selection_again_and_after_other_budgets(method):
    trace = made_trace(3, 50)
    scored = Scored(trace)
    for budget in (0.7, 3, 0.1, 1.0, 20):
        select_from(scored, method, budget)
    for budget in (20, 0.1):
        again, first = select_from(scored, method, budget), select(trace, method, budget)
        assert all(torch.equal(a, b) for a, b in zip(again.mask, first.mask))


# -- what is protected --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "b", "recent", "sinks"),
    [
        ("snapkv", {}, 100, 32, 0),
        ("snapkv", {}, 40, 20, 0),  # at most half of the budget
        ("snapkv", {}, 1, 1, 0),
        ("snapkv", {}, 3, 1, 0),
        ("snapkv", {"protect": 7}, 40, 7, 0),
        ("snapkv", {"protect": 0}, 40, 0, 0),
        ("snapkv", {"protect": 90}, 40, 40, 0),
        ("dropkv", {}, 40, 8, 0),
        ("tova", {}, 40, 1, 0),
        ("knorm", {}, 40, 0, 0),
        ("random", {}, 40, 0, 0),
        ("h2o", {}, 41, 20, 0),
        ("streaming_llm", {}, 10, 1, 4),
        ("streaming_llm", {}, 3, 1, 2),  # at most b - W' sinks
        ("expected_attention", {}, 40, 0, 4),
        ("vatp", {}, 30, 15, 15),
    ],
)
def test_the_protected_account(method, options, b, recent, sinks):
    spec = get_method(method)
    assert protected_counts(None, spec, spec.resolve(options), b) == (recent, sinks)
    trace = made_trace(3, 120)
    protected = select(trace, method, b, **options).protected
    wanted = torch.zeros(120, dtype=torch.bool)
    wanted[:sinks] = True
    wanted[120 - recent :] = True
    assert (protected == wanted).all()  # the same in every layer and head


def test_a_sliding_layer_has_no_first_tokens_to_protect():
    trace = made_trace(3, 50, "gemma3")  # layers 0 and 2 hold the last 7 rows alone
    protected = select(trace, "streaming_llm", 20).protected
    for index, sinks in enumerate((0, 4, 0)):
        rows = protected[index, 0].nonzero()[:, 0].tolist()
        assert rows == [*range(sinks), 49]
    short = select(made_trace(3, 6, "gemma3"), "streaming_llm", 5).protected
    assert (short == short[:1]).all()  # nothing has slid out yet


def test_streaming_llm_keeps_the_first_and_the_last():
    # n = 10, half kept: {0, 1, 2, 3, 9} is kvpress's set with four sinks and one recent token
    for mask in select(made_trace(3, 10), "streaming_llm", 0.5).mask:
        assert all(row.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 9] for row in mask)
    for mask in select(made_trace(3, 20), "streaming_llm", 9).mask:
        assert all(row.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 15, 16, 17, 18, 19] for row in mask)


# -- order: score, then position, then head, then layer -----------------------------------------------


@pytest.fixture
def tied(monkeypatch):
    """A method whose scores are small whole numbers, so that almost everything is a tie."""

    def score(layer, options):
        generator = torch.Generator().manual_seed(layer.index + 10 * options["seed"])
        values = torch.randint(0, 3, (layer.n_kv_heads, layer.n), generator=generator).float()
        values[values == options["nan"]] = float("nan")
        return Scores(values[:, : layer.context])

    method = Method("tied", "Tied", "", "", score, options={"seed": 0, "nan": -1, "sinks": 0})
    monkeypatch.setattr(kvviz.methods, "METHODS", (*kvviz.methods.METHODS, method))
    return method


# allocations in which scores compete as they are
COMPETE = {"uniform": {}, "across_heads": {"safeguard": 0.0}, "global": {"normalise": False}}


def competitors(selection, trace, layers):
    """(score, position, head, layer) of every unprotected visible entry, best first."""
    entries = []
    for index in layers:
        for h in range(HKV):
            for p in range(trace.n - trace.rows(index), trace.n):
                if not selection.protected[index, h, p]:
                    s = float(selection.scores[index][h, p])
                    entries.append((math.inf if math.isnan(s) else -s, p, h, index))
    return sorted(entries)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("b", [1, 5, 9])
def test_ties_go_to_the_earlier_position_then_the_lower_head_then_the_lower_layer(tied, family, seed, b):
    trace = made_trace(3, 24, family)
    common = {"seed": seed, "protect": b // 3, "sinks": b // 4}
    for allocation, further in COMPETE.items():
        selection = select(trace, "tied", b, allocation=allocation, **common, **further)
        kept = {
            (index, h, p)
            for index in range(LAYERS)
            for h in range(HKV)
            for p in (selection.mask[index][h] & ~selection.protected[index, h]).nonzero()[:, 0].tolist()
        }
        wanted = set()
        layers = [range(LAYERS)] if allocation == "global" else [[i] for i in range(LAYERS)]
        for scope in layers:
            if allocation == "uniform":
                for h in range(HKV):
                    order = [e for e in competitors(selection, trace, scope) if e[2] == h]
                    free = sum(min(b, trace.rows(i)) - int(selection.protected[i, h].sum()) for i in scope)
                    wanted |= {(e[3], e[2], e[1]) for e in order[:free]}
            else:
                free = sum(HKV * min(b, trace.rows(i)) - int(selection.protected[i].sum()) for i in scope)
                wanted |= {(e[3], e[2], e[1]) for e in competitors(selection, trace, scope)[:free]}
        assert kept == wanted, allocation


def test_nan_never_competes_while_anything_else_is_left(tied):
    trace = made_trace(3, 24)
    for allocation, further in COMPETE.items():
        selection = select(trace, "tied", 4, nan=1, seed=1, allocation=allocation, protect=0, **further)
        for mask, scores in zip(selection.mask, selection.scores):
            assert not (mask & scores.isnan()).any()


# -- scores, cut-offs, labels -------------------------------------------------------------------------


def test_names_with_options():
    method, options = parse_method(" snapkv : window=16, allocation=global, normalise=false, protect=none")
    assert method.id == "snapkv"
    assert options == {"window": 16, "allocation": "global", "normalise": False, "protect": None}
    assert parse_method("obcache:epsilon=1e-3,variant=key")[1] == {"epsilon": 1e-3, "variant": "key"}
    assert label_of(method, method.resolve(options)) == "SnapKV with global"
    assert label_of(method, method.resolve()) == "SnapKV"
    trace = made_trace(3, 60)
    named = select(trace, "snapkv:window=4,pool_kind=max", 9)
    given_options = select(trace, "snapkv", 9, window=4, pool_kind="max")
    assert all(torch.equal(a, b) for a, b in zip(named.mask, given_options.mask))
    assert named.method == "snapkv:window=4,pool_kind=max"


def test_presets_lie_between_defaults_and_given_options():
    options = select(made_trace(3, 60), "snapkv:preset=kvpress", 9, pool=3).options
    assert (options["window"], options["pool"], options["pool_kind"]) == (64, 3, "avg")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("snap", 0.5, {}), "There is no method 'snap'. Did you mean snapkv?"),
        (("snapkv", 0.5, {"windows": 3}), "SnapKV has no option 'windows'. Options: allocation, "),
        (("snapkv:window", 0.5, {}), "Write options as name=value: 'window' in 'snapkv:window' is not."),
        (("snapkv", 0.5, {"window": 0}), "SnapKV: window is a whole number from 1 to 128, not 0."),
        (("snapkv", 0.5, {"window": 2.5}), "SnapKV: window is a whole number from 1 to 128, not 2.5."),
        (("snapkv", 0.5, {"pool_kind": "median"}), "SnapKV: pool_kind is one of avg, max, none, "),
        (("snapkv", 0.5, {"preset": "x"}), "SnapKV has no preset 'x'. Presets: paper, kvpress."),
        (("snapkv", 0.5, {"allocation": "x"}), "SnapKV: allocation is one of uniform, "),
        (("adakv", 0.5, {"safeguard": 1.1}), "AdaKV: safeguard is a number from 0 to 1, not 1.1."),
        (("criticalkv", 0.5, {"stage1": -0.1}), "CriticalKV: stage1 is a number from 0 to 1, not -0.1."),
        (("snapkv", 0, {}), "A budget is a share above 0 and up to 1 "),
    ],
)
def test_bad_requests_are_one_sentence(call, sentence):
    method, budget, options = call
    with pytest.raises(InputError) as error:
        select(made_trace(3, 60), method, budget, **options)
    assert str(error.value).startswith(sentence)


def test_a_window_longer_than_the_trace_holds_is_named():
    with pytest.raises(InputError, match="window is a whole number from 1 to 128, not 200"):
        select(made_trace(3, 250), "snapkv", 0.5, window=200)
    notes = select(made_trace(3, 60), "snapkv", 0.5, window=128).notes
    assert "The observation window was cut from 128 to the 60 tokens there are." in notes


def test_a_need_the_trace_lacks_is_named(tiny_llama):
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 20), methods=["snapkv"])
    for method, words in (("h2o", "accumulated attention"), ("kvzip", "repeats the document")):
        with pytest.raises(NeedError, match=words):
            select(trace, method, 0.5)


def test_sliding_layers_are_said_in_the_notes():
    notes = " ".join(select(made_trace(3, 50, "gemma3"), "snapkv", 12).notes)
    assert "2 of 3 layers slide: only the last 7 tokens are held there" in notes


def test_an_error_in_one_request_does_not_spoil_the_next(monkeypatch):
    """Half a set of scores must not be taken for a whole one."""
    scored = Scored(made_trace(3, 40))
    wanted = select(made_trace(3, 40), "snapkv", 8)
    spec = get_method("snapkv")

    def breaks(layer, options):
        if layer.index == 1:
            raise MemoryError
        return spec.score(layer, options)

    broken = Method(**{**vars(spec), "score": breaks})
    monkeypatch.setattr(kvviz.methods, "METHODS", (*kvviz.methods.METHODS, broken))
    with pytest.raises(MemoryError):
        select_from(scored, "snapkv", 8)
    monkeypatch.setattr(kvviz.methods, "METHODS", (*kvviz.methods.METHODS, spec))
    again = select_from(scored, "snapkv", 8)
    assert all(torch.equal(a, b) for a, b in zip(again.mask, wanted.mask))
    assert entries_of(8, 40) == again.entries


def test_kvpress_presets_keep_their_whole_window():
    trace = made_trace(3, 250)
    for method in ("snapkv", "adakv", "criticalkv", "critical_adakv", "pyramidkv"):
        protected = select(trace, method, 100, preset="kvpress").protected
        assert (protected.sum(-1) == 64).all(), method
    assert (select(trace, "dropkv", 50, preset="kvpress").protected.sum(-1) == 32).all()


def test_a_window_given_up_on_request_is_not_called_too_little_budget():
    trace = made_trace(3, 120)
    assert not any("too little of this budget" in n for n in select(trace, "snapkv", 40, protect=0).notes)
    assert any("too little of this budget" in n for n in select(trace, "snapkv", 40).notes)
