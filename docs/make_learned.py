"""What calibration is worth, on texts that no calibration has read: the tables of docs/learned.md.

    python docs/make_learned.py [--quick]

Texts: the Constitution (`assets/calibration/held_out`), two of the app's examples, a ledger of seed 0.
Every text is cut: its first part is compressed, the tokens that follow are fed to the full cache and to
every variant (teacher-forced), so what scores is never what is measured at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvviz.calibrate.indexmem import mean_kl, new_indexer, probe, read_piece
from kvviz.calibrate.texts import SHIPPED
from kvviz.engine.attention import rows_attention
from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Probes, Wave
from kvviz.engine.measures import kl_divergence, output_errors
from kvviz.engine.prompts import build_prompt
from kvviz.engine.run import compare
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trace import Trace, prefill
from kvviz.evaluate.examples import examples
from kvviz.evaluate.needles import CODE, NEEDLE, QUESTION, needle_cases
from kvviz.identity import MethodRef
from kvviz.methods import artefacts, parse_method
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.layer import LayerView
from kvviz.results.verdict import contains_expected

FUTURE = 96  # tokens that follow the compressed part and are measured at
BUDGETS = (0.1, 0.2)
# name shown -> method and options, artefact in place of the calibrated one
VARIANTS: dict[str, tuple[str, str | None]] = {
    "Random": ("random", None),
    "StreamingLLM": ("streaming_llm", None),
    "Knorm": ("knorm", None),
    "SnapKV": ("snapkv", None),
    "SnapKV without pooling": ("snapkv:pool_kind=none", None),
    "TOVA": ("tova", None),
    "IndexMem, indexer alone": ("indexmem:memory=false", None),
    "IndexMem, untrained indexer": ("indexmem:memory=false", "random"),
    "IndexMem with memory": ("indexmem", None),
    "IndexMem, memory charged": ("indexmem:charge_memory=true", None),
    "IndexMem, 32 recent tokens": ("indexmem:memory=false,protect=32", None),
    "CompressKV, 4 heads": ("compresskv", None),
    "CompressKV, 2 heads": ("compresskv:heads=2", None),
    "CompressKV, 1 head": ("compresskv:heads=1", None),
    "CompressKV, 4 heads, uniform layers": ("compresskv:allocation=uniform", None),
    "CompressKV, 4 random heads, uniform layers": ("compresskv:allocation=uniform", "random"),
    "CompressKV, all heads, uniform layers": ("compresskv:allocation=uniform,heads={hq}", None),
    "DuoAttention": ("duoattention", None),
    "DuoAttention, random gates": ("duoattention", "random"),
    "Q-Filters": ("qfilters", None),
    "Q-Filters, sign turned": ("qfilters", "negative"),
}


@dataclass(frozen=True)
class HeldOut:
    """One text: the first `n` tokens are compressed, the rest follows."""

    name: str
    ids: torch.Tensor
    n: int


def held_out(model, length: int = 700, quick: bool = False) -> list[HeldOut]:
    """The texts that calibration never reads."""
    constitution = (SHIPPED / "held_out" / "constitution.txt").read_text(encoding="utf-8")
    documents = {"constitution 1": constitution[:6000], "constitution 2": constitution[20000:26000]}
    if not quick:
        documents["constitution 3"] = constitution[34000:40000]
        documents |= {e.id: e.document for e in examples() if "ledger" not in e.id}
        documents["ledger, seed 0"] = needle_cases(length + 60, (0.3,), model.tokenizer, (1,))[0].document
    out = []
    for name, document in documents.items():
        ids = model.tokenizer(document, add_special_tokens=False)["input_ids"][:length]
        out.append(HeldOut(name, torch.tensor(ids), len(ids) - FUTURE))
    return out


def stand_in(model, name: str, kind: str) -> Artefact:
    """The calibrated file with what was learned replaced: "random" or "negative"."""
    real = artefacts.load(model, name)
    draw = torch.Generator().manual_seed(1)
    if kind == "negative":
        return Artefact(name, {"filters": -real.tensors["filters"]}, {})
    if name == "indexmem":
        return Artefact(name, {**real.tensors, **new_indexer(model.info, 0)}, {})
    return Artefact(name, {k: torch.rand(v.shape, generator=draw) for k, v in real.tensors.items()}, {})


def _selected(model, scored: Scored, budget: float, name: str):
    spec, kind = VARIANTS[name]
    spec = spec.format(hq=model.n_query_heads)
    if kind is None:
        return select_from(scored, spec, budget)
    with lend(stand_in(model, MethodRef.parse(spec).id, kind)):
        return select_from(scored, spec, budget)


def losses(model, texts: list[HeldOut], budgets=BUDGETS, names=None) -> Iterator[tuple]:
    """(text, budget, {name: (KL, layer error, kept share of the budget, bytes)})."""
    names = list(VARIANTS) if names is None else names
    for text in texts:
        trace, probes = probe(model, text.ids, text.n)
        scored = Scored(trace)
        for budget in budgets:
            chosen = [_selected(model, scored, budget, name) for name in names]
            cache = build_cache(trace, [None, *chosen])
            wave = Wave(model, cache, FUTURE)
            future, divergence = text.ids[text.n :], 0.0
            for start in range(0, FUTURE, 16):
                logits = wave.feed(future[start : start + 16].expand(len(names) + 1, -1))
                parts = [kl_divergence(logits[0], other).sum() for other in logits[1:]]
                divergence = divergence + torch.stack(parts)
            masks, readouts = [s.mask for s in chosen], [s.readout for s in chosen]
            *_, (_, errors) = output_errors(trace, probes, masks, readouts)
            rows = {}
            for i, (name, s) in enumerate(zip(names, chosen)):
                share = float(s.budgets.float().mean()) / s.entries
                kl = float(divergence[i]) / FUTURE
                rows[name] = (kl, float(errors[i].layer.mean()), share, cache.bytes[i + 1])
            yield text, budget, rows


def recalls(model, texts: list[HeldOut], share: float = 0.1) -> dict[str, float]:
    """Share of the true top tokens, by attention of later queries averaged over heads, that each finds.

    Candidates are the context without 4 sinks and the last 32 tokens; a method's scores are averaged
    over KV heads, so that all name one set a layer. Mean over layers and texts.
    """
    names = (
        "Random",
        "TOVA",
        "SnapKV",
        "SnapKV without pooling",
        "IndexMem, untrained indexer",
        "IndexMem, indexer alone",
    )
    found = dict.fromkeys(names, 0.0)
    for text in texts:
        trace, probes = probe(model, text.ids, text.n)
        lo, hi = 4, text.n - 32
        k = max(1, int(share * (hi - lo)))
        for index in range(model.n_layers):
            truth = _later_attention(model, trace, probes, index)[lo:hi].topk(k).indices.tolist()
            for name in names:
                spec, kind = VARIANTS[name]
                method, given = parse_method(spec)
                real = artefacts.load(model, "indexmem")
                with lend(stand_in(model, "indexmem", "random") if kind else real):
                    scores = method.score(LayerView(trace, index, text.n, {}), method.resolve(given))
                picked = scores.values.mean(0)[lo:hi].topk(k).indices.tolist()
                found[name] += len(set(truth) & set(picked)) / k / model.n_layers / len(texts)
    return found


def _later_attention(model, trace: Trace, probes: Probes, index: int) -> torch.Tensor:
    keys = torch.cat([trace.keys[index], probes.tail[index][0]], 1)
    p = rows_attention(probes.queries[index], keys, model.layer(index), trace.n)
    return p.mean((0, 1))[: trace.n]


def indexer_kl(model, texts: list[HeldOut]) -> tuple[float, float]:
    """KL of the untrained and of the trained indexer, mean over layers and query rows."""
    pieces = [read_piece(model, text.ids) for text in texts]
    learned = artefacts.load(model, "indexmem").tensors
    before = mean_kl(model, new_indexer(model.info, 0), pieces)
    return float(before.mean()), float(mean_kl(model, learned, pieces).mean())


def needles(model, length: int = 500, depths=(0.1, 0.5, 0.9), budgets=(0.2, 0.5), names=None) -> dict:
    """Right answers of each variant, question-aware, on ledgers of seed 0: {name: {budget: (right, of)}}."""
    names = list(VARIANTS) if names is None else list(names)
    tally = {name: dict.fromkeys(budgets, 0) for name in ["Full cache", *names]}
    cases = needle_cases(length, depths, model.tokenizer)
    for case in cases:
        assert case.needle_sentence == NEEDLE
        prompt = build_prompt(model, document=case.document, question=QUESTION)
        plain = [name for name in names if VARIANTS[name][1] is None]
        # A run of its own for every stand-in: a run reads its calibrated files itself.
        for group in filter(None, [plain, *([name] for name in names if name not in plain)]):
            specs = {name: VARIANTS[name][0].format(hq=model.n_query_heads) for name in group}
            with ExitStack() as stack:
                kind = VARIANTS[group[0]][1]
                if kind is not None:
                    method = MethodRef.parse(specs[group[0]]).id
                    stack.enter_context(lend(stand_in(model, method, kind)))
                result = compare(
                    model, prompt, list(specs.values()), list(budgets), max_new_tokens=20, measures=()
                )
            right = {v.key: contains_expected(v.text, CODE) for v in result.variants}
            for budget in budgets:
                if group is plain:
                    tally["Full cache"][budget] += contains_expected(result.full.text, CODE)
                for name, spec in specs.items():
                    tally[name][budget] += right[f"{spec}@{budget}"]
    return {name: {b: (right, len(cases)) for b, right in row.items()} for name, row in tally.items()}


def needle_held(model, length: int = 500, depths=(0.1, 0.5, 0.9), budgets=BUDGETS) -> dict:
    """Share of the needle's tokens that are held, mean over layers and heads, question-aware, on ledgers
    of seed 0: {name: {budget: share}}. The learned part can be replaced here, unlike in `needles`."""
    held = {name: dict.fromkeys(budgets, 0.0) for name in VARIANTS}
    cases = needle_cases(length, depths, model.tokenizer)
    for case in cases:
        prompt = build_prompt(model, document=case.document, question=QUESTION)
        start, end = prompt.tokens_of(*case.needle_span)
        scored = Scored(prefill(model, prompt, methods=["indexmem"]))
        for name in VARIANTS:
            for budget in budgets:
                mask = torch.stack(_selected(model, scored, budget, name).mask)
                held[name][budget] += float(mask[:, :, start:end].float().mean()) / len(cases)
    return held


def main(arguments: list[str] | None = None) -> None:
    from kvviz.models import load_model

    parser = argparse.ArgumentParser(description="Measure calibrated methods on held-out texts.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quick", action="store_true", help="two texts, no needles")
    args = parser.parse_args(arguments)
    model = load_model(args.model, dtype="float32")
    texts = held_out(model, quick=args.quick)
    print("Texts:", "; ".join(f"{t.name} ({t.n} + {FUTURE} tokens)" for t in texts))
    before, after = indexer_kl(model, texts)
    print(f"\nIndexer KL: {before:.3f} untrained, {after:.3f} trained")
    print("\n| ranking | recall of the true top 10 % |\n|---|---|")
    for name, value in sorted(recalls(model, texts).items(), key=lambda item: item[1]):
        print(f"| {name} | {value:.3f} |")
    table: dict[str, dict[float, list[tuple]]] = {name: {b: [] for b in BUDGETS} for name in VARIANTS}
    for text, budget, rows in losses(model, texts):
        print(f"<!-- {text.name} at {budget} done -->", flush=True)
        for name, row in rows.items():
            table[name][budget].append(row)
    _print_losses(table)
    if not args.quick:
        _print_held(needle_held(model))
        _print_needles(needles(model))


def _print_losses(table) -> None:
    heads = "".join(f" KL {b:.0%} | error {b:.0%} | MB {b:.0%} |" for b in BUDGETS)
    print(f"\n| method |{heads} kept of budget {BUDGETS[-1]:.0%} |\n|---|{'---|' * (3 * len(BUDGETS) + 1)}")
    for name, by_budget in table.items():
        cells = []
        for budget in BUDGETS:
            kl, error, share, size = torch.tensor(by_budget[budget], dtype=torch.float64).mean(0).tolist()
            cells.append(f" {kl:.3f} | {error:.3f} | {size / 1e6:.2f} |")
        print(f"| {name} |{''.join(cells)} {share:.0%} |")


def _print_held(held) -> None:
    budgets = list(next(iter(held.values())))
    print(f"\n| method |{''.join(f' needle held {b:.0%} |' for b in budgets)}\n|---|{'---|' * len(budgets)}")
    for name, row in held.items():
        print(f"| {name} |{''.join(f' {share:.0%} |' for share in row.values())}")


def _print_needles(tally) -> None:
    budgets = list(next(iter(tally.values())))
    print(f"\n| method |{''.join(f' {b:.0%} |' for b in budgets)}\n|---|{'---|' * len(budgets)}")
    for name, row in tally.items():
        print(f"| {name} |{''.join(f' {right} of {count} |' for right, count in row.values())}")


if __name__ == "__main__":
    main()
