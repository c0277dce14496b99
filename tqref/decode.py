"""The split-K decode, tile for tile: what the kernel must write, to the bit.

One wave computes one (sequence, KV head, partition). Waves are independent, so they are computed side by
side; within a wave only the recurrence over tiles of 16 tokens is sequential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tqref.cache import read_tokens
from tqref.case import Case
from tqref.codec import dequantize_key, dequantize_value
from tqref.layout import GROUP_TOKENS, HEAD_SIZE, TILE_TOKENS
from tqref.numerics import DEFAULT_PROFILE, LOG2E, Float32, Int64, Profile, UInt16, dot, exp2, f32_to_bf16

_QK_DEPTH = 32
"""Head dimensions per matrix instruction of the scores (`v_mfma_f32_16x16x32_bf16`)."""
_SUM_RUN = 4
"""Tokens of a tile whose probabilities one lane adds, in order, before lanes are added pairwise."""
_WAVES_AT_A_TIME = 64
"""Waves computed side by side; bounds the memory, changes no result."""


@dataclass(frozen=True, eq=False)
class Partials:
    """What the decode writes for each partition, to be combined.

    out: uint16[N, Hk, P, QG, 128], bfloat16 bits, normalised by the partition's own sum; exp_sums and
    max_logits: float32[N, Hk, P, QG]. A partition past its sequence has out = 0, exp_sums = 0 and
    max_logits = -inf.
    """

    out: UInt16
    exp_sums: Float32
    max_logits: Float32


@dataclass(eq=False)
class _State:
    """The running softmax of some waves: maximum and sum float32[waves, QG], accumulator [waves, QG, 128]."""

    maximum: Float32
    total: Float32
    accumulator: Float32

    @classmethod
    def initial(cls, waves: int, rows: int) -> _State:
        return cls(
            maximum=np.full((waves, rows), -np.inf, np.float32),
            total=np.zeros((waves, rows), np.float32),
            accumulator=np.zeros((waves, rows, HEAD_SIZE), np.float32),
        )

    def select(self, waves: Int64) -> _State:
        return _State(self.maximum[waves], self.total[waves], self.accumulator[waves])

    def assign(self, waves: Int64, other: _State) -> None:
        self.maximum[waves] = other.maximum
        self.total[waves] = other.total
        self.accumulator[waves] = other.accumulator


def decode(case: Case, profile: Profile = DEFAULT_PROFILE) -> Partials:
    """Decode every (sequence, KV head, partition) of `case` under `profile`'s arithmetic."""
    grid = (case.num_sequences, case.num_kv_heads, case.num_partitions)
    rows = case.query_group_size
    sequence, head, partition = (axis.reshape(-1) for axis in np.indices(grid, dtype=np.int64))
    waves = sequence.size
    state = _State.initial(waves, rows)
    query = case.query.reshape(case.num_sequences, case.num_kv_heads, rows, HEAD_SIZE)
    with np.errstate(all="ignore"):
        for trip in range(case.tile_groups_per_partition):
            start = (partition * case.tile_groups_per_partition + trip) * GROUP_TOKENS
            (running,) = np.nonzero(start < case.seq_lens[sequence])
            for chosen in _chunks(running):
                group = _TileGroup.read(case, sequence[chosen], head[chosen], start[chosen])
                *_, products = group.products(query[sequence[chosen], head[chosen]], profile)
                scores = group.scores(products, case.softmax_scale)
                part = state.select(chosen)
                for tile in range(0, GROUP_TOKENS, TILE_TOKENS):
                    tokens = slice(tile, tile + TILE_TOKENS)
                    part = _step(part, scores[..., tokens], group.values[:, tokens], profile).state
                state.assign(chosen, part)
        divisor = np.where(state.total > 0, state.total, np.float32(1))
        inverse = np.divide(np.float32(1), divisor, dtype=np.float32)
        out = f32_to_bf16(state.accumulator * inverse[..., None])
    return Partials(
        out=out.reshape(*grid, rows, HEAD_SIZE),
        exp_sums=state.total.reshape(*grid, rows),
        max_logits=state.maximum.reshape(*grid, rows),
    )


def _chunks(waves: Int64) -> Iterator[Int64]:
    return (waves[start : start + _WAVES_AT_A_TIME] for start in range(0, waves.size, _WAVES_AT_A_TIME))


@dataclass(frozen=True, eq=False)
class _TileGroup:
    """Sixteen tiles of some waves, dequantised to bfloat16 bits: keys and values uint16[waves, 256, 128]."""

    live: NDArray[np.bool_]
    keys: UInt16
    values: UInt16

    @classmethod
    def read(cls, case: Case, sequence: Int64, head: Int64, start: Int64) -> _TileGroup:
        """The 256 tokens from `start` on, per wave; dead tokens read as zeros."""
        token = start[:, None] + np.arange(GROUP_TOKENS)
        stored = read_tokens(case, sequence[:, None], head[:, None], token)
        return cls(
            live=stored.live,
            keys=dequantize_key(stored.key_index, stored.key_norm, case.centroids),
            values=dequantize_value(stored.value_step, stored.value_scale, stored.value_zero),
        )

    def products(self, query: UInt16, profile: Profile) -> Iterator[Float32]:
        """Key times query float32[waves, QG, 256] after each chunk of dims; query uint16[waves, QG, 128]."""
        products = np.zeros((*query.shape[:2], GROUP_TOKENS), np.float32)
        for start in range(0, HEAD_SIZE, _QK_DEPTH):
            dims = slice(start, start + _QK_DEPTH)
            products = dot(query[..., dims], self.keys[..., dims], products, profile)
            yield products

    def scores(self, products: Float32, softmax_scale: float) -> Float32:
        """Scaled scores float32[waves, QG, 256]; -inf for dead tokens."""
        return np.where(self.live[:, None, :], products * np.float32(softmax_scale), np.float32(-np.inf))


def _maximum(values: Float32) -> Float32:
    """IEEE 754-2019 maximum of the last axis: NaN if any is; +0 above -0, which NumPy leaves to chance."""
    largest: Float32 = values.max(axis=-1)
    has_positive_zero = ((values == 0) & ~np.signbit(values)).any(axis=-1)
    return np.where((largest == 0) & has_positive_zero, np.float32(0), largest)


@dataclass(frozen=True, eq=False)
class _Step:
    """What one tile does to some waves: rescale float32[waves, QG], probabilities float32[waves, QG, 16], the
    accumulator rescaled float32[waves, QG, 128], and the state after it.
    """

    rescale: Float32
    probabilities: Float32
    rescaled: Float32
    state: _State


def _step(state: _State, scores: Float32, values: UInt16, profile: Profile) -> _Step:
    """One tile of the online softmax: scores float32[waves, QG, 16], values uint16[waves, 16, 128]."""
    # The maximum propagates NaN and isneginf is false for it, so a NaN reaches every output of its row.
    maximum = _maximum(np.concatenate([state.maximum[..., None], scores], axis=-1))
    below = np.where(np.isneginf(state.maximum), np.float32(0), state.maximum - maximum)
    rescale = exp2(below * LOG2E, profile)
    above = np.where(np.isneginf(maximum)[..., None], np.float32(-np.inf), scores - maximum[..., None])
    probabilities = exp2(above * LOG2E, profile)
    total = state.total * rescale + _tile_sum(probabilities)
    rescaled = state.accumulator * rescale[..., None]
    accumulator = dot(f32_to_bf16(probabilities), values.swapaxes(-1, -2), rescaled, profile)
    return _Step(rescale, probabilities, rescaled, _State(maximum, total, accumulator))


def _tile_sum(probabilities: Float32) -> Float32:
    """Sum float32[..., 16] in the kernel's order: four runs of four tokens, then the runs pairwise."""
    runs = probabilities.reshape(*probabilities.shape[:-1], -1, _SUM_RUN)
    first = np.zeros(runs.shape[:-1], np.float32)
    for position in range(_SUM_RUN):
        first = first + runs[..., position]
    return (first[..., 0] + first[..., 1]) + (first[..., 2] + first[..., 3])


@dataclass(frozen=True, eq=False)
class Tile:
    """What one wave computes for the 16 tokens from `start` on, stage by stage. QG query rows.

    live        bool[16]
    keys        uint16[16, 128], bfloat16 bits
    products    float32[4, QG, 16], key times query after each matrix instruction
    scores      float32[QG, 16], scaled and masked
    maximum     float32[QG], the running maximum with this tile
    rescale     float32[QG], what the state before it is multiplied by
    probabilities  float32[QG, 16]
    total       float32[QG], the running sum with this tile
    values      uint16[16, 128], bfloat16 bits
    rescaled    float32[QG, 128], the accumulator before this tile, rescaled
    accumulator float32[QG, 128], with this tile
    """

    start: int
    live: NDArray[np.bool_]
    keys: UInt16
    products: Float32
    scores: Float32
    maximum: Float32
    rescale: Float32
    probabilities: Float32
    total: Float32
    values: UInt16
    rescaled: Float32
    accumulator: Float32


def tiles(
    case: Case, sequence: int, head: int, partition: int, profile: Profile = DEFAULT_PROFILE
) -> Iterator[Tile]:
    """The stages of `decode` for one wave, tile by tile; none for a partition past its sequence."""
    rows = case.query_group_size
    state = _State.initial(1, rows)
    where = np.array([sequence]), np.array([head])
    query = case.query.reshape(case.num_sequences, case.num_kv_heads, rows, HEAD_SIZE)[where]
    first = partition * case.tile_groups_per_partition * GROUP_TOKENS
    past = first + case.tile_groups_per_partition * GROUP_TOKENS
    with np.errstate(all="ignore"):
        for start in range(first, min(past, int(case.seq_lens[sequence])), GROUP_TOKENS):
            group = _TileGroup.read(case, *where, np.array([start]))
            products = np.stack(list(group.products(query, profile)))
            scores = group.scores(products[-1], case.softmax_scale)
            for tile in range(0, GROUP_TOKENS, TILE_TOKENS):
                tokens = slice(tile, tile + TILE_TOKENS)
                step = _step(state, scores[..., tokens], group.values[:, tokens], profile)
                state = step.state
                yield Tile(
                    start=start + tile,
                    live=group.live[0, tokens],
                    keys=group.keys[0, tokens],
                    products=products[:, 0, :, tokens],
                    scores=scores[0, :, tokens],
                    maximum=state.maximum[0],
                    rescale=step.rescale[0],
                    probabilities=step.probabilities[0],
                    total=state.total[0],
                    values=group.values[0, tokens],
                    rescaled=step.rescaled[0],
                    accumulator=state.accumulator[0],
                )
