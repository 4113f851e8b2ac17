"""Eviction while decoding: exact counts, true positions, and the plain model with the same rows hidden."""

from dataclasses import replace

import pytest
import torch
from reference import masked_logits, masked_model, prompt_of

from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Wave
from kvviz.engine.rolling import Rolling
from kvviz.engine.run import compare
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill
from kvviz.errors import InputError
from kvviz.methods import list_methods

N, B, EVERY, FED = 40, 12, 5, 23
DECODING = [m.id for m in list_methods() if m.decodes]


def start(model, method, suffix=0, **options):
    """A wave of the whole cache and one variant, cut back every EVERY tokens."""
    trace = prefill(model, prompt_of(model, N, suffix), methods=[method])
    selection = select(trace, method, B, **options)
    wave = Wave(model, build_cache(trace, [None, selection]), FED + 1)
    return trace, wave, Rolling(trace, wave, [None, selection], EVERY)


def held(wave, rolling, layers):
    """True positions that variant 1 holds, a layer [Hkv, m]."""
    return [wave.rows(i, 1)[2] for i in range(layers)]


def tokens_of(model, seed=7):
    vocabulary = model.hf.config.get_text_config().vocab_size
    return torch.randint(4, vocabulary, (FED,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("method", DECODING)
def test_counts_are_exact_and_positions_true(tiny_llama, method):
    model = tiny_llama
    _, wave, rolling = start(model, method)
    for step, token in enumerate(tokens_of(model), 1):
        assert wave.next_position == N + step - 1
        wave.feed(token.expand(2, 1))
        since = step % EVERY
        for positions in held(wave, rolling, model.n_layers):
            assert positions.shape == (model.n_kv_heads, B + since)
            assert (positions.diff(dim=1) > 0).all(), "ascending, none twice"
            assert positions[:, B:].eq(torch.arange(N + step - since, N + step)).all()
    assert [r["step"] for r in rolling.records[1]] == [5, 10, 15, 20]
    for record in rolling.records[1]:
        assert torch.tensor(record["dropped"]).eq(EVERY).all()
    assert rolling.records[0] == [], "the whole cache is never cut"


@pytest.mark.parametrize("method", DECODING)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_are_the_plain_models_with_the_same_rows_hidden(tiny_models, family, method):
    model = tiny_models[family]
    trace, wave, rolling = start(model, method)
    tokens, total = tokens_of(model), N + FED
    sees = [
        torch.ones(model.n_kv_heads, total, total, dtype=torch.bool).tril() for _ in range(model.n_layers)
    ]
    logits = []
    for step, token in enumerate(tokens):
        for index, positions in enumerate(held(wave, rolling, model.n_layers)):
            row = torch.zeros(model.n_kv_heads, total, dtype=torch.bool).scatter_(1, positions, True)
            row[:, N + step] = True  # a token sees itself
            sees[index][:, N + step] = row
        logits.append(wave.feed(token.expand(2, 1))[:, 0])
    sequence = torch.cat([trace.prompt.input_ids, tokens])[None]
    wanted = masked_logits(masked_model(family), sequence, 0, [s[None] for s in sees])[0, N:]
    whole = masked_logits(masked_model(family), sequence, 0, None)[0, N:]
    torch.testing.assert_close(torch.stack(logits)[:, 1], wanted, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(torch.stack(logits)[:, 0], whole, atol=2e-4, rtol=1e-3)


def test_several_tokens_at_once_are_cut_at_the_same_places(tiny_llama):
    """Fed in pieces that end at the cuts, the rows held and the logits are those of single steps."""
    tokens = tokens_of(tiny_llama)
    _, one, rolling_one = start(tiny_llama, "snapkv")
    single = torch.cat([one.feed(t.expand(2, 1)) for t in tokens], 1)
    _, many, rolling_many = start(tiny_llama, "snapkv")
    pieces, at = [], 0
    while at < FED:
        room = rolling_many.room
        pieces.append(many.feed(tokens[at : at + room].expand(2, -1)))
        at += room
    torch.testing.assert_close(torch.cat(pieces, 1), single, atol=1e-4, rtol=1e-3)
    assert rolling_one.records == rolling_many.records


def test_streaming_llm_holds_sinks_and_the_latest(tiny_llama):
    _, wave, rolling = start(tiny_llama, "streaming_llm")
    for token in tokens_of(tiny_llama)[:20]:
        wave.feed(token.expand(2, 1))
    wanted = [0, 1, 2, 3, *range(N + 20 - (B - 4), N + 20)]
    for positions in held(wave, rolling, tiny_llama.n_layers):
        assert positions.tolist() == [wanted] * tiny_llama.n_kv_heads


def test_knorm_holds_the_smallest_keys_of_all_it_had(tiny_llama):
    _, wave, rolling = start(tiny_llama, "knorm")
    for step, token in enumerate(tokens_of(tiny_llama)[:5], 1):
        if step == 5:
            before = [wave.rows(i, 1) for i in range(tiny_llama.n_layers)]
        wave.feed(token.expand(2, 1))
    for index, (keys, _, positions) in enumerate(before):
        last = wave.tail_rows(index, 1)[0][:, 4:5]  # the row of the fifth token
        norms = torch.cat([keys, last], 1).norm(dim=-1)
        every = torch.cat([positions, torch.full((len(positions), 1), N + 4)], 1)
        best = norms.argsort(dim=1)[:, :B]
        assert (
            held(wave, rolling, tiny_llama.n_layers)[index].tolist()
            == every.gather(1, best).sort(1)[0].tolist()
        )


def test_h2o_accumulates_the_attention_of_every_query(tiny_llama):
    """Sums grow by the attention of the tokens fed, taken on the rows that were held."""
    trace, wave, rolling = start(tiny_llama, "h2o")
    for token in tokens_of(tiny_llama)[:4]:
        wave.feed(token.expand(2, 1))
    rows = rolling.held(1)
    group = tiny_llama.group
    for index, sums in enumerate(rows.sums):
        keys, positions = rows.keys[index], rows.positions[index]
        for head in range(tiny_llama.n_query_heads):
            kv = head // group
            wanted = torch.zeros(B + 4)
            wanted[:B] = trace.extra("column_sums", index)[head, positions[kv, :B]]
            for t in range(4):
                query = rolling.queries[index][1, head, -4 + t]
                logits = keys[kv, : B + t + 1] @ query * tiny_llama.layer(index).scaling
                wanted[: B + t + 1] += logits.softmax(-1)
            torch.testing.assert_close(sums[head], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("suffix", [0, 9], ids=["aware", "agnostic"])
def test_a_run_records_its_cuts(tiny_llama, suffix):
    prompt = prompt_of(tiny_llama, N, suffix)
    c = compare(tiny_llama, prompt, ["streaming_llm", "tova"], [B], 16, measures=("kl",), evict_every=EVERY)
    for v in c.variants:
        assert v.evictions and all("tokens" in cut for cut in v.evictions)
        assert len(v.kl) == len(c.full.token_ids)
    bare = compare(tiny_llama, prompt, ["tova"], [B], 16, measures=(), evict_every=EVERY)
    assert bare.variants[0].evictions == c.variants[1].evictions, "also without measures"
    late = compare(tiny_llama, prompt, ["tova"], [B], 16, measures=("kl",), evict_every=100)
    plain = compare(tiny_llama, prompt, ["tova"], [B], 16, measures=("kl",))
    assert late.variants[0].token_ids == plain.variants[0].token_ids


def test_an_answer_that_is_complete_is_cut_no_more(tiny_llama):
    """It is fed filler while the others write: nothing is dropped for it, and what it holds stays."""
    trace, wave, rolling = start(tiny_llama, "tova")
    tokens = tokens_of(tiny_llama)
    for token in tokens[:7]:
        wave.feed(token.expand(2, 1))
    before = [p[:, :B].clone() for p in held(wave, rolling, tiny_llama.n_layers)]
    wave.writing = [True, False]
    for token in tokens[7:]:
        wave.feed(token.expand(2, 1))
    assert [r["step"] for r in rolling.records[1]] == [5]
    for a, b in zip(before, held(wave, rolling, tiny_llama.n_layers)):
        assert torch.equal(a, b[:, :B])


def test_a_run_cuts_no_answer_after_its_end(tiny_llama):
    """Stopped answers hold what they held: no cut lies at or after an answer's last token."""
    prompt = prompt_of(tiny_llama, N)
    free = compare(tiny_llama, prompt, ["tova", "knorm"], [B], 16, measures=(), evict_every=2)
    ends = [free.variants[0].token_ids[2]]
    model = replace(tiny_llama, stop_ids=frozenset(ends))
    c = compare(model, prompt, ["tova", "knorm"], [B], 16, measures=(), evict_every=2)
    lengths = [len(v.token_ids) for v in c.variants]
    assert c.variants[0].finished == "stop token" and max(lengths) > lengths[0]
    for v in c.variants:
        assert all(0 < cut["step"] < len(v.token_ids) for cut in v.evictions)


def test_cuts_while_a_question_is_read_have_their_own_phase(tiny_llama):
    """A question of 9 tokens, a cut every 5: one within it, the next after one token of the answer."""
    c = compare(tiny_llama, prompt_of(tiny_llama, N, 9), ["tova"], [B], 8, measures=(), evict_every=EVERY)
    found = [(cut["phase"], cut["step"]) for cut in c.variants[0].evictions]
    assert found[:2] == [("question", 5), ("answer", 1)]
    aware = compare(tiny_llama, prompt_of(tiny_llama, N), ["tova"], [B], 8, measures=(), evict_every=EVERY)
    assert [(cut["phase"], cut["step"]) for cut in aware.variants[0].evictions] == [("answer", 5)]


@pytest.mark.parametrize("suffix", [0, 9], ids=["aware", "agnostic"])
def test_output_errors_are_those_of_what_is_held_at_each_token(tiny_llama, suffix):
    """Beside the errors of the same run without cuts, and of cuts so late that none comes."""
    prompt = prompt_of(tiny_llama, N, suffix)
    plain, late, cut = (
        compare(tiny_llama, prompt, ["tova"], [B], 16, measures=("output_error",), evict_every=every)
        for every in (None, 100, 2)
    )
    a, b, c = (run.variants[0].output_error for run in (plain, late, cut))
    assert torch.equal(torch.tensor(a), torch.tensor(b))
    assert abs(c - a).max() > 0.01
    assert plain.settings["probe"] != cut.settings["probe"]


@pytest.mark.parametrize(
    "methods, family, sentence",
    [
        (["criticalkv"], "llama", "cannot evict while decoding"),
        (["snapkv:allocation=global"], "llama", "with the uniform allocation only"),
        (["snapkv"], "mistral", "sliding layers"),
    ],
)
def test_what_cannot_evict_while_decoding_says_so(tiny_models, methods, family, sentence):
    model = tiny_models[family]
    with pytest.raises(InputError, match=sentence):
        compare(model, prompt_of(model, N), methods, [B], 4, evict_every=4)


def test_a_wrong_interval(tiny_llama):
    with pytest.raises(InputError, match="a whole number from 1 up"):
        compare(tiny_llama, prompt_of(tiny_llama, N), ["tova"], [B], 4, evict_every=0)


@pytest.mark.slow
def test_streaming_llm_stays_coherent_for_200_tokens(smollm):
    """At budget 64 the text goes on in varied words; the control, random, falls apart at once."""
    from kvviz.engine.prompts import build_prompt
    from kvviz.evaluate.needles import needle_text

    case = needle_text(300, 0.5, smollm.tokenizer)
    prompt = build_prompt(smollm, case.document, "Tell me a long story about the lighthouse.")
    c = compare(smollm, prompt, ["streaming_llm"], [64], 200, measures=(), evict_every=16)
    words = c.variants[0].text.split()
    assert len(words) > 80
    assert len(set(words)) / len(words) > 0.35, "a text that loops repeats its words"
