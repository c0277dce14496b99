"""How a decode is launched: what the kernel is specialised on, how a sequence is split, which arguments it
accepts.

Arrays may be NumPy arrays or torch tensors; neither FlyDSL nor torch is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tqref.layout import (
    GROUP_TOKENS,
    HEAD_SIZE,
    NUM_CENTROIDS,
    SUPPORTED_KV_BLOCK_SIZES,
    SUPPORTED_QUERY_GROUP_SIZES,
    CacheLayout,
)
from tqref.numerics import MAX_F32

WAVE_LANES = 64
"""Work-items of a workgroup: one wave for each (sequence, KV head, partition)."""

MIN_PARTITIONS = 2
MAX_PARTITIONS = 32
_MAX_I32 = 2**31 - 1


def _check_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")


def _check_positive(name: str, value: Any) -> None:
    _check_integer(name, value)
    if not 1 <= value <= _MAX_I32:
        raise ValueError(f"{name}: expected 1 to {_MAX_I32}, got {value}")


def _check_choice(name: str, value: Any, choices: tuple[int, ...]) -> None:
    _check_integer(name, value)
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value}")


class KernelArgument(NamedTuple):
    """One argument of the kernel: its name and its kind, `pointer` (to device memory), `i32` or `f32`."""

    name: str
    kind: str


KERNEL_ARGUMENTS = (
    KernelArgument("out", "pointer"),
    KernelArgument("exp_sums", "pointer"),
    KernelArgument("max_logits", "pointer"),
    KernelArgument("query", "pointer"),
    KernelArgument("kv_cache", "pointer"),
    KernelArgument("centroids", "pointer"),
    KernelArgument("block_tables", "pointer"),
    KernelArgument("seq_lens", "pointer"),
    KernelArgument("num_kv_heads", "i32"),
    KernelArgument("num_partitions", "i32"),
    KernelArgument("tile_groups_per_partition", "i32"),
    KernelArgument("max_blocks_per_seq", "i32"),
    KernelArgument("softmax_scale", "f32"),
)
"""The kernel's arguments, in order."""

OUTPUTS = ("out", "exp_sums", "max_logits")


@dataclass(frozen=True)
class Variant:
    """What one binary of the kernel is specialised on; every other size is an argument.

    Raises:
        ValueError: a query group or block size the kernel is not written for.
    """

    query_group_size: int
    kv_block_size: int
    hw_v_transpose: bool

    def __post_init__(self) -> None:
        _check_choice("query_group_size", self.query_group_size, SUPPORTED_QUERY_GROUP_SIZES)
        _check_choice("kv_block_size", self.kv_block_size, SUPPORTED_KV_BLOCK_SIZES)

    @property
    def name(self) -> str:
        """Short name, e.g. `qg8_bs16_hwtr`."""
        path = "hwtr" if self.hw_v_transpose else "swtr"
        return f"qg{self.query_group_size}_bs{self.kv_block_size}_{path}"


VARIANTS = tuple(
    Variant(query_group_size, kv_block_size, hw_v_transpose)
    for query_group_size in SUPPORTED_QUERY_GROUP_SIZES
    for kv_block_size in SUPPORTED_KV_BLOCK_SIZES
    for hw_v_transpose in (False, True)
)
"""Every variant there is."""


class Partitioning(NamedTuple):
    """How every sequence of a launch is split: P partitions of G tile groups of 256 tokens."""

    num_partitions: int
    tile_groups_per_partition: int


def plan_partitions(max_blocks_per_seq: int, kv_block_size: int, requested_splits: int = 1) -> Partitioning:
    """Split the longest sequence that a block table of this width can hold.

    The split depends on nothing that changes between launches, so that a captured graph keeps its grid.

    Args:
        max_blocks_per_seq: width of the block table.
        kv_block_size: tokens per cache block, 16 or 32.
        requested_splits: partitions asked for, at least; 32 is the most there can be.

    Returns:
        P, a power of two from 2 to 32, and G, a power of two, with P * G * 256 tokens covering the table.

    Raises:
        TypeError, ValueError: an argument that is no integer, or out of range.
    """
    _check_positive("max_blocks_per_seq", max_blocks_per_seq)
    _check_choice("kv_block_size", kv_block_size, SUPPORTED_KV_BLOCK_SIZES)
    _check_positive("requested_splits", requested_splits)
    needed = _ceil_div(max_blocks_per_seq * kv_block_size, GROUP_TOKENS)
    wanted = min(MAX_PARTITIONS, max(needed, requested_splits))
    partitions = max(MIN_PARTITIONS, _power_of_two_at_least(wanted))
    return Partitioning(partitions, _power_of_two_at_least(_ceil_div(needed, partitions)))


def check_arguments(
    arrays: Mapping[str, Any],
    *,
    num_kv_heads: int,
    query_group_size: int,
    kv_block_size: int,
    num_partitions: int,
    tile_groups_per_partition: int,
    softmax_scale: float = 1 / math.sqrt(HEAD_SIZE),
    values: bool = True,
) -> None:
    """Check everything a launch takes. Nothing is written, and nothing launched, by the time this raises.

    Args:
        arrays: the kernel's pointer arguments by name, all of them, contiguous and on one device. With N
            sequences, Hk KV heads, P partitions, query groups of QG, blocks of BS tokens, tables W blocks
            wide:

            ============  =============================  ============================
            out           bf16                           [N, Hk, P, QG, 128]
            exp_sums      f32                            [N, Hk, P, QG]
            max_logits    f32                            [N, Hk, P, QG]
            query         bf16                           [N, Hk * QG, 128]
            kv_cache      u8                             [num_blocks, BS * Hk * 134]
            centroids     f32                            [16]
            block_tables  i32                            [N, W]
            seq_lens      i32                            [N]
            ============  =============================  ============================

            NumPy has no bf16: its bits as uint16 are taken instead.
        num_kv_heads: Hk.
        query_group_size: QG, 8 or 16.
        kv_block_size: BS, 16 or 32.
        num_partitions: P.
        tile_groups_per_partition: G; a partition is G * 256 tokens.
        softmax_scale: a finite float32.
        values: also read the sequence lengths and block tables. On a GPU that waits for it, and is not
            possible while a graph is captured.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: an argument of the wrong shape, layout, device or value, or missing.
    """
    for name, scalar in (
        ("num_kv_heads", num_kv_heads),
        ("num_partitions", num_partitions),
        ("tile_groups_per_partition", tile_groups_per_partition),
    ):
        _check_positive(name, scalar)
    _check_choice("query_group_size", query_group_size, SUPPORTED_QUERY_GROUP_SIZES)
    _check_choice("kv_block_size", kv_block_size, SUPPORTED_KV_BLOCK_SIZES)
    capacity = num_partitions * tile_groups_per_partition * GROUP_TOKENS
    if capacity > _MAX_I32:
        raise ValueError(f"num_partitions: expected P * G * 256 tokens to fit in an i32, got {capacity}")
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, Real):
        raise TypeError(f"softmax_scale: expected a number, got {type(softmax_scale).__name__}")
    if not abs(softmax_scale) <= MAX_F32:
        raise ValueError(f"softmax_scale: expected a finite float32, got {softmax_scale}")

    described = _describe_all(arrays)
    tables = described["block_tables"]
    _check_layout(tables, (None, None))
    num_sequences, width = tables.shape
    _check_positive("block_tables.shape[0]", num_sequences)
    _check_positive("block_tables.shape[1]", width)
    rows = (num_sequences, num_kv_heads, num_partitions, query_group_size)
    shapes: dict[str, tuple[int | None, ...]] = {
        "out": (*rows, HEAD_SIZE),
        "exp_sums": rows,
        "max_logits": rows,
        "query": (num_sequences, num_kv_heads * query_group_size, HEAD_SIZE),
        "kv_cache": (None, CacheLayout(kv_block_size, num_kv_heads).block_bytes),
        "centroids": (NUM_CENTROIDS,),
        "seq_lens": (num_sequences,),
    }
    for name, shape in shapes.items():
        _check_layout(described[name], shape)
    _check_devices(described)
    _check_writable(described)
    _check_overlap(described)
    if values:
        seq_lens = described["seq_lens"].to_numpy()
        _check_seq_lens(seq_lens, width * kv_block_size, capacity)
        num_blocks = described["kv_cache"].shape[0]
        _check_block_ids(tables.to_numpy(), seq_lens, kv_block_size, num_blocks)


_DTYPES = {
    "out": ("bfloat16", "uint16"),
    "exp_sums": ("float32",),
    "max_logits": ("float32",),
    "query": ("bfloat16", "uint16"),
    "kv_cache": ("uint8",),
    "centroids": ("float32",),
    "block_tables": ("int32",),
    "seq_lens": ("int32",),
}
"""Accepted dtypes of each array; the first is what the kernel calls it, the second NumPy's stand-in."""


@dataclass(frozen=True)
class _Array:
    """What the checks need to know of a NumPy array or torch tensor. Strides count bytes."""

    name: str
    array: Any
    is_torch: bool
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    device: str
    address: int

    @staticmethod
    def describe(name: str, array: Any) -> _Array:
        if isinstance(array, np.ndarray):
            dtype = array.dtype.name if array.dtype.isnative else str(array.dtype)
            strides, address = array.strides, array.ctypes.data
            return _Array(name, array, False, dtype, array.shape, strides, array.itemsize, "cpu", address)
        if hasattr(array, "data_ptr"):
            dtype = str(array.dtype).removeprefix("torch.")
            itemsize, device, address = array.element_size(), str(array.device), array.data_ptr()
            strides = tuple(stride * itemsize for stride in array.stride())
            return _Array(name, array, True, dtype, tuple(array.shape), strides, itemsize, device, address)
        raise TypeError(f"{name}: expected a torch tensor or NumPy array, got {type(array).__name__}")

    def to_numpy(self) -> NDArray[Any]:
        return np.asarray(self.array.cpu().numpy() if self.is_torch else self.array)

    @property
    def end(self) -> int:
        """Address after the last byte, of a contiguous array."""
        return self.address + math.prod(self.shape) * self.itemsize


def _describe_all(arrays: Mapping[str, Any]) -> dict[str, _Array]:
    expected = [argument.name for argument in KERNEL_ARGUMENTS if argument.kind == "pointer"]
    for name in arrays:
        if name not in expected:
            raise ValueError(f"arrays: expected only {', '.join(expected)}, got {name}")
    for name in expected:
        if name not in arrays:
            raise ValueError(f"{name}: expected an array, got none")
    return {name: _Array.describe(name, arrays[name]) for name in expected}


def _check_layout(array: _Array, shape: tuple[int | None, ...]) -> None:
    """Check dtype, rank, shape (None: any extent) and contiguity."""
    dtypes = _DTYPES[array.name]
    accepted = dtypes[:1] if array.is_torch else dtypes
    if array.dtype not in accepted:
        raise TypeError(f"{array.name}: expected dtype {' or '.join(accepted)}, got {array.dtype}")
    if len(array.shape) != len(shape):
        raise ValueError(
            f"{array.name}: expected rank {len(shape)}, got rank {len(array.shape)}, {array.shape}"
        )
    if any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{array.name}: expected shape ({wanted}), got {array.shape}")
    natural = tuple(math.prod(array.shape[axis + 1 :]) * array.itemsize for axis in range(len(shape)))
    # The stride of an axis with one element, or of an array with none, is never used.
    used = [extent > 1 and 0 not in array.shape for extent in array.shape]
    if any(use and got != want for use, got, want in zip(used, array.strides, natural, strict=True)):
        raise ValueError(f"{array.name}: expected strides of {natural} bytes, got {array.strides}")


def _check_devices(arrays: dict[str, _Array]) -> None:
    device = arrays["query"].device
    for array in arrays.values():
        if array.device != device:
            raise ValueError(f"{array.name}: expected the query's device, {device}, got {array.device}")


def _check_writable(arrays: dict[str, _Array]) -> None:
    for name in OUTPUTS:
        array = arrays[name]
        if not array.is_torch and not array.array.flags.writeable:
            raise ValueError(f"{name}: expected a writable array, got a read-only one")


def _check_overlap(arrays: dict[str, _Array]) -> None:
    """No output may share a byte with another argument."""
    for name in OUTPUTS:
        output = arrays[name]
        for other in arrays.values():
            if other is not output and output.address < other.end and other.address < output.end:
                raise ValueError(f"{name}: expected memory of its own, got memory shared with {other.name}")


def _check_seq_lens(seq_lens: NDArray[np.int32], table_tokens: int, capacity: int) -> None:
    def fail(bad: NDArray[np.bool_], expected: str) -> None:
        if bad.any():
            sequence = int(np.argmax(bad))
            raise ValueError(f"seq_lens[{sequence}]: expected {expected}, got {seq_lens[sequence]}")

    fail(seq_lens < 0, "at least 0 tokens")
    fail(seq_lens > table_tokens, f"at most the {table_tokens} tokens of the block table")
    longest = int(seq_lens.max())
    if longest > capacity:
        raise ValueError(
            "num_partitions: expected P * G * 256 tokens to cover the longest sequence, "
            f"{longest}, got {capacity}"
        )


def _check_block_ids(
    block_tables: NDArray[np.int32], seq_lens: NDArray[np.int32], kv_block_size: int, num_blocks: int
) -> None:
    """Entries of live tokens must name a block; those past the sequence may hold anything."""
    live_blocks = -(-seq_lens.astype(np.int64) // kv_block_size)
    live = np.arange(block_tables.shape[1]) < live_blocks[:, None]
    bad = np.argwhere(live & ((block_tables < 0) | (block_tables >= num_blocks)))
    if len(bad):
        sequence, entry = (int(index) for index in bad[0])
        got = block_tables[sequence, entry]
        raise ValueError(f"block_tables[{sequence}, {entry}]: expected 0 to {num_blocks - 1}, got {got}")


def _power_of_two_at_least(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
