"""DefensiveKV (arXiv 2510.13334, ICLR 2026): prepare for the worst query rather than the average one.

    a_ij = pool over j of p_ij, each row i rescaled to the attention it gave the context before
    m_j  = max over window rows and group of a_ij
    s_j  = max(m_j, mean_k m_k) nu_j / sum over KV heads of nu_j,   nu = group mean of ||v_j W_O||_1
    stage 1: tokens go first while those before them and themselves hold less than `coverage` - beta of the
             mean attention on the context; beta = the mean attention on its last W tokens

nu is normalised across KV heads at each position, not over tokens. Heads of a layer compete, with no
floor. Of the tokens of stage 1 at most b - P a head go first, in the order of mean attention (`turn`); the
public code counts this share of the context alone, W x (share kept) tokens less. All else as there, which
means beta for the window's own attention but takes it after the window was cut away; `covers="all"` reads it
so: the fewest tokens that, with the window, hold `coverage` of all attention. The code may evict window
tokens that tie with stage 1, here they are kept by rule. Average pooling 5, window 32, coverage 0.9. Cost:
Hq W n d + Hq n d D.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.engine.budgets import SAFEGUARD
from kvviz.engine.ranking import rank
from kvviz.lazy import torch
from kvviz.methods.parts import POOL, POOL_KIND, WINDOW, pool, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, NUMBER, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    sizes = reduce_group(layer.value_norms(1), layer)[:, : layer.context]
    shares = sizes / sizes.sum(0).clamp_min(torch.finfo(sizes.dtype).tiny)
    worst, worst_raw = _worst(layer, options)
    first, turn = _first(layer, options)
    return Scores(defend(worst) * shares, raw=defend(worst_raw) * shares, first=first, turn=turn)


def _worst(layer: LayerView, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """m with and without pooling, [Hkv, C] each."""
    smooth, plain = [], []
    for rows in layer.attention_by_head(options["window"]):
        p = rows[:, : layer.context]
        pooled = pool(p, options)
        scale = p.sum(-1) / pooled.sum(-1).clamp_min(torch.finfo(p.dtype).tiny)
        smooth.append((pooled * scale[:, None]).amax(0))
        plain.append(p.amax(0))
    return reduce_group(torch.stack(smooth), layer, "max"), reduce_group(torch.stack(plain), layer, "max")


def defend(worst: torch.Tensor) -> torch.Tensor:
    """No entry counts less than its head's average: [Hkv, C] -> [Hkv, C]."""
    return torch.maximum(worst, worst.mean(-1, keepdim=True)) if worst.shape[-1] else worst


def _first(layer: LayerView, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Who goes first, bool [Hkv, C], and the place of every token in the order of mean attention."""
    mean = reduce_group(layer.attention_mean(options["window"]), layer)
    context = mean[:, : layer.context]
    places = rank(context).to(context.device)
    if not layer.context:
        return places < 0, places
    ranked = context.sort(-1, descending=True).values
    if options["covers"] == "all":
        window = mean[:, layer.context :].sum(-1, keepdim=True)
        before = ranked.cumsum(-1) - ranked + window  # what is covered without the token itself
        return (before < options["coverage"]).gather(-1, places), places
    beta = context[:, -options["window"] :].sum(-1).mean()
    shares = ranked / ranked.sum(-1, keepdim=True).clamp_min(torch.finfo(ranked.dtype).tiny)
    reached = shares.cumsum(-1) >= options["coverage"] - beta
    return places < reached.int().argmax(-1, keepdim=True), places  # nobody where it is never reached


COVERS = Option(
    "covers",
    "context",
    CHOICE,
    "What stage 1 covers a share of: the context's attention (the public code), or all attention.",
    choices=("context", "all"),
)
COVERAGE = Option("coverage", 0.9, NUMBER, "Share of the mean attention that stage 1 covers.", 0, 1)
ROWS = (WINDOW, POOL.having(5), POOL_KIND, COVERAGE, COVERS)
DIFFERS = (
    "window tokens are kept by rule, where the public code lets them tie with stage 1, and stage 1 may fill "
    "a head's share of the budget, where the code stops it W x (share kept) tokens short"
)

METHOD = Method(
    id="defensivekv",
    label="DefensiveKV",
    group="attention and values",
    idea="The highest attention any recent query gave, times the size of the projected value.",
    paper="arXiv 2510.13334",
    reads="attention of the last W queries, values, W_O",
    score=score,
    allocation="across_heads",
    rows=(*ROWS, SAFEGUARD.having(0.0)),
    cost="Hq W n d + Hq n d D",
    differs=DIFFERS,
    compare_with="adakv",
)
