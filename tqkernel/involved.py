"""Which bytes of the paged cache go into a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tqkernel.verdict import Parting
from tqref import Case
from tqref.codec import pack_nibbles
from tqref.layout import HEAD_SIZE, METADATA_BYTES, PACKED_BYTES, TILE_TOKENS, MetadataField

_FIELD_NAMES = {
    MetadataField.KEY_NORM: "key norm",
    MetadataField.VALUE_SCALE: "value scale",
    MetadataField.VALUE_ZERO: "value zero",
}


@dataclass(frozen=True)
class Involved:
    """Bytes of one kind of one token: `size` of them from `offset` in its block on.

    name: such as `key nibbles` or `value scale`. content: the bytes. of_dim: which of them has the dim's nibble.
    """

    name: str
    token: int
    slot: int
    offset: int
    size: int
    content: bytes
    of_dim: int | None = None


def block_of(case: Case, sequence: int, token: int) -> int:
    """Physical id of the block that holds a live token."""
    return int(case.block_tables[sequence, token // case.kv_block_size])


def involved_bytes(case: Case, sequence: int, head: int, parting: Parting) -> list[Involved]:
    """The bytes behind the first wrong element: of keys up to the probabilities, of values from there on.

    Those of its token, or of all live tokens of its tile where the element is of none. A tile is in one block.
    """
    past = min(parting.tile + TILE_TOKENS, int(case.seq_lens[sequence]))
    tokens = range(parting.tile, past) if parting.token is None else [parting.token]
    return [entry for token in tokens for entry in _of_token(case, sequence, head, token, parting)]


def _of_token(case: Case, sequence: int, head: int, token: int, parting: Parting) -> list[Involved]:
    layout, slot = case.layout, token % case.kv_block_size
    if parting.stage.startswith(("value", "accumulator")):
        nibbles, start = "value nibbles", layout.value_offset(slot, head)
        fields = [MetadataField.VALUE_SCALE, MetadataField.VALUE_ZERO]
    else:
        nibbles, start = "key nibbles", layout.key_offset(slot, head)
        fields = [MetadataField.KEY_NORM]
    block = case.blocks[case.rows_of(np.array([block_of(case, sequence, token)]))[0]].tobytes()

    def entry(name: str, offset: int, size: int, of_dim: int | None = None) -> Involved:
        return Involved(name, token, slot, offset, size, block[offset : offset + size], of_dim)

    of_dim = None if parting.dim is None else _byte_of_dim(parting.dim)
    metadata = [
        entry(_FIELD_NAMES[field], layout.metadata_offset(field, slot, head), METADATA_BYTES)
        for field in fields
    ]
    return [entry(nibbles, start, PACKED_BYTES, of_dim), *metadata]


def _byte_of_dim(dim: int) -> int:
    """Which of the packed bytes holds a dim's nibble."""
    marked = np.zeros(HEAD_SIZE, np.uint8)
    marked[dim] = 1
    return int(np.flatnonzero(pack_nibbles(marked))[0])
