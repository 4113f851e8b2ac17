"""Compaction: kept rows of a layer into flat blocks, one run of blocks a KV head."""

from __future__ import annotations

import torch


def twin(
    keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, block: int = 128
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """keys, values [Hkv, n, d] and mask bool [Hkv, n] -> keys, values [N, block, d], positions int32
    [N, block] (-1 = empty slot), head int32 [N].

    Heads in order, a head's rows by ascending position, its last block padded with zeros; a head that
    keeps nothing has no block.
    """
    counts = mask.sum(1)
    per_head = (counts + block - 1) // block
    starts = (per_head.cumsum(0) - per_head) * block  # first slot of each head
    head, position = mask.nonzero(as_tuple=True)  # by head, then by position
    before = counts.cumsum(0) - counts
    slot = starts[head] + torch.arange(len(head), device=mask.device) - before[head]
    total = int(per_head.sum())
    out_keys = keys.new_zeros(total * block, keys.shape[-1])
    out_values = values.new_zeros(total * block, values.shape[-1])
    out_keys[slot] = keys[head, position]
    out_values[slot] = values[head, position]
    positions = torch.full((total * block,), -1, dtype=torch.int32, device=mask.device)
    positions[slot] = position.to(torch.int32)
    owner = torch.arange(len(counts), dtype=torch.int32, device=mask.device).repeat_interleave(per_head)
    return (
        out_keys.view(total, block, -1),
        out_values.view(total, block, -1),
        positions.view(total, block),
        owner,
    )
