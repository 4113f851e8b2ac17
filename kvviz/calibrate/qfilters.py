"""Q-Filters: the direction that a group's rotated queries share (arXiv 2503.02812) [reconstructed].

The stacked queries' first right singular vector u is the leading eigenvector of sum q q^T, so only a
d x d matrix a KV head is held. Oriented so that the mean of <q, u> is positive; the filter is f = -u.
The sign is then checked: on the same texts, the correlation between -<f, k> and the log of the attention
that later queries give to the key.
"""

from __future__ import annotations

import torch

from kvviz.calibrate.job import Job
from kvviz.calibrate.reading import read_through
from kvviz.engine.attention import rows_attention

LENGTH = 512
ROWS = 64  # last queries whose attention checks the sign


def filters_of(square: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """f [.., d] of sums of q q^T [.., d, d] and of q [.., d]."""
    u = torch.linalg.eigh(square).eigenvectors[..., -1]
    sign = torch.where((u * total).sum(-1, keepdim=True) < 0, -1.0, 1.0).to(u.dtype)
    return -sign * u


def run(job: Job) -> tuple[dict[str, torch.Tensor], dict]:
    model = job.model
    layers, hkv, d = model.n_layers, model.n_kv_heads, model.head_dim
    square = torch.zeros(layers, hkv, d, d, dtype=torch.float64)
    total = torch.zeros(layers, hkv, d, dtype=torch.float64)
    pieces = job.texts.pieces(model, [LENGTH] * job.steps, job.seed)
    done, kept = 0, job.kept()
    if kept is not None:
        square, total, done = kept[0]["square"], kept[0]["total"], kept[1]["done"]

    def add(index, hidden, query, key):
        rows = query.double().cpu().reshape(hkv, -1, d)  # [Hkv, g n, d]
        square[index] += rows.transpose(1, 2) @ rows
        total[index] += rows.sum(1)

    for number in range(done, len(pieces)):
        job.say(f"Reading text {number + 1} of {len(pieces)}", 0.8 * number / len(pieces))
        read_through(model, pieces[number], add)
        job.keep({"square": square, "total": total}, {"done": number + 1})
    filters = filters_of(square, total).float()
    agreement = _agreement(job, filters, pieces[: max(1, len(pieces) // 4)])
    flipped = bool(agreement.mean() < 0)
    if flipped:  # the geometry the method relies on does not hold here: let the measurement decide
        filters, agreement = -filters, -agreement
    return {"filters": filters}, {
        "tokens": sum(len(p) for p in pieces),
        "sign": {
            "mean_correlation_with_attention": round(float(agreement.mean()), 4),
            "heads_that_agree": int((agreement > 0).sum()),
            "heads": layers * hkv,
            "flipped_by_the_check": flipped,
        },
    }


def _agreement(job: Job, filters: torch.Tensor, pieces) -> torch.Tensor:
    """Correlation, over keys, of -<f, k> with log attention of the last queries: [L, Hkv]."""
    model = job.model
    out = torch.zeros(model.n_layers, model.n_kv_heads)

    def compare(index, hidden, query, key):
        n = key.shape[1]
        p = rows_attention(query[:, -ROWS:], key, model.layer(index), n - min(ROWS, n)).mean(1)
        p = p.unflatten(0, (model.n_kv_heads, -1)).mean(1)[:, 4 : n - ROWS].cpu()  # without sinks
        s = -torch.einsum("hd,hnd->hn", filters[index], key.float().cpu())[:, 4 : n - ROWS]
        out[index] += _correlation(s, p.clamp_min(1e-12).log()) / len(pieces)

    for number, ids in enumerate(pieces):
        job.say("Checking the sign against attention", 0.8 + 0.2 * number / len(pieces))
        read_through(model, ids, compare)
    return out


def _correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(1e-12)
