"""The TurboQuant 4-bit paged attention decode kernel, on FlyDSL.

One wave of 64 lanes computes one (sequence, KV head, partition): it walks the partition 16 tokens at a time
and keeps an online softmax. A lane is named by its `row` (lane % 16) and its `group` (lane // 16), as the
matrix core sees it:

- dequantising, a lane owns token `row` of the tile and, of each 32 head dims, the eight from 8*`group`;
- scores come out of the matrix core with query row `row` and tokens 4*`group` .. 4*`group` + 3;
- the output accumulator holds query row `row` and, of each 16 head dims, the four from 4*`group`.

Keys are dequantised straight into the matrix core's operand layout. Values need their transpose, which goes
through LDS: written as bf16[token][head dim] and read by the transposing `ds_read_b64_tr_b16`, or written as
bf16[head dim][token] and read plainly.

Arithmetic is f32, one rounding per operation, in the order written: no fast-math flag anywhere, and each
helper below says which step of the contract it is.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl
from flydsl.expr.meta import dsl_loc_tracing
from flydsl.expr.typing import T

from tqkernel.plan import KERNEL_ARGUMENTS, WAVE_LANES, Variant, check_arguments
from tqref.layout import (
    DATA_BYTES,
    GROUP_TOKENS,
    HEAD_SIZE,
    METADATA_BYTES,
    NUM_CENTROIDS,
    PACKED_BYTES,
    TILE_TOKENS,
    TILES_PER_GROUP,
    MetadataField,
)

__all__ = ["KERNEL_ARGUMENTS", "build_decode_launcher", "build_tq_decode_module", "placeholder_arguments"]

GROUP_SHIFT = GROUP_TOKENS.bit_length() - 1
LOG2E = 1.4426950408889634
QK_CHUNK = 32
"""Head dims that one QK matrix instruction sums over."""
NUM_QK_CHUNKS = HEAD_SIZE // QK_CHUNK
NUM_PV_CHUNKS = HEAD_SIZE // 16
WORD_NIBBLES = 8
BF16_BYTES = 2
QUERY_ROW_BYTES = HEAD_SIZE * BF16_BYTES
CENTROID_PAIR_BYTES = NUM_CENTROIDS * NUM_CENTROIDS * 8
VALUE_ROW_BYTES = HEAD_SIZE * BF16_BYTES + 16
"""LDS pitch of bf16[token][head dim]: padded by four banks, so that 16-byte writes of neighbouring tokens do
not collide."""
TRANSPOSED_ROW_BYTES = TILE_TOKENS * BF16_BYTES + 8
"""LDS pitch of bf16[head dim][token]: padded by two banks, for the same reason."""


class Lane(NamedTuple):
    """Where a lane stands in the wave: `row` = lane % 16, `group` = lane // 16."""

    row: Any
    group: Any


class Softmax(NamedTuple):
    """State of the online softmax of query row `lane.row`: running maximum and running sum."""

    maximum: Any
    sum: Any


def _at(base: Any, byte_offset: Any, dtype: Any, alignment: int) -> Any:
    """Pointer to `dtype`, `byte_offset` bytes past `base` (a byte pointer), promised to be aligned."""
    pointer_type = fx.PointerType.get(dtype.ir_type, base.address_space, alignment)
    return fx.recast_iter(pointer_type, fx.add_offset(base, fx.make_int_tuple(byte_offset)))


def _unsigned(offset: Any) -> Any:
    """A 32-bit byte offset that is never negative, widened: next to a base that the whole wave shares, the
    load then adds the two itself."""
    return fx.Int64(fx.Uint32(offset))


def _load(base: Any, byte_offset: Any, dtype: Any, count: int = 1) -> Any:
    """Load `count` elements at `byte_offset`: a scalar, or a vector aligned to its own size."""
    element_bytes = dtype.width // 8
    source = _at(base, byte_offset, dtype, element_bytes * count)
    if count == 1:
        return source.load()
    return fx.Vector(fx.ptr_load(source, result_type=fx.Vector.make_type(count, dtype)))


def _store(base: Any, byte_offset: Any, value: Any) -> None:
    """Store a scalar, or a vector aligned to its own size, at `byte_offset`."""
    count = value.numel if isinstance(value, fx.Vector) else 1
    fx.ptr_store(value, _at(base, byte_offset, value.dtype, value.dtype.width // 8 * count))


def _f32(values: list[Any]) -> Any:
    return fx.Vector.from_elements(values, dtype=fx.Float32)


@dsl_loc_tracing  # rocdl's own functions have no location
def _exchange(value: Any, swap: Any) -> tuple[Any, Any]:
    """Both outcomes of a permlane swap of an f32 with itself: every lane gets its own group's value and the
    value of the group it is paired with, in an order that depends on the lane."""
    bits = value.bitcast(fx.Int32).ir_value()
    pair = swap(ir.Type.parse("!llvm.struct<(i32, i32)>"), bits, bits, False, False)
    return tuple(fx.Int32(llvm.extractvalue(T.i32, pair, [half])).bitcast(fx.Float32) for half in (0, 1))


def _across_groups(value: Any, combine: Any) -> Any:
    """(g0 . g1) . (g2 . g3), where gi is the value in lane group i and `combine` commutes: the same in every
    group."""
    neighbours = combine(*_exchange(value, rocdl.permlane16_swap))
    return combine(*_exchange(neighbours, rocdl.permlane32_swap))


def load_query(query: Any, row_offset: Any, lane: Lane) -> list[Any]:
    """Query row as the QK instruction's B operand: bf16x8 for each of the four chunks of 32 head dims."""
    return [
        _load(query, row_offset + (chunk * QK_CHUNK * BF16_BYTES) + lane.group * 16, fx.BFloat16, 8)
        for chunk in range(NUM_QK_CHUNKS)
    ]


def fill_centroid_pairs(pairs: Any, centroids: Any, lane_index: Any) -> None:
    """Write the LDS table that maps a byte of packed key to the centroids of its two nibbles, f32x2[256].

    Lane i writes entries 4i .. 4i + 3, whose high nibble is i // 4.
    """
    low = _load(centroids, (lane_index & 3) * 16, fx.Float32, 4)
    high = _load(centroids, (lane_index >> 2) * 4, fx.Float32)
    for half in range(2):
        entries = _f32([low[2 * half], high, low[2 * half + 1], high])
        _store(pairs, lane_index * 32 + half * 16, entries)


def load_words(block: Any, byte_offset: Any) -> list[Any]:
    """The lane's packed nibbles of one key or value: word c holds head dims 32c + 8*group .. + 7."""
    return [_load(block, byte_offset + chunk * (QK_CHUNK // 2), fx.Int32) for chunk in range(NUM_QK_CHUNKS)]


def dequantise_key(words: list[Any], norm: Any, pairs: Any) -> list[Any]:
    """Step 1, K = bf16(centroid * norm), as the QK instruction's A operand: bf16x8 for each chunk of 32 head
    dims."""
    chunks = []
    for word in words:
        centroids = []
        for byte in range(4):
            entry = ((word >> (8 * byte)) & 0xFF) * 8
            centroids += list(_load(pairs, entry, fx.Float32, 2))
        chunks.append((_f32(centroids) * norm).to(fx.BFloat16))
    return chunks


def score(key: list[Any], query: list[Any], softmax_scale: Any, live_tokens: Any) -> list[Any]:
    """Steps 2 and 3: the lane's four scores, scaled; -inf from the `live_tokens`-th on."""
    products = fx.Vector.filled(4, 0.0, fx.Float32)
    for key_chunk, query_chunk in zip(key, query, strict=True):
        products = fx.Vector(
            rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [key_chunk, query_chunk, products, 0, 0, 0])
        )
    scaled = products * softmax_scale
    dead = fx.Float32(float("-inf"))
    return [(live_tokens > token).select(scaled[token], dead) for token in range(4)]


def softmax_step(scores: list[Any], state: Softmax) -> tuple[list[Any], Any, Softmax]:
    """Steps 4 to 7: probabilities of the lane's four tokens, the factor that rescales what was accumulated so
    far, and the new state. The maximum propagates NaN, and a row of nothing but -inf so far keeps
    probabilities of 0."""
    nothing = fx.Float32(float("-inf"))
    tile_maximum = functools.reduce(fx.maximumf, scores)
    maximum = fx.maximumf(state.maximum, _across_groups(tile_maximum, fx.maximumf))
    change = (state.maximum == nothing).select(fx.Float32(0.0), state.maximum - maximum)
    rescale = _exp2(change * LOG2E)
    # Where the maximum is -inf every score is too, and -inf - 0 is the -inf the contract asks for.
    reference = (maximum == nothing).select(fx.Float32(0.0), maximum)
    probabilities = [_exp2((value - reference) * LOG2E) for value in scores]
    # The contract's leading 0 + p0 is p0, an exp2 never being -0.
    group_sum = functools.reduce(lambda total, value: total + value, probabilities)
    total = _across_groups(group_sum, lambda left, right: left + right)
    return probabilities, rescale, Softmax(maximum, state.sum * rescale + total)


@dsl_loc_tracing
def _exp2(value: Any) -> Any:
    """The bare `v_exp_f32`: 1 ulp, subnormals flushed."""
    return fx.Float32(rocdl.exp2(T.f32, value.ir_value()))


def dequantise_value(words: list[Any], scale: Any, zero: Any) -> list[Any]:
    """Step 8, V = bf16(nibble * scale + zero), product rounded before the sum: bf16x8 per chunk of 32 head
    dims."""
    chunks = []
    for word in words:
        low, high = ((word >> shift) & 0x0F0F0F0F for shift in (0, 4))
        low, high = (fx.Vector.from_elements([half]).bitcast(fx.Uint8).to(fx.Float32) for half in (low, high))
        nibbles = low.shuffle(high, [0, 4, 1, 5, 2, 6, 3, 7])
        chunks.append((nibbles * scale + zero).to(fx.BFloat16))
    return chunks


def write_values(values: Any, chunks: list[Any], lane: Lane, hw_v_transpose: bool) -> None:
    """Put the lane's 32 dequantised values where `read_values` finds them."""
    for chunk, elements in enumerate(chunks):
        if hw_v_transpose:
            column = chunk * QK_CHUNK * BF16_BYTES
            _store(values, lane.row * VALUE_ROW_BYTES + lane.group * 16 + column, elements)
        else:
            for index in range(WORD_NIBBLES):
                row = lane.group * 8 + (chunk * QK_CHUNK + index)
                _store(values, row * TRANSPOSED_ROW_BYTES + lane.row * BF16_BYTES, elements[index])


def read_values(values: Any, lane: Lane, hw_v_transpose: bool) -> list[Any]:
    """The PV instruction's A operand: for each 16 head dims, dim `row` of tokens 4*group .. + 3, as i16x4."""
    if not hw_v_transpose:
        offset = lane.row * TRANSPOSED_ROW_BYTES + lane.group * 8
        stride = 16 * TRANSPOSED_ROW_BYTES
        return [_load(values, offset + chunk * stride, fx.Int16, 4) for chunk in range(NUM_PV_CHUNKS)]
    # Lane 4e + q of a group addresses head dims 4q .. 4q + 3 of the group's token e; the instruction
    # transposes.
    token = lane.group * 4 + (lane.row >> 2)
    offset = token * VALUE_ROW_BYTES + (lane.row & 3) * 8
    atom = fx.make_copy_atom(rocdl.cdna4.LDSReadTrans16_64b(), fx.Int16)
    four = fx.make_layout(4, 1)
    chunks = []
    for chunk in range(NUM_PV_CHUNKS):
        source = fx.make_view(_at(values, offset + chunk * 16 * BF16_BYTES, fx.Int16, 8), four)
        operand = fx.make_rmem_tensor(four, fx.Int16)
        fx.copy(atom, source, operand)
        chunks.append(fx.Vector(operand.load()))
    return chunks


def accumulate(values: list[Any], probabilities: list[Any], rescale: Any, output: list[Any]) -> list[Any]:
    """Steps 5 and 9: rescale the accumulator and add V times bf16(p)."""
    weights = _f32(probabilities).to(fx.BFloat16).bitcast(fx.Int16)
    return [
        fx.Vector(rocdl.mfma_f32_16x16x16bf16_1k(T.f32x4, [value, weights, part * rescale, 0, 0, 0]))
        for value, part in zip(values, output, strict=True)
    ]


def normalise(output: list[Any], total: Any) -> list[Any]:
    """The partition's output, bf16(acc / sum) by way of the correctly rounded reciprocal; bf16x4 per 16 head
    dims."""
    one = fx.Float32(1.0)
    inverse = one / (total > 0.0).select(total, one)
    return [(part * inverse).to(fx.BFloat16) for part in output]


@functools.cache
def build_decode_launcher(variant: Variant) -> Any:
    """The `@flyc.jit` launcher of one variant of the kernel.

    Its arguments are `KERNEL_ARGUMENTS`, then `num_sequences` (i32, the grid's first extent) and a stream.
    """
    query_group_size, kv_block_size, hw_v_transpose = (
        variant.query_group_size,
        variant.kv_block_size,
        variant.hw_v_transpose,
    )
    block_shift = kv_block_size.bit_length() - 1
    tiles_per_block = kv_block_size // TILE_TOKENS
    blocks_per_group = TILES_PER_GROUP // tiles_per_block
    value_bytes = TILE_TOKENS * VALUE_ROW_BYTES if hw_v_transpose else HEAD_SIZE * TRANSPOSED_ROW_BYTES
    field_bytes = kv_block_size * METADATA_BYTES
    head_metadata_bytes = len(MetadataField) * field_bytes

    @flyc.kernel(known_block_size=(WAVE_LANES, 1, 1))
    def tq_decode_kernel(
        out: fx.Pointer,
        exp_sums: fx.Pointer,
        max_logits: fx.Pointer,
        query: fx.Pointer,
        kv_cache: fx.Pointer,
        centroids: fx.Pointer,
        block_tables: fx.Pointer,
        seq_lens: fx.Pointer,
        num_kv_heads: fx.Int32,
        num_partitions: fx.Int32,
        tile_groups_per_partition: fx.Int32,
        max_blocks_per_seq: fx.Int32,
        softmax_scale: fx.Float32,
    ):
        lane_index = fx.thread_idx.x
        lane = Lane(lane_index & 15, lane_index >> 4)
        sequence, head, partition = fx.block_idx.x, fx.block_idx.y, fx.block_idx.z

        shared = fx.SharedAllocator()
        pairs = shared.allocate(fx.Array[fx.Uint8, CENTROID_PAIR_BYTES, 16]).peek().ptr
        values = shared.allocate(fx.Array[fx.Uint8, value_bytes, 16]).peek().ptr
        fill_centroid_pairs(pairs, centroids, lane_index)

        seq_len = _load(seq_lens, fx.Int64(sequence) * 4, fx.Int32)
        partition_start = partition * tile_groups_per_partition * GROUP_TOKENS
        # ceil(remaining / GROUP_TOKENS), rounding a negative remainder towards minus infinity.
        groups_needed = ((seq_len - partition_start - 1) >> GROUP_SHIFT) + 1
        trips = fx.max(fx.min(groups_needed, tile_groups_per_partition), 0)
        last_block = (seq_len - 1) >> block_shift
        table = block_tables + fx.Int64(sequence) * fx.Int64(max_blocks_per_seq) * 4

        # A group of 8 fills half of the matrix core's 16 rows; the other half repeats it and is never stored.
        sequence_head = fx.Int64(sequence) * num_kv_heads + head
        query_rows = query + sequence_head * (query_group_size * QUERY_ROW_BYTES)
        query_row = lane.row & (query_group_size - 1)
        query_chunks = load_query(query_rows, query_row * QUERY_ROW_BYTES, lane)

        data_bytes = num_kv_heads * (kv_block_size * DATA_BYTES)
        block_bytes = data_bytes + num_kv_heads * head_metadata_bytes
        head_data = head * DATA_BYTES + lane.group * 4
        head_metadata = data_bytes + head * head_metadata_bytes

        fx.gpu.barrier()

        maximum = fx.Float32(float("-inf"))
        total = fx.Float32(0.0)
        output = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in fx.range_constexpr(NUM_PV_CHUNKS)]
        first_block = partition_start >> block_shift
        for step in range(0, trips * blocks_per_group, 1):
            # Past the sequence, a tile is computed on its last block: no dead entry is ever read.
            entry = fx.min(first_block + step, last_block)
            block_id = _load(table, fx.Int64(entry) * 4, fx.Int32)
            block = kv_cache + fx.Int64(block_id) * fx.Int64(block_bytes)
            for tile in fx.range_constexpr(tiles_per_block):
                slot = lane.row + tile * TILE_TOKENS
                data = _unsigned(slot * (num_kv_heads * DATA_BYTES) + head_data)
                metadata = _unsigned(head_metadata + slot * METADATA_BYTES)
                key_words = load_words(block, data)
                norm = _load(block, metadata + MetadataField.KEY_NORM * field_bytes, fx.Float16)
                value_words = load_words(block, data + PACKED_BYTES)
                scale = _load(block, metadata + MetadataField.VALUE_SCALE * field_bytes, fx.Float16)
                zero = _load(block, metadata + MetadataField.VALUE_ZERO * field_bytes, fx.Float16)

                live_tokens = seq_len - (first_block + step) * kv_block_size - tile * TILE_TOKENS
                key = dequantise_key(key_words, norm.to(fx.Float32), pairs)
                scores = score(key, query_chunks, softmax_scale, live_tokens - lane.group * 4)
                probabilities, rescale, state = softmax_step(scores, Softmax(maximum, total))
                maximum, total = state.maximum, state.sum

                # 0 * NaN is NaN: a dead token's value must be 0, not only its probability.
                live = live_tokens > lane.row
                dead = fx.Float32(0.0)
                value = dequantise_value(
                    value_words,
                    live.select(scale.to(fx.Float32), dead),
                    live.select(zero.to(fx.Float32), dead),
                )
                # Lanes read what other lanes wrote, here and in the tile before.
                fx.gpu.barrier()
                write_values(values, value, lane, hw_v_transpose)
                fx.gpu.barrier()
                operands = read_values(values, lane, hw_v_transpose)
                output = accumulate(operands, probabilities, rescale, output)

        row_index = (sequence_head * num_partitions + partition) * query_group_size
        if lane.row < query_group_size:
            out_rows = out + row_index * QUERY_ROW_BYTES
            for chunk, part in enumerate(normalise(output, total)):
                _store(out_rows, lane.row * QUERY_ROW_BYTES + lane.group * 8 + chunk * 32, part)
        if lane_index < query_group_size:
            _store(exp_sums + row_index * 4, lane_index * 4, total)
            _store(max_logits + row_index * 4, lane_index * 4, maximum)

    @flyc.jit
    def tq_decode(
        out: fx.Pointer,
        exp_sums: fx.Pointer,
        max_logits: fx.Pointer,
        query: fx.Pointer,
        kv_cache: fx.Pointer,
        centroids: fx.Pointer,
        block_tables: fx.Pointer,
        seq_lens: fx.Pointer,
        num_kv_heads: fx.Int32,
        num_partitions: fx.Int32,
        tile_groups_per_partition: fx.Int32,
        max_blocks_per_seq: fx.Int32,
        softmax_scale: fx.Float32,
        num_sequences: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 FlyDSL reads the default's type
    ):
        tq_decode_kernel(
            out,
            exp_sums,
            max_logits,
            query,
            kv_cache,
            centroids,
            block_tables,
            seq_lens,
            num_kv_heads,
            num_partitions,
            tile_groups_per_partition,
            max_blocks_per_seq,
            softmax_scale,
        ).launch(grid=(num_sequences, num_kv_heads, num_partitions), block=(WAVE_LANES, 1, 1), stream=stream)

    return tq_decode


def placeholder_arguments() -> tuple[Any, ...]:
    """Arguments that specialise the launcher without any memory behind them: it specialises on types
    alone."""
    placeholders = {"pointer": flyc.from_c_void_p(fx.Uint8, None), "i32": 1, "f32": 1.0}
    return (*(placeholders[argument.kind] for argument in KERNEL_ARGUMENTS), 1)


@dataclass(frozen=True)
class TqDecodeModule:
    """The kernel built for one set of sizes; call it to launch a decode on a gfx950.

    Attributes are the parameters of `build_tq_decode_module`.
    """

    num_seqs: int
    num_kv_heads: int
    num_partitions: int
    max_blocks_per_seq: int
    softmax_scale: float
    variant: Variant
    tile_groups_per_partition: int

    @property
    def launcher(self) -> Any:
        """The `@flyc.jit` launcher; see `build_decode_launcher`."""
        return build_decode_launcher(self.variant)

    def __call__(
        self,
        out: Any,
        exp_sums: Any,
        max_logits: Any,
        query: Any,
        kv_cache: Any,
        centroids: Any,
        block_tables: Any,
        seq_lens: Any,
        *,
        stream: Any = None,
        check_values: bool = True,
    ) -> None:
        """Check the arguments, then launch; the three outputs are written when `stream` gets there.

        Args:
            out: bf16[N, Hk, P, QG, 128], written.
            exp_sums: f32[N, Hk, P, QG], written.
            max_logits: f32[N, Hk, P, QG], written.
            query: bf16[N, Hk * QG, 128], already rotated.
            kv_cache: u8[num_blocks, BS * Hk * 134].
            centroids: f32[16].
            block_tables: i32[N, max_blocks_per_seq].
            seq_lens: i32[N], tokens.
            stream: torch stream or raw handle; the default stream if None.
            check_values: also check what the lengths and tables hold, which waits for the GPU. Turn it off to
                capture a graph.

        Raises:
            TypeError, ValueError: see `tqkernel.plan.check_arguments`; nothing was launched.
        """
        arrays = dict(
            out=out,
            exp_sums=exp_sums,
            max_logits=max_logits,
            query=query,
            kv_cache=kv_cache,
            centroids=centroids,
            block_tables=block_tables,
            seq_lens=seq_lens,
        )
        check_arguments(
            arrays,
            num_kv_heads=self.num_kv_heads,
            query_group_size=self.variant.query_group_size,
            kv_block_size=self.variant.kv_block_size,
            num_partitions=self.num_partitions,
            tile_groups_per_partition=self.tile_groups_per_partition,
            softmax_scale=self.softmax_scale,
            values=check_values,
        )
        if not str(getattr(query, "device", "cpu")).startswith("cuda"):
            raise ValueError("query: expected a tensor on a GPU, got one in host memory")
        expected = (self.num_seqs, self.max_blocks_per_seq)
        if tuple(block_tables.shape) != expected:
            raise ValueError(f"block_tables: expected shape {expected}, got {tuple(block_tables.shape)}")
        _compiled(self.variant)(
            *(array.data_ptr() for array in arrays.values()),
            self.num_kv_heads,
            self.num_partitions,
            self.tile_groups_per_partition,
            self.max_blocks_per_seq,
            self.softmax_scale,
            self.num_seqs,
            fx.Stream(stream),
        )


@functools.cache
def _compiled(variant: Variant) -> Any:
    """The variant compiled for this machine's GPU, ready for repeated launches."""
    return flyc.compile(build_decode_launcher(variant), *placeholder_arguments())


def build_tq_decode_module(
    num_seqs: int,
    num_kv_heads: int,
    num_partitions: int,
    max_blocks_per_seq: int = 512,
    softmax_scale: float | None = None,
    query_group_size: int = 8,
    kv_block_size: int = 16,
    use_hw_v_transpose: bool = False,
    tile_groups_per_partition: int = 1,
) -> TqDecodeModule:
    """Build the decode kernel. Only the query group, the block size and the transpose path cost a compile.

    Args:
        num_seqs: N, sequences in the batch.
        num_kv_heads: Hk.
        num_partitions: P, how many waves share one (sequence, KV head).
        max_blocks_per_seq: W, width of the block table.
        softmax_scale: multiplies every score; 1/sqrt(128) if None.
        query_group_size: query heads per KV head, 8 or 16.
        kv_block_size: tokens per cache block, 16 or 32.
        use_hw_v_transpose: transpose values with `ds_read_b64_tr_b16`.
        tile_groups_per_partition: G; each partition is G * 256 tokens.

    Raises:
        ValueError: a query group or block size the kernel is not written for.
    """
    return TqDecodeModule(
        num_seqs,
        num_kv_heads,
        num_partitions,
        max_blocks_per_seq,
        1 / math.sqrt(HEAD_SIZE) if softmax_scale is None else softmax_scale,
        Variant(query_group_size, kv_block_size, use_hw_v_transpose),
        tile_groups_per_partition,
    )
