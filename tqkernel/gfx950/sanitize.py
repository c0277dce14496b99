"""What a correct kernel never does, checked on every row just before it runs.

Shadow state stands beside the machine's: for each register and byte whether anything defined it, which load it still
waits for, who touched it last. A finding is recorded once per kind and row; the run goes on.

Uninitialised values are tracked by taint, a bit per lane (a bit per bit in scalar registers), and reported only where they
reach a store to global memory, an address or a branch: a kernel may well compute with junk that it then masks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from .encoding import (
    ACCUMULATION,
    BYTES,
    CODE_WAIT,
    DESTINATION,
    DESTINATION_MODE,
    DPP,
    EXEC,
    EXEC_DESTINATION,
    FLAG_FLAT,
    FLAG_HIGH,
    FLAG_LOW,
    FLAG_PAIR,
    FLAG_RETURN,
    FLAG_SCRATCH,
    FLAG_TO_LDS,
    FLAGS,
    KEEP_OTHER_HALF,
    M0,
    MASK_DESTINATION,
    MASK_SOURCE,
    OFFSET,
    OFFSET1,
    OPCODE,
    SCALAR,
    SCALARS,
    SCC,
    SOURCE,
    SOURCE_MODE,
    SOURCES,
    TRANSFER,
    TRANSFER_ATOMIC,
    TRANSFER_BPERMUTE,
    TRANSFER_CLOCK,
    TRANSFER_LOAD,
    TRANSFER_PERMUTE,
    TRANSFER_STORE,
    TRANSFER_SWIZZLE,
    TRANSFER_TRANSPOSE,
    UNIT,
    UNIT_CONTROL,
    UNIT_LANE,
    UNIT_LDS,
    UNIT_MATRIX,
    UNIT_MEMORY,
    UNIT_SCALAR,
    UNIT_SCALAR_MEMORY,
    UNIT_VECTOR,
    VCC,
    VECTOR_ROWS,
    WORDS,
)  # fmt: skip
from .footprint import footprint
from .isa import instruction_set
from .listing import Program, opcodes
from .memory import FIRST_ADDRESS, Memory
from .operands import dpp_lane, scalar64, scalar_source
from .scalar import inner
from .transfer import find, lane_address, place

KINDS = (
    "out-of-bounds", "misaligned", "uninitialised", "wait", "race", "double-write", "divergent-barrier", "unwritten",
    "hazard",
)  # fmt: skip
OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, WAIT, RACE, DOUBLE_WRITE, DIVERGENT_BARRIER = range(7)

# States of a byte of global memory.
UNDEFINED, DEFINED, WRITTEN = 0, 1, 2

# Columns of Shadow.counts, per wave: outstanding work in the order it was issued.
VECTOR_ISSUED, VECTOR_DONE, LOCAL_ISSUED, LOCAL_DONE, LOCAL_DONE_AT_BARRIER = range(5)

# Columns of a finding.
FINDING_KIND, FINDING_ROW, FINDING_WAVE, FINDING_LANE, FINDING_ADDRESS, FINDING_GROUP = range(6)
MAX_FINDINGS = 256

SEVERAL = np.int64(1 << 20)
"""In place of a wave's number: more than one wave has read since the last barrier."""

ALL = np.int64(-1)
ALL32 = np.int64(0xFFFFFFFF)

_CNDMASK = opcodes()["v_cndmask_b32"]
_CSELECT32, _CSELECT64 = opcodes()["s_cselect_b32"], opcodes()["s_cselect_b64"]
_AND32, _AND64 = opcodes()["s_and_b32"], opcodes()["s_and_b64"]
_SCC0, _SCC1 = opcodes()["s_cbranch_scc0"], opcodes()["s_cbranch_scc1"]
_VCCZ, _VCCNZ = opcodes()["s_cbranch_vccz"], opcodes()["s_cbranch_vccnz"]
_EXECZ, _EXECNZ = opcodes()["s_cbranch_execz"], opcodes()["s_cbranch_execnz"]
_READFIRSTLANE, _READLANE, _WRITELANE = (
    opcodes()["v_readfirstlane_b32"], opcodes()["v_readlane_b32"], opcodes()["v_writelane_b32"],
)  # fmt: skip
_PERMLANE16, _PERMLANE32 = opcodes()["v_permlane16_swap_b32"], opcodes()["v_permlane32_swap_b32"]


class Shadow(NamedTuple):
    """Shadow state. [w] is per wave; bytes of LDS and of the arena have an element each."""

    reads: np.ndarray  # int32 [rows, n, 2], see footprint
    writes: np.ndarray
    bitwise: np.ndarray  # uint8 [scalar opcodes]: each result bit depends on the same bits of the sources
    handed_over: np.ndarray  # uint8 [scalars]: the hardware sets it before the first instruction
    taint: np.ndarray  # int64 [w, vector rows]: lanes that nothing defined
    scalar_taint: np.ndarray  # int64 [w, scalars]: bits that nothing defined
    vector_load: np.ndarray  # int64 [w, vector rows]: number of the global load that will write it
    local_load: np.ndarray  # the same for LDS
    scalar_load: np.ndarray  # uint8 [w, scalars]: a scalar load is in flight
    counts: np.ndarray  # int64 [w, 5]
    epoch: np.ndarray  # int64 [1]: barriers that the workgroup has passed
    local_defined: np.ndarray  # uint8 [lds]
    local_dma: np.ndarray  # int64 [lds]: number of the global load that writes it directly
    local_writer: np.ndarray  # int64 [lds]: wave, or -1
    local_write_epoch: np.ndarray
    local_write_number: np.ndarray
    local_reader: np.ndarray  # wave that read since the barrier, SEVERAL, or -1
    local_read_epoch: np.ndarray
    local_read_number: np.ndarray
    state: np.ndarray  # uint8 [arena]
    writer: np.ndarray  # int32 [arena]: workgroup that wrote last, or -1
    reader: np.ndarray
    is_output: np.ndarray  # uint8 [regions]
    seen: np.ndarray  # uint8 [kinds, rows]
    findings: np.ndarray  # int64 [MAX_FINDINGS, 6]
    found: np.ndarray  # int64 [1]



def make_shadow(
    program: Program, memory: Memory, waves: int, lds_bytes: int, handed_over: np.ndarray, enabled: bool
) -> Shadow:
    """Shadow state for one launch; next to nothing when `enabled` is false."""
    regions = memory.regions()
    rows = len(program.code)
    arena = memory.arena().size if enabled else 0
    lds = lds_bytes if enabled else 0
    waves = waves if enabled else 0
    reads, writes = _footprint(program) if enabled else (np.zeros((0, 1, 2), np.int32),) * 2
    state = np.full(arena, DEFINED, np.uint8)
    for region in regions:
        if enabled and region.is_output:
            state[region.offset : region.offset + region.size] = UNDEFINED
    vector, scalars, local = (waves, VECTOR_ROWS), (waves, SCALARS), (lds,)
    return Shadow(
        reads=reads,
        writes=writes,
        bitwise=_bitwise_opcodes(),
        handed_over=handed_over,
        taint=np.zeros(vector, np.int64),
        scalar_taint=np.zeros(scalars, np.int64),
        vector_load=np.zeros(vector, np.int64),
        local_load=np.zeros(vector, np.int64),
        scalar_load=np.zeros(scalars, np.uint8),
        counts=np.zeros((waves, 5), np.int64),
        epoch=np.zeros(1, np.int64),
        local_defined=np.zeros(local, np.uint8),
        local_dma=np.zeros(local, np.int64),
        local_writer=np.full(local, -1, np.int64),
        local_write_epoch=np.zeros(local, np.int64),
        local_write_number=np.zeros(local, np.int64),
        local_reader=np.full(local, -1, np.int64),
        local_read_epoch=np.zeros(local, np.int64),
        local_read_number=np.zeros(local, np.int64),
        state=state,
        writer=np.full(arena, -1, np.int32),
        reader=np.full(arena, -1, np.int32),
        is_output=np.array([region.is_output for region in regions], dtype=np.uint8),
        seen=np.zeros((len(KINDS), rows), np.uint8),
        findings=np.zeros((MAX_FINDINGS, 6), np.int64),
        found=np.zeros(1, np.int64),
    )


_footprint = lru_cache(maxsize=64)(footprint)

_BITWISE = re.compile(r"s_(mov|not|and|or|xor|nand|nor|xnor|andn1|andn2|orn1|orn2)(_saveexec|_wrexec)?_b(32|64)")


@cache
def _bitwise_opcodes() -> np.ndarray:
    names = [i.name for i in instruction_set().values() if i.unit == "scalar"]
    return np.array([bool(_BITWISE.fullmatch(name)) for name in names], dtype=np.uint8)


@dataclass(frozen=True)
class Finding:
    """Something a correct kernel never does. `line` is the listing's, 0 if no one instruction is to blame."""

    kind: str
    line: int
    text: str
    workgroup: tuple[int, int, int]
    wave: int
    lane: int
    address: int
    detail: str

    def __str__(self) -> str:
        where = f"line {self.line} ({self.text}), " if self.line else ""
        return f"{self.kind}: {where}workgroup {self.workgroup}, wave {self.wave}, lane {self.lane}: {self.detail}"


def _register_name(code: int) -> str:
    if code >= SCALAR:
        return {VCC: "vcc", EXEC: "exec", SCC: "scc", M0: "m0"}.get(code - SCALAR, f"s{code - SCALAR}")
    return f"a{code - ACCUMULATION}" if code >= ACCUMULATION else f"v{code}"


def _detail(kind: str, address: int, memory: Memory) -> str:
    if kind == "wait":
        return f"{_register_name(address)} is used while a load into it is in flight"
    if kind == "uninitialised":
        return "a value that nothing wrote reaches an address, a branch or memory"
    if kind == "divergent-barrier":
        return "waves of a workgroup wait at different barriers"
    where = memory.describe(address) if address >= FIRST_ADDRESS else f"LDS byte {address}"
    return {
        "out-of-bounds": f"past the end of the buffer descriptor, at {where}",
        "misaligned": f"{where} is not aligned to the access",
        "race": f"{where} is accessed by another wave or workgroup with nothing to order the two",
        "double-write": f"{where} is written twice",
    }[kind]


def findings(shadow: Shadow, program: Program, memory: Memory, grid: Sequence[int]) -> list[Finding]:
    """What a run's shadow recorded, and the output bytes it left alone."""
    result = []
    for kind, row, wave, lane, address, group in shadow.findings[: shadow.found[0]].tolist():
        workgroup = (group % grid[0], group // grid[0] % grid[1], group // grid[0] // grid[1])
        line, name = int(program.lines[row]), KINDS[kind]
        detail = _detail(name, address, memory)
        result.append(Finding(name, line, program.line(row), workgroup, wave, lane, address, detail))
    for region in memory.regions():
        if not region.is_output:
            continue
        untouched = np.flatnonzero(shadow.state[region.offset : region.offset + region.size] != WRITTEN)
        if untouched.size:
            first = region.address + int(untouched[0])
            detail = f"{untouched.size} of {region.size} bytes of {region.name}, the first at byte {untouched[0]}"
            result.append(Finding("unwritten", 0, "", (0, 0, 0), 0, 0, first, detail))
    return result


@inner
def report(shadow, kind, row, wave, lane, address, group):
    if shadow.seen[kind, row]:
        return
    shadow.seen[kind, row] = 1
    at = shadow.found[0]
    if at < MAX_FINDINGS:
        finding = shadow.findings[at]
        finding[FINDING_KIND], finding[FINDING_ROW], finding[FINDING_WAVE] = kind, row, wave
        finding[FINDING_LANE], finding[FINDING_ADDRESS], finding[FINDING_GROUP] = lane, address, group
        shadow.found[0] = at + 1


@inner
def first_lane(mask):
    lane = np.int64(0)
    while lane < 63 and not (mask >> lane) & 1:
        lane += 1
    return lane


# ---------------------------------------------------------------- workgroups and barriers


@inner
def start_workgroup(shadow):
    """A workgroup begins: only what the hardware hands over is defined."""
    shadow.taint[:, :] = ALL
    shadow.taint[:, 0] = 0
    shadow.scalar_taint[:, :] = ALL32
    for wave in range(shadow.taint.shape[0]):
        for register in range(shadow.handed_over.size):
            if shadow.handed_over[register]:
                shadow.scalar_taint[wave, register] = 0
    shadow.vector_load[:, :] = 0
    shadow.local_load[:, :] = 0
    shadow.scalar_load[:, :] = 0
    shadow.counts[:, :] = 0
    shadow.epoch[0] = 0
    shadow.local_defined[:] = 0
    shadow.local_dma[:] = 0
    shadow.local_writer[:] = -1
    shadow.local_reader[:] = -1


@inner
def meet_at_barrier(shadow, states, pcs, waiting, group):
    """All live waves wait: they must wait at the same barrier. Then LDS accesses they have waited for are ordered."""
    place_of_first = np.int64(-1)
    for wave in range(states.size):
        if states[wave] != waiting or (place_of_first >= 0 and pcs[wave] != place_of_first):
            row = pcs[wave] - 1 if states[wave] == waiting else max(place_of_first - 1, np.int64(0))
            report(shadow, DIVERGENT_BARRIER, row, wave, 0, 0, group)
        elif place_of_first < 0:
            place_of_first = pcs[wave]
        shadow.counts[wave, LOCAL_DONE_AT_BARRIER] = shadow.counts[wave, LOCAL_DONE]
    shadow.epoch[0] += 1


# ---------------------------------------------------------------- waits


@inner
def check_waits(code, row, shadow, wave, group):
    """No register is read or overwritten while a load into it is in flight."""
    unit, transfer = code[row, UNIT], code[row, TRANSFER]
    counts = shadow.counts[wave]
    vector_load, local_load, scalar_load = shadow.vector_load[wave], shadow.local_load[wave], shadow.scalar_load[wave]
    for is_write in range(2):
        ranges = shadow.writes if is_write else shadow.reads
        # Loads of one kind return in order, so one may overwrite another's result.
        in_order_vector = is_write and unit == UNIT_MEMORY and transfer == TRANSFER_LOAD
        in_order_local = is_write and unit == UNIT_LDS
        for slot in range(ranges.shape[1]):
            first, count = np.int64(ranges[row, slot, 0]), np.int64(ranges[row, slot, 1])
            for register in range(first, first + count):
                late = False
                if register < SCALAR:
                    late = (vector_load[register] > counts[VECTOR_DONE] and not in_order_vector) or (
                        local_load[register] > counts[LOCAL_DONE] and not in_order_local
                    )
                else:
                    late = scalar_load[register - SCALAR] != 0
                if late:
                    report(shadow, WAIT, row, wave, 0, register, group)


@inner
def issue(code, row, shadow, wave):
    """Number an instruction whose result comes later, and mark the registers it will write."""
    unit, flags, transfer = code[row, UNIT], np.int64(code[row, FLAGS]), code[row, TRANSFER]
    counts = shadow.counts[wave]
    if unit == UNIT_CONTROL:
        if code[row, OPCODE] == CODE_WAIT:
            vector, local = np.int64(code[row, OFFSET]), np.int64(code[row, OFFSET1])
            counts[VECTOR_DONE] = max(counts[VECTOR_DONE], counts[VECTOR_ISSUED] - vector)
            counts[LOCAL_DONE] = max(counts[LOCAL_DONE], counts[LOCAL_ISSUED] - local)
            if local == 0:  # scalar loads return in any order
                shadow.scalar_load[wave, :] = 0
        return
    if unit == UNIT_SCALAR_MEMORY:
        for slot in range(shadow.writes.shape[1]):
            first = np.int64(shadow.writes[row, slot, 0]) - SCALAR
            for register in range(first, first + np.int64(shadow.writes[row, slot, 1])):
                shadow.scalar_load[wave, register] = 1
        return
    is_vector = unit == UNIT_MEMORY
    if is_vector:
        counts[VECTOR_ISSUED] += 1
    if unit == UNIT_LDS or flags & FLAG_FLAT:
        counts[LOCAL_ISSUED] += 1
    if transfer == TRANSFER_STORE or (transfer == TRANSFER_ATOMIC and not flags & FLAG_RETURN):
        return
    for slot in range(shadow.writes.shape[1]):
        first, count = np.int64(shadow.writes[row, slot, 0]), np.int64(shadow.writes[row, slot, 1])
        for register in range(first, first + count):
            if is_vector:
                shadow.vector_load[wave, register] = counts[VECTOR_ISSUED]
            if unit == UNIT_LDS or flags & FLAG_FLAT:
                shadow.local_load[wave, register] = counts[LOCAL_ISSUED]


# ---------------------------------------------------------------- taint of registers


@inner
def scalar_pair_taint(shadow, wave, register):
    return shadow.scalar_taint[wave, register] | shadow.scalar_taint[wave, register + 1] << 32


@inner
def set_scalar_pair_taint(shadow, wave, register, taint):
    shadow.scalar_taint[wave, register] = taint & ALL32
    shadow.scalar_taint[wave, register + 1] = (taint >> 32) & ALL32


@inner
def source_taint(code, row, k, words, shadow, wave):
    """Lanes in which source k is tainted."""
    register = np.int64(code[row, SOURCE + k])
    taint = np.int64(0)
    if register >= SCALAR:
        for w in range(words):
            if shadow.scalar_taint[wave, register - SCALAR + w]:
                taint = ALL
    elif register >= 0:
        for w in range(words):
            taint |= shadow.taint[wave, register + w]
    return taint


@inner
def set_taint(shadow, wave, register, words, exec_mask, taint):
    for w in range(words):
        shadow.taint[wave, register + w] = (shadow.taint[wave, register + w] & ~exec_mask) | (taint & exec_mask)


@inner
def taint_vector(code, literals, row, S, shadow, wave, exec_mask):
    mask_source = np.int64(code[row, MASK_SOURCE]) - 1
    taint = np.int64(0)
    mask_taint = np.int64(0)
    if mask_source >= 0 and code[row, SOURCE + mask_source] >= SCALAR:
        mask_taint = scalar_pair_taint(shadow, wave, np.int64(code[row, SOURCE + mask_source]) - SCALAR)
    for k in range(np.int64(code[row, SOURCES])):
        if k == mask_source:
            continue
        lanes = source_taint(code, row, k, np.int64(code[row, SOURCE_MODE + k]) & WORDS, shadow, wave)
        if lanes and k == 0 and code[row, DPP] >= 0:
            moved = np.int64(0)
            for lane in range(64):
                source = dpp_lane(np.int64(code[row, DPP]), lane)
                if source >= 0 and (lanes >> source) & 1:
                    moved |= np.int64(1) << lane
            lanes = moved
        if lanes and mask_source == 2 and code[row, OPCODE] == _CNDMASK and code[row, SOURCE + 2] >= SCALAR:
            chosen = scalar64(S, np.int64(code[row, SOURCE + 2]) - SCALAR)
            lanes &= chosen if k == 1 else ~chosen
        taint |= lanes
    taint |= mask_taint
    destination, mode = np.int64(code[row, DESTINATION]), np.int64(code[row, DESTINATION_MODE])
    if destination >= 0:
        if mode & KEEP_OTHER_HALF:
            taint |= shadow.taint[wave, destination]
        set_taint(shadow, wave, destination, mode & WORDS, exec_mask, taint)
    if code[row, MASK_DESTINATION] >= 0:
        set_scalar_pair_taint(shadow, wave, np.int64(code[row, MASK_DESTINATION]) - SCALAR, taint & exec_mask)
    if code[row, EXEC_DESTINATION]:
        set_scalar_pair_taint(shadow, wave, EXEC, taint & exec_mask)


@inner
def scalar_operand_taint(code, row, k, shadow, wave):
    """Tainted bits of source k of a scalar instruction, as an int64."""
    register = np.int64(code[row, SOURCE + k])
    if register < SCALAR:
        return np.int64(0)
    if code[row, SOURCE_MODE + k] & WORDS == 2:
        return scalar_pair_taint(shadow, wave, register - SCALAR)
    return shadow.scalar_taint[wave, register - SCALAR]


@inner
def taint_scalar(code, literals, row, S, shadow, wave):
    opcode = np.int64(code[row, OPCODE])
    a = scalar_operand_taint(code, row, 0, shadow, wave) if code[row, SOURCES] > 0 else np.int64(0)
    b = scalar_operand_taint(code, row, 1, shadow, wave) if code[row, SOURCES] > 1 else np.int64(0)
    c = scalar_operand_taint(code, row, 2, shadow, wave) if code[row, SOURCES] > 2 else np.int64(0)
    taint = a | b | c
    condition = ALL32 if taint else np.int64(0)
    if opcode == _CSELECT32 or opcode == _CSELECT64:
        if not c:
            taint = a if S[SCC] else b
        else:
            taint = ALL
    elif opcode == _AND32 or opcode == _AND64:
        # A bit that is certainly zero on one side is zero, whatever the other side is.
        x = scalar_source(S, code, literals, row, 0) | a
        y = scalar_source(S, code, literals, row, 1) | b
        taint = (a & y) | (b & x)
        condition = ALL32 if taint else np.int64(0)
    elif taint and not shadow.bitwise[opcode]:
        taint = ALL
    if code[row, EXEC_DESTINATION]:
        old = scalar_pair_taint(shadow, wave, EXEC)
        set_scalar_pair_taint(shadow, wave, EXEC, taint)
        taint = old
    destination = np.int64(code[row, DESTINATION])
    if destination >= 0:
        shadow.scalar_taint[wave, destination - SCALAR] = taint & ALL32
        if code[row, DESTINATION_MODE] & WORDS == 2:
            shadow.scalar_taint[wave, destination - SCALAR + 1] = (taint >> 32) & ALL32
    if code[row, MASK_DESTINATION] >= 0:
        shadow.scalar_taint[wave, SCC] = condition


@inner
def taint_lane(code, literals, row, S, shadow, wave, exec_mask, opcode):
    destination = np.int64(code[row, DESTINATION])
    taint = shadow.taint[wave]
    if opcode == _READFIRSTLANE or opcode == _READLANE:
        lane = scalar_source(S, code, literals, row, 1) & 63 if opcode == _READLANE else first_lane(exec_mask)
        tainted = (source_taint(code, row, 0, 1, shadow, wave) >> lane) & 1
        shadow.scalar_taint[wave, destination - SCALAR] = ALL32 if tainted else np.int64(0)
    elif opcode == _WRITELANE:
        bit = np.int64(1) << (scalar_source(S, code, literals, row, 1) & 63)
        value = source_taint(code, row, 0, 1, shadow, wave)
        taint[destination] = (taint[destination] & ~bit) | (value & bit)
    elif destination >= 0:
        other = np.int64(code[row, SOURCE + 1])
        a, b = taint[destination], taint[other]
        if opcode == _PERMLANE16:
            low = np.int64(0x0000FFFF0000FFFF)
            taint[destination] = (a & low) | (b & low) << 16
            taint[other] = (b & ~low) | ((a >> 16) & low)
        elif opcode == _PERMLANE32:
            taint[destination] = (a & ALL32) | b << 32
            taint[other] = (b & ~ALL32) | ((a >> 32) & ALL32)
        else:
            taint[destination] = (a & ~exec_mask) | (b & exec_mask)
            taint[other] = (b & ~exec_mask) | (a & exec_mask)


@inner
def fold(lanes, rows):
    """Bit i of the result: any of the lanes i, i + rows, ... is set."""
    folded = np.int64(0)
    for group in range(64 // rows):
        folded |= (lanes >> (group * rows)) & ((np.int64(1) << rows) - 1)
    return folded


@inner
def taint_matrix(code, row, shapes, shadow, wave):
    """An undefined element of A spoils its row of the result, one of B its column."""
    opcode = code[row, OPCODE]
    rows, results = shapes[opcode, 0], shapes[opcode, 5]
    a = b = np.int64(0)
    for w in range(shapes[opcode, 4]):
        a |= shadow.taint[wave, np.int64(code[row, SOURCE]) + w]
        b |= shadow.taint[wave, np.int64(code[row, SOURCE + 1]) + w]
    destination, accumulator = np.int64(code[row, DESTINATION]), np.int64(code[row, SOURCE + 2])
    spoilt_rows, spoilt_columns = fold(a, rows), fold(b, rows)
    columns = np.int64(0)
    for group in range(64 // rows):
        columns |= spoilt_columns << (group * rows)
    for r in range(results):
        lanes = columns
        if spoilt_rows:
            for group in range(64 // rows):
                i = r % 4 if rows == 4 else (r % 16 // 4 * 4 * (64 // rows) + group * 4 + r % 4) % rows
                if (spoilt_rows >> i) & 1:
                    lanes |= ((np.int64(1) << rows) - 1) << (group * rows)
        if accumulator >= 0:
            lanes |= shadow.taint[wave, accumulator + r]
        shadow.taint[wave, destination + r] = lanes


# ---------------------------------------------------------------- LDS


@inner
def touch_local(shadow, row, wave, lane, at, size, is_write, group):
    """One lane's access to LDS bytes: is it ordered after every other wave's?"""
    epoch, counts = shadow.epoch[0], shadow.counts
    number = counts[wave, LOCAL_ISSUED] + 1
    for byte in range(at, at + size):
        writer = shadow.local_writer[byte]
        if writer >= 0 and writer != wave and (
            shadow.local_write_epoch[byte] == epoch
            or shadow.local_write_number[byte] > counts[writer, LOCAL_DONE_AT_BARRIER]
        ):
            report(shadow, RACE, row, wave, lane, at, group)
        if is_write:
            reader = shadow.local_reader[byte]
            if reader >= 0 and reader != wave and (
                shadow.local_read_epoch[byte] == epoch
                or (reader != SEVERAL and shadow.local_read_number[byte] > counts[reader, LOCAL_DONE_AT_BARRIER])
            ):
                report(shadow, RACE, row, wave, lane, at, group)
            shadow.local_writer[byte] = wave
            shadow.local_write_epoch[byte] = epoch
            shadow.local_write_number[byte] = number
        else:
            again = shadow.local_reader[byte] >= 0 and shadow.local_read_epoch[byte] == epoch
            shadow.local_reader[byte] = SEVERAL if again and shadow.local_reader[byte] != wave else wave
            shadow.local_read_epoch[byte] = epoch
            shadow.local_read_number[byte] = number
        if shadow.local_dma[byte] > counts[wave, VECTOR_DONE]:
            report(shadow, WAIT, row, wave, lane, at, group)


@inner
def undefined_words(shadow, at, size, limit):
    """Bit w is set if any byte of word w of [at, at + size) is undefined."""
    bits = np.int64(0)
    for i in range(size):
        if at + i < limit and not shadow.local_defined[at + i]:
            bits |= np.int64(1) << (i >> 2)
    return bits


@inner
def check_local(code, literals, row, R, S, lds, shadow, wave, exec_mask, group):
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size, register = np.int64(code[row, BYTES]), np.int64(code[row, DESTINATION])
    address = np.int64(code[row, SOURCE])
    multiple_waves = shadow.taint.shape[0] > 1
    if transfer == TRANSFER_BPERMUTE or transfer == TRANSFER_PERMUTE or transfer == TRANSFER_SWIZZLE:
        value = source_taint(code, row, 0 if transfer == TRANSFER_SWIZZLE else 1, 1, shadow, wave)
        taint = np.int64(0)
        if value & exec_mask:
            taint = exec_mask  # which lanes it reaches is data; none is the usual case
        if transfer != TRANSFER_SWIZZLE:
            taint |= source_taint(code, row, 0, 1, shadow, wave)
        set_taint(shadow, wave, register, 1, exec_mask, taint)
        return
    if shadow.taint[wave, address] & exec_mask:
        report(shadow, UNINITIALISED, row, wave, first_lane(shadow.taint[wave, address] & exec_mask), 0, group)
    pieces = 2 if flags & FLAG_PAIR else 1
    loaded0 = loaded1 = loaded2 = loaded3 = np.int64(0)
    for lane in range(64):
        if not (exec_mask >> lane) & 1:
            continue
        bit = np.int64(1) << lane
        for piece in range(pieces):
            at = np.int64(R[address * 64 + lane]) + np.int64(code[row, OFFSET1 if piece else OFFSET])
            if at + size > lds.size:
                continue
            if at & ((size if size < 8 else (np.int64(8) if size == 8 else np.int64(4))) - 1):
                report(shadow, MISALIGNED, row, wave, lane, at, group)
            is_write = transfer == TRANSFER_STORE or transfer == TRANSFER_ATOMIC
            if multiple_waves or shadow.local_dma[at]:
                touch_local(shadow, row, wave, lane, at, size, is_write and transfer != TRANSFER_ATOMIC, group)
            if transfer == TRANSFER_LOAD or transfer == TRANSFER_TRANSPOSE:
                undefined = undefined_words(shadow, at, size, lds.size)
                if undefined:
                    first = piece * (size >> 2)
                    for w in range(max(size >> 2, np.int64(1))):
                        if (undefined >> w) & 1:
                            at_word = first + w
                            if at_word == 0:
                                loaded0 |= bit
                            elif at_word == 1:
                                loaded1 |= bit
                            elif at_word == 2:
                                loaded2 |= bit
                            else:
                                loaded3 |= bit
                continue
            data = np.int64(code[row, SOURCE + 1 + piece])
            for i in range(size):
                tainted = np.int64(0)
                if 0 <= data < SCALAR:
                    tainted = (shadow.taint[wave, data + (i >> 2)] >> lane) & 1
                if transfer == TRANSFER_ATOMIC:
                    tainted |= np.int64(shadow.local_defined[at + i] == 0)
                shadow.local_defined[at + i] = 0 if tainted else 1
    if register < 0:
        return
    if transfer == TRANSFER_TRANSPOSE:
        # A lane's undefined word may land in any lane of its row of 16.
        mixed = loaded0 | loaded1
        loaded0 = np.int64(0)
        for quarter in range(4):
            if (mixed >> (16 * quarter)) & 0xFFFF:
                loaded0 |= np.int64(0xFFFF) << (16 * quarter)
        loaded1 = loaded0
    if flags & (FLAG_LOW | FLAG_HIGH):
        loaded0 |= shadow.taint[wave, register]
    words = np.int64(code[row, DESTINATION_MODE]) & 0x3F
    set_taint(shadow, wave, register, 1, exec_mask, loaded0)
    if words > 1:
        set_taint(shadow, wave, register + 1, 1, exec_mask, loaded1)
    if words > 2:
        set_taint(shadow, wave, register + 2, 1, exec_mask, loaded2)
    if words > 3:
        set_taint(shadow, wave, register + 3, 1, exec_mask, loaded3)


# ---------------------------------------------------------------- global memory


@inner
def touch_global(shadow, row, wave, lane, address, at, size, is_read, is_write, is_output, group):
    """One lane's access to arena bytes: races with other workgroups, and outputs written twice."""
    for byte in range(at, at + size):
        other = shadow.writer[byte]
        if other >= 0 and other != group:
            report(shadow, RACE, row, wave, lane, address, group)
        if is_write:
            other = shadow.reader[byte]
            if other >= 0 and other != group:
                report(shadow, RACE, row, wave, lane, address, group)
            if is_output and shadow.state[byte] == WRITTEN:
                report(shadow, DOUBLE_WRITE, row, wave, lane, address, group)
            shadow.writer[byte] = group
            shadow.state[byte] = WRITTEN
        if is_read:
            shadow.reader[byte] = group


@inner
def check_global(code, literals, row, R, S, lds, memory, shadow, wave, exec_mask, group):
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size, register = np.int64(code[row, BYTES]), np.int64(code[row, DESTINATION])
    address_register = np.int64(code[row, SOURCE])
    is_load, is_atomic = transfer == TRANSFER_LOAD, transfer == TRANSFER_ATOMIC
    bad = np.int64(0)
    if address_register >= 0:
        bad = source_taint(code, row, 0, np.int64(code[row, SOURCE_MODE]) & 0x3F, shadow, wave)
    for k in range(1, 3):
        if code[row, SOURCE + k] >= SCALAR:
            bad |= source_taint(code, row, k, np.int64(code[row, SOURCE_MODE + k]) & 0x3F, shadow, wave)
    if not is_load:
        data = np.int64(code[row, SOURCE + 3])
        if data >= 0 and flags & FLAG_SCRATCH == 0:
            bad |= source_taint(code, row, 3, max(size >> 2, np.int64(1)), shadow, wave)
        bad |= scalar_pair_taint(shadow, wave, EXEC)
    if bad & exec_mask:
        report(shadow, UNINITIALISED, row, wave, first_lane(bad & exec_mask), 0, group)
    words = max(size >> 2, np.int64(1))
    if flags & FLAG_SCRATCH:
        if is_load:
            set_taint(shadow, wave, register, words, exec_mask, np.int64(0))
        return
    keeps = flags & (FLAG_LOW | FLAG_HIGH)
    if is_load and flags & FLAG_TO_LDS == 0 and not keeps:
        set_taint(shadow, wave, register, words, exec_mask, np.int64(0))
    if flags & FLAG_RETURN:
        set_taint(shadow, wave, register, words, exec_mask, np.int64(0))
    alignment = min(size, np.int64(4)) - 1
    base = np.uint64(max(address_register, np.int64(0)) * 64)
    last = -1
    for lane in range(64):
        if not (exec_mask >> lane) & 1:
            continue
        address, valid = lane_address(R, S, code, literals, row, base, lane, size)
        if valid < size:
            report(shadow, OUT_OF_BOUNDS, row, wave, lane, address, group)
            continue
        if address & alignment:
            report(shadow, MISALIGNED, row, wave, lane, address, group)
        last = find(address, size, memory, last)
        if last < 0:
            return  # the access itself faults
        at = place(memory, last, address)
        if not is_atomic:
            touch_global(shadow, row, wave, lane, address, at, size, is_load, not is_load, shadow.is_output[last], group)
        if is_load and flags & FLAG_TO_LDS:
            to = (np.int64(S[M0]) & 0xFFFF) + np.int64(code[row, OFFSET]) + lane * max(size, np.int64(4))
            for i in range(size):
                if to + i < lds.size:
                    shadow.local_defined[to + i] = 1 if shadow.state[at + i] else 0
                    shadow.local_dma[to + i] = shadow.counts[wave, VECTOR_ISSUED] + 1
                    shadow.local_writer[to + i] = wave
                    shadow.local_write_epoch[to + i] = shadow.epoch[0]
                    shadow.local_write_number[to + i] = 0
        elif is_load:
            bit = np.int64(1) << lane
            for i in range(size):
                if shadow.state[at + i] == UNDEFINED:
                    shadow.taint[wave, register + (i >> 2)] |= bit


@inner
def check_scalar_load(code, literals, row, S, memory, shadow, wave, group):
    destination = np.int64(code[row, DESTINATION]) - SCALAR
    size = np.int64(code[row, BYTES])
    if code[row, TRANSFER] == TRANSFER_CLOCK:
        set_scalar_pair_taint(shadow, wave, destination, np.int64(0))
        return
    bad = np.int64(0)
    for k in range(np.int64(code[row, SOURCES])):
        bad |= source_taint(code, row, k, np.int64(code[row, SOURCE_MODE + k]) & 0x3F, shadow, wave)
    if bad:
        report(shadow, UNINITIALISED, row, wave, 0, 0, group)
    offset = np.int64(code[row, OFFSET])
    if code[row, SOURCES] > 1:
        offset += scalar_source(S, code, literals, row, 1)
    address = ((scalar64(S, np.int64(code[row, SOURCE]) - SCALAR) & 0xFFFFFFFFFFFF) + offset) & ~3
    region = find(address, size, memory, -1)
    for w in range(size >> 2):
        taint = np.int64(0)
        if region >= 0:
            at = place(memory, region, address) + 4 * w
            for byte in range(at, at + 4):
                if shadow.state[byte] == UNDEFINED:
                    taint = ALL32
                other = shadow.writer[byte]
                if other >= 0 and other != group:
                    report(shadow, RACE, row, wave, 0, address, group)
                shadow.reader[byte] = group
        shadow.scalar_taint[wave, destination + w] = taint


# ---------------------------------------------------------------- every row


@inner
def check(code, literals, shapes, row, R, S, lds, memory, shadow, wave, group):
    """Look at a row before it runs."""
    unit, opcode = code[row, UNIT], np.int64(code[row, OPCODE])
    check_waits(code, row, shadow, wave, group)
    exec_mask = scalar64(S, EXEC)
    if unit == UNIT_VECTOR:
        taint_vector(code, literals, row, S, shadow, wave, exec_mask)
        return
    if unit == UNIT_SCALAR:
        taint_scalar(code, literals, row, S, shadow, wave)
        return
    if unit == UNIT_MATRIX:
        taint_matrix(code, row, shapes, shadow, wave)
        return
    if unit == UNIT_LANE:
        taint_lane(code, literals, row, S, shadow, wave, exec_mask, opcode)
        return
    if unit == UNIT_LDS:
        check_local(code, literals, row, R, S, lds, shadow, wave, exec_mask, group)
    elif unit == UNIT_MEMORY:
        check_global(code, literals, row, R, S, lds, memory, shadow, wave, exec_mask, group)
    elif unit == UNIT_SCALAR_MEMORY:
        check_scalar_load(code, literals, row, S, memory, shadow, wave, group)
    elif unit == UNIT_CONTROL:
        bad = np.int64(0)
        if opcode == _SCC0 or opcode == _SCC1:
            bad = shadow.scalar_taint[wave, SCC]
        elif opcode == _VCCZ or opcode == _VCCNZ:
            bad = scalar_pair_taint(shadow, wave, VCC)
        elif opcode == _EXECZ or opcode == _EXECNZ:
            bad = scalar_pair_taint(shadow, wave, EXEC)
        if bad:
            report(shadow, UNINITIALISED, row, wave, 0, 0, group)
    issue(code, row, shadow, wave)
