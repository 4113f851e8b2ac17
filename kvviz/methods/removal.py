"""What removing one key does to a query's output, computed so that attention sinks do not spoil it.

    o without j, renormalised,  minus  o  =  p_j / (1 - p_j) (o - v_j)

Where p_j is near 1 the textbook order of operations loses every digit: 1 - p_j cancels, and so does
||v_j||^2 - 2 v_j.o + ||o||^2, which is then multiplied by up to 1e6. At most one key of a row has
p > 1/2. That key, the row's leader, is computed directly:

    1 - p_j = sum of the other p,     o - v_j = sum of the other p_k v_k - (1 - p_j) v_j

and all others, whose weight is at most 1, by matrix products. Values are shifted to mean zero
first, which changes no difference and keeps the products small.

Shapes: p [R, n], the attention of one query head's rows; values [n, d] of its KV head; results [n],
float32. `sink` [R] is the attention on a learned sink logit (a column without value), None in most
models.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvviz.lazy import torch


@dataclass(frozen=True)
class Rows:
    """Attention rows with each row's leader (its largest p) taken apart.

    others   p with the leader's entry set to 0, [R, n].
    top      index of the leader, [R].
    lead     p of the leader, [R];  rest  1 - lead, [R];  gap  o - v of the leader, [R, d].
    shift    mean of the values, [d].
    values   the values minus `shift`, [n, d];  outputs  o minus `shift`, [R, d].
    """

    others: torch.Tensor
    top: torch.Tensor
    lead: torch.Tensor
    rest: torch.Tensor
    gap: torch.Tensor
    shift: torch.Tensor
    values: torch.Tensor
    outputs: torch.Tensor

    def add_leaders(self, scores: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
        """Add one term a row, [R], to the score of that row's leader in scores [n]."""
        return scores.index_add(0, self.top, terms)


def rows_of(p: torch.Tensor, values: torch.Tensor, sink: torch.Tensor | None = None) -> Rows:
    """Take the leaders apart."""
    values = values.float()
    shift = values.mean(0)
    values = values - shift
    lead, top = p.max(-1)
    others = p.scatter(-1, top[:, None], 0.0)
    rest = others.sum(-1)
    gap = others @ values
    if sink is not None:  # a column more, whose value is zero
        rest = rest + sink
        gap = gap - sink[:, None] * shift
    gap = gap - rest[:, None] * values[top]
    return Rows(others, top, lead, rest, gap, shift, values, gap + values[top])


def squared_removals(rows: Rows, epsilon: float) -> torch.Tensor:
    """Sum over rows of (p / (1 - p + epsilon))^2 ||v - o||^2, [n]."""
    weights = (rows.others / (1 + epsilon - rows.others)).square_()
    terms = weighted_distances(weights, rows)
    if epsilon:  # the share that epsilon leaves of p / (1 - p) (1 - p)
        damped = rows.rest / (rows.rest + epsilon)
    else:
        damped = torch.ones_like(rows.rest)
    return rows.add_leaders(terms, (rows.lead * damped * _leader_distances(rows)) ** 2)


def weighted_distances(weights: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Sum over rows of weights ||v - o||^2, [n], for weights [R, n]."""
    o = rows.outputs
    sides = torch.cat([o, o.square().sum(-1, keepdim=True), torch.ones_like(o[:, :1])], -1)
    sums = weights.T @ sides  # [n, d + 2]: of w o, w ||o||^2 and w
    cross = (sums[:, :-2] * rows.values).sum(-1)
    squares = rows.values.square().sum(-1)
    return (sums[:, -1] * squares - 2 * cross + sums[:, -2]).clamp_min(0)


def removals(rows: Rows) -> torch.Tensor:
    """Sum over rows of p / (1 - p) ||v - o||, [n]: CAOTE's error of one removal."""
    v, o = rows.values, rows.outputs
    squares = v.square().sum(-1) + o.square().sum(-1, keepdim=True) - 2 * (o @ v.T)
    terms = (rows.others / (1 - rows.others) * squares.clamp_min_(0).sqrt_()).sum(0)
    return rows.add_leaders(terms, rows.lead * _leader_distances(rows))


def _leader_distances(rows: Rows) -> torch.Tensor:
    """||v - weighted mean of the others|| of every row's leader, [R].

    Divided before the norm, whose squares would underflow from 1 - p = 1e-19 down. Where the others'
    weights themselves underflow (a logit gap above 87) their plain mean stands for the weighted one.
    """
    weighted = (rows.gap / rows.rest.clamp_min(1e-45)[:, None]).norm(dim=-1)
    return torch.where(rows.rest > 0, weighted, rows.values[rows.top].norm(dim=-1))
