"""Builders as a user's repository may have them: kernels that write what they were given, not a decode.

Row r of `exp_sums` becomes the sequence's length plus r, row r of `max_logits` the size of the cache's blocks.
"""

from __future__ import annotations

import functools

import flydsl.compiler as flyc
import flydsl.expr as fx

WAVE = 64


def build_kernel_of_tensors(num_seqs, num_kv_heads, num_partitions, query_group_size, **others):
    """A bare kernel of eight tensors, which nobody has launched yet; its names end in _ptr."""

    @flyc.kernel
    def probe_kernel(
        out_ptr: fx.Tensor,
        exp_sums_ptr: fx.Tensor,
        max_logits_ptr: fx.Tensor,
        query_ptr: fx.Tensor,
        kv_cache_ptr: fx.Tensor,
        centroids_ptr: fx.Tensor,
        block_tables_ptr: fx.Tensor,
        seq_lens_ptr: fx.Tensor,
    ):
        sequence, head, partition = fx.block_idx.x, fx.block_idx.y, fx.block_idx.z
        lane = fx.thread_idx.x
        block_bytes = fx.get_scalar(fx.get_shape(fx.get_layout(kv_cache_ptr))[1])
        if lane < query_group_size:
            where = (sequence, head, partition, lane)
            exp_sums_ptr[where] = (seq_lens_ptr[sequence] + lane).to(fx.Float32)
            max_logits_ptr[where] = fx.Int32(block_bytes).to(fx.Float32)

    return probe_kernel


def build_launcher_of_tensors(num_seqs, num_kv_heads, num_partitions, **others):
    """A launcher of the same kernel, its parameters called anything, with a stream."""
    probe = build_kernel_of_tensors(num_seqs, num_kv_heads, num_partitions, **others)
    grid = (num_seqs, num_kv_heads, num_partitions)

    @flyc.jit
    def launch(
        a: fx.Tensor,
        b: fx.Tensor,
        c: fx.Tensor,
        d: fx.Tensor,
        e: fx.Tensor,
        f: fx.Tensor,
        g: fx.Tensor,
        h: fx.Tensor,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 FlyDSL reads the default's type
    ):
        probe(a, b, c, d, e, f, g, h).launch(grid=grid, block=(WAVE, 1, 1), stream=stream)

    return launch


def _elements(pointer, dtype):
    """A pointer to bytes as one to 32-bit elements."""
    return fx.recast_iter(fx.PointerType.get(dtype.ir_type, pointer.address_space, 4), pointer)


def build_launcher_of_pointers(num_partitions, query_group_size, kv_block_size, **others):
    """A launcher of pointers in an order of its own, with sizes for the grid and one for the kernel."""

    @flyc.kernel(known_block_size=(WAVE, 1, 1))
    def probe_kernel(
        seq_lens: fx.Pointer, exp_sums: fx.Pointer, max_logits: fx.Pointer, num_kv_heads: fx.Int32
    ):
        sequence, head, partition = fx.block_idx.x, fx.block_idx.y, fx.block_idx.z
        lane = fx.thread_idx.x
        row = ((sequence * num_kv_heads + head) * num_partitions + partition) * query_group_size + lane
        length = _elements(seq_lens, fx.Int32)[sequence]
        if lane < query_group_size:
            _elements(exp_sums, fx.Float32)[row] = (length + lane).to(fx.Float32)
            block_bytes = num_kv_heads * (kv_block_size * 134)
            _elements(max_logits, fx.Float32)[row] = block_bytes.to(fx.Float32)

    @flyc.jit
    def launch(
        seq_lens: fx.Pointer,
        exp_sums: fx.Pointer,
        max_logits: fx.Pointer,
        num_kv_heads: fx.Int32,
        num_seqs: fx.Int32,
    ):
        probe_kernel(seq_lens, exp_sums, max_logits, num_kv_heads).launch(
            grid=(num_seqs, num_kv_heads, num_partitions), block=(WAVE, 1, 1)
        )

    return launch


def build_launcher_of_sizes(num_partitions, **others):
    """A launcher whose grid is computed from a tensor's sizes and a scalar, with an argument in another place."""

    @flyc.kernel
    def nothing_kernel(seq_lens: fx.Tensor, out: fx.Tensor):
        pass

    @flyc.jit
    def launch(
        out: fx.Tensor, seq_lens: fx.Tensor, num_kv_heads: fx.Int32, stream: fx.Stream = fx.Stream(None)  # noqa: B008
    ):
        sequences = fx.get_scalar(fx.get_shape(fx.get_layout(out))[0])
        pairs = (num_kv_heads + 1) // 2
        nothing_kernel(seq_lens, out).launch(
            grid=(sequences, pairs * 2 - num_kv_heads % 2, num_partitions), block=(WAVE, 1, 1), stream=stream
        )

    return launch


@functools.cache
def probe_of_query_group(query_group_size):
    return build_kernel_of_tensors(1, 1, 1, query_group_size)


def build_the_same_kernel_again(query_group_size, **others):
    """A bare kernel that is the same for all sizes but one."""
    return probe_of_query_group(query_group_size)


@flyc.kernel
def heads_kernel(exp_sums: fx.Tensor, heads: fx.Constexpr[int]):
    where = (fx.block_idx.x, fx.block_idx.y, fx.block_idx.z, 0)
    exp_sums[where] = fx.Float32(float(heads))


@flyc.jit
def launch_heads(
    exp_sums: fx.Tensor,
    num_seqs: fx.Int32,
    num_kv_heads: fx.Constexpr[int],
    num_partitions: fx.Int32,
):
    heads_kernel(exp_sums, num_kv_heads).launch(
        grid=(num_seqs, num_kv_heads, num_partitions), block=(WAVE, 1, 1)
    )


def build_launcher_of_a_constant(**others):
    """One launcher for all sizes, of which the heads are compiled in."""
    return launch_heads


def build_launcher_of_two_waves(num_seqs, num_kv_heads, num_partitions, **others):
    """Its grid lacks a partition, and its workgroups have a wave too many."""

    @flyc.kernel
    def counting_kernel(exp_sums: fx.Tensor):
        where = (fx.block_idx.x, fx.block_idx.y, fx.block_idx.z, fx.thread_idx.x // WAVE)
        exp_sums[where] = fx.Float32(1.0)

    @flyc.jit
    def launch(exp_sums: fx.Tensor):
        counting_kernel(exp_sums).launch(
            grid=(num_seqs, num_kv_heads, num_partitions - 1), block=(2 * WAVE, 1, 1)
        )

    return launch


def build_launcher_that_computes(num_seqs, num_kv_heads, num_partitions, **others):
    """Its kernel is given a number that no parameter is."""

    @flyc.kernel
    def nothing_kernel(out: fx.Tensor, twice: fx.Int32):
        pass

    @flyc.jit
    def launch(out: fx.Tensor, num_kv_heads: fx.Int32):
        nothing_kernel(out, num_kv_heads * 2).launch(
            grid=(num_seqs, num_kv_heads, num_partitions), block=(WAVE, 1, 1)
        )

    return launch


def build_launcher_of_nothing(**others):
    @flyc.jit
    def launch(out: fx.Tensor):
        pass

    return launch


def build_kernel_of_two(**parameters):
    @flyc.kernel
    def two(out: fx.Tensor, query: fx.Tensor):
        pass

    return two


def build_with_unknown_parameter(**parameters):
    @flyc.jit
    def launch(out: fx.Pointer, temperature: fx.Float32):
        pass

    return launch


def build_nothing(**parameters):
    return None
