"""Definitions in float64, nothing shared with the code under test, and the comparison of two results."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """Shapes of one comparison; `start` None places the window at the end of the keys."""

    query_heads: int
    kv_heads: int
    window: int
    n: int
    head_dim: int
    sliding: int | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    start: int | None = None
    strided: bool = False
    strong: float = 0.0  # how strongly the first key draws all queries

    def __str__(self) -> str:
        words = [f"Hq{self.query_heads}_Hkv{self.kv_heads}_W{self.window}_n{self.n}_d{self.head_dim}"]
        words += [f"sliding{self.sliding}"] if self.sliding else []
        words += ["sinks"] if self.sinks else []
        words += [f"start{self.start}"] if self.start is not None else []
        words += ["strided"] if self.strided else []
        words += [str(self.dtype).removeprefix("torch.")] if self.dtype != torch.float32 else []
        return "-".join(words)


@dataclass(frozen=True)
class Inputs:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    sinks: torch.Tensor | None
    scaling: float
    start: int
    sliding: int | None


def make(case: Case, device: str) -> Inputs:
    """Random inputs of a case, from a seed that is the case's own name."""
    generator = torch.Generator().manual_seed(sum(map(ord, str(case))))

    def random(heads, rows):
        shape = (rows, heads, case.head_dim) if case.strided else (heads, rows, case.head_dim)
        tensor = torch.randn(shape, generator=generator)
        return tensor.transpose(0, 1) if case.strided else tensor

    query, keys, values = (
        random(case.query_heads, case.window),
        random(case.kv_heads, case.n),
        random(case.kv_heads, case.n),
    )
    if case.strong:
        keys[:, 0] = query.reshape(case.kv_heads, -1, case.head_dim).mean(1) * case.strong
    query, keys, values = (t.to(device=device, dtype=case.dtype) for t in (query, keys, values))
    sinks = torch.randn(case.query_heads, generator=generator).to(device) if case.sinks else None
    start = case.n - case.window if case.start is None else case.start
    return Inputs(query, keys, values, sinks, case.head_dim**-0.5, start, case.sliding)


def attention(x: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(p [Hq, W, n], out [Hq, W, d], lse [Hq, W]) by definition, one row at a time."""
    group = len(x.query) // len(x.keys)
    heads, window, head_dim = x.query.shape
    n = x.keys.shape[1]
    p = torch.zeros(heads, window, n, dtype=torch.float64)
    out = torch.zeros(heads, window, head_dim, dtype=torch.float64)
    lse = torch.full((heads, window), -torch.inf, dtype=torch.float64)
    query, keys, values = (t.double().cpu() for t in (x.query, x.keys, x.values))
    for head in range(heads):
        for row in range(window):
            position = x.start + row
            first = 0 if x.sliding is None else max(0, position - x.sliding + 1)
            visible = range(min(first, n), min(position + 1, n))
            logits = keys[head // group, visible] @ query[head, row] * x.scaling
            column = [] if x.sinks is None else [x.sinks[head].double().cpu()[None]]
            every = torch.cat([logits, *column])
            if len(every):
                lse[head, row] = every.logsumexp(0)
                p[head, row, visible] = torch.exp(logits - lse[head, row])
                out[head, row] = p[head, row, visible] @ values[head // group, visible]
    return p, out, lse


def scores(x: Inputs, kind: str, epsilon: float = 1e-6) -> torch.Tensor:
    """Scores [Hq, n] by definition, with 1 - p and v - o as sums over the other keys."""
    p, out, _ = attention(x)
    if kind == "mean":
        return p.mean(1)
    if kind == "square":
        return p.square().sum(1)
    values = x.values.double().cpu().repeat_interleave(len(x.query) // len(x.keys), 0)
    distance = (values[:, None] - out[:, :, None]).norm(dim=-1)
    if kind == "dropkv":
        return (p / (1 - p + epsilon) * distance).square().sum(1)
    return torch.where(p < 1, p / (1 - p) * distance, 0.0).sum(1)


def assert_close(got: torch.Tensor, expected: torch.Tensor, name: str, tolerance: float = 2e-5) -> None:
    """RMS of the difference over RMS of what is expected; infinities must stand in the same places."""
    got, expected = got.double().cpu(), expected.double().cpu()
    assert got.shape == expected.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    assert not got.isnan().any(), f"{name}: {int(got.isnan().sum())} NaN"
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite]), f"{name}: infinities differ"
    gap = (got - expected)[finite].square().sum().sqrt()
    size = expected[finite].square().sum().sqrt()
    ratio = float(gap / size) if size > 0 else float(gap)
    assert ratio <= tolerance, f"{name}: relative RMS error {ratio:.2e} above {tolerance:.0e}"
