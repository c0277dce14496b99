"""The cases that the fixtures folder keeps: small ones, each with one thing that a kernel can get wrong.

A fixture knows no transpose path; it is replayed on both. So a name ends in query group and block size only.
Keys, values and queries are the recorded ones that `tqkernel.cases` uses, one or two of their heads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tqkernel.cases import CASES, LARGE_BF16, MAX_FP16, NAN_BF16, ORIGIN, UNUSED_TABLE_ENTRY, minilm
from tqref import Case, MetadataField
from tqref.layout import HEAD_SIZE, METADATA_BYTES, SUPPORTED_KV_BLOCK_SIZES, SUPPORTED_QUERY_GROUP_SIZES

LENGTHS_OF_PARTITIONS = {1: (135, 16), 2: (257, 33), 3: (513, 5)}
BOUNDARY_LENGTHS = (0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 257)
POISONS = {"ff": (0xFF, 0xFF), "inf": (0x00, 0x7C), "minus_inf": (0x00, 0xFC)}
"""Two bytes each, as metadata an fp16: a NaN and the infinities."""
FOUR_GIB = 1 << 32
INF_BF16 = 0x7F80


def _case(
    query_group_size: int,
    kv_block_size: int,
    lengths: Sequence[int],
    heads: int = 1,
    *,
    partitions: int | None = None,
    tile_groups: int = 1,
    width: int | None = None,
    scale: float = 1 / HEAD_SIZE**0.5,
) -> Case:
    """Sequences of these lengths, each from its own place in the recorded text."""
    recording = minilm()
    spans = [(np.arange(length) + 37 * place) % 512 for place, length in enumerate(lengths)]
    query = recording.query(len(lengths), query_group_size)
    query = query.reshape(len(lengths), 3, query_group_size, HEAD_SIZE)[:, :heads]
    return Case.build(
        "",
        query.reshape(len(lengths), -1, HEAD_SIZE),
        [recording.keys[span, :heads] for span in spans],
        [recording.values[span, :heads] for span in spans],
        kv_block_size=kv_block_size,
        num_partitions=partitions,
        tile_groups_per_partition=tile_groups,
        max_blocks_per_sequence=width,
        unused_table_entry=UNUSED_TABLE_ENTRY,
        softmax_scale=scale,
        origin=ORIGIN,
    )


def _partitions(query_group_size: int, kv_block_size: int, *, partitions: int) -> Case:
    """One partition of two heads, or two or three of one head, the last with a single token."""
    heads = 2 if partitions == 1 else 1
    return _case(
        query_group_size, kv_block_size, LENGTHS_OF_PARTITIONS[partitions], heads, partitions=partitions
    )


def _tile_groups(query_group_size: int, kv_block_size: int) -> Case:
    """Partitions of two tile groups, the second partition with a single token, the third without any."""
    return _case(query_group_size, kv_block_size, (513, 256), partitions=3, tile_groups=2)


def _lengths(query_group_size: int, kv_block_size: int) -> Case:
    """Lengths around the edges of blocks, tiles and partitions, zero included."""
    return _case(query_group_size, kv_block_size, BOUNDARY_LENGTHS, partitions=2)


def _dead_bytes(query_group_size: int, kv_block_size: int, *, poison: str) -> Case:
    """Every byte that no token owns is poison."""
    case = _case(query_group_size, kv_block_size, (37, 5))
    return case.with_poisoned_dead_bytes(np.resize(np.array(POISONS[poison], np.uint8), case.blocks.shape[1]))


def _table_entries(query_group_size: int, kv_block_size: int, *, entry: int) -> Case:
    """A block table far wider than its sequences; its entries past them lead out of the cache."""
    return _case(query_group_size, kv_block_size, (37, 5), width=40).with_unused_table_entries(entry)


def _table_end(query_group_size: int, kv_block_size: int) -> Case:
    """A block table just wide enough: the tile group goes on where the table, and its allocation, end."""
    return _case(query_group_size, kv_block_size, (64, 64), partitions=2)


def _far(query_group_size: int, kv_block_size: int, *, offset: int) -> Case:
    """Every block lies `offset` bytes or more into the cache."""
    return _case(query_group_size, kv_block_size, (37, 5)).with_far_blocks(offset)


def _straddling(query_group_size: int, kv_block_size: int) -> Case:
    """Blocks on both sides of 4 GiB, and one across it."""
    case = _case(query_group_size, kv_block_size, (70,))
    first = FOUR_GIB // case.layout.block_bytes - len(case.block_ids) // 2
    return case.with_blocks_renamed(first + np.arange(len(case.block_ids)))


def _nan_query(query_group_size: int, kv_block_size: int) -> Case:
    """One NaN in row 3 and a row 7 of nothing but NaNs; the other rows must not notice."""
    case = _case(query_group_size, kv_block_size, (37, 20))
    query = case.query.copy()
    query[0, 3, 77] = NAN_BF16
    query[1, 7] = NAN_BF16
    return replace(case, query=query)


def _infinite_query(query_group_size: int, kv_block_size: int) -> Case:
    """An infinity in one row: its scores are infinite, of either sign, or NaN."""
    case = _case(query_group_size, kv_block_size, (37,))
    query = case.query.copy()
    query[0, 5, 9] = INF_BF16
    return replace(case, query=query)


def _live_metadata(
    query_group_size: int, kv_block_size: int, *, field: MetadataField, value: float
) -> Case:
    """One live token, the 22nd, whose key norm, value scale or value zero is `value`."""
    case = _case(query_group_size, kv_block_size, (37,))
    block, slot = divmod(21, kv_block_size)
    at = int(case.layout.metadata_offset(field, slot, 0))
    blocks = case.blocks.copy()
    row = int(case.rows_of(case.block_tables[0, block]))
    blocks[row, at : at + METADATA_BYTES] = np.array([value], "<f2").view(np.uint8)
    return replace(case, blocks=blocks)


def _all_scores_minus_inf(query_group_size: int, kv_block_size: int) -> Case:
    """A row all of whose scores overflow to -inf: it has a maximum of -inf, a sum of 0 and an output of 0."""
    case = _live_metadata(query_group_size, kv_block_size, field=MetadataField.KEY_NORM, value=MAX_FP16)
    case = replace(case, seq_lens=case.seq_lens.clip(max=16), centroids=-np.abs(case.centroids))
    query = case.query.copy()
    query[0, 2] = LARGE_BF16
    return replace(case, query=query)


def _sizes(query_group_size: int, kv_block_size: int) -> Case:
    """Heads, partitions, table width and softmax scale that no build would have been made for."""
    return _case(query_group_size, kv_block_size, (40, 3), 3, partitions=4, width=37, scale=0.3)


def _hostile(query_group_size: int, kv_block_size: int) -> Case:
    """Live data at the ends of what the formats hold; see `tqkernel.cases`."""
    return CASES[f"hostile_qg{query_group_size}_bs{kv_block_size}_hwtr"].build()


_Build = Callable[[int, int], Case]
_EVERY = tuple(itertools.product(SUPPORTED_QUERY_GROUP_SIZES, SUPPORTED_KV_BLOCK_SIZES))
_DIAGONAL = ((8, 16), (16, 32))
_KEY, _SCALE, _ZERO = MetadataField.KEY_NORM, MetadataField.VALUE_SCALE, MetadataField.VALUE_ZERO

_KINDS: dict[str, tuple[_Build, tuple[tuple[int, int], ...]]] = {
    **{f"partitions{p}": (functools.partial(_partitions, partitions=p), _EVERY) for p in (1, 2, 3)},
    "tile_groups": (_tile_groups, _DIAGONAL),
    "lengths": (_lengths, ((8, 16), (8, 32))),
    **{
        f"dead_bytes_{p}": (functools.partial(_dead_bytes, poison=p), _EVERY if p == "ff" else _DIAGONAL)
        for p in POISONS
    },
    "table_entries": (functools.partial(_table_entries, entry=UNUSED_TABLE_ENTRY), _EVERY),
    "table_entries_negative": (functools.partial(_table_entries, entry=-1), _DIAGONAL),
    "table_end": (_table_end, _EVERY),
    "far_2gib": (functools.partial(_far, offset=FOUR_GIB // 2), _DIAGONAL),
    "far_4gib": (functools.partial(_far, offset=FOUR_GIB), _EVERY),
    "far_straddling": (_straddling, _DIAGONAL),
    "nan_query": (_nan_query, _EVERY),
    "inf_query": (_infinite_query, _DIAGONAL),
    "nan_key_norm": (functools.partial(_live_metadata, field=_KEY, value=np.nan), _DIAGONAL),
    "inf_key_norm": (functools.partial(_live_metadata, field=_KEY, value=np.inf), _DIAGONAL),
    "nan_value_scale": (functools.partial(_live_metadata, field=_SCALE, value=np.nan), _DIAGONAL),
    "inf_value_scale": (functools.partial(_live_metadata, field=_SCALE, value=np.inf), _DIAGONAL),
    "nan_value_zero": (functools.partial(_live_metadata, field=_ZERO, value=np.nan), _DIAGONAL),
    "all_scores_minus_inf": (_all_scores_minus_inf, _DIAGONAL),
    "sizes": (_sizes, _DIAGONAL),
    "hostile": (_hostile, ((8, 16),)),
}


def _named() -> dict[str, Callable[[], Case]]:
    found: dict[str, Callable[[], Case]] = {}
    for kind, (build, sizes) in _KINDS.items():
        for query_group_size, kv_block_size in sizes:
            name = f"{kind}_qg{query_group_size}_bs{kv_block_size}"
            found[name] = functools.partial(_build, name, build, query_group_size, kv_block_size)
    return found


def _build(name: str, build: _Build, query_group_size: int, kv_block_size: int) -> Case:
    return replace(build(query_group_size, kv_block_size), name=name)


FIXTURE_CASES = _named()
"""Builders of the fixtures' cases by name."""
