"""One decode problem: its arrays, how to build one from keys and values, and how to keep one in a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqref import codec
from tqref.archive import load_archive, save_archive
from tqref.layout import (
    DATA_BYTES,
    GROUP_TOKENS,
    HEAD_SIZE,
    METADATA_BYTES,
    NUM_CENTROIDS,
    PACKED_BYTES,
    SUPPORTED_QUERY_GROUP_SIZES,
    CacheLayout,
    MetadataField,
)
from tqref.numerics import MAX_F32, Float32, Int64, UInt16, f32_to_bf16

UInt8 = NDArray[np.uint8]
Int32 = NDArray[np.int32]

DEFAULT_SOFTMAX_SCALE = 1 / math.sqrt(HEAD_SIZE)

_FORMAT = "tqgate-case"
_FORMAT_VERSION = 1
_ARRAYS = ("query", "block_ids", "blocks", "centroids", "block_tables", "seq_lens")


@dataclass(frozen=True, eq=False)
class Case:
    """One decode problem with N sequences, Hk KV heads, QG query heads per KV head and B materialised blocks.

    The cache is sparse: of its `num_blocks` physical blocks only those in `block_ids` have bytes here, so a
    block at any address costs no more than its own bytes. Every block that a live token needs is present; a
    block-table entry past its sequence may hold anything.

    name                        what to call it
    query                       uint16[N, Hk * QG, 128], bfloat16 bits, already rotated
    block_ids                   int64[B], physical ids, strictly ascending
    blocks                      uint8[B, block_bytes], the bytes of those blocks
    num_blocks                  size of the physical cache; every id is below it
    centroids                   float32[16]
    block_tables                int32[N, W], physical id of each block of each sequence
    seq_lens                    int32[N], tokens
    num_kv_heads                Hk
    query_group_size            QG, 8 or 16
    kv_block_size               tokens per block, 16 or 32
    num_partitions              P
    tile_groups_per_partition   G; a partition is G * 256 tokens and P of them cover the longest sequence
    softmax_scale               multiplies every score, default 1/sqrt(128)
    origin                      where the case came from, free text

    The case holds read-only views of the arrays it is given. Raises TypeError or ValueError naming the
    argument, what was expected and what came.
    """

    name: str
    query: UInt16 = field(repr=False)
    block_ids: Int64 = field(repr=False)
    blocks: UInt8 = field(repr=False)
    num_blocks: int
    centroids: Float32 = field(repr=False)
    block_tables: Int32 = field(repr=False)
    seq_lens: Int32 = field(repr=False)
    num_kv_heads: int
    query_group_size: int
    kv_block_size: int
    num_partitions: int
    tile_groups_per_partition: int = 1
    softmax_scale: float = DEFAULT_SOFTMAX_SCALE
    origin: str = ""
    layout: CacheLayout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_scalars()
        object.__setattr__(self, "layout", CacheLayout(self.kv_block_size, self.num_kv_heads))
        self._check_arrays()
        self._check_sequences()
        for name in _ARRAYS:
            read_only = getattr(self, name).view()
            read_only.setflags(write=False)
            object.__setattr__(self, name, read_only)

    def _check_scalars(self) -> None:
        counts = {
            "num_blocks": 0,
            "num_kv_heads": 1,
            "query_group_size": 1,
            "kv_block_size": 1,
            "num_partitions": 1,
            "tile_groups_per_partition": 1,
        }
        for name, least in counts.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")
        if self.query_group_size not in SUPPORTED_QUERY_GROUP_SIZES:
            raise ValueError(
                f"query_group_size: expected one of {SUPPORTED_QUERY_GROUP_SIZES}, "
                f"got {self.query_group_size}"
            )
        if not isinstance(self.softmax_scale, float):
            raise TypeError(f"softmax_scale: expected a float, got {type(self.softmax_scale).__name__}")
        if not abs(self.softmax_scale) <= MAX_F32:
            raise ValueError(f"softmax_scale: expected a finite float32, got {self.softmax_scale}")
        for name in ("name", "origin"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name}: expected a str, got {type(getattr(self, name)).__name__}")

    def _check_arrays(self) -> None:
        num_sequences = np.shape(self.seq_lens)[0] if np.ndim(self.seq_lens) == 1 else -1
        num_present = np.shape(self.block_ids)[0] if np.ndim(self.block_ids) == 1 else -1
        width = np.shape(self.block_tables)[1] if np.ndim(self.block_tables) == 2 else -1
        num_query_heads = self.num_kv_heads * self.query_group_size
        expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
            "seq_lens": (np.int32, (num_sequences,)),
            "block_ids": (np.int64, (num_present,)),
            "block_tables": (np.int32, (num_sequences, width)),
            "query": (np.uint16, (num_sequences, num_query_heads, HEAD_SIZE)),
            "blocks": (np.uint8, (num_present, self.layout.block_bytes)),
            "centroids": (np.float32, (NUM_CENTROIDS,)),
        }
        for name, (dtype, shape) in expected.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{name}: expected a numpy array, got {type(array).__name__}")
            if array.dtype != dtype:
                raise TypeError(f"{name}: expected dtype {np.dtype(dtype)}, got {array.dtype}")
            if array.shape != shape:
                wanted = ", ".join("any" if size < 0 else str(size) for size in shape)
                raise ValueError(f"{name}: expected shape [{wanted}], got {list(array.shape)}")
            if not array.flags.c_contiguous:
                raise ValueError(f"{name}: expected a C-contiguous array, got strides {array.strides}")

    def _check_sequences(self) -> None:
        longest = min(
            self.max_blocks_per_sequence * self.kv_block_size,
            self.num_partitions * self.tile_groups_per_partition * GROUP_TOKENS,
        )
        if self.seq_lens.size and not 0 <= self.seq_lens.min() <= self.seq_lens.max() <= longest:
            raise ValueError(
                f"seq_lens: expected 0 to {longest}, which the block table and the partitions cover, "
                f"got {self.seq_lens.min()} to {self.seq_lens.max()}"
            )
        ids = self.block_ids
        if ids.size and not 0 <= ids[0] <= ids[-1] < self.num_blocks:
            raise ValueError(f"block_ids: expected 0 to {self.num_blocks - 1}, got {ids[0]} to {ids[-1]}")
        if not np.all(ids[1:] > ids[:-1]):
            raise ValueError("block_ids: expected strictly ascending ids, got another order")
        needed = self.block_tables[self.live_table_entries]
        missing = np.setdiff1d(needed, ids)
        if missing.size:
            raise ValueError(
                f"block_tables: expected every live block in block_ids, got {missing[:8].tolist()}"
            )

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.seq_lens)

    @property
    def num_query_heads(self) -> int:
        """Hk * QG."""
        return self.num_kv_heads * self.query_group_size

    @property
    def max_blocks_per_sequence(self) -> int:
        """W, the width of the block table."""
        return int(self.block_tables.shape[1])

    @property
    def live_table_entries(self) -> NDArray[np.bool_]:
        """bool[N, W]: the block-table entries that some live token needs."""
        used = -(-self.seq_lens.astype(np.int64) // self.kv_block_size)
        return np.arange(self.max_blocks_per_sequence) < used[:, None]

    def rows_of(self, physical_ids: NDArray[np.integer[Any]]) -> Int64:
        """Rows of `blocks` that hold the given physical ids, all of which are present. Same shape, int64."""
        return np.searchsorted(self.block_ids, physical_ids).astype(np.int64)

    @property
    def live_bytes(self) -> NDArray[np.bool_]:
        """bool[B, block_bytes]: the bytes of `blocks` that some live token owns."""
        sequence, entry = np.nonzero(self.live_table_entries)
        slots = np.minimum(self.seq_lens[sequence] - entry * self.kv_block_size, self.kv_block_size)
        live_slots = np.zeros(self.block_ids.shape, np.int64)
        np.maximum.at(live_slots, self.rows_of(self.block_tables[sequence, entry]), slots)
        by_slots = np.stack([self.layout.live_bytes(count) for count in range(self.kv_block_size + 1)])
        live: NDArray[np.bool_] = by_slots[live_slots]
        return live

    # --- the same problem, otherwise stored: none of these may change a bit of the output ---

    def with_poisoned_dead_bytes(self, poison: int | NDArray[np.uint8] = 0xFF) -> Case:
        """The case with every byte that no live token owns replaced.

        `poison` is a byte value, or uint8 that broadcasts to `blocks`.
        """
        blocks = np.where(self.live_bytes, self.blocks, np.asarray(poison, np.uint8))
        return replace(self, blocks=blocks)

    def with_unused_table_entries(self, entry: int) -> Case:
        """The case with every block-table entry past its sequence replaced by `entry`, any int32."""
        tables = np.where(self.live_table_entries, self.block_tables, np.int32(entry)).astype(np.int32)
        return replace(self, block_tables=tables)

    def with_blocks_renamed(self, new_ids: Int64, num_blocks: int | None = None) -> Case:
        """The case with block `block_ids[i]` living at physical id `new_ids[i]` (int64[B], distinct).

        `num_blocks` is the new size of the cache, by default just enough. Table entries past the sequences
        are kept as they are.
        """
        order = np.argsort(new_ids)
        tables = self.block_tables.copy()
        live = self.live_table_entries
        tables[live] = new_ids[self.rows_of(tables[live])]
        return replace(
            self,
            block_ids=np.ascontiguousarray(new_ids[order], np.int64),
            blocks=self.blocks[order],
            num_blocks=int(new_ids.max(initial=-1)) + 1 if num_blocks is None else num_blocks,
            block_tables=tables,
        )

    def with_far_blocks(self, byte_offset: int = 1 << 32) -> Case:
        """The case with every block moved up by at least `byte_offset` bytes, 4 GiB by default."""
        return self.with_blocks_renamed(self.block_ids + -(-byte_offset // self.layout.block_bytes))

    # --- a smaller problem: what is left keeps its bits ---

    def only(self, sequence: int, head: int) -> Case:
        """The case with one sequence and one KV head left, their bytes unchanged."""
        kept = self.rows_of(np.unique(self.block_tables[sequence, self.live_table_entries[sequence]]))
        alone = CacheLayout(self.kv_block_size, 1)
        blocks = np.zeros((kept.size, alone.block_bytes), np.uint8)
        blocks[:, _owned_bytes(alone, 0)] = self.blocks[kept][:, _owned_bytes(self.layout, head)]
        rows = slice(head * self.query_group_size, (head + 1) * self.query_group_size)
        return replace(
            self,
            query=np.ascontiguousarray(self.query[sequence : sequence + 1, rows]),
            block_ids=self.block_ids[kept],
            blocks=blocks,
            block_tables=self.block_tables[sequence : sequence + 1].copy(),
            seq_lens=self.seq_lens[sequence : sequence + 1].copy(),
            num_kv_heads=1,
        )

    def truncated(self, tokens: int) -> Case:
        """The case with every sequence cut to at most `tokens` tokens; table and cache stay as they are."""
        return replace(self, seq_lens=np.minimum(self.seq_lens, np.int32(tokens)))

    # --- building ---

    @classmethod
    def build(
        cls,
        name: str,
        query: Float32,
        keys: Sequence[Float32],
        values: Sequence[Float32],
        *,
        kv_block_size: int = 16,
        num_partitions: int | None = None,
        tile_groups_per_partition: int = 1,
        max_blocks_per_sequence: int | None = None,
        num_blocks: int | None = None,
        unused_table_entry: int = 0,
        pi_t: Float32 | None = None,
        centroids: Float32 | None = None,
        norm_correction: bool = True,
        softmax_scale: float = DEFAULT_SOFTMAX_SCALE,
        seed: int = 0,
        origin: str = "",
    ) -> Case:
        """Quantise keys and values into the pages of a shuffled cache.

        query: float32[N, Hk * QG, 128], not yet rotated. keys, values: N arrays float32[length, Hk, 128], one
        per sequence, lengths free. Each sequence's blocks get distinct random physical ids below `num_blocks`
        (default: one more than needed), drawn with `seed`. `num_partitions` defaults to just enough,
        `max_blocks_per_sequence` too. `pi_t` float32[128, 128] defaults to `codec.rotation()`, `centroids` to
        `codec.lloyd_max_centroids()`. Unowned bytes are zero.
        Raises ValueError when the shapes disagree or the blocks do not fit.
        """
        query = np.asarray(query, np.float32)
        num_kv_heads = _checked_ragged(query, keys, values)
        lengths = np.array([len(key) for key in keys], np.int32)
        layout = CacheLayout(kv_block_size, num_kv_heads)
        pi_t = codec.rotation() if pi_t is None else pi_t
        centroids = codec.lloyd_max_centroids() if centroids is None else centroids
        used = -(-lengths // kv_block_size)
        total = int(used.sum())
        longest = int(lengths.max(initial=0))
        widest = int(used.max(initial=0))
        width = max(1, widest) if max_blocks_per_sequence is None else max_blocks_per_sequence
        if width < widest:
            raise ValueError(f"max_blocks_per_sequence: expected at least {widest}, got {width}")
        if num_partitions is None:
            num_partitions = max(1, -(-longest // (tile_groups_per_partition * GROUP_TOKENS)))
        num_blocks = total + 1 if num_blocks is None else num_blocks
        if num_blocks < total:
            raise ValueError(f"num_blocks: expected at least {total}, got {num_blocks}")
        physical = np.random.default_rng(seed).choice(num_blocks, total, replace=False).astype(np.int64)
        block_tables = np.full((len(keys), width), unused_table_entry, np.int32)
        block_tables[np.arange(width) < used[:, None]] = physical
        block_ids = np.sort(physical)
        blocks = np.zeros((total, layout.block_bytes), np.uint8)
        for table, key, value in zip(block_tables, keys, values, strict=True):
            token = np.arange(len(key))
            row = np.searchsorted(block_ids, table[token // kv_block_size])
            indices, norm = codec.quantize_key(key, pi_t, centroids, norm_correction=norm_correction)
            steps, scale, zero = codec.quantize_value(value)
            write_tokens(blocks, layout, row, token % kv_block_size, indices, norm, steps, scale, zero)
        return cls(
            name=name,
            query=f32_to_bf16(codec.rotate(query, pi_t)),
            block_ids=block_ids,
            blocks=blocks,
            num_blocks=num_blocks,
            centroids=np.array(centroids, np.float32),
            block_tables=block_tables,
            seq_lens=lengths,
            num_kv_heads=num_kv_heads,
            query_group_size=query.shape[1] // num_kv_heads,
            kv_block_size=kv_block_size,
            num_partitions=num_partitions,
            tile_groups_per_partition=tile_groups_per_partition,
            softmax_scale=softmax_scale,
            origin=origin,
        )

    # --- files ---

    def save(self, path: str | Path) -> None:
        """Write the case to a .npz at `path`. Equal cases give equal bytes."""
        header = {name: getattr(self, name) for name in _SCALARS}
        header |= {"format": _FORMAT, "format_version": _FORMAT_VERSION}
        save_archive(path, header, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | Path) -> Case:
        """Read a case that `save` wrote.

        Raises FileNotFoundError, or ValueError naming the file and what is wrong with it.
        """
        header, arrays = load_archive(path)
        marker = (header.pop("format", None), header.pop("format_version", None))
        if marker != (_FORMAT, _FORMAT_VERSION):
            raise ValueError(
                f"{path}: expected {_FORMAT} version {_FORMAT_VERSION}, got {marker[0]} {marker[1]}"
            )
        for kind, expected, came in (("header fields", _SCALARS, header), ("arrays", _ARRAYS, arrays)):
            if set(expected) != set(came):
                raise ValueError(f"{path}: expected {kind} {sorted(expected)}, got {sorted(came)}")
        try:
            return cls(**(header | arrays))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error


_SCALARS = tuple(entry.name for entry in fields(Case) if entry.init and entry.name not in _ARRAYS)


def _owned_bytes(layout: CacheLayout, head: int) -> Int64:
    """int64[BS * 134]: where in a block one head's bytes lie, its slots' data first, then its metadata."""
    slot, which = np.arange(layout.kv_block_size), np.full(layout.kv_block_size, head)
    starts = [(layout.key_offset(slot, which), DATA_BYTES)]
    starts += [(layout.metadata_offset(field, slot, which), METADATA_BYTES) for field in MetadataField]
    return np.concatenate([(start[:, None] + np.arange(size)).reshape(-1) for start, size in starts])


def write_tokens(
    blocks: UInt8,
    layout: CacheLayout,
    row: Int64,
    slot: Int64,
    key_index: UInt8,
    key_norm: NDArray[np.float16],
    value_step: UInt8,
    value_scale: NDArray[np.float16],
    value_zero: NDArray[np.float16],
) -> None:
    """Write T quantised tokens of every head into `blocks` (uint8[B, block_bytes]), in place.

    row, slot: int64[T], which block and which slot in it; key_index, value_step: uint8[T, Hk, 128], values
    0 to 15; key_norm, value_scale, value_zero: float16[T, Hk].
    """
    row, slot = row[:, None], slot[:, None]
    head = np.arange(layout.num_kv_heads)[None, :]
    packed = np.arange(PACKED_BYTES)
    key_bytes = layout.key_offset(slot, head)[..., None] + packed
    value_bytes = layout.value_offset(slot, head)[..., None] + packed
    blocks[row[..., None], key_bytes] = codec.pack_nibbles(key_index)
    blocks[row[..., None], value_bytes] = codec.pack_nibbles(value_step)
    metadata = {
        MetadataField.KEY_NORM: key_norm,
        MetadataField.VALUE_SCALE: value_scale,
        MetadataField.VALUE_ZERO: value_zero,
    }
    for which, entries in metadata.items():
        offset = layout.metadata_offset(which, slot, head)[..., None] + np.arange(METADATA_BYTES)
        blocks[row[..., None], offset] = entries.astype("<f2")[..., None].view(np.uint8)


def _checked_ragged(query: Float32, keys: Sequence[Float32], values: Sequence[Float32]) -> int:
    """The number of KV heads of a ragged batch. Raises ValueError when its shapes disagree."""
    if query.ndim != 3 or query.shape[2] != HEAD_SIZE:
        raise ValueError(f"query: expected shape [N, heads, {HEAD_SIZE}], got {list(query.shape)}")
    for name, tensors in (("keys", keys), ("values", values)):
        if len(tensors) != query.shape[0]:
            raise ValueError(f"{name}: expected {query.shape[0]} sequences, got {len(tensors)}")
    if not keys or keys[0].ndim != 3:
        raise ValueError(f"keys: expected at least one array [tokens, heads, {HEAD_SIZE}], got another shape")
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        if key.ndim != 3 or key.shape[1:] != keys[0].shape[1:] or key.shape[2] != HEAD_SIZE:
            raise ValueError(
                f"keys[{index}]: expected shape [tokens, {keys[0].shape[1]}, {HEAD_SIZE}], "
                f"got {list(key.shape)}"
            )
        if value.shape != key.shape:
            raise ValueError(f"values[{index}]: expected shape {list(key.shape)}, got {list(value.shape)}")
    num_kv_heads = int(keys[0].shape[1])
    if num_kv_heads == 0 or query.shape[1] % num_kv_heads:
        raise ValueError(f"query: expected a multiple of {num_kv_heads} heads, got {query.shape[1]}")
    return num_kv_heads
