"""Expected Attention (arXiv 2510.00636): what queries yet to come are expected to attend to.

    q ~ N(R mu, R Sigma R^T),  mu and Sigma from the prompt's queries before RoPE, per query head
    R   = mean RoPE rotation of the next `n_future` positions, as far as the model reads
    z_j = R mu . k_j / sqrt(d) + k_j^T R Sigma R^T k_j / (2 d)       (the log of E exp(q.k / sqrt(d)))
    s_j = (mean over the group of softmax_j(z) + epsilon) ||v_j||_2

Statistics and softmax leave out the first `sinks` tokens, which are kept. R averages rotations of
many angles, so it is no rotation itself: fast channels shrink, as intended. No window is read, so the
score does not depend on the question. Preset `kvpress`: heads compete, epsilon 0.01, as its
leaderboard runs it. Cost: Hq n d^2, and the statistics while the prompt is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods.parts import SINKS, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import NUMBER, SWITCH, WHOLE, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView, Rows


def mean_rotation(layer: LayerView, n_future: int, head_dim: int) -> torch.Tensor:
    """R, float32 [d, d]: a pre-RoPE column vector becomes its mean over the next positions (no query will
    ever stand past the model's limit, where some families have other angles)."""
    start = layer.first_position + layer.n
    end = max(start + 1, min(start + n_future, layer.model.info.max_tokens))
    positions = torch.arange(start, end, device=layer.keys.device)
    cos, sin = (angle.mean(0) for angle in layer.model.rotary(layer.index, positions))
    rotation = torch.eye(head_dim, device=cos.device)
    size = cos.shape[0]
    half = torch.eye(size, device=cos.device).roll(size // 2, 0)  # (a, b) -> (b, a)
    half[: size // 2] *= -1  # (a, b) -> (-b, a)
    rotation[:size, :size] = cos.diag() + sin[:, None] * half
    return rotation


def score(layer: LayerView, options: Options) -> Scores:
    stats = layer.extra("query_stats")
    keys = layer.keys.float()
    rotation = mean_rotation(layer, options["n_future"], keys.shape[-1])
    scaling = layer.model.layer(layer.index).scaling
    mean = (stats["mean"] @ rotation.T).unflatten(0, (layer.n_kv_heads, layer.group))
    logits = scaling * (mean @ keys.transpose(1, 2))  # [Hkv, g, n]
    if options["covariance"]:
        cov = (rotation @ stats["cov"] @ rotation.T).unflatten(0, (layer.n_kv_heads, layer.group))
        for head in range(layer.group):
            spread = ((keys @ cov[:, head]) * keys).sum(-1)
            logits[:, head] += scaling**2 / 2 * spread
    # Rows of a sliding layer do not begin at position 0: only true first positions are left out.
    skip = max(0, min(options["sinks"] - layer.first_position, layer.n))
    expected = torch.zeros_like(logits)
    expected[..., skip:] = logits[..., skip:].softmax(-1)
    values = reduce_group(expected.flatten(0, 1), layer) + options["epsilon"]
    if options["value_norm"]:
        values = values * layer.values.float().norm(dim=-1)
    return Scores(values[:, : layer.context])


def _caution(rows: Rows, b: int, options: Options) -> str:
    limit = rows.model.info.max_tokens
    if rows.n + options["n_future"] <= limit or b == rows.n:
        return ""
    return f"Queries are expected up to position {limit:,} only: {rows.model.id} reads no further."


N_FUTURE = Option("n_future", 512, WHOLE, "Positions ahead that queries are expected at.", 1, 4096)
EPSILON = Option("epsilon", 0.0, NUMBER, "Added to the expected attention.", 0, 1)
COVARIANCE = Option("covariance", True, SWITCH, "Let the spread of the queries count.")
VALUE_NORM = Option("value_norm", True, SWITCH, "Multiply by the size of the value.")

METHOD = Method(
    id="expected_attention",
    label="Expected Attention",
    group="attention and values",
    idea="Keeps what future queries, modelled as a Gaussian, are expected to attend to.",
    paper="arXiv 2510.00636",
    reads="statistics of all queries, keys, values",
    score=score,
    needs=frozenset({"query_stats"}),
    rows=(SINKS, N_FUTURE, EPSILON, COVARIANCE, VALUE_NORM),
    presets={
        "kvpress": {"allocation": "across_heads", "epsilon": 1e-2, "safeguard_of": "budget"},
    },
    cost="Hq n d^2",
    caution=_caution,
)
