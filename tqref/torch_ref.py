"""The cache and the queries as torch tensors: conversions, dequantising and plain attention, on any device.

For users whose keys, values and caches live in torch. Nothing here promises bits: the decode to the bit is
`tqref.decode`. Importing this module imports torch; importing `tqref` does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tqref.case import DEFAULT_SOFTMAX_SCALE, Case
from tqref.layout import METADATA_BYTES, PACKED_BYTES, CacheLayout, MetadataField


@dataclass(frozen=True, eq=False)
class TorchCase:
    """A case's tensors as the kernel takes them, all on one device.

    query: bfloat16[N, Hk * QG, 128]; kv_cache: uint8[num_blocks, block_bytes]; centroids: float32[16];
    block_tables: int32[N, W]; seq_lens: int32[N].
    """

    query: torch.Tensor
    kv_cache: torch.Tensor
    centroids: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor


def to_torch(case: Case, device: torch.device | str = "cpu") -> TorchCase:
    """The tensors of `case` on `device`. The whole physical cache is allocated; absent blocks are 0."""
    kv_cache = torch.zeros((case.num_blocks, case.layout.block_bytes), dtype=torch.uint8, device=device)
    kv_cache[torch.tensor(case.block_ids, device=device)] = torch.tensor(case.blocks, device=device)
    return TorchCase(
        query=torch.tensor(case.query.view(np.int16)).view(torch.bfloat16).to(device),
        kv_cache=kv_cache,
        centroids=torch.tensor(case.centroids, device=device),
        block_tables=torch.tensor(case.block_tables, device=device),
        seq_lens=torch.tensor(case.seq_lens, device=device),
    )


def from_torch(
    name: str,
    tensors: TorchCase,
    *,
    num_kv_heads: int,
    kv_block_size: int,
    num_partitions: int,
    tile_groups_per_partition: int = 1,
    softmax_scale: float = DEFAULT_SOFTMAX_SCALE,
    origin: str = "",
) -> Case:
    """A case from tensors on any device. Only the cache blocks that a live token needs are kept.

    Raises TypeError or ValueError as `Case` does, and ValueError for a live block beyond the cache.
    """
    block_tables, seq_lens = tensors.block_tables.cpu(), tensors.seq_lens.cpu()
    live = torch.arange(block_tables.shape[1]) < -(-seq_lens[:, None] // kv_block_size)
    needed = torch.unique(block_tables[live]).to(torch.int64)
    num_blocks = tensors.kv_cache.shape[0]
    if needed.numel() and not 0 <= int(needed[0]) <= int(needed[-1]) < num_blocks:
        raise ValueError(
            f"block_tables: expected 0 to {num_blocks - 1}, got {int(needed[0])} to {int(needed[-1])}"
        )
    return Case(
        name=name,
        query=tensors.query.cpu().contiguous().view(torch.int16).numpy().view(np.uint16),
        block_ids=needed.numpy(),
        blocks=tensors.kv_cache[needed.to(tensors.kv_cache.device)].cpu().numpy(),
        num_blocks=num_blocks,
        centroids=tensors.centroids.cpu().numpy(),
        block_tables=block_tables.contiguous().numpy(),
        seq_lens=seq_lens.numpy(),
        num_kv_heads=num_kv_heads,
        query_group_size=tensors.query.shape[1] // num_kv_heads,
        kv_block_size=kv_block_size,
        num_partitions=num_partitions,
        tile_groups_per_partition=tile_groups_per_partition,
        softmax_scale=softmax_scale,
        origin=origin,
    )


def dequantize(
    tensors: TorchCase, layout: CacheLayout, sequence: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated keys and values of one sequence, `dtype`[length, Hk, 128] each, not rounded to bfloat16."""
    token = torch.arange(int(tensors.seq_lens[sequence]), device=tensors.kv_cache.device)
    block = tensors.block_tables[sequence, token // layout.kv_block_size].to(torch.int64)[:, None, None]
    slot = (token % layout.kv_block_size).cpu().numpy()[:, None]
    head = np.arange(layout.num_kv_heads)[None, :]

    def gather(offset: np.ndarray, size: int) -> torch.Tensor:
        columns = torch.from_numpy(offset[..., None] + np.arange(size)).to(tensors.kv_cache.device)
        return tensors.kv_cache[block, columns]

    def nibbles(offset: np.ndarray) -> torch.Tensor:
        packed = gather(offset, PACKED_BYTES)
        return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)

    def metadata(field: MetadataField) -> torch.Tensor:
        return gather(layout.metadata_offset(field, slot, head), METADATA_BYTES).view(torch.float16).to(dtype)

    keys = tensors.centroids.to(dtype)[nibbles(layout.key_offset(slot, head)).to(torch.int64)]
    steps = nibbles(layout.value_offset(slot, head)).to(dtype)
    return (
        keys * metadata(MetadataField.KEY_NORM),
        steps * metadata(MetadataField.VALUE_SCALE) + metadata(MetadataField.VALUE_ZERO),
    )


def attention(
    tensors: TorchCase,
    layout: CacheLayout,
    softmax_scale: float = DEFAULT_SOFTMAX_SCALE,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """softmax(scale * K q) V per query head in `dtype`: [N, Hk * QG, 128], zeros for an empty sequence."""
    out = torch.zeros(tensors.query.shape, dtype=dtype, device=tensors.query.device)
    grouped = tensors.query.to(dtype).unflatten(1, (layout.num_kv_heads, -1))
    for sequence in range(len(out)):
        keys, values = dequantize(tensors, layout, sequence, dtype)
        scores = torch.einsum("hgd,thd->hgt", grouped[sequence], keys) * softmax_scale
        weighted = torch.einsum("hgt,thd->hgd", torch.softmax(scores, dim=-1), values)
        out[sequence] = weighted.flatten(0, 1)
    return out
