"""Hypothesis strategies for decode problems: valid by construction, and quick to shrink.

What is drawn is a `Problem`, a few numbers and names from which `Problem.case` builds the arrays; so a failing example
is short to print, cheap to store and shrinks towards one token, one head and ordinary numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tqkernel.plan import MAX_PARTITIONS, Variant
from tqref import DEFAULT_PROFILE, PROFILES, Case, MetadataField, Profile
from tqref.case import DEFAULT_SOFTMAX_SCALE
from tqref.codec import lloyd_max_centroids
from tqref.layout import (
    GROUP_TOKENS,
    HEAD_SIZE,
    METADATA_BYTES,
    SUPPORTED_KV_BLOCK_SIZES,
    SUPPORTED_QUERY_GROUP_SIZES,
    TILE_TOKENS,
    TILES_PER_GROUP,
    CacheLayout,
)
from tqref.numerics import f32_to_bf16

MAX_TILE_GROUPS = 8
MAX_HEADS = 8
MAX_SEQUENCES = 4
TILE_WAVES = 400
"""Tiles times heads that one example may cost by default, so that examples stay fast. A wave computes whole
tile groups, so even one token costs 16."""

Random = np.random.Generator
Float16 = NDArray[np.float16]
Float32 = NDArray[np.float32]

MAX_FP16 = 65504.0
SMALLEST_FP16 = 2.0**-24


def _with_one(values: NDArray, random: Random, value: float) -> NDArray:
    """The values with one of them replaced."""
    values = values.copy()
    values.reshape(-1)[random.integers(values.size)] = value
    return values


def _with_one_live(values: NDArray, random: Random, value: float, tokens: NDArray[np.int64]) -> NDArray:
    """The values with that of one token replaced, if there is any."""
    (live,) = np.nonzero(tokens >= 0)
    if live.size:
        values[random.choice(live)] = value
    return values


def _any_half(random: Random, tokens: NDArray[np.int64]) -> NDArray[np.float16]:
    """Any of the fp16 bit patterns."""
    return random.integers(0, 1 << 16, tokens.shape, dtype=np.uint16).view(np.float16)


def _any_single(random: Random, shape: tuple[int, ...]) -> Float32:
    """Any of the float32 bit patterns."""
    return random.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)


def _realistic(random: Random, tokens: NDArray[np.int64]) -> Float32:
    return np.exp(random.normal(0, 0.5, tokens.shape)).astype(np.float32)


Kind = Callable[[Random, NDArray[np.int64]], NDArray]
"""(random, number of the token in each slot, -1 for none) -> one value for each."""

NORMS: dict[str, Kind] = {
    "realistic": lambda random, tokens: 8 * _realistic(random, tokens),
    "equal": lambda random, tokens: np.ones(tokens.shape),
    "zero": lambda random, tokens: np.zeros(tokens.shape),
    "subnormal": lambda random, tokens: random.integers(0, 1024, tokens.shape) * SMALLEST_FP16,
    "maximal": lambda random, tokens: np.full(tokens.shape, MAX_FP16),
    "one dominates": lambda random, tokens: _with_one_live(_realistic(random, tokens), random, 4096, tokens),
    "rising": lambda random, tokens: 1.0 + tokens,
    "falling and rising": lambda random, tokens: 64.0 * (1 + (tokens // TILE_TOKENS * 7) % 5),
    "infinite": lambda random, tokens: _with_one_live(_realistic(random, tokens), random, np.inf, tokens),
    "nan": lambda random, tokens: _with_one_live(_realistic(random, tokens), random, np.nan, tokens),
    "any": _any_half,
}
SCALES: dict[str, Kind] = {
    "realistic": lambda random, tokens: 0.1 * _realistic(random, tokens),
    "zero": NORMS["zero"],
    "subnormal": NORMS["subnormal"],
    "maximal": NORMS["maximal"],
    "infinite": NORMS["infinite"],
    "nan": NORMS["nan"],
    "any": _any_half,
}
ZEROS: dict[str, Kind] = {
    "realistic": lambda random, tokens: random.normal(0, 1, tokens.shape),
    "zero": NORMS["zero"],
    "zeros of both signs": lambda random, tokens: np.where(random.random(tokens.shape) < 0.5, 0.0, -0.0),
    "subnormal": NORMS["subnormal"],
    "minimal": lambda random, tokens: np.full(tokens.shape, -MAX_FP16),
    "alternating": lambda random, tokens: np.where(tokens % 2, MAX_FP16, -MAX_FP16),
    "infinite": lambda random, tokens: _with_one_live(
        random.normal(0, 1, tokens.shape), random, -np.inf, tokens
    ),
    "nan": lambda random, tokens: _with_one_live(random.normal(0, 1, tokens.shape), random, np.nan, tokens),
    "any": _any_half,
}
CENTROIDS: dict[str, Callable[[Random], NDArray]] = {
    "lloyd-max": lambda random: lloyd_max_centroids(),
    "equal": lambda random: np.full(16, 0.125),
    "random": lambda random: random.normal(0, 1, 16),
    "zeros of both signs": lambda random: np.where(np.arange(16) % 2, 0.0, -0.0),
    "subnormal": lambda random: random.normal(0, 1e-39, 16),
    "overflowing": lambda random: np.linspace(-3e38, 3e38, 16),
    "infinite": lambda random: _with_one(lloyd_max_centroids(), random, np.inf),
    "nan": lambda random: _with_one(lloyd_max_centroids(), random, np.nan),
    "any": lambda random: _any_single(random, (16,)),
}
QUERIES: dict[str, Callable[[Random, tuple[int, ...]], NDArray]] = {
    "realistic": lambda random, shape: random.normal(0, 1, shape),
    "zero": lambda random, shape: np.zeros(shape),
    "equal": lambda random, shape: np.ones(shape),
    "subnormal": lambda random, shape: random.normal(0, 1e-39, shape),
    "large": lambda random, shape: random.normal(0, 1e4, shape),
    "overflowing": lambda random, shape: random.normal(0, 1e38, shape),
    "infinite": lambda random, shape: _with_one(random.normal(0, 1, shape), random, np.inf),
    "nan": lambda random, shape: _with_one(random.normal(0, 1, shape), random, np.nan),
    "any": _any_single,
}
SOFTMAX_SCALES = {
    "default": DEFAULT_SOFTMAX_SCALE,
    "one": 1.0,
    "zero": 0.0,
    "negative": -1.0,
    "tiny": 1e-42,
    "large": 1e4,
}
HOSTILE: dict[str, Mapping[str, Any]] = {
    "norms": NORMS,
    "scales": SCALES,
    "zeros": ZEROS,
    "centroids": CENTROIDS,
    "query": QUERIES,
    "softmax_scale": SOFTMAX_SCALES,
}
"""The fields of a problem that say what its numbers are like, and the names each may have, the ordinary one first."""
PLACEMENTS = ("in order", "shuffled", "far")
"""How physical blocks lie; `far` spreads them over 12 GiB."""
SHARING = ("none", "prefix", "repeated")
"""Who uses a block: one sequence once, all sequences that are long enough, or sequences at random, and again."""


@dataclass(frozen=True)
class Problem:
    """A decode problem in a few words; the defaults are what examples shrink to."""

    lengths: tuple[int, ...] = (1,)
    heads: int = 1
    query_group_size: int = 8
    kv_block_size: int = 16
    hw_v_transpose: bool = False
    partitions: int = 1
    tile_groups: int = 1
    spare_entries: int = 0
    placement: str = "in order"
    sharing: str = "none"
    norms: str = "realistic"
    scales: str = "realistic"
    zeros: str = "realistic"
    centroids: str = "lloyd-max"
    query: str = "realistic"
    softmax_scale: str = "default"
    profile: str = DEFAULT_PROFILE.name
    seed: int = 0

    def __repr__(self) -> str:
        """What differs from the defaults, as Python that builds it again."""
        changed = (field for field in fields(self) if getattr(self, field.name) != field.default)
        return f"Problem({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in changed)})"

    @property
    def variant(self) -> Variant:
        """The kernel's variant that the problem is for."""
        return Variant(self.query_group_size, self.kv_block_size, self.hw_v_transpose)

    @property
    def arithmetic(self) -> Profile:
        """The chip's arithmetic under which to decode it."""
        return PROFILES[self.profile]

    def case(self) -> Case:
        """Build the arrays. Bytes that no token owns, and block-table entries past a sequence, are random."""
        random = np.random.default_rng(self.seed)
        layout = CacheLayout(self.kv_block_size, self.heads)
        used = [-(-length // self.kv_block_size) for length in self.lengths]
        width = max(1, *used) + self.spare_entries
        tables = random.integers(-(2**31), 2**31, (len(self.lengths), width)).astype(np.int32)
        named = self._blocks_named(random, used)
        count = 1 + max((int(numbers.max(initial=-1)) for numbers in named), default=-1)
        ids = self._ids(random, count, layout.block_bytes)
        for table, numbers in zip(tables, named, strict=True):
            table[: len(numbers)] = ids[numbers]
        order = np.argsort(ids)
        blocks = random.integers(0, 256, (count, layout.block_bytes), dtype=np.uint8)
        self._write_metadata(random, blocks, layout, self._tokens(named, count))
        rows = self.heads * self.query_group_size
        with np.errstate(over="ignore"):
            query = QUERIES[self.query](random, (len(self.lengths), rows, HEAD_SIZE)).astype(np.float32)
            centroids = CENTROIDS[self.centroids](random).astype(np.float32)
        case = Case(
            name="example",
            query=f32_to_bf16(query),
            block_ids=ids[order],
            blocks=blocks[order],
            num_blocks=int(ids.max(initial=0)) + 1,
            centroids=np.ascontiguousarray(centroids),
            block_tables=tables,
            seq_lens=np.array(self.lengths, np.int32),
            num_kv_heads=self.heads,
            query_group_size=self.query_group_size,
            kv_block_size=self.kv_block_size,
            num_partitions=self.partitions,
            tile_groups_per_partition=self.tile_groups,
            softmax_scale=SOFTMAX_SCALES[self.softmax_scale],
            origin=repr(self),
        )
        return case.with_poisoned_dead_bytes(random.integers(0, 256, blocks.shape, dtype=np.uint8))

    def _blocks_named(self, random: Random, used: list[int]) -> list[NDArray[np.int64]]:
        """For each sequence the numbers, from 0, of the blocks that its table names."""
        if self.sharing == "prefix":
            return [np.arange(count) for count in used]
        if self.sharing == "repeated":
            return [random.integers(0, max(1, count // 2), count) for count in used]
        starts = np.cumsum([0, *used])
        return [np.arange(start, start + count) for start, count in zip(starts, used, strict=False)]

    def _ids(self, random: Random, count: int, block_bytes: int) -> NDArray[np.int64]:
        if self.placement == "in order":
            return np.arange(count, dtype=np.int64)
        if self.placement == "far":
            stride = (3 << 32) // block_bytes // max(count, 1)
            return (random.permutation(count) * stride + random.integers(stride, size=count)).astype(np.int64)
        return random.permutation(count).astype(np.int64)

    def _tokens(self, named: list[NDArray[np.int64]], count: int) -> NDArray[np.int64]:
        """The number of the token in each slot of each block, -1 for none."""
        tokens = np.full((count, self.kv_block_size), -1)
        for numbers, length in zip(named, self.lengths, strict=True):
            token = np.arange(len(numbers) * self.kv_block_size).reshape(-1, self.kv_block_size)
            np.maximum.at(tokens, numbers, np.where(token < length, token, -1))
        return tokens.reshape(-1)

    def _write_metadata(
        self, random: Random, blocks: NDArray[np.uint8], layout: CacheLayout, tokens: NDArray[np.int64]
    ) -> None:
        """Norms, scales and zeros of the tokens in all slots of all blocks."""
        kinds = {
            MetadataField.KEY_NORM: NORMS[self.norms],
            MetadataField.VALUE_SCALE: SCALES[self.scales],
            MetadataField.VALUE_ZERO: ZEROS[self.zeros],
        }
        slots = np.arange(self.kv_block_size)
        for head in range(self.heads):
            for which, kind in kinds.items():
                start = layout.metadata_offset(which, slots, np.full_like(slots, head))
                stored = kind(random, tokens).astype(np.float16).reshape(len(blocks), self.kv_block_size, 1)
                blocks[:, start[:, None] + np.arange(METADATA_BYTES)] = stored.view(np.uint8)


def _lengths_up_to(limit: int, kv_block_size: int, tile_groups: int) -> st.SearchStrategy[int]:
    """Lengths at every boundary, one less and one more, and any in between."""
    partition = tile_groups * GROUP_TOKENS
    edges = {0, 1, TILE_TOKENS, kv_block_size, GROUP_TOKENS, partition, 2 * partition, limit}
    near = sorted({max(0, min(limit, edge + by)) for edge in edges for by in (-1, 0, 1)})
    return st.one_of(st.sampled_from(near), st.integers(0, limit))


def _name(names: Iterable[str]) -> st.SearchStrategy[str]:
    """One of the names; the first, the ordinary one, as often as all others together."""
    ordinary, *others = names
    return st.one_of(st.just(ordinary), st.sampled_from([ordinary, *others]))


@st.composite
def _ragged_lengths(draw: st.DrawFn, groups: int, kv_block_size: int, tile_groups: int) -> tuple[int, ...]:
    """Lengths of a batch that has at most so many tile groups in all."""
    lengths: list[int] = []
    for others in reversed(range(draw(st.integers(1, min(MAX_SEQUENCES, groups))))):
        most = min(groups - others, MAX_PARTITIONS * tile_groups) * GROUP_TOKENS
        lengths.append(draw(_lengths_up_to(most, kv_block_size, tile_groups)))
        groups -= max(1, -(-lengths[-1] // GROUP_TOKENS))
    return tuple(lengths)


@st.composite
def problems(draw: st.DrawFn, hostile: bool = True, tile_waves: int = TILE_WAVES) -> Problem:
    """Any valid problem of at most `tile_waves` tiles times heads; without `hostile`, of ordinary numbers only."""
    heads = draw(st.integers(1, min(MAX_HEADS, tile_waves // TILES_PER_GROUP)))
    tile_groups = draw(st.integers(1, MAX_TILE_GROUPS))
    kv_block_size = draw(st.sampled_from(SUPPORTED_KV_BLOCK_SIZES))
    groups = tile_waves // (heads * TILES_PER_GROUP)
    lengths = draw(_ragged_lengths(groups, kv_block_size, tile_groups))
    needed = max(1, -(-max(lengths) // (tile_groups * GROUP_TOKENS)))
    few = st.integers(needed, min(MAX_PARTITIONS, needed + 3))
    numbers = {field: draw(_name(names)) for field, names in HOSTILE.items()} if hostile else {}
    return Problem(
        lengths=lengths,
        heads=heads,
        query_group_size=draw(st.sampled_from(SUPPORTED_QUERY_GROUP_SIZES)),
        kv_block_size=kv_block_size,
        hw_v_transpose=draw(st.booleans()),
        partitions=draw(few | st.integers(needed, MAX_PARTITIONS)),
        tile_groups=tile_groups,
        spare_entries=draw(st.integers(0, 3) | st.just(500)),
        placement=draw(_name(PLACEMENTS)),
        sharing=draw(_name(SHARING)),
        profile=draw(st.sampled_from(list(PROFILES))),
        seed=draw(st.integers(0, 2**16)),
        **numbers,
    )
