"""CompressKV: retrieval scores of heads and output errors of layers (arXiv 2508.02401, 2606.24467).

Head scores, on prompts with a hidden sentence (the needle): answer greedily from the full cache; at each
step t whose token y_t is in the needle, a head gains its attention on the whole needle span, once for
every needle position that holds y_t:

    S(h) = sum_t #{i in needle: y_t = x_i} . sum_{j in needle} a^h_{t,j}

a_t is the row that produced y_t. A prompt counts where the answer recalls more than half of the needle's
words. Where fewer than `ENOUGH` succeed, the needle itself is fed as the answer in the failed prompts,
and the artefact says so. Layer errors, on the same prompts: the relative change of the layer's output at
the answer tokens when only 32 entries a head are kept, by the method itself; mean over prompts, sum 1.
The authors calibrated on the test sets that they report; these texts are used for nothing else.
"""

from __future__ import annotations

import torch

from kvviz.calibrate.job import Job
from kvviz.engine.attention import rows_attention
from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Answer, Probes, Wave, generate, record
from kvviz.engine.measures import output_errors
from kvviz.engine.prompts import build_prompt
from kvviz.engine.selection import select
from kvviz.engine.trace import Trace, prefill
from kvviz.methods.artefacts import Artefact, lend
from kvviz.results.measures import words_of

LENGTHS = (300, 450, 600)  # tokens of the document, by turns
ANSWER_TOKENS = 32
ENTRIES = 32  # uniform budget at which layer errors are measured
RECALL = 0.5
ENOUGH = 8


def head_scores(rows: torch.Tensor, answer: list[int], needle: list[int], start: int) -> torch.Tensor:
    """S(h) of one prompt: rows [Hq, T, m] produced the tokens `answer` [T]; the needle's tokens lie at
    start .. start + len(needle) - 1."""
    hits = torch.tensor([needle.count(token) for token in answer], dtype=rows.dtype, device=rows.device)
    return (rows[:, :, start : start + len(needle)].sum(-1) * hits).sum(-1)


def recall(answer: str, needle: str) -> float:
    """ROUGE-1 recall: share of the needle's words that the answer has, repeats counted."""
    said = words_of(answer)
    wanted = words_of(needle)
    return sum(min(said.count(w), wanted.count(w)) for w in set(wanted)) / max(1, len(wanted))


def run(job: Job) -> tuple[dict[str, torch.Tensor], dict]:
    model = job.model
    shape = (job.steps, model.n_layers, model.n_query_heads)
    free, forced, ok = torch.zeros(shape), torch.zeros(shape), torch.zeros(job.steps, dtype=torch.bool)
    done, kept = 0, job.kept()
    if kept is not None and kept[1]["part"] == "heads":
        free, forced, ok, done = kept[0]["free"], kept[0]["forced"], kept[0]["ok"], kept[1]["done"]
    if kept is None or kept[1]["part"] == "heads":
        for number in range(done, job.steps):
            job.say(f"Needle prompt {number + 1} of {job.steps}", 0.6 * number / job.steps)
            free[number], forced[number], ok[number] = _heads(job, number)
            job.keep({"free": free, "forced": forced, "ok": ok}, {"part": "heads", "done": number + 1})
        scores, errors, start = _merge(free, forced, ok), torch.zeros(model.n_layers), 0
    else:
        scores, errors, ok = kept[0]["scores"], kept[0]["errors"], kept[0]["ok"]
        start = kept[1]["done"]
    artefact = Artefact("compresskv", {"heads": scores, "layer_errors": torch.ones(model.n_layers)}, {})
    for number in range(start, job.steps):
        job.say(f"Layer errors, prompt {number + 1} of {job.steps}", 0.6 + 0.4 * number / job.steps)
        errors = errors + _layer_errors(job, number, artefact)
        state = {"scores": scores, "errors": errors, "ok": ok}
        job.keep(state, {"part": "errors", "done": number + 1})
    succeeded = int(ok.sum())
    return {"heads": scores, "layer_errors": errors / errors.sum()}, {
        "prompts": job.steps,
        "needles_succeeded": succeeded,
        "fallback": "" if succeeded >= ENOUGH else "failed prompts were scored on the needle fed as answer",
        "entries_for_layer_errors": ENTRIES,
    }


def _merge(free: torch.Tensor, forced: torch.Tensor, ok: torch.Tensor) -> torch.Tensor:
    """Mean over the prompts that count: [P, L, Hq] -> [L, Hq]."""
    if int(ok.sum()) >= ENOUGH:
        return free[ok].mean(0)
    return torch.where(ok[:, None, None], free, forced).mean(0)


def _read(job: Job, number: int) -> tuple[Trace, str, int, int]:
    """The trace of prompt `number`, its needle, and the needle's first and last + 1 token."""
    length = LENGTHS[number % len(LENGTHS)]
    document, (needle, question, _) = job.texts.document(job.model, length, number, job.seed)
    prompt = build_prompt(job.model, document=document, question=question)
    begin = document.index(needle)
    span = prompt.tokens_of(begin, begin + len(needle))
    assert span is not None, "the document is in the prompt"
    start, end = span
    return prefill(job.model, prompt, cancel=job.cancel), needle, start, end


def _answer_rows(trace: Trace, answer: list[int]) -> tuple[Probes, list[torch.Tensor]]:
    """(queries and rows of the answer fed to the full cache, attention that produced its tokens).

    Attention is float32 [Hq, T, n + T - 1] a layer: the last prompt query produced the first token.
    """
    model = trace.model
    probes = record(trace, answer)
    weights = []
    for index, (queries, (tail, _)) in enumerate(zip(probes.queries, probes.tail)):
        rows = torch.cat([trace.queries[index][:, -1:], queries[:, :-1]], 1)
        keys = torch.cat([trace.keys[index], tail[:, :-1]], 1)
        weights.append(rows_attention(rows, keys, model.layer(index), trace.n - 1))
    return probes, weights


def _heads(job: Job, number: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """S [L, Hq] on the greedy answer and on the needle as answer; did the answer recall the needle?"""
    model = job.model
    trace, needle, start, end = _read(job, number)
    tokens = trace.prompt.input_ids[start:end].tolist()
    wave = Wave(model, build_cache(trace, [None]), ANSWER_TOKENS, job.cancel)
    answers = [Answer()]
    for _ in generate(wave, trace.last_logits[None], ANSWER_TOKENS, model.stop_ids, answers=answers):
        pass
    said = answers[0].token_ids
    text = model.tokenizer.decode(said, skip_special_tokens=True)

    def scored(answer: list[int]) -> torch.Tensor:
        _, weights = _answer_rows(trace, answer)
        return torch.stack([head_scores(rows, answer, tokens, start).cpu() for rows in weights])

    return scored(said), scored(tokens), recall(text, needle) > RECALL


def _layer_errors(job: Job, number: int, artefact: Artefact) -> torch.Tensor:
    """Relative change of each layer's output at the needle fed as answer, [L]."""
    trace, _, start, end = _read(job, number)
    probes, _ = _answer_rows(trace, trace.prompt.input_ids[start:end].tolist())
    with lend(artefact):
        selection = select(
            trace, "compresskv", ENTRIES, allocation="uniform", heads=min(4, job.model.n_query_heads)
        )
    *_, (_, errors) = output_errors(trace, probes, [selection.mask])
    return torch.from_numpy(errors[0].layer)
