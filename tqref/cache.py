"""Reading live tokens out of a case's paged cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tqref.case import Case
from tqref.codec import unpack_nibbles
from tqref.layout import METADATA_BYTES, PACKED_BYTES, MetadataField
from tqref.numerics import Int64

UInt8 = NDArray[np.uint8]
Float16 = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The stored form of some tokens of one head each; a dead token is all zeros.

    live: bool[...]; key_index, value_step: uint8[..., 128]; key_norm, value_scale, value_zero: float16[...].
    """

    live: NDArray[np.bool_]
    key_index: UInt8
    key_norm: Float16
    value_step: UInt8
    value_scale: Float16
    value_zero: Float16


def read_tokens(case: Case, sequence: Int64, head: Int64, token: Int64) -> Tokens:
    """Read tokens by sequence, KV head and position (int64, broadcast together) through the block table.

    Positions at or past the sequence's length are dead: neither their block-table entry nor any byte is read.
    """
    sequence, head, token = np.broadcast_arrays(sequence, head, token)
    live = token < case.seq_lens[sequence]
    sequence, head, token = sequence[live], head[live], token[live]
    slot = token % case.kv_block_size
    row = case.rows_of(case.block_tables[sequence, token // case.kv_block_size])

    def gather(offset: Int64, size: int) -> UInt8:
        stored = np.zeros((*live.shape, size), np.uint8)
        stored[live] = case.blocks[row[:, None], offset[:, None] + np.arange(size)]
        return stored

    def metadata(which: MetadataField) -> Float16:
        stored = gather(case.layout.metadata_offset(which, slot, head), METADATA_BYTES).view("<f2")[..., 0]
        return stored.astype(np.float16)

    return Tokens(
        live=live,
        key_index=unpack_nibbles(gather(case.layout.key_offset(slot, head), PACKED_BYTES)),
        key_norm=metadata(MetadataField.KEY_NORM),
        value_step=unpack_nibbles(gather(case.layout.value_offset(slot, head), PACKED_BYTES)),
        value_scale=metadata(MetadataField.VALUE_SCALE),
        value_zero=metadata(MetadataField.VALUE_ZERO),
    )
