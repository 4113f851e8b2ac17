"""Compaction: the kept rows of every variant and KV head, gathered into flat blocks.

A block holds `block` rows of one owner = variant * Hkv + KV head. Owners come in order, an owner's rows in
ascending position; its last block is filled up with zeros and position -1; one that keeps nothing has none.
"""

from __future__ import annotations

import torch


def block_layout(mask: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each slot's row comes from.

    mask     bool [owners, n].
    Returns  (positions int32 [N, block], -1 = empty slot; owner int32 [N]).
    """
    head, position = mask.nonzero(as_tuple=True)  # by owner, then by position
    counts = mask.sum(1)
    blocks = (counts + block - 1) // block
    owner = torch.repeat_interleave(torch.arange(len(mask), device=mask.device), blocks)
    first_row = counts.cumsum(0) - counts
    first_slot = (blocks.cumsum(0) - blocks) * block
    slot = torch.arange(len(head), device=mask.device) - first_row[head] + first_slot[head]
    positions = torch.full((len(owner) * block,), -1, dtype=torch.int32, device=mask.device)
    positions[slot] = position.to(torch.int32)
    return positions.view(-1, block), owner.to(torch.int32)


def gather_rows(
    keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, block: int = 128
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Plain torch twin.

    keys, values  [Hkv, n, d]; mask bool [V * Hkv, n], True = kept, by variant, then by KV head; block,
    rows a block.
    Returns  (keys [N, block, d], values [N, block, d], positions int32 [N, block], owner int32 [N]).
    """
    positions, owner = block_layout(mask, block)
    heads, n = keys.shape[:2]
    empty = positions < 0
    row = (owner.long() % heads * n)[:, None] + positions.long().clamp_min(0)  # in [Hkv * n]
    gathered = []
    for source in (keys, values):  # whole rows by one index: several times quicker than by two
        rows = source.flatten(0, 1).index_select(0, row.flatten()).view(*row.shape, source.shape[-1])
        rows[empty] = 0
        gathered.append(rows)
    return gathered[0], gathered[1], positions, owner
