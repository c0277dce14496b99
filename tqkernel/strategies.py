"""Hypothesis strategies for decode problems: valid by construction, and quick to shrink.

What is drawn is a `Problem`, a few numbers and names from which `Problem.case` builds the arrays; so a failing example
is short to print, cheap to store and shrinks towards one token, one head and ordinary numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tqkernel.plan import Variant
from tqref import Case, MetadataField
from tqref.case import DEFAULT_SOFTMAX_SCALE
from tqref.codec import lloyd_max_centroids
from tqref.layout import GROUP_TOKENS, HEAD_SIZE, METADATA_BYTES, TILE_TOKENS, CacheLayout
from tqref.numerics import f32_to_bf16

MAX_PARTITIONS = 32
MAX_TILE_GROUPS = 8
MAX_HEADS = 8
MAX_SEQUENCES = 4
TILE_WAVES = 400
"""Tiles times heads that one example may cost by default, so that examples stay fast."""

Random = np.random.Generator
Float16 = NDArray[np.float16]
Float32 = NDArray[np.float32]

MAX_FP16 = 65504.0
SMALLEST_FP16 = 2.0**-24


def _with_one(values: NDArray, random: Random, value: float) -> NDArray:
    """The values with one of them, anywhere, replaced."""
    values = values.copy()
    if values.size:
        values.reshape(-1)[random.integers(values.size)] = value
    return values


def _realistic(random: Random, tokens: NDArray[np.int64]) -> Float32:
    return np.exp(random.normal(0, 0.5, tokens.shape)).astype(np.float32)


Kind = Callable[[Random, NDArray[np.int64]], NDArray]
"""(random, token numbers) -> one value for each."""

NORMS: dict[str, Kind] = {
    "realistic": lambda random, tokens: 8 * _realistic(random, tokens),
    "equal": lambda random, tokens: np.ones(tokens.shape),
    "zero": lambda random, tokens: np.zeros(tokens.shape),
    "subnormal": lambda random, tokens: random.integers(0, 1024, tokens.shape) * SMALLEST_FP16,
    "maximal": lambda random, tokens: np.full(tokens.shape, MAX_FP16),
    "one dominates": lambda random, tokens: _with_one(_realistic(random, tokens), random, 4096),
    "rising": lambda random, tokens: 1.0 + tokens,
    "falling and rising": lambda random, tokens: 64.0 * (1 + (tokens // TILE_TOKENS * 7) % 5),
    "infinite": lambda random, tokens: _with_one(_realistic(random, tokens), random, np.inf),
    "nan": lambda random, tokens: _with_one(_realistic(random, tokens), random, np.nan),
}
SCALES: dict[str, Kind] = {
    "realistic": lambda random, tokens: 0.1 * _realistic(random, tokens),
    "zero": NORMS["zero"],
    "subnormal": NORMS["subnormal"],
    "maximal": NORMS["maximal"],
    "infinite": NORMS["infinite"],
    "nan": NORMS["nan"],
}
ZEROS: dict[str, Kind] = {
    "realistic": lambda random, tokens: random.normal(0, 1, tokens.shape),
    "zero": NORMS["zero"],
    "subnormal": NORMS["subnormal"],
    "minimal": lambda random, tokens: np.full(tokens.shape, -MAX_FP16),
    "alternating": lambda random, tokens: np.where(tokens % 2, MAX_FP16, -MAX_FP16),
    "infinite": lambda random, tokens: _with_one(random.normal(0, 1, tokens.shape), random, -np.inf),
    "nan": lambda random, tokens: _with_one(random.normal(0, 1, tokens.shape), random, np.nan),
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
}
SOFTMAX_SCALES = {
    "default": DEFAULT_SOFTMAX_SCALE,
    "one": 1.0,
    "zero": 0.0,
    "negative": -1.0,
    "tiny": 1e-42,
    "large": 1e4,
}
PLACEMENTS = ("in order", "shuffled", "far", "shared")
"""How physical blocks lie: `far` spreads them beyond 4 GiB, `shared` lets all sequences use the same ones."""


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
    norms: str = "realistic"
    scales: str = "realistic"
    zeros: str = "realistic"
    centroids: str = "lloyd-max"
    query: str = "realistic"
    softmax_scale: str = "default"
    seed: int = 0

    @property
    def variant(self) -> Variant:
        """The kernel's variant that the problem is for."""
        return Variant(self.query_group_size, self.kv_block_size, self.hw_v_transpose)

    def case(self) -> Case:
        """Build the arrays. Bytes that no token owns, and block-table entries past a sequence, are random."""
        random = np.random.default_rng(self.seed)
        layout = CacheLayout(self.kv_block_size, self.heads)
        used = [-(-length // self.kv_block_size) for length in self.lengths]
        width = max(1, *used) + self.spare_entries
        tables = random.integers(-(2**31), 2**31, (len(self.lengths), width)).astype(np.int32)
        count = max(used) if self.placement == "shared" else sum(used)
        ids = self._ids(random, count, layout.block_bytes)
        at = 0
        for sequence, needed in enumerate(used):
            tables[sequence, :needed] = ids[at : at + needed]
            at += 0 if self.placement == "shared" else needed
        order = np.argsort(ids)
        blocks = random.integers(0, 256, (count, layout.block_bytes), dtype=np.uint8)
        self._write_metadata(random, blocks, layout, used)
        rows = self.heads * self.query_group_size
        with np.errstate(over="ignore"):
            query = QUERIES[self.query](random, (len(self.lengths), rows, HEAD_SIZE)).astype(np.float32)
            centroids = CENTROIDS[self.centroids](random).astype(np.float32)
        return Case(
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

    def _ids(self, random: Random, count: int, block_bytes: int) -> NDArray[np.int64]:
        if self.placement == "in order":
            return np.arange(count, dtype=np.int64)
        if self.placement == "far":
            stride = (3 << 32) // block_bytes // max(count, 1)
            return (random.permutation(count) * stride + random.integers(stride, size=count)).astype(np.int64)
        return random.permutation(count).astype(np.int64)

    def _write_metadata(
        self, random: Random, blocks: NDArray[np.uint8], layout: CacheLayout, used: list[int]
    ) -> None:
        """Norms, scales and zeros of all slots; `blocks` in the order in which sequences use them."""
        owners = [max(used)] if self.placement == "shared" else used
        tokens = np.concatenate([np.arange(count * self.kv_block_size) for count in owners]).astype(np.int64)
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
    edges = {0, 1, TILE_TOKENS, kv_block_size, GROUP_TOKENS, tile_groups * GROUP_TOKENS, limit}
    near = sorted({max(0, min(limit, edge + by)) for edge in edges for by in (-1, 0, 1)})
    return st.one_of(st.sampled_from(near), st.integers(0, limit))


def _name(names: Iterable[str]) -> st.SearchStrategy[str]:
    """One of the names; the first, the ordinary one, as often as all others together."""
    ordinary, *others = names
    return st.one_of(st.just(ordinary), st.sampled_from([ordinary, *others]))


@st.composite
def problems(draw: st.DrawFn, hostile: bool = True, tile_waves: int = TILE_WAVES) -> Problem:
    """Any valid problem of at most `tile_waves` tiles times heads; without `hostile`, of ordinary numbers only."""
    heads = draw(st.integers(1, MAX_HEADS))
    sequences = draw(st.integers(1, MAX_SEQUENCES))
    tile_groups = draw(st.integers(1, MAX_TILE_GROUPS))
    kv_block_size = draw(st.sampled_from([16, 32]))
    limit = min(tile_waves // (heads * sequences) * TILE_TOKENS, MAX_PARTITIONS * tile_groups * GROUP_TOKENS)
    lengths = draw(
        st.lists(_lengths_up_to(limit, kv_block_size, tile_groups), min_size=sequences, max_size=sequences)
    )
    needed = max(1, -(-max(lengths) // (tile_groups * GROUP_TOKENS)))
    numbers = {}
    if hostile:
        for field, names in (
            ("norms", NORMS), ("scales", SCALES), ("zeros", ZEROS), ("centroids", CENTROIDS), ("query", QUERIES),
            ("softmax_scale", SOFTMAX_SCALES),
        ):  # fmt: skip
            numbers[field] = draw(_name(names))
    return Problem(
        lengths=tuple(lengths),
        heads=heads,
        query_group_size=draw(st.sampled_from([8, 16])),
        kv_block_size=kv_block_size,
        hw_v_transpose=draw(st.booleans()),
        partitions=draw(st.integers(needed, min(MAX_PARTITIONS, needed + 3))),
        tile_groups=tile_groups,
        spare_entries=draw(st.integers(0, 3)),
        placement=draw(_name(PLACEMENTS)),
        seed=draw(st.integers(0, 2**16)),
        **numbers,
    )
