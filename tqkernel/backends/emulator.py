"""The kernel's compiled gfx950 listing, executed instruction by instruction on this machine's CPU."""

from __future__ import annotations

import copy
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tqkernel.backends import (
    POISON_BYTE,
    FindingsError,
    KernelError,
    RunError,
    input_arrays,
    output_shapes,
    poisoned_outputs,
)
from tqkernel.compile import compile_listing
from tqkernel.gfx950 import (
    Fault,
    ListingError,
    Memory,
    Program,
    Run,
    UnsupportedInstruction,
    launch,
    parse_listing,
)
from tqkernel.gfx950.launch import POISON
from tqkernel.gfx950.listing import KernelArgument
from tqkernel.gfx950.state import Trace
from tqkernel.plan import KERNEL_ARGUMENTS, OUTPUTS, Variant
from tqref import Case, Partials, Profile

_WAVE = (64, 1, 1)
MOST_FINDINGS = 10
_ARRAYS_AT = 1 << 40
_ARRAY_SPACING = 1 << 33
_CACHE_AT = 1 << 46
_ALIGNMENT = 256
"""Of an allocation, in bytes, as a GPU's allocator gives at least."""

NEVER_ENDING = 1 << 24
"""Instructions of a workgroup that will not end: half a million tokens in a partition take fewer, and it is seconds."""

_KERNARG = {
    "pointer": ("global_buffer", "<Q"),
    "i32": ("by_value", "<i"),
    "f32": ("by_value", "<f"),
}
"""What the listing's metadata calls each kind of argument, and how it lies in the kernel argument segment."""


_KINDS = {argument.name: argument.kind for argument in KERNEL_ARGUMENTS}
ARGUMENT_NAMES = tuple(_KINDS)
"""What a kernel can be given, in the order of the decode kernel's own arguments."""
POINTERS = tuple(name for name, kind in _KINDS.items() if kind == "pointer")


class Kernel(NamedTuple):
    """A decoded listing, its arguments' names in order, and how many workgroups of how many work-items it takes."""

    program: Program
    arguments: Sequence[str]
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = _WAVE


def _decode_listing(variant: Variant) -> str:
    """The decode kernel's listing, each instruction with the source line behind it."""
    return compile_listing(variant, debug_locations=True)


class EmulatorBackend:
    """Runs listings on the emulated gfx950.

    Args:
        listing_of: gives the listing of a variant; by default the decode kernel, compiled.
        announce: entered, with a line of text that says so, while a listing is made.
        threads: cores to use, all of them by default.
        arguments: the listings' arguments in order; by default the decode kernel's or, where those do not fit, its
            pointers alone.
        row_limit: instructions of one workgroup after which it is taken never to end, a RunError.
        sanitize: also watch for what no correct kernel does, see `tqkernel.gfx950.sanitize`; it is a FindingsError
            with up to MOST_FINDINGS lines that begin with their kinds. On one thread, and about twice as slow.
        poison: 32-bit pattern that registers and LDS start with.
        output_poison: byte that the outputs are full of before a run.
    """

    name = "emulator"

    def __init__(
        self,
        listing_of: Callable[[Variant], str] = _decode_listing,
        announce: Callable[[str], AbstractContextManager[object]] = nullcontext,
        threads: int | None = None,
        arguments: Sequence[str] | None = None,
        row_limit: int = NEVER_ENDING,
        sanitize: bool = False,
        poison: int = POISON,
        output_poison: int = POISON_BYTE,
    ) -> None:
        self._listing_of = listing_of
        self._announce = announce
        self._threads = threads
        self._arguments = arguments
        self._row_limit = row_limit
        self._sanitize = sanitize
        self._poison = poison
        self._output_poison = output_poison
        self._programs: dict[Variant, Program] = {}

    def starting_from(self, poison: int, output_poison: int) -> EmulatorBackend:
        """The same backend, with its kernels, but for what registers, LDS and outputs hold before a run."""
        other = copy.copy(self)
        other._poison, other._output_poison = poison, output_poison
        return other

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        """See `Backend.run`. The outputs and every register and byte of LDS start poisoned."""
        partials, run = self._launch(
            case, hw_v_transpose, profile, threads=self._threads, sanitize=self._sanitize
        )
        if run.findings:
            raise FindingsError(list(map(str, run.findings[:MOST_FINDINGS])), partials)
        return partials

    def execute(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Run:
        """Run the kernel and return how often each instruction was executed, and its LDS bank conflicts.

        Raises RunError as `run` does.
        """
        _, run = self._launch(case, hw_v_transpose, profile, sanitize=True, count_conflicts=True)
        return run

    def trace(
        self, case: Case, hw_v_transpose: bool, profile: Profile, wave: tuple[int, int, int]
    ) -> tuple[Program, Trace]:
        """Run one wave, (sequence, KV head, partition), and return every vector result it computed.

        Raises RunError as `run` does.
        """
        _, run = self._launch(case, hw_v_transpose, profile, trace=wave)
        assert run.trace is not None
        return run.program, run.trace

    def _launch(
        self, case: Case, hw_v_transpose: bool, profile: Profile, **options: Any
    ) -> tuple[Partials, Run]:
        outputs = poisoned_outputs(case, self._output_poison)
        memory = Memory()
        arrays = outputs | input_arrays(case)
        addresses = {
            name: memory.map(
                name,
                array,
                _centred(_ARRAYS_AT + index * _ARRAY_SPACING, array.nbytes),
                is_output=name in OUTPUTS,
            )
            for index, (name, array) in enumerate(arrays.items())
        }
        shapes = array_shapes(case)
        addresses["kv_cache"] = _map_cache(memory, case)
        try:
            program, arguments, grid, block = self._kernel(case, hw_v_transpose)
            kernarg = _pack_arguments(program.arguments, arguments, addresses | _scalars(case), shapes)
            run = launch(
                program,
                grid=grid,
                block=block,
                kernarg=kernarg,
                memory=memory,
                profile=profile,
                row_limit=self._row_limit,
                poison=self._poison,
                **options,
            )
        except Fault as error:
            raise RunError(str(error)) from error
        written = {
            name: np.frombuffer(memory.read(name), array.dtype).reshape(array.shape)
            for name, array in outputs.items()
        }
        return Partials(**written), run

    def _kernel(self, case: Case, hw_v_transpose: bool) -> Kernel:
        variant = Variant(case.query_group_size, case.kv_block_size, hw_v_transpose)
        if variant not in self._programs:
            with self._announce(f"compiling kernel {variant.name} for gfx950"):
                listing = self._listing_of(variant)
            self._programs[variant] = read_listing(listing)
        program = self._programs[variant]
        candidates = [self._arguments] if self._arguments else [ARGUMENT_NAMES, POINTERS]
        arguments = next((names for names in candidates if matches(program.arguments, names)), candidates[0])
        grid = case.num_sequences, case.num_kv_heads, case.num_partitions
        return Kernel(program, arguments, grid)


def read_listing(text: str) -> Program:
    """Decode a listing. Raises KernelError when it is none, RunError for an unknown instruction."""
    try:
        return parse_listing(text)
    except UnsupportedInstruction as error:
        raise RunError(str(error)) from error
    except ListingError as error:
        raise KernelError(f"listing: {error}") from error


def _centred(middle: int, size: int) -> int:
    """Address at which `middle` lies in the middle of an allocation of `size` bytes.

    The middles are multiples of 4 GiB, so that an address computed in 32 bits, or without the carry into the
    upper 32, misses half of every array.
    """
    return middle - size // 2 // _ALIGNMENT * _ALIGNMENT


def _map_cache(memory: Memory, case: Case) -> int:
    """Map the blocks that are present, each where it lies in the whole cache; returns the cache's address."""
    block_bytes = case.layout.block_bytes
    base = _centred(_CACHE_AT, case.num_blocks * block_bytes)
    for run in _consecutive_runs(case):
        first, last = int(case.block_ids[run.start]), int(case.block_ids[run.stop - 1])
        name = f"kv_cache[{first}..{last}]"
        memory.map(name, case.blocks[run], base + first * block_bytes)
    return base


def _consecutive_runs(case: Case) -> Iterator[slice]:
    """Slices of `case.block_ids` whose ids are consecutive."""
    starts = np.flatnonzero(np.diff(case.block_ids, prepend=-2) != 1).tolist()
    for start, stop in pairwise([*starts, len(case.block_ids)]):
        yield slice(start, stop)


def _scalars(case: Case) -> dict[str, int | float]:
    return {
        "num_kv_heads": case.num_kv_heads,
        "num_partitions": case.num_partitions,
        "tile_groups_per_partition": case.tile_groups_per_partition,
        "max_blocks_per_seq": case.max_blocks_per_sequence,
        "softmax_scale": case.softmax_scale,
    }


def array_shapes(case: Case) -> dict[str, list[tuple[int, ...]]]:
    """The shapes in which a kernel may take each array; the cache's bytes of a slot and head may be apart."""
    layout = case.layout
    slots = (layout.kv_block_size, layout.num_kv_heads)
    apart = (case.num_blocks, *slots, layout.block_bytes // math.prod(slots))
    cache = [(case.num_blocks, layout.block_bytes), apart]
    shapes = output_shapes(case) | {name: array.shape for name, array in input_arrays(case).items()}
    return {name: [shape] for name, shape in shapes.items()} | {"kv_cache": cache}


def inner_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous array, in elements, without the last, which is 1."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape) - 1))


def _tensor_record(shape: tuple[int, ...]) -> bytes:
    """What FlyDSL passes after a contiguous tensor's pointer: i32 sizes, then i64 strides but the last."""
    strides = inner_strides(shape)
    return struct.pack(f"<{len(shape)}i{len(strides)}q", *shape, *strides)


def matches(segment: Sequence[KernelArgument], names: Sequence[str]) -> bool:
    """Whether the arguments of a listing can be those called `names`, each pointer with a record or none."""
    filled = _without_records(segment, names)
    expected = [_KERNARG[_KINDS[name]] for name in names]
    return [(entry.kind, entry.size) for entry in filled] == [
        (kind, struct.calcsize(layout)) for kind, layout in expected
    ]


def _without_records(segment: Sequence[KernelArgument], names: Sequence[str]) -> list[KernelArgument]:
    """The entries that `names` are for. Where tensors are passed, a record follows each pointer."""
    pointers = sum(_KINDS[name] == "pointer" for name in names)
    if len(segment) != len(names) + pointers:
        return list(segment)
    after_pointer = [False, *(entry.kind == "global_buffer" for entry in segment)]
    return [entry for entry, record in zip(segment, after_pointer, strict=False) if not record]


def _pack_arguments(
    segment: Sequence[KernelArgument],
    names: Sequence[str],
    values: Mapping[str, int | float],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
) -> bytes:
    """The kernel argument segment as the listing lays it out.

    `shapes`: in which each array may be passed. A record of another size is left zero.
    Raises KernelError when the listing's arguments are not those that `names` says.
    """
    if not matches(segment, names):
        found = ", ".join(f"{entry.kind} of {entry.size} bytes" for entry in segment)
        raise KernelError(
            f"listing: expected kernel arguments {', '.join(names)}, got {found}; --arguments names others"
        )
    packed = bytearray(max(entry.offset + entry.size for entry in segment))
    filled = _without_records(segment, names)
    for entry, name in zip(filled, names, strict=True):
        struct.pack_into(_KERNARG[_KINDS[name]][1], packed, entry.offset, values[name])
    owners = dict(zip(filled, names, strict=True))
    for pointer, record in itertools.pairwise(segment):
        if record not in owners:
            for content in map(_tensor_record, shapes[owners[pointer]]):
                if len(content) == record.size:
                    packed[record.offset : record.offset + record.size] = content
    return bytes(packed)
