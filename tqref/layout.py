"""Where every byte of one cache block lies.

A block holds `kv_block_size` token slots for every KV head. Its data region comes first: 128 bytes per
(slot, head), 64 of packed key nibbles then 64 of packed value nibbles. Its metadata region follows, a
structure of arrays of fp16: per head three rows of `kv_block_size` values, see `MetadataField`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

HEAD_SIZE = 128
TILE_TOKENS = 16
TILES_PER_GROUP = 16
GROUP_TOKENS = TILE_TOKENS * TILES_PER_GROUP
NUM_CENTROIDS = 16
SUPPORTED_KV_BLOCK_SIZES = (16, 32)
SUPPORTED_QUERY_GROUP_SIZES = (8, 16)

PACKED_BYTES = HEAD_SIZE // 2
"""Bytes of one packed key or one packed value: two nibbles a byte."""
DATA_BYTES = 2 * PACKED_BYTES
"""Bytes of one (slot, head) in the data region: the key's, then the value's."""
METADATA_BYTES = 2
"""Bytes of one metadata entry: an fp16, little-endian."""

Index = TypeVar("Index", int, NDArray[np.int64])
"""An offset or a coordinate: one int, or an int64 array that broadcasts with its neighbours."""


class MetadataField(IntEnum):
    """The rows of one head's metadata, in the order they are stored."""

    KEY_NORM = 0
    VALUE_SCALE = 1
    VALUE_ZERO = 2


@dataclass(frozen=True)
class CacheLayout:
    """Byte offsets inside one cache block. Offsets count from the start of the block.

    Parameters: `kv_block_size` tokens per block (16 or 32) and `num_kv_heads` (at least 1).
    Raises ValueError when either is out of range.
    """

    kv_block_size: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        if self.kv_block_size not in SUPPORTED_KV_BLOCK_SIZES:
            raise ValueError(
                f"kv_block_size: expected one of {SUPPORTED_KV_BLOCK_SIZES}, got {self.kv_block_size}"
            )
        if self.num_kv_heads < 1:
            raise ValueError(f"num_kv_heads: expected at least 1, got {self.num_kv_heads}")

    @property
    def metadata_start(self) -> int:
        """Bytes of the data region, hence the offset of the metadata region."""
        return self.kv_block_size * self.num_kv_heads * DATA_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block: 134 per (slot, head)."""
        slots = self.kv_block_size * self.num_kv_heads
        return self.metadata_start + slots * len(MetadataField) * METADATA_BYTES

    def key_offset(self, slot: Index, head: Index) -> Index:
        """Offset of the 64 packed key bytes of (slot, head)."""
        return (slot * self.num_kv_heads + head) * DATA_BYTES

    def value_offset(self, slot: Index, head: Index) -> Index:
        """Offset of the 64 packed value bytes of (slot, head)."""
        return self.key_offset(slot, head) + PACKED_BYTES

    def metadata_offset(self, field: MetadataField, slot: Index, head: Index) -> Index:
        """Offset of the two bytes of one fp16 metadata entry of (slot, head)."""
        row = head * len(MetadataField) + int(field)
        return (row * self.kv_block_size + slot) * METADATA_BYTES + self.metadata_start

    def live_bytes(self, num_live_slots: int) -> NDArray[np.bool_]:
        """Which bytes of a block belong to its first `num_live_slots` slots, as bool[block_bytes].

        Raises ValueError when `num_live_slots` is negative or exceeds the block size.
        """
        if not 0 <= num_live_slots <= self.kv_block_size:
            raise ValueError(f"num_live_slots: expected 0 to {self.kv_block_size}, got {num_live_slots}")
        slot = np.arange(num_live_slots, dtype=np.int64)[:, None]
        head = np.arange(self.num_kv_heads, dtype=np.int64)[None, :]
        live = np.zeros(self.block_bytes, dtype=np.bool_)
        live[self.key_offset(slot, head)[..., None] + np.arange(DATA_BYTES)] = True
        for field in MetadataField:
            live[self.metadata_offset(field, slot, head)[..., None] + np.arange(METADATA_BYTES)] = True
        return live
