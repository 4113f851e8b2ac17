"""OBCache (arXiv 2510.07651): squared first-order change of the output when an entry is pruned.

    z = q.k / sqrt(d),  p = softmax(z),  o = sum p v,  sums over the last W queries t and the group:
    value   sum p^2 ||v_j||^2                      (v_j -> 0)
    key     sum p^2 z^2 ||v_j - o_t||^2            (z_j -> 0)
    joint   sum p^2 ||v_j + z (v_j - o_t)||^2      (both)

Maximum pooling follows. `variant` "key" over AdaKV's allocation is the paper's best and the default.
The key score reads the logit itself: it changes when all logits of a row are shifted, and is 0 for
z = 0 however large p is. Preset `authors`: window 64, average pooling 5, p and z averaged over the
group before scoring (`mean_first`). All but the abstract is known from a third-party implementation
[reconstructed]. Cost: 4 Hq W n d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.lazy import torch
from kvviz.methods import removal
from kvviz.methods.parts import POOL, POOL_KIND, WINDOW, pool
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import CHOICE, SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView

VARIANT = Option(
    "variant", "key", CHOICE, "What pruning sets to zero.", choices=("key", "value", "joint")
)
MEAN_FIRST = Option("mean_first", False, SWITCH, "Average logits and attention over the group first.")


def score(layer: LayerView, options: Options) -> Scores:
    window, merge = options["window"], options["mean_first"]
    queries = layer.queries(window).float()
    if merge:  # z is linear in q
        queries = queries.unflatten(0, (layer.n_kv_heads, layer.group)).mean(1)
    keys = layer.trace.keys[layer.index].float() * layer.model.layer(layer.index).scaling
    raw = keys.new_zeros(keys.shape[:2])
    for head, rows in enumerate(layer.window_rows(window, merge)):
        kv = head if merge else head // layer.group
        raw[kv] += _score_head(rows, queries[head] @ keys[kv].T, options["variant"])
    raw = raw[:, layer.first_position :][:, : layer.context]
    return Scores(pool(raw, options), raw=raw)


def _score_head(rows: removal.Rows, z: torch.Tensor, variant: str) -> torch.Tensor:
    """One head's score, [n], given its logits z [W, n]; a row's largest p apart, as v - o cancels there."""
    v = rows.values + rows.shift  # the values themselves: pruning one is no difference
    z_top = z.gather(-1, rows.top[:, None])
    v_top, change = v[rows.top], -z_top * rows.gap  # z (v - o) of the leaders
    weights = rows.others.square()
    value = weights.sum(0) * v.square().sum(-1)
    if variant == "value":
        return rows.add_leaders(value, (rows.lead * v_top.norm(dim=-1)) ** 2)
    key = removal.weighted_distances(weights * z.square(), rows)
    if variant == "key":
        return rows.add_leaders(key, (rows.lead * change.norm(dim=-1)) ** 2)
    crossed = weights.mul_(z)  # sum p^2 z v.(v - o)
    cross = (v * rows.values).sum(-1) * crossed.sum(0) - ((crossed.T @ rows.outputs) * v).sum(-1)
    joint = (value + key + 2 * cross).clamp_min(0)
    return rows.add_leaders(joint, (rows.lead * (v_top + change).norm(dim=-1)) ** 2)


METHOD = Method(
    id="obcache",
    label="OBCache",
    group="attention and values",
    idea="How much the output would change, to first order, if an entry were pruned.",
    paper="arXiv 2510.07651",
    reads="logits and attention of the last W queries, values",
    score=score,
    allocation="across_heads",
    rows=(WINDOW.having(16), POOL, POOL_KIND.having("max"), VARIANT, MEAN_FIRST),
    presets={"authors": {"window": 64, "pool": 5, "pool_kind": "avg", "mean_first": True}},
    cost="4 Hq W n d",
    reconstructed="everything beyond the abstract: read from a third-party implementation",
    compare_with="adakv",
)
