"""Compaction: the kept rows of every KV head, gathered into flat blocks.

A block holds `block` rows of one KV head. Heads come in order, a head's rows in ascending position;
the last block of a head is filled up with zeros and position -1; a head that keeps nothing has none.
"""

from __future__ import annotations

import torch


def block_layout(mask: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each slot's row comes from.

    mask     bool [Hkv, n].
    Returns  (positions int32 [N, block], -1 = empty slot; head int32 [N]).
    """
    head, position = mask.nonzero(as_tuple=True)  # by head, then by position
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

    keys, values  [Hkv, n, d]; mask bool [Hkv, n], True = kept; block, rows a block.
    Returns  (keys [N, block, d], values [N, block, d], positions int32 [N, block], head int32 [N]).
    """
    positions, head = block_layout(mask, block)
    empty = positions < 0
    kv_head, row = head.long()[:, None].expand(positions.shape), positions.long().clamp_min(0)
    gathered = []
    for source in (keys, values):
        rows = source[kv_head, row]
        rows[empty] = 0
        gathered.append(rows)
    return gathered[0], gathered[1], positions, head
