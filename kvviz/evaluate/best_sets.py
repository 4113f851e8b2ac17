"""How far is DropKV's choice from the best set? Brute force over small windows of a head.

Of a few neighbouring tokens half are dropped, everything else stays. The error of a set E at query i is

    || o_i without E, renormalised, - o_i ||  =  || sum_{j in E} p_ij (o_i - v_j) || / (1 - sum_{j in E} p_ij)

and a set's error the sum of its squares over the last W queries. All sets of the size are tried; DropKV takes
the tokens whose own error is smallest (its scores, without pooling). The paper proves that this comes within
a constant of the best set where the dropped tokens' errors lie in a cone: the share of pairs of them whose
errors point the same way (their inner product is above 0) is counted beside it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import torch

from kvviz.engine.prompts import build_prompt
from kvviz.engine.trace import Trace, prefill
from kvviz.errors import InputError
from kvviz.evaluate.cells import digest
from kvviz.evaluate.items import Item
from kvviz.models import Model

WINDOW = 8  # queries that observe: DropKV's own
TOKENS, DROPPED = 12, 6  # 924 sets a head
_LEAST = 1e-9  # attention that stays: where a sink is dropped float32 leaves none


def of_documents(model: Model, name: str, items: Sequence[Item], protocol: str, seed: int = 0) -> list[dict]:
    """A row a document, of its first item: "model", "protocol", "document", "heads" and their means:

    ratio            error of DropKV's set over that of the best; 1 is the best.
    attention_ratio  the same for the tokens of least attention.
    """
    first = {item.document: item for item in reversed(items)}
    rows = []
    for document in dict.fromkeys(item.document for item in items):
        item = first[document]
        prompt = build_prompt(model, document, item.question, protocol=protocol, cue=item.cue)
        found = of_trace(prefill(model, prompt), random.Random(seed))
        rows.append({"model": name, "protocol": protocol, "document": digest(document)[:12], **found})
    return rows


def of_trace(trace: Trace, rng: random.Random) -> dict[str, Any]:
    """Means over all heads of one prompt, each with a window of its own."""
    context = trace.n - WINDOW
    if context < TOKENS:
        raise InputError(f"Brute force needs {TOKENS + WINDOW} tokens, not {trace.n}.")
    found = []
    for layer, all_values in enumerate(trace.values):
        p, values = trace.window_attention(layer, WINDOW).double(), all_values.double()
        group = len(p) // len(values)
        for head, rows in enumerate(p):
            start = rng.randrange(context - TOKENS + 1)
            found.append(of_head(rows, values[head // group], range(start, start + TOKENS), DROPPED))
    ratios, attention, cone = torch.tensor(found).T.double()
    return {
        "heads": len(found), "ratio": float(ratios.mean()), "attention_ratio": float(attention.mean()),
        "cone": float(cone.nanmean()),
    }  # fmt: skip


def of_head(
    p: torch.Tensor, values: torch.Tensor, candidates: Sequence[int], dropped: int
) -> tuple[float, float, float]:
    """(ratio, attention ratio, share of pairs that point the same way); p [W, n], values [n, d], float64.

    A ratio is 1 where even the best set changes nothing.
    """
    chosen = torch.as_tensor(list(candidates))
    share = p[:, chosen]
    terms = share[..., None] * ((p @ values)[:, None] - values[chosen])  # [W, C, d]
    products = terms @ terms.mT  # [W, C, C]
    sets = torch.tensor(list(itertools.combinations(range(len(chosen)), dropped)))
    member = torch.zeros(len(sets), len(chosen), dtype=torch.float64).scatter_(1, sets, 1.0)
    rest = (1 - share).clamp_min(_LEAST)
    alone = (products.diagonal(dim1=1, dim2=2) / rest.square()).sum(0)
    joint = torch.einsum("sc,wcd,sd->sw", member, products, member)
    errors = (joint / (1 - member @ share.T).clamp_min(_LEAST).square()).sum(1)
    best = errors.min()

    def of(order: torch.Tensor) -> tuple[float, torch.Tensor]:
        mine = order[:dropped].sort().values
        error = errors[(sets == mine).all(1)][0]
        return float(error / best) if best > 0 else 1.0, mine

    ratio, mine = of(alone.argsort(stable=True))
    attention, _ = of(share.sum(0).argsort(stable=True))
    pairs = products[:, mine][:, :, mine]
    above = torch.triu(torch.ones(dropped, dropped, dtype=torch.bool), 1)
    return ratio, attention, float((pairs[:, above] > 0).double().mean())
