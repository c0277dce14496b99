"""The named cases of `tqgate check`: real keys and values, in every variant of the kernel.

Each kind of case is built for every variant, so that an instruction that matters only to, say, ragged lengths
is exercised in each binary. Nothing is built before `NamedCase.build` is called.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tqkernel.plan import VARIANTS, Variant
from tqref import Case
from tqref.case import write_tokens
from tqref.layout import HEAD_SIZE
from tqref.numerics import Float32, bf16_to_f32, f32_to_bf16

ORIGIN = "all-MiniLM-L6-v2, layer 3"
NUM_PARTITIONS = 2
RAGGED_LENGTHS = (0, 1, 15, 16, 17, 255, 256, 257, 300)
UNUSED_TABLE_ENTRY = 0x7FFF_FFFF
"""Past its sequence a block table may hold anything; a kernel that follows this entry leaves the cache."""
FAR_BYTES = 3 << 32
NAN_BF16 = 0x7FC0
LARGE_BF16 = 0x7F00
"""2**127."""
MAX_FP16 = 65504.0
TIE_LENGTHS = (6, 10, 12, 14, 22, 26, 38, 46, 58, 106, 250, 300)
"""Even, so that half of the tokens can hold another value, and no powers of two, whose inverses are exact."""
SUBNORMAL_FP16 = 2.0**-24


@dataclass(frozen=True)
class NamedCase:
    """A case to come, and the kernel variant it is for."""

    name: str
    variant: Variant
    _build: Callable[[Variant], Case]

    def build(self) -> Case:
        """Build the case, which takes some milliseconds."""
        return replace(self._build(self.variant), name=self.name)


def fixtures_directory() -> Path:
    """The fixtures folder: inside the package when it was installed, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "fixtures"
    return installed if installed.is_dir() else package.parent / "fixtures"


@dataclass(frozen=True, eq=False)
class Recording:
    """Keys and values of 512 tokens, float32[512, 3, 128]; 16 queries per KV head, float32[3, 16, 128]."""

    keys: Float32
    values: Float32
    queries: Float32

    def query(self, num_sequences: int, query_group_size: int) -> Float32:
        """Queries float32[N, 3 * QG, 128] of N sequences: other tokens' queries for each."""
        rows = [
            np.roll(self.queries, sequence, axis=1)[:, :query_group_size] for sequence in range(num_sequences)
        ]
        return np.stack(rows).reshape(num_sequences, -1, HEAD_SIZE)


@functools.cache
def minilm() -> Recording:
    with np.load(fixtures_directory() / "minilm_layer3_kv.npz") as arrays:
        keys, values, queries = (bf16_to_f32(arrays[f"{name}_bf16"]) for name in ("key", "value", "query"))
    return Recording(keys, values, queries.reshape(keys.shape[1], -1, HEAD_SIZE))


def _case(variant: Variant, spans: list[slice], tile_groups_per_partition: int = 1) -> Case:
    """One sequence per span of the recorded tokens."""
    recording = minilm()
    widest = max(-(-(span.stop - span.start) // variant.kv_block_size) for span in spans)
    return Case.build(
        "",
        recording.query(len(spans), variant.query_group_size),
        [recording.keys[span] for span in spans],
        [recording.values[span] for span in spans],
        kv_block_size=variant.kv_block_size,
        num_partitions=NUM_PARTITIONS,
        tile_groups_per_partition=tile_groups_per_partition,
        max_blocks_per_sequence=widest + 1,
        unused_table_entry=UNUSED_TABLE_ENTRY,
        origin=ORIGIN,
    )


def _whole(variant: Variant, tile_groups_per_partition: int = 1) -> Case:
    """All 512 tokens in one sequence; with two tile groups a partition, the second partition stays empty."""
    return _case(variant, [slice(0, 512)], tile_groups_per_partition)


def _ragged(variant: Variant) -> Case:
    """A batch of lengths around the edges of blocks, tiles and partitions, from all over the text."""
    return _case(variant, [slice(20 * i, 20 * i + length) for i, length in enumerate(RAGGED_LENGTHS)])


def _scattered(case: Case, stride: int) -> Case:
    """Spread the blocks, whose order is random already, over a cache `stride` times as large."""
    num_blocks = len(case.block_ids) * stride
    within = np.random.default_rng(1).integers(stride, size=len(case.block_ids))
    return case.with_blocks_renamed(np.arange(len(case.block_ids)) * stride + within, num_blocks)


def _shuffled(variant: Variant) -> Case:
    """Sequences whose blocks lie in random order, with holes, all over a cache that they share."""
    return _scattered(_case(variant, [slice(0, 270), slice(250, 512)]), stride=50)


def _dead_bytes(variant: Variant) -> Case:
    """Every byte that no token owns is 0xFF, NaN as metadata. Each sequence's last tile is partly dead."""
    return _case(variant, [slice(0, 37), slice(100, 393)]).with_poisoned_dead_bytes(0xFF)


def _negative_scale(variant: Variant) -> Case:
    """A softmax scale below zero, which a mask of -inf must not be multiplied by."""
    case = _case(variant, [slice(0, 37), slice(100, 393)])
    return replace(case, softmax_scale=-case.softmax_scale)


def _far(variant: Variant) -> Case:
    """A cache of 12 GiB: blocks below 4 GiB, and past it one, two and three times over."""
    case = _case(variant, [slice(0, 300)])
    return _scattered(case, stride=FAR_BYTES // case.layout.block_bytes // len(case.block_ids))


def _nan_query(variant: Variant) -> Case:
    """Two query rows with a NaN among their elements; the other rows must not notice."""
    case = _case(variant, [slice(0, 40), slice(200, 470)])
    query = case.query.copy()
    query[0, 3, 77] = NAN_BF16
    query[1, variant.query_group_size + 7] = NAN_BF16
    return replace(case, query=query)


def _hostile(variant: Variant) -> Case:
    """Live data at the ends of what the formats hold, a theme for each head of each sequence.

    Sequence 0, 300 tokens: extreme scales and zeros, norms growing until probabilities underflow; scores
    that overflow to -inf for a tile and a half before any is finite; norms of zero, all scores equal.
    Sequence 1, 40 tokens: a row whose scores are all -inf; an infinite value scale; a norm that is NaN.
    """
    case = _case(variant, [slice(0, 300), slice(300, 340)])
    long, short = (_Quantised.draw(length, case.num_kv_heads) for length in case.seq_lens.tolist())
    long.key_norm[:, 0] = np.geomspace(SUBNORMAL_FP16, MAX_FP16, len(long.key_norm))
    long.value_scale[:, 0] = np.resize([1, MAX_FP16, 0, SUBNORMAL_FP16, -1], len(long.value_scale))
    long.value_zero[:, 0] = np.resize([0, -MAX_FP16, SUBNORMAL_FP16], len(long.value_zero))
    long.key_norm[:, 1] = 1e-3
    long.key_norm[:24, 1] = MAX_FP16
    long.key_norm[:, 2] = 0
    short.key_norm[:, 0] = MAX_FP16
    short.value_scale[21, 1] = np.inf
    short.key_norm[5, 2] = np.nan
    # The first centroid is negative, so these rows' scores are, and times a large norm they overflow.
    long.key_index[:24, 1, 0] = 0
    short.key_index[:, 0, 0] = 0
    query = case.query.copy()
    for sequence, row in ((0, variant.query_group_size), (1, 1)):
        query[sequence, row] = 0
        query[sequence, row, 0] = LARGE_BF16
    return replace(_storing(case, [long, short]), query=query)


def _ties(variant: Variant) -> Case:
    """Outputs halfway between two bfloat16s before they are rounded, so that one last bit decides.

    Heads 0 and 1: a query of zeros, so all weights are 1, and in each dim half of the tokens are one step
    above the others: the last bit of the inverted sum decides. Head 2: in each row but one token's weight
    some 2**-103, times values that are multiples of 2**-24, the others' values being zero: an accumulator
    that does not start from exactly zero decides, by as little as 2**-149. Scores are not scaled, so that a
    residue of that size shows in the zeros of heads 0 and 1 too.
    """
    case = replace(_case(variant, [slice(0, length) for length in TIE_LENGTHS]), softmax_scale=1.0)
    tokens = [_Quantised.draw(length, case.num_kv_heads) for length in TIE_LENGTHS]
    dims, rows = np.arange(HEAD_SIZE), variant.query_group_size
    for stored in tokens:
        every_other = np.arange(len(stored.key_norm))[:, None] % 2
        stored.value_step[:, :2] = (dims % 15 + every_other)[:, None]
        for head, (scale, zero) in enumerate(((2.0**-7, 1), (2.0**-6, -4))):
            stored.value_scale[:, head], stored.value_zero[:, head] = scale, zero
        # Scores: 0 for the first token, some -71 for the second, and so low for the others that they weigh 0.
        stored.key_index[:, 2] = 0
        stored.key_norm[:, 2] = 200
        stored.key_norm[:2, 2] = 0, -1 / (case.centroids[0] * case.softmax_scale)
        stored.value_step[:, 2] = 1 + dims % 15
        stored.value_scale[:, 2], stored.value_zero[:, 2] = 0, 0
        stored.value_scale[1, 2] = SUBNORMAL_FP16
    query = np.zeros((*case.query.shape[:1], case.num_kv_heads, rows, HEAD_SIZE), np.float32)
    query[:, 2, :, 0] = 64
    query[:, 2, :, 1] = 6.6875 + np.arange(len(TIE_LENGTHS) * rows).reshape(-1, rows) % 20 * 2.0**-5
    query_bits = f32_to_bf16(query.reshape(case.query.shape))
    return replace(_storing(case, tokens), query=query_bits)


def _storing(case: Case, sequences: Sequence[_Quantised]) -> Case:
    """The case with other tokens in its cache, as many."""
    blocks = case.blocks.copy()
    for sequence, stored in enumerate(sequences):
        token = np.arange(len(stored.key_norm))
        block = case.rows_of(case.block_tables[sequence, token // case.kv_block_size])
        write_tokens(blocks, case.layout, block, token % case.kv_block_size, **vars(stored))
    return replace(case, blocks=blocks)


@dataclass(frozen=True, eq=False)
class _Quantised:
    """T tokens as the cache stores them: uint8[T, Hk, 128] and float16[T, Hk]."""

    key_index: NDArray[np.uint8]
    key_norm: NDArray[np.float16]
    value_step: NDArray[np.uint8]
    value_scale: NDArray[np.float16]
    value_zero: NDArray[np.float16]

    @staticmethod
    def draw(num_tokens: int, num_kv_heads: int) -> _Quantised:
        """Random nibbles and moderate metadata."""
        rng = np.random.default_rng(3)
        shape = (num_tokens, num_kv_heads)
        nibbles = rng.integers(16, size=(2, *shape, HEAD_SIZE)).astype(np.uint8)
        norm, scale = rng.uniform(0.5, 2, (2, *shape)).astype(np.float16)
        zero = rng.uniform(-9, 0, shape).astype(np.float16)
        return _Quantised(nibbles[0], norm, nibbles[1], scale, zero)


_KINDS: dict[str, Callable[[Variant], Case]] = {
    "minilm_tg1": _whole,
    "minilm_tg2": functools.partial(_whole, tile_groups_per_partition=2),
    "ragged": _ragged,
    "shuffled": _shuffled,
    "dead_bytes": _dead_bytes,
    "negative_scale": _negative_scale,
    "far": _far,
    "nan_query": _nan_query,
    "hostile": _hostile,
    "ties": _ties,
}


def _named_cases() -> Iterator[NamedCase]:
    for (kind, build), variant in itertools.product(_KINDS.items(), VARIANTS):
        yield NamedCase(f"{kind}_{variant.name}", variant, build)


CASES = {case.name: case for case in _named_cases()}
"""Every named case, in the order `tqgate check` runs them."""
