"""Run a decoded kernel over a grid."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from . import encoding as enc
from .hazards import find_hazards
from .isa.matrix import SHAPES
from .listing import Program
from .matrix import ELEMENTS, MAX_OUTPUTS, WORKSPACE_ROWS, dot_parameters
from .memory import Memory
from .sanitize import Finding, findings, make_shadow
from .state import GlobalMemory, Numerics, Trace

QUANTUM = 128
ROW_LIMIT = 1 << 40
TRACE_CAPACITY = 1 << 19
POISON = 0xFFC0DEAD
"""What registers and LDS hold before anything is written: a NaN, an address no one maps, an odd integer."""


class Fault(RuntimeError):
    """A kernel did what no kernel may.

    It has `kind`, `line` (of the listing), `workgroup`, `wave`, `lane`, `address`, `bytes` and `is_write`.
    """

    def __init__(self, program: Program, memory: Memory, record: np.ndarray, grid: Sequence[int]) -> None:
        kind, row, lane, address, size, wave, write, group = (int(v) for v in record)
        row = min(row, len(program.lines) - 1)
        self.kind = enc.FAULTS[kind]
        self.line = int(program.lines[row])
        self.wave, self.lane, self.address, self.bytes, self.is_write = wave, lane, address, size, bool(write)
        self.workgroup = (group % grid[0], group // grid[0] % grid[1], group // grid[0] // grid[1])
        where = f"; {memory.describe(address)}" if kind == enc.MEMORY_FAULT else ""
        access = f", {'write' if write else 'read'} of {size} bytes at {address:#x}{where}" if size else ""
        super().__init__(
            f"{self.kind} at line {self.line} ({program.line_and_source(row)}), workgroup {self.workgroup}, "
            f"wave {wave}, lane {lane}{access}"
        )


@dataclass(frozen=True, eq=False)
class Run:
    """What a launch did: how often each row of the program was executed (int64 [rows]), and what a sanitizer found."""

    program: Program
    executed: np.ndarray
    findings: tuple[Finding, ...] = ()
    trace: Trace | None = None
    conflicts: np.ndarray | None = None
    """Cycles that each row of the program lost to LDS bank conflicts (int64 [rows]), if counted."""


@cache
def _shape_table() -> np.ndarray:
    rows = [
        (s.rows, s.depth, s.blocks, ELEMENTS.index(s.element), s.operand_registers, s.result_registers)
        for s in SHAPES.values()
    ]
    return np.array(rows, dtype=np.int64)


_USER_SCALARS = (
    ("user_sgpr_private_segment_buffer", 4),
    ("user_sgpr_dispatch_ptr", 2),
    ("user_sgpr_queue_ptr", 2),
    ("user_sgpr_kernarg_segment_ptr", 2),
    ("user_sgpr_dispatch_id", 2),
    ("user_sgpr_flat_scratch_init", 2),
    ("user_sgpr_private_segment_size", 1),
)


@dataclass(frozen=True, eq=False)
class _Start:
    """Scalar registers at the start of a wave, which of them the hardware sets, where workgroup ids go (-1: not)."""

    scalars: np.ndarray
    handed_over: np.ndarray
    workgroup: np.ndarray


def _start(program: Program, kernarg: bytes, address: int, poison: int) -> _Start:
    scalars = np.full(enc.SCALARS, poison & 0xFFFFFFFF, dtype=np.uint32)
    handed_over = np.zeros(enc.SCALARS, dtype=np.uint8)

    def hand_over(at: int, values: Sequence[int]) -> None:
        scalars[at : at + len(values)] = values
        handed_over[at : at + len(values)] = 1

    at = 0
    for name, size in _USER_SCALARS:
        if program.directives.get(name):
            if name == "user_sgpr_kernarg_segment_ptr":
                hand_over(at, (address & 0xFFFFFFFF, address >> 32))
            at += size
    preload = program.directives.get("user_sgpr_kernarg_preload_length", 0)
    if preload:
        offset = 4 * program.directives.get("user_sgpr_kernarg_preload_offset", 0)
        padded = kernarg.ljust(offset + 4 * preload, b"\0")
        hand_over(at, np.frombuffer(padded, dtype=np.uint32, offset=offset, count=preload).tolist())
    at = program.directives.get("user_sgpr_count", at + preload)
    workgroup = np.full(3, -1, dtype=np.int64)
    for axis, letter in enumerate("xyz"):
        if program.directives.get(f"system_sgpr_workgroup_id_{letter}", int(axis == 0)):
            workgroup[axis] = at
            hand_over(at, (0,))
            at += 1
    hand_over(enc.EXEC, (0xFFFFFFFF, 0xFFFFFFFF))
    scalars[enc.SCC] = 0
    return _Start(scalars, handed_over, workgroup)


@lru_cache(maxsize=64)
def _hazards(program: Program) -> tuple[Finding, ...]:
    """Missing wait states, which are the listing's and not a run's."""
    return tuple(
        Finding("hazard", hazard.line, program.line_and_source(hazard.row), (0, 0, 0), 0, 0, 0, str(hazard))
        for hazard in find_hazards(program)
    )


def _empty_trace(capacity: int) -> Trace:
    return Trace(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int32),
        np.empty((capacity, enc.LANES), np.uint32),
        np.zeros(1, np.int64),
    )


def _trim(trace: Trace) -> Trace:
    count = int(trace.recorded[0])
    return Trace(trace.rows[:count], trace.registers[:count], trace.values[:count], trace.recorded)


def _kernarg_segment(kernarg: bytes) -> np.ndarray:
    """The segment as it lies in memory: LLVM widens aligned loads past its end, never past a 64-byte line."""
    return np.frombuffer(kernarg.ljust(-(-len(kernarg) // 64) * 64 or 64, b"\xad"), dtype=np.uint8)


def _check(program: Program, grid: Sequence[int], block: Sequence[int], kernarg: bytes) -> None:
    for name, value in (("grid", grid), ("block", block)):
        if len(value) != 3 or any(int(v) < 1 for v in value):
            raise ValueError(f"{name}: expected three positive sizes, got {tuple(value)}")
    items = int(np.prod(block))
    if items % enc.LANES or items > 1024:
        raise ValueError(f"block: expected a multiple of 64 work-items up to 1024, got {tuple(block)}")
    if len(kernarg) < program.kernarg_bytes:
        raise ValueError(f"kernarg: expected {program.kernarg_bytes} bytes, got {len(kernarg)}")
    for key, expected in (("float_round_mode_32", 0), ("float_round_mode_16_64", 0), ("float_denorm_mode_16_64", 3)):
        if program.directives.get(key, expected) != expected:
            raise ValueError(f"program: {key} {program.directives[key]} is not modelled, only {expected}")
    if program.directives.get("float_denorm_mode_32", 3) != 3:
        raise ValueError("program: flushing of float32 subnormals is not modelled")


def launch(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    kernarg: bytes,
    memory: Memory,
    profile: Any,
    *,
    threads: int | None = None,
    seed: int = 0,
    poison: int = POISON,
    dynamic_lds_bytes: int = 0,
    row_limit: int = ROW_LIMIT,
    sanitize: bool = False,
    count_conflicts: bool = False,
    trace: Sequence[int] | None = None,
) -> Run:
    """Execute a kernel; its stores are then in `memory`.

    Parameters
    ----------
    grid, block
        Workgroups in x, y, z, and work-items of one workgroup in x, y, z (a multiple of 64 in all).
    kernarg
        The kernel argument segment, laid out as `program.arguments` says.
    profile
        Numerics that IEEE 754 does not fix: `profile.dot` for matrix instructions, `profile.exp2` for v_exp_f32.
    threads
        Host threads that share the workgroups; all cores by default, one when the kernel uses global atomics.
    seed
        Drives which wave of a workgroup runs next, and for how long.
    poison
        32-bit pattern of registers, LDS and private memory that nothing has written.
    row_limit
        A workgroup that executes more rows than this never ends.
    sanitize
        Also watch for what a correct kernel never does, see `sanitize`; on one thread, so that findings do not depend
        on chance.
    count_conflicts
        With `sanitize`: count LDS bank conflicts in `Run.conflicts`, which is slow.
    trace
        Run this workgroup alone, (x, y, z), and record every vector result of its only wave in `Run.trace`.

    Raises
    ------
    Fault
        When the kernel accesses memory outside every allocation, LDS outside its own, or never ends.
    ValueError
        If an argument does not fit the program.
    """
    grid, block = [int(v) for v in grid], [int(v) for v in block]
    _check(program, grid, block, kernarg)
    from . import wave  # compiles, or loads what an earlier process compiled

    address = memory.map("kernarg", _kernarg_segment(kernarg))
    arena = memory.arena()
    regions = memory.regions()
    starts = np.array([r.address for r in regions], dtype=np.int64)
    ends = starts + np.array([r.size for r in regions], dtype=np.int64)
    offsets = np.array([r.offset for r in regions], dtype=np.int64)
    start = _start(program, kernarg, address, poison)
    groups, waves = int(np.prod(grid)), int(np.prod(block)) // enc.LANES
    lds_bytes = program.lds_bytes + dynamic_lds_bytes
    is_atomic = (program.code[:, enc.UNIT] == enc.UNIT_MEMORY) & (program.code[:, enc.TRANSFER] == enc.TRANSFER_ATOMIC)
    first, last = 0, groups
    if trace is not None:
        if waves != 1:
            raise ValueError(f"trace: expected workgroups of one wave, got {waves}")
        first = int(trace[0]) + grid[0] * (int(trace[1]) + grid[1] * int(trace[2]))
        last = first + 1
    recording = _empty_trace(TRACE_CAPACITY if trace is not None else 0)
    count = 1 if sanitize or trace is not None or is_atomic.any() else min(threads or os.cpu_count() or 1, groups)
    executed = np.zeros((count, len(program.code)), dtype=np.int64)
    faults = np.zeros((count, 8), dtype=np.int64)
    shadow = make_shadow(program, memory, waves, lds_bytes, start.handed_over, sanitize, count_conflicts)
    global_memory = GlobalMemory(starts, ends, offsets, arena, arena.view(np.uint32))
    _announce(wave.run_workgroups)

    def work(index: int) -> None:
        numerics = Numerics(
            dot_parameters(profile.dot), profile.exp2.exception_inputs, profile.exp2.exception_outputs,
            np.empty((WORKSPACE_ROWS, MAX_OUTPUTS)), np.empty(MAX_OUTPUTS, np.float32),
        )  # fmt: skip
        wave.run_workgroups(
            program.code, program.literals, _shape_table(), first + index, last, count, tuple(grid), tuple(block),
            QUANTUM, seed, poison, start.scalars, start.workgroup, lds_bytes, program.private_bytes, global_memory,
            numerics,
            executed[index], faults[index], row_limit, sanitize, shadow, recording,
        )  # fmt: skip

    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # re-raised in the caller's thread
            errors.append(error)

    others = [threading.Thread(target=guarded, args=(index,)) for index in range(1, count)]
    if not wave.run_workgroups.signatures:
        guarded(0)  # compile in one thread
        for thread in others:
            thread.start()
    else:
        for thread in others:
            thread.start()
        guarded(0)
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    broken = [record for record in faults if record[0] != enc.NO_FAULT]
    if broken:
        raise Fault(program, memory, min(broken, key=lambda record: int(record[7])), grid)
    found = [*findings(shadow, program, memory, grid), *_hazards(program)] if sanitize else []
    return Run(
        program,
        executed.sum(axis=0),
        tuple(found),
        trace=_trim(recording) if trace is not None else None,
        conflicts=shadow.conflicts if sanitize and count_conflicts else None,
    )


_announced = False


def _announce(function: Any) -> None:
    """One line on the terminal before the first compilation of the interpreter, which takes a while."""
    global _announced
    if _announced or function.signatures or function.stats.cache_hits:
        return
    _announced = True
    if not _on_disk(function):
        print("tqgate: compiling the gfx950 interpreter, once (about a minute)", file=sys.stderr, flush=True)


def _on_disk(function: Any) -> bool:
    index = getattr(getattr(function, "_cache", None), "_cache_file", None)
    try:
        return bool(index and index._load_index())
    except Exception:  # an unreadable index means a new compilation
        return False
