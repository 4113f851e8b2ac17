"""IndexMem: training the indexer and fitting the memory's gamma (arXiv 2605.25475) [reconstructed].

Indexer: forward KL( attention averaged over heads || softmax_t I[s, .] ) on blocks of query rows, all
layers at once, the model frozen; AdamW 3e-4 with 3 percent warm-up and a cosine. Teacher rows are made
from stored queries and keys block by block: no n x n tensor is held. Gamma: least squares per query head
of o_full - o_kept on the memory's readout at the tokens that follow, over texts and budgets: the exact
minimum of the mean squared error that the paper trains for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import torch

from kvviz.calibrate.job import Job
from kvviz.calibrate.reading import plain_prompt, read_through
from kvviz.engine.attention import rows_attention, visible
from kvviz.engine.decode import Probes, record
from kvviz.engine.measures import _LayerProbe
from kvviz.engine.selection import select
from kvviz.engine.trace import Trace, prefill
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.indexmem import index_scores, indexer_keys, indexer_queries, indexer_sizes

LENGTHS = (512, 512, 512, 1024)  # by turns
HELD_BYTES = 3 << 29  # inputs, queries and keys of the training texts, in float16
MOST_PIECES = 32
ROWS = 128  # query rows a step
RATE, WARM_UP = 3e-4, 0.03
GAMMA_TEXTS, GAMMA_BUDGETS = 6, (0.1, 0.2)
_EVERY = 50


@dataclass
class Piece:
    """One text's inputs [L, n, D], queries [L, Hq, n, d] and keys [L, Hkv, n, d], float16."""

    hidden: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor

    @property
    def n(self) -> int:
        return self.hidden.shape[1]


def read_piece(model, ids: torch.Tensor) -> Piece:
    parts: tuple[list[torch.Tensor], ...] = ([], [], [])

    def see(index, *rows):
        for part, row in zip(parts, rows):
            part.append(row.to(torch.float16))

    read_through(model, ids, see)
    return Piece(*(torch.stack(part) for part in parts))


def new_indexer(info, seed: int) -> dict[str, torch.Tensor]:
    """Untrained projections: w_q [L, D, h_I d_I], w_k [L, D, d_I], w_w [L, D, h_I], float32."""
    heads, size = indexer_sizes(info)
    generator = torch.Generator().manual_seed(seed)
    scale = info.hidden_size**-0.5

    def drawn(width):
        return scale * torch.randn(info.n_layers, info.hidden_size, width, generator=generator)

    return {"w_q": drawn(heads * size), "w_k": drawn(size), "w_w": drawn(heads)}


def teacher_rows(model, piece: Piece, first: int, rows: int) -> torch.Tensor:
    """Attention averaged over heads of query rows first .. first + rows - 1: float32 [L, rows, last]."""
    last = first + rows
    out = []
    for index in range(model.n_layers):
        query = piece.queries[index][:, first:last]
        p = rows_attention(query, piece.keys[index][:, :last], model.layer(index), first).mean(0)
        out.append(p / p.sum(-1, keepdim=True))  # learned sink logits take a part of some families' rows
    return torch.stack(out)


def block_kl(model, weights: dict[str, torch.Tensor], piece: Piece, first: int, rows: int) -> torch.Tensor:
    """Mean over rows of KL(teacher || indexer), [L]."""
    last = first + rows
    hidden = piece.hidden[:, :last].float()
    q, w = indexer_queries(hidden[:, first:], weights["w_q"], weights["w_w"])
    k = indexer_keys(hidden, weights["w_k"])
    p = teacher_rows(model, piece, first, rows).to(k.device)
    seen = torch.stack(
        [visible(first, last, 0, last, model.layer(i).window, k.device) for i in range(model.n_layers)]
    )
    log_q = index_scores(q, k, w).masked_fill(~seen, float("-inf")).log_softmax(-1)
    log_q = log_q.masked_fill(~seen, 0.0)
    return (torch.special.xlogy(p, p) - p * log_q).sum(-1).mean(-1)


def mean_kl(model, weights, pieces: list[Piece]) -> torch.Tensor:
    """KL [L] over all query rows of all pieces, in blocks."""
    total, count = torch.zeros(model.n_layers), 0
    with torch.no_grad():
        for piece in pieces:
            for first in range(0, piece.n, ROWS):
                rows = min(ROWS, piece.n - first)
                total += rows * block_kl(model, weights, piece, first, rows).cpu()
                count += rows
    return total / count


def rate_at(step: int, steps: int) -> float:
    """Learning rate of step 0 .. steps - 1: warm-up, then a cosine to 0."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return RATE * (step + 1) / warm
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def run(job: Job) -> tuple[dict[str, torch.Tensor], dict]:
    model = job.model
    pieces = _pieces(job)
    weights = {k: v.requires_grad_() for k, v in new_indexer(model.info, job.seed).items()}
    optimiser = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.01)
    losses, done = [], _resume(job, weights, optimiser)
    for step in range(done, job.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, job.steps)
        rng = Random(f"{job.seed}/{step}")  # the same draws whether or not the work was interrupted
        piece = pieces[rng.randrange(len(pieces))]
        rows = min(ROWS, piece.n)
        kl = block_kl(model, weights, piece, rng.randrange(piece.n - rows + 1), rows)
        optimiser.zero_grad()
        kl.sum().backward()
        optimiser.step()
        losses.append(float(kl.detach().mean()))
        if (step + 1) % _EVERY == 0:
            _keep(job, weights, optimiser, step + 1)
        message = f"Step {step + 1} of {job.steps}, KL {losses[-1]:.3f}"
        job.say(message, 0.2 + 0.6 * (step + 1) / job.steps)
    learned = {k: v.detach().to(torch.float16).float() for k, v in weights.items()}
    tokens = sum(p.n for p in pieces)
    del pieces
    gamma, share = fit_gamma(job, learned)
    stored = {k: v.to(torch.float16) for k, v in learned.items()}  # half the bytes; read back as float32
    tenth = max(1, len(losses) // 10)
    return {**stored, "gamma": gamma}, {
        "tokens": tokens,
        "rows_a_step": ROWS,
        "losses": {
            "KL of the first tenth of the steps": round(sum(losses[:tenth]) / tenth, 4) if losses else None,
            "KL of the last tenth": round(sum(losses[-tenth:]) / tenth, 4) if losses else None,
        },
        "gamma": {
            "median": round(float(gamma.median()), 4),
            "share of the squared error explained on its own texts": round(float(share), 4),
        },
        "rotation": "none",
    }


def _pieces(job: Job) -> list[Piece]:
    """As many texts as fit the memory set aside, at most `MOST_PIECES`, read once."""
    info = job.model.info
    per_token = (
        2 * info.n_layers * (info.hidden_size + info.head_dim * (info.n_query_heads + info.n_kv_heads))
    )
    count = HELD_BYTES * len(LENGTHS) // (sum(LENGTHS) * per_token)
    count = max(4, min(MOST_PIECES, count, job.steps))
    lengths = [LENGTHS[i // 3 % len(LENGTHS)] for i in range(count)]  # every source gets every length
    pieces = []
    for number, ids in enumerate(job.texts.pieces(job.model, lengths, job.seed)):
        job.say(f"Reading text {number + 1} of {count}", 0.2 * number / count)
        pieces.append(read_piece(job.model, ids))
    return pieces


def _keep(job: Job, weights, optimiser, done: int) -> None:
    state = dict(weights)
    for name, value in weights.items():
        for key, held in optimiser.state[value].items():
            state[f"{name}.{key}"] = held
    job.keep(state, {"done": done})


def _resume(job: Job, weights, optimiser) -> int:
    kept = job.kept()
    if kept is None:
        return 0
    tensors, plain = kept
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(tensors[name])
            optimiser.state[value] = {
                key: tensors[f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")
            }
    return plain["done"]


def fit_gamma(job: Job, learned: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """(gamma [L, Hq], share of sum |o_full - o_kept|^2 that it explains)."""
    model = job.model
    shape = (model.n_layers, model.n_query_heads)
    artefact = Artefact("indexmem", {**learned, "gamma": torch.ones(shape)}, {})
    cross, own, total = (torch.zeros(shape) for _ in range(3))
    lengths = [640] * min(GAMMA_TEXTS, max(2, job.steps))
    for number, ids in enumerate(job.texts.pieces(model, lengths, job.seed + 1)):
        job.say(f"Fitting the memory, text {number + 1} of {len(lengths)}", 0.8 + 0.2 * number / len(lengths))
        n = len(ids) * 4 // 5
        trace, probes = probe(model, ids, n)
        for budget in GAMMA_BUDGETS:
            with lend(artefact):
                selection = select(trace, "indexmem", budget)
            for index in range(model.n_layers):
                seen = _LayerProbe(trace, probes, index)
                kept = seen.kept(selection.mask[index].to(seen.keys.device))
                wanted = seen.heads(seen.full - kept).cpu()  # [Hq, T, d]
                read = selection.readout.read(index, probes.queries[index], seen.positions).cpu()
                cross[index] += (wanted * read).sum((1, 2))
                own[index] += read.square().sum((1, 2))
                total[index] += wanted.square().sum((1, 2))
    gamma = cross / own.clamp_min(1e-12)
    return gamma, float((cross.square() / own.clamp_min(1e-12)).sum() / total.sum().clamp_min(1e-12))


def probe(model, ids: torch.Tensor, n: int) -> tuple[Trace, Probes]:
    """(trace of the first n tokens, the full run's queries and rows at the tokens that follow)."""
    trace = prefill(model, plain_prompt(model, ids, n), methods=["indexmem"])
    return trace, record(trace, ids[n:].tolist())
