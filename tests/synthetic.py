"""A made-up but complete comparison: every field filled, every shape right, no model involved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvviz.engine.lenses import STOPS
from kvviz.engine.measures import first_difference
from kvviz.results import attention
from kvviz.results.ablation import Ablation, AblationRow
from kvviz.results.causes import Causes, Controls, Effect, Rescue, WouldDo
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.fork import Fork, Path, Step
from kvviz.results.kept import KeptSet
from kvviz.results.passages import passages
from kvviz.results.turns import Turn
from kvviz.types import Mark, ModelInfo, Prompt

METHODS = ("snapkv", "dropkv", "streaming_llm")
LABELS = {
    "snapkv": "SnapKV",
    "dropkv": "DropKV",
    "streaming_llm": "StreamingLLM",
    "adakv": "AdaKV",
    "criticalkv": "CriticalKV",
    "keydiff": "KeyDiff",
}
UNEVEN = {"adakv", "dropkv"}  # heads compete within a layer
TWO_STAGE = {"criticalkv"}
POSITIONAL = {"streaming_llm"}  # no scores
CODE = "58213"
WINDOW = 32
_TEXT = """the ledger of lighthouse keeper wrote oil burned in March counted steps to lamp room and
found <s> 12 sacks salt & lime </b> at page 390 <a href=x> wind blew west for 7 hours , . """
_WORDS = _TEXT.split()


def synthetic_comparison(
    n: int = 300,
    L: int = 6,
    Hq: int = 6,
    Hkv: int = 3,
    methods: tuple[str, ...] = METHODS,
    budgets: tuple[float | int, ...] = (0.5, 0.2, 0.1, 0.05),
    seed: int = 0,
    *,
    right: dict[str, float] | None = None,
    full_text: str = "The code is 58213.",
    expected: str | None = CODE,
    marked: bool = True,
    windows: tuple[int | None, ...] | None = None,
    protocol: str = "question-aware",
    d: int = 16,
    stops: tuple[float, ...] = STOPS,
    evict_every: int = 0,
) -> Comparison:
    """A comparison with needle M1 at 40% of the text and the expected answer 58213.

    right    {method: smallest share at which its answer still contains the code}; by default
             dropkv holds on to it longest.
    windows  sliding window of each layer (None = full attention).
    evict_every  > 0 adds decode-time evictions to every variant.
    """
    rng = np.random.default_rng(seed)
    right = {"snapkv": 0.2, "dropkv": 0.05, "streaming_llm": 2.0} if right is None else right
    windows = windows or (None,) * L
    prompt, needle = _prompt(n, rng, protocol)
    n = prompt.n_compressible
    model = ModelInfo("test/tiny", L, Hq, Hkv, d, d * Hq, "float32", tuple(windows), 4 * n)
    starts = np.array([0 if w is None else max(0, n - w + 1) for w in windows])
    visible = np.arange(n)[None, :] >= starts[:, None]  # [L, n]
    bytes_full = int(visible.sum()) * Hkv * 2 * d * 4

    scores, firsts = {}, {}
    for index, method in enumerate(methods):
        raw = rng.gamma(0.3, 1.0, (L, Hkv, n)).astype(np.float32)
        raw[:, :, :4] += 20  # the attention sink
        raw[:, :, needle[0] : needle[1]] *= 1 + 3 * index
        raw[~np.broadcast_to(visible[:, None], raw.shape)] = np.nan
        scores[method], firsts[method] = raw, rng.gamma(0.3, 1.0, raw.shape).astype(np.float32)

    full_tokens = _split(full_text)
    full = Variant(
        "full", "Full cache", 1.0, n, {}, None, _ids(full_tokens), full_tokens, full_text,
        "stop token", bytes=bytes_full, tokens_kept=float(n),
    )  # fmt: skip
    variants = []
    stop_points = []
    for method in methods:
        for budget in budgets:
            share = min(1.0, budget / n) if isinstance(budget, int) else budget
            selection = _select(method, budget, share, scores, firsts, visible, prompt)
            has = share >= right.get(method, 0.1)
            text = full_text if has else "The code is 1947 <b>."
            variants.append(_variant(selection, text, full_tokens, share, model, rng, evict_every))
        kept = [_select(method, s, s, scores, firsts, visible, prompt).kept for s in stops]
        stop_points += [Point(method, s, k, error=_error(s, model, rng)) for s, k in zip(stops, kept)]

    attention = rng.gamma(0.2, 1e-3, (L, Hkv, n)).astype(np.float32)
    attention[:, :, 10:20] = 0
    effect = (attention * rng.lognormal(0, 1, attention.shape)).astype(np.float32)
    sizes = np.random.default_rng(seed).gamma(4, 1, (2, *attention.shape)).astype(np.float32)
    scored = {m: s.copy() for m, s in scores.items()}
    for method, s in scored.items():
        s[:, :, n - WINDOW :] = np.nan
        if method in POSITIONAL:
            s[:] = np.nan
    return Comparison(
        model=model,
        prompt=prompt,
        settings={"max_new_tokens": 24, "seed": 0, "temperature": 0.0, "options": {}},
        full=full,
        variants=variants,
        bytes_full=bytes_full,
        marks=[Mark("M1", *needle, CODE, "matches the expected answer")] if marked else [],
        expected=expected,
        at_stops=stop_points,
        scores=scored,
        lenses={"attention": attention, "effect": effect, "value_size": sizes[0], "key_norm": sizes[1]},
        seconds={"prefill": 0.8},
    )


def _prompt(n: int, rng: np.random.Generator, protocol: str) -> tuple[Prompt, tuple[int, int]]:
    head, question = ["<|user|>", "\n"], ["\n", "What", " is", " the", " code", "?", "<|bot|>"]
    space = n - len(head) - len(question)
    body = [" " + _WORDS[i] for i in rng.integers(0, len(_WORDS), space)]
    body[15::40] = ["\n"] * len(body[15::40])
    at = max(0, int(0.4 * space) - 2)
    body[at : at + 5] = [" " + CODE[0], *CODE[1:]]
    if space > at + 12:  # one character that takes three tokens
        body[at + 8 : at + 11] = ["🦊", "🦊", "🦊"]
    offsets: list[tuple[int, int] | None] = [None] * len(head)
    document, previous = "", None
    for token in body:
        if token == "🦊" and previous == "🦊":
            offsets.append(offsets[-1])
            continue
        offsets.append((len(document), len(document) + len(token)))
        document, previous = document + token, token
    end = len(head) + len(body)
    tokens = [*head, *body, *question]
    offsets += [None] * len(question)
    prompt = Prompt(
        input_ids=np.arange(len(tokens)),
        n_compressible=end if protocol == "question-agnostic" else len(tokens),
        tokens=tokens,
        offsets=offsets,
        document=document,
        question="What is the code?",
        system=None,
        protocol=protocol,
        document_span=(len(head), end),
        question_span=(end + 1, end + 6),
    )
    return prompt, (len(head) + at, len(head) + at + 5)


def with_findings(c: Comparison, method: str = "snapkv", budget: float | int = 0.1) -> Comparison:
    """The same with causes of one answer, a fork, answer attention and an ablation, all made up."""
    rng = np.random.default_rng(1)
    v = c.variant(method, budget)
    mask = v.packed.kept.mask()
    layers, heads, n = mask.shape
    lost = [tuple(int(x) for x in place) for place in np.argwhere(~mask)[:: max(1, (~mask).sum() // 3)]][:3]

    def effects(sign: int) -> list[Effect]:
        def one(unit, **where):
            effect = sign * float(rng.gamma(0.3, 2))
            return Effect(unit, int(rng.integers(1, 50)), effect, abs(effect) / 9, effect * 0.8, **where)

        return [
            *(one("head", layer=i, head=h) for i in range(layers) for h in range(heads)),
            *(one("layer", layer=i) for i in range(layers)),
            *(one("passage", passage=p) for p in passages(c.prompt, "line")),
            *(one("token", token=t) for t in range(n)),
        ]

    do = np.zeros_like(mask)
    do[:, :, :3] = True
    found = Causes(
        method=method,
        budget=budget,
        answer=c.full.text,
        tokens=list(c.full.tokens),
        method_text=v.text,
        gap=10.1,
        expected_gap=9.0,
        kl=0.4,
        n=n,
        put_back=effects(1),
        taken_out=effects(1),
        rescue=Rescue(lost, layers * heads * n, c.full.text, "right", [True] * len(lost), 9.7, True,
                      Controls([False] * 19 + [True], [False] * 20), True, 400, 12.5),
        would_do=WouldDo(do, "snapkv@0.1", c.full.text, int(do.sum()) * 128, 0.01, {v.key: 0.8}, False, 1500,
                         1500, 60.0, ["It stopped after 1,500 trials; a smaller cache may exist."]),
        trials=900,
        seconds=80.0,
    )  # fmt: skip
    steps = [Step(t, [(t, 0.7), (" other <b>", 0.2)]) for t in c.full.tokens]
    paths = {key: Path(key, c.full.text, steps, [(0.7, 1)] * len(steps)) for key in ("full", v.key)}
    weights = rng.dirichlet(np.full(n, 0.05), (len(steps), layers, heads)).astype(np.float32)
    first, last = c.prompt.document_span
    inside = np.arange(n) >= first
    inside[last:] = False
    gone = {x.key: weights * ~x.packed.kept.mask() for x in c.variants}
    seen = attention.AnswerAttention(
        attention.encode(weights),
        (weights * inside).sum(-1).astype(np.float16),
        {key: w.sum(-1).astype(np.float16) for key, w in gone.items()},
        {key: (w * inside).sum(-1).astype(np.float16) for key, w in gone.items()},
    )
    rows = [
        AblationRow(m, w, kind, size, budget, "right" if w == 8 else "wrong", 0.1 * size / w, c.full.text)
        for m in ("snapkv", "criticalkv") for w in (8, 32) for kind, size in (("avg", 7), ("max", 11))
    ]  # fmt: skip
    return dataclasses.replace(
        c.with_causes(found),
        fork=Fork(list(c.full.tokens), paths),
        answer_attention=seen,
        ablation=Ablation(rows, c.full.text, "right"),
    )


def with_turn(c: Comparison, question: str, expected: str | None = None, fresh: bool = False) -> Comparison:
    """The comparison after a further question that every cache of it answered."""
    said = [
        dataclasses.replace(v, selection=None, text=f"{v.label} to {question}", token_ids=[5, i])
        for i, v in enumerate([c.full, *(v for v in c.variants if not v.made)])
    ]
    turn = Turn(question, expected, fresh, [7], said[0], said[1:], 1.0)
    return dataclasses.replace(c, turns=[*c.turns, turn])


@contextmanager
def kept_changed(c: Comparison, method: str, budget: float | int) -> Iterator[np.ndarray]:
    """The kept mask of a decoded answer, bool [L, Hkv, n], to be changed in place."""
    v = c.variant(method, budget)
    old = v.selection.kept
    mask = old.mask()
    yield mask
    v.selection = dataclasses.replace(v.selection, kept=KeptSet.pack(mask, old.protected(), old.entries))


def _select(method, budget, share, scores, firsts, visible, prompt) -> Point:
    raw = scores[method]
    L, Hkv, n = raw.shape
    entries = max(1, int(share * n + 1e-9))
    recent = min(WINDOW, max(1, entries // 2)) if entries < n else min(WINDOW, n)
    protected = np.zeros(raw.shape, bool)
    protected[:, :, n - recent :] = True
    protected &= visible[:, None, :]
    ranked = np.where(protected | np.isnan(raw), -np.inf, raw)
    if method in POSITIONAL:
        ranked = np.where(np.isfinite(ranked), np.arange(n, dtype=np.float32), -np.inf)
        ranked[:, :, :4] = np.where(np.isfinite(ranked[:, :, :4]), 2.0 * n, -np.inf)
    mask = protected.copy()
    stage = np.where(protected, 3, 0).astype(np.int8)
    for layer in range(L):
        room = min(entries, int(visible[layer].sum())) - int(protected[layer, 0].sum())
        pools = [range(Hkv)] if method in UNEVEN else [[h] for h in range(Hkv)]
        for heads in pools:
            flat = ranked[layer, list(heads)].ravel()
            take = min(room * len(list(heads)), int(np.isfinite(flat).sum()))
            order = np.argsort(-flat, kind="stable")[:take]
            chosen = np.zeros(flat.shape, bool)
            chosen[order] = True
            mask[layer, list(heads)] |= chosen.reshape(-1, n)
    by_score = mask & ~protected
    stage[by_score] = 2
    if method in TWO_STAGE:
        middle = np.nanmedian(firsts[method])
        stage[by_score & (firsts[method] > middle)] = 1
    shown = np.where(protected, np.nan, raw).astype(np.float32)
    if method in POSITIONAL:
        shown = np.full_like(raw, np.nan)
    with np.errstate(all="ignore"):
        lowest = np.where(by_score, shown, np.inf).min(-1)
    cutoff = np.where(np.isfinite(lowest), lowest, np.nan).astype(np.float32)
    return Point(
        method=method,
        label=LABELS[method],
        budget=budget,
        kept=KeptSet.pack(mask, protected, entries),
        options={"window": WINDOW, "pool": 7, "pool_kind": "max"},
        scores=list(shown),
        scores_raw=list((shown * 0.9).astype(np.float32)),
        stage=stage,
        cutoff=cutoff,
        scope="layer" if method in UNEVEN else "head",
        first_scores=list(firsts[method]) if method in TWO_STAGE else None,
    )


def _error(share: float, model: ModelInfo, rng: np.random.Generator) -> np.ndarray:
    if share >= 1:
        return np.zeros((model.n_layers, model.n_query_heads), np.float32)
    shape = model.n_layers, model.n_query_heads
    return (0.02 / share * rng.lognormal(0, 1, shape)).astype(np.float32)


def _variant(selection, text, full_tokens, share, model, rng, evict_every) -> Variant:
    tokens = _split(text)
    differs = first_difference(full_tokens, tokens)
    kl = (0.02 / share * rng.gamma(1, 1, len(full_tokens))).astype(np.float32)
    kl[0] = 0
    held = int(np.sum(selection.budgets))
    evictions = []
    if evict_every:
        for step in range(evict_every, 4 * evict_every, evict_every):
            dropped = rng.integers(0, 3, (model.n_layers, model.n_kv_heads))
            evictions.append({"step": step, "dropped": dropped.tolist()})
    error = _error(share, model, rng)
    return Variant(
        method=selection.method,
        label=selection.label,
        budget=selection.budget,
        entries=selection.entries,
        options=selection.options,
        selection=selection,
        token_ids=_ids(tokens),
        tokens=tokens,
        text=text,
        finished="stop token",
        kl=kl,
        output_error=error,
        layer_error=error.mean(-1),
        bytes=held * 2 * model.head_dim * 4,
        tokens_kept=float(np.mean(selection.budgets)),
        first_difference=differs,
        evictions=evictions,
    )


def _split(text: str) -> list[str]:
    words = text.split(" ")
    return [words[0], *(" " + w for w in words[1:])]


def _ids(tokens: list[str]) -> list[int]:
    return [sum(map(ord, t)) for t in tokens]
