"""What a correct kernel never does, checked on every row just before it runs.

Shadow state stands beside the machine's: for each register and byte whether anything defined it, which load it
still waits for, who touched it last. A finding is recorded once per kind and row; the run goes on.

Uninitialised values are tracked by taint, a bit for each lane and 16-bit half of a vector register and for each bit of
a scalar one, and reported only where they reach a store to global memory, an address, a branch or EXEC: a kernel may
well compute with junk that it masks. Which halves of a result they reach is said in `flow`.

What workgroups order among themselves by atomics is not understood: reading what another wrote is a race.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit

from .encoding import (
    ACCUMULATION,
    BYTES,
    CODE_WAIT,
    DESTINATION,
    DESTINATION_MODE,
    DPP,
    DPP_MASKS,
    EXEC,
    EXEC_DESTINATION,
    FLAG_CLAMPED,
    FLAG_FLAT,
    FLAG_HIGH,
    FLAG_LOW,
    FLAG_PAIR,
    FLAG_SADDR,
    FLAG_SCRATCH,
    FLAG_SIGNED,
    FLAG_TO_LDS,
    FLAGS,
    LANES,
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
    TRANSFER_SWIZZLE,
    TRANSFER_TRANSPOSE,
    UNIT,
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
from .flow import COLUMNS as FLOW_COLUMNS
from .flow import (
    DETAIL,
    FLOW,
    HIGH_TO_HIGH,
    HIGH_TO_LOW,
    KEPT,
    LOW_TO_HIGH,
    LOW_TO_LOW,
    NO_RULE,
    RULE,
    STEERING,
    flows,
    steered_flow,
)
from .footprint import footprint
from .isa import instruction_set
from .listing import Program, opcodes
from .matrix import F64
from .memory import Memory
from .operands import dpp_lane, scalar64, scalar_source
from .scalar import inner
from .transfer import find, lane_address, place, swizzle_lane

# A call hands over every array of Shadow one by one, which takes longer than looking at most rows does.
into_caller = njit(_nrt=False, error_model="numpy", inline="always")

KINDS = (
    "out-of-bounds", "misaligned", "uninitialised", "wait", "race", "double-write", "divergent-barrier",
    "unwritten", "hazard",
)  # fmt: skip
OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, WAIT, RACE, DOUBLE_WRITE, DIVERGENT_BARRIER = range(7)

# States of a byte of global memory.
UNDEFINED, DEFINED, WRITTEN = 0, 1, 2

# Columns of Shadow.counts, per wave: work in the order it was issued, the last of it that loads a register, how
# much is certainly done, and how much was at the last barrier; whether a FLAT access, which returns in any order, is
# among it.
VECTOR_ISSUED, VECTOR_LOAD, VECTOR_DONE, VECTOR_DONE_AT_BARRIER, VECTOR_FLAT = range(5)
LOCAL_ISSUED, LOCAL_LOAD, LOCAL_DONE, LOCAL_DONE_AT_BARRIER, LOCAL_FLAT = range(5, 10)
SCALAR_LOAD = 10  # 1 while a scalar load is in flight
IN_FLIGHT = 11  # registers that loads in flight will write, a bit for each code modulo 64; 0 when all are done
COUNTS = 12
NO_WAIT_VECTOR, NO_WAIT_LOCAL = 63, 15  # the largest counts that s_waitcnt can hold mean no wait

# Kinds of access. Reads do not race with each other, nor do atomics. A DMA is a global load that writes LDS itself.
# A compare-and-swap finds out itself what others did meanwhile: it races with plain writes only, since LLVM turns
# some atomics into a plain read and a loop over it.
READ, ATOMIC, WRITE, DMA, COMPARE = range(5)

# Columns of a finding. An address in LDS is recorded as its complement, which is negative.
FINDING_KIND, FINDING_ROW, FINDING_WAVE, FINDING_LANE, FINDING_ADDRESS, FINDING_GROUP = range(6)
MAX_FINDINGS = 256

LDS_BANKS = 64
"""Banks of 4 bytes that gfx950's LDS serves at once."""

SEVERAL = np.int32(-1)
"""In place of a workgroup: more than one."""

LINE = 6  # log2 of the arena bytes that share an element of Shadow.lines

ALL = np.int64(-1)
ALL32 = np.int64(0xFFFFFFFF)
LOW_BITS, HIGH_BITS = np.int64(0xFFFF), np.int64(0xFFFF0000)
MOST_HALVES = 8  # of what one instruction moves between a lane and memory

_CNDMASK = opcodes()["v_cndmask_b32"]
_CSELECT32, _CSELECT64 = opcodes()["s_cselect_b32"], opcodes()["s_cselect_b64"]
_CMOV32, _CMOV64 = opcodes()["s_cmov_b32"], opcodes()["s_cmov_b64"]
_SCC0, _SCC1 = opcodes()["s_cbranch_scc0"], opcodes()["s_cbranch_scc1"]
_VCCZ, _VCCNZ = opcodes()["s_cbranch_vccz"], opcodes()["s_cbranch_vccnz"]
_READFIRSTLANE, _READLANE, _WRITELANE = (
    opcodes()["v_readfirstlane_b32"], opcodes()["v_readlane_b32"], opcodes()["v_writelane_b32"],
)  # fmt: skip
_PERMLANE16, _PERMLANE32 = opcodes()["v_permlane16_swap_b32"], opcodes()["v_permlane32_swap_b32"]


class Shadow(NamedTuple):
    """Shadow state. [w] is per wave; bytes of LDS and of the arena have an element each."""

    reads: np.ndarray  # int32 [rows, n, 2], see footprint
    writes: np.ndarray
    uses: np.ndarray  # int64 [rows]: registers read or written, a bit for each code modulo 64
    bitwise: np.ndarray  # uint8 [scalar opcodes]: truth table of a bitwise operation, bit 2 x + y; 0 for none
    handed_over: np.ndarray  # uint8 [scalars]: the hardware sets it before the first instruction
    flows: np.ndarray  # int32 [rows, columns], see flow
    taint: np.ndarray  # int64 [w, vector rows, 2]: lanes in which nothing defined the low half, and the high one
    scalar_taint: np.ndarray  # int64 [w, scalars]: bits that nothing defined
    vector_load: np.ndarray  # int64 [w, vector rows]: number of the global load that will write it
    local_load: np.ndarray  # the same for LDS
    scalar_load: np.ndarray  # uint8 [w, scalars]: a scalar load is in flight
    moved_taint: np.ndarray  # int64 [2, MOST_HALVES]: lanes in which what a load or store moves is undefined, by halves
    counts: np.ndarray  # int64 [w, COUNTS]
    local_defined: np.ndarray  # uint8 [lds]
    local_words: np.ndarray  # the same as uint32
    touched: np.ndarray  # int32 [lds, 4]: waves that did each kind of access since the last write; may be empty
    touch_numbers: np.ndarray  # int32 [lds, 4, w]: the wave's count of the last such access
    private_defined: np.ndarray  # uint8 [w, lanes * private bytes]
    state: np.ndarray  # uint8 [arena]
    lines: np.ndarray  # uint8 [arena lines]: 0 if all bytes are defined and nothing in the kernel wrote them
    toucher: np.ndarray  # int32 [3, arena]: 1 + the workgroup of each kind of access, 0 for none, or SEVERAL
    is_output: np.ndarray  # uint8 [regions]
    seen: np.ndarray  # uint8 [kinds, rows]
    conflicts: np.ndarray  # int64 [rows], cycles lost to LDS bank conflicts; empty when nobody asks
    banks: np.ndarray  # int64 [LDS_BANKS], accesses of one pass
    findings: np.ndarray  # int64 [MAX_FINDINGS, 6]
    found: np.ndarray  # int64 [1]


def make_shadow(
    program: Program,
    memory: Memory,
    waves: int,
    lds_bytes: int,
    handed_over: np.ndarray,
    enabled: bool,
    count_conflicts: bool,
) -> Shadow:
    """Shadow state for one launch; next to nothing when `enabled` is false."""
    regions = memory.regions()
    rows = len(program.code)
    arena = memory.arena().size if enabled else 0
    lds = lds_bytes if enabled else 0
    waves = waves if enabled else 0
    reads, writes = _footprint(program) if enabled else (np.zeros((0, 1, 2), np.int32),) * 2
    half_flows = _flows(program) if enabled else np.zeros((0, FLOW_COLUMNS), np.int32)
    state = np.full(arena, DEFINED, np.uint8)
    lines = np.zeros((arena >> LINE) + 1, np.uint8)
    for region in regions:
        if enabled and region.is_output:
            state[region.offset : region.offset + region.size] = UNDEFINED
            lines[region.offset >> LINE : (region.offset + region.size >> LINE) + 1] = 1
    vector, scalars = (waves, VECTOR_ROWS), (waves, SCALARS)
    local = np.zeros(-(-lds // 4) * 4, np.uint8)
    is_dma = bool((program.code[program.code[:, UNIT] == UNIT_MEMORY, FLAGS] & FLAG_TO_LDS).any())
    tracked = lds if waves > 1 or is_dma else 0
    return Shadow(
        reads=reads,
        writes=writes,
        uses=_uses(reads) | _uses(writes),
        bitwise=_bitwise_opcodes(),
        handed_over=handed_over,
        flows=half_flows,
        taint=np.zeros((*vector, 2), np.int64),
        scalar_taint=np.zeros(scalars, np.int64),
        vector_load=np.zeros(vector, np.int64),
        local_load=np.zeros(vector, np.int64),
        scalar_load=np.zeros(scalars, np.uint8),
        moved_taint=np.zeros((2, MOST_HALVES), np.int64),
        counts=np.zeros((waves, COUNTS), np.int64),
        local_defined=local,
        local_words=local.view(np.uint32),
        touched=np.zeros((tracked, 4), np.int32),
        touch_numbers=np.zeros((tracked, 4, waves), np.int32),
        private_defined=np.zeros((waves, LANES * program.private_bytes), np.uint8),
        state=state,
        lines=lines,
        toucher=np.zeros((3, arena), np.int32),
        is_output=np.array([region.is_output for region in regions], dtype=np.uint8),
        seen=np.zeros((len(KINDS), rows), np.uint8),
        conflicts=np.zeros(rows if count_conflicts else 0, np.int64),
        banks=np.zeros(LDS_BANKS, np.int64),
        findings=np.zeros((MAX_FINDINGS, 6), np.int64),
        found=np.zeros(1, np.int64),
    )


_footprint = lru_cache(maxsize=64)(footprint)
_flows = lru_cache(maxsize=64)(flows)


def _uses(ranges: np.ndarray) -> np.ndarray:
    """Registers of each row's ranges, int64 [rows], a bit for each code modulo 64."""
    uses = np.zeros(len(ranges), np.uint64)
    for offset in range(ranges[..., 1].max(initial=0)):
        bits = np.uint64(1) << ((ranges[..., 0] + offset) % 64).astype(np.uint64)
        uses |= np.bitwise_or.reduce(np.where(offset < ranges[..., 1], bits, 0), axis=1)
    return uses.view(np.int64)


_BITWISE = re.compile(r"s_(\w+?)(_saveexec|_wrexec)?_b(32|64)")
_TRUTH_TABLES = {
    "mov": 0b1100, "not": 0b0011, "and": 0b1000, "or": 0b1110, "xor": 0b0110, "nand": 0b0111, "nor": 0b0001,
    "xnor": 0b1001, "andn1": 0b0010, "andn2": 0b0100, "orn1": 0b1011, "orn2": 0b1101,
}  # fmt: skip


@cache
def _bitwise_opcodes() -> np.ndarray:
    names = [i.name for i in instruction_set().values() if i.unit == "scalar"]
    matches = [_BITWISE.fullmatch(name) for name in names]
    return np.array([_TRUTH_TABLES.get(match[1], 0) if match else 0 for match in matches], dtype=np.uint8)


@dataclass(frozen=True)
class Finding:
    """Something a correct kernel never does. `line` is the listing's, 0 if no one instruction is to blame.

    text: the instruction, and the line of source behind it if known.
    """

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
        where += f"workgroup {self.workgroup}, wave {self.wave}, lane {self.lane}"
        return f"{self.kind}: {where}: {self.detail}"


def _register_name(code: int) -> str:
    if code >= SCALAR:
        return {VCC: "vcc", EXEC: "exec", SCC: "scc", M0: "m0"}.get(code - SCALAR, f"s{code - SCALAR}")
    return f"a{code - ACCUMULATION}" if code >= ACCUMULATION else f"v{code}"


def _detail(kind: str, address: int, memory: Memory) -> str:
    where = f"LDS byte {~address}" if address < 0 else memory.describe(address)
    if kind == "wait":
        what = where if address < 0 else _register_name(address)
        return f"{what} is used while a load into it is in flight"
    if kind == "uninitialised":
        return "a value that nothing wrote reaches an address, a branch, exec or memory"
    if kind == "divergent-barrier":
        return "a wave ended, or waits at another barrier, while others of its workgroup wait"
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
        result.append(
            Finding(name, line, program.line_and_source(row), workgroup, wave, lane, max(address, ~address), detail)
        )
    for region in memory.regions():
        if not region.is_output:
            continue
        untouched = np.flatnonzero(shadow.state[region.offset : region.offset + region.size] != WRITTEN)
        if untouched.size:
            first = region.address + int(untouched[0])
            extent = f"{untouched.size} of {region.size} bytes of {region.name}"
            detail = f"{extent}, the first at byte {untouched[0]}"
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
    shadow.taint[:, :, :] = ALL
    shadow.taint[:, 0, :] = 0
    shadow.scalar_taint[:, :] = ALL32
    for wave in range(shadow.taint.shape[0]):
        for register in range(shadow.handed_over.size):
            if shadow.handed_over[register]:
                shadow.scalar_taint[wave, register] = 0
    shadow.vector_load[:, :] = 0
    shadow.local_load[:, :] = 0
    shadow.scalar_load[:, :] = 0
    shadow.counts[:, :] = 0
    shadow.local_defined[:] = 0
    shadow.touched[:, :] = 0
    shadow.private_defined[:, :] = 0


@inner
def meet_at_barrier(shadow, states, pcs, waiting, group):
    """All live waves wait: they must at the same barrier. LDS accesses that they have waited for are then ordered."""
    first = np.int64(0)
    while states[first] != waiting:
        first += 1
    for wave in range(states.size):
        if states[wave] != waiting:
            report(shadow, DIVERGENT_BARRIER, pcs[first] - 1, wave, 0, 0, group)
        elif pcs[wave] != pcs[first]:
            report(shadow, DIVERGENT_BARRIER, pcs[wave] - 1, wave, 0, 0, group)
        counts = shadow.counts[wave]
        counts[LOCAL_DONE_AT_BARRIER] = counts[LOCAL_DONE]
        counts[VECTOR_DONE_AT_BARRIER] = counts[VECTOR_DONE]


# ---------------------------------------------------------------- waits


@into_caller
def check_waits(code, row, shadow, wave, group):
    if shadow.counts[wave, IN_FLIGHT] & shadow.uses[row]:
        find_late(code, row, shadow, wave, group)


@inner
def find_late(code, row, shadow, wave, group):
    """No register is read or overwritten while a load into it is in flight."""
    counts = shadow.counts[wave]
    vector_done, local_done = counts[VECTOR_DONE], counts[LOCAL_DONE]
    unit = code[row, UNIT]
    is_flat = np.int64(code[row, FLAGS]) & FLAG_FLAT
    vector_load, local_load = shadow.vector_load[wave], shadow.local_load[wave]
    for is_write in range(2):
        ranges = shadow.writes[row] if is_write else shadow.reads[row]
        # Loads of one kind return in order, so one may overwrite another's result; FLAT ones do not.
        overtakes_vector = is_write and unit == UNIT_MEMORY and not is_flat and not counts[VECTOR_FLAT]
        overtakes_local = is_write and unit == UNIT_LDS and not counts[LOCAL_FLAT]
        for slot in range(ranges.shape[0]):
            first, count = np.int64(ranges[slot, 0]), np.int64(ranges[slot, 1])
            if count == 0:
                break
            for register in range(first, first + count):
                late = False
                if register < SCALAR:
                    late = (vector_load[register] > vector_done and not overtakes_vector) or (
                        local_load[register] > local_done and not overtakes_local
                    )
                else:
                    late = shadow.scalar_load[wave, register - SCALAR] != 0
                if late:
                    report(shadow, WAIT, row, wave, 0, register, group)


@inner
def wait(code, row, shadow, wave):
    """What a wait makes certain.

    Accesses of one kind are done in order, but a FLAT one anywhere among them, and scalar loads in any order. At most
    as many LDS accesses stay open as the count says, whatever scalar loads it includes.
    """
    counts = shadow.counts[wave]
    vector, local = np.int64(code[row, OFFSET]), np.int64(code[row, OFFSET1])
    if vector == 0:
        counts[VECTOR_FLAT] = 0
    if local == 0:
        counts[LOCAL_FLAT] = 0
        if counts[SCALAR_LOAD]:
            counts[SCALAR_LOAD] = 0
            shadow.scalar_load[wave, :] = 0
    if vector < NO_WAIT_VECTOR and not counts[VECTOR_FLAT]:
        counts[VECTOR_DONE] = max(counts[VECTOR_DONE], counts[VECTOR_ISSUED] - vector)
    if local < NO_WAIT_LOCAL and not counts[LOCAL_FLAT]:
        counts[LOCAL_DONE] = max(counts[LOCAL_DONE], counts[LOCAL_ISSUED] - local)
    if (
        counts[VECTOR_LOAD] <= counts[VECTOR_DONE]
        and counts[LOCAL_LOAD] <= counts[LOCAL_DONE]
        and counts[SCALAR_LOAD] == 0
    ):
        counts[IN_FLIGHT] = 0


@inner
def issue(code, row, shadow, wave):
    """Number an instruction whose result comes later, and mark the registers it will write."""
    unit, flags = code[row, UNIT], np.int64(code[row, FLAGS])
    counts, writes = shadow.counts[wave], shadow.writes[row]
    if unit == UNIT_SCALAR_MEMORY:
        counts[SCALAR_LOAD] = 1
        for register in range(np.int64(writes[0, 0]), np.int64(writes[0, 0]) + np.int64(writes[0, 1])):
            shadow.scalar_load[wave, register - SCALAR] = 1
            counts[IN_FLIGHT] |= np.int64(1) << (register & 63)
        return
    is_vector, is_local = unit == UNIT_MEMORY, unit == UNIT_LDS or flags & FLAG_FLAT != 0
    if is_vector:
        counts[VECTOR_ISSUED] += 1
    if is_local:
        counts[LOCAL_ISSUED] += 1
    if flags & FLAG_FLAT:
        counts[VECTOR_FLAT] = counts[LOCAL_FLAT] = 1
    first, count = np.int64(writes[0, 0]), np.int64(writes[0, 1])
    if count == 0:
        return
    if is_vector:
        counts[VECTOR_LOAD] = counts[VECTOR_ISSUED]
    if is_local:
        counts[LOCAL_LOAD] = counts[LOCAL_ISSUED]
    for register in range(first, first + count):
        counts[IN_FLIGHT] |= np.int64(1) << (register & 63)
        if is_vector:
            shadow.vector_load[wave, register] = counts[VECTOR_ISSUED]
        if is_local:
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
def either_half(shadow, wave, register):
    return shadow.taint[wave, register, 0] | shadow.taint[wave, register, 1]


@inner
def source_taint(code, row, k, words, shadow, wave):
    """Lanes in which any of source k is tainted."""
    register = np.int64(code[row, SOURCE + k])
    taint = np.int64(0)
    if register >= SCALAR:
        for w in range(words):
            if shadow.scalar_taint[wave, register - SCALAR + w]:
                taint = ALL
    elif register >= 0:
        for w in range(words):
            taint |= either_half(shadow, wave, register + w)
    return taint


@inner
def half_taint(code, row, k, half, shadow, wave):
    """Lanes in which half `half` of source k is tainted, counted from the low one of its first register."""
    register = np.int64(code[row, SOURCE + k])
    if register >= SCALAR:
        bits = shadow.scalar_taint[wave, register - SCALAR + (half >> 1)]
        return ALL if (bits >> (16 * (half & 1))) & LOW_BITS else np.int64(0)
    return shadow.taint[wave, register + (half >> 1), half & 1] if register >= 0 else np.int64(0)


@inner
def set_taint(shadow, wave, register, half, exec_mask, taint):
    """Taint of half `half`, counted from the low one of `register`, in the lanes that are written."""
    old = shadow.taint[wave, register + (half >> 1), half & 1]
    shadow.taint[wave, register + (half >> 1), half & 1] = (old & ~exec_mask) | (taint & exec_mask)


@inner
def set_exec_taint(shadow, row, wave, taint, group):
    """EXEC steers as a branch does: junk that reaches it is reported here, and nowhere after."""
    if taint:
        report(shadow, UNINITIALISED, row, wave, first_lane(taint), 0, group)


@inner
def dpp_taint(code, row, low, high, exec_mask):
    """(lanes that read a tainted low half, and high half, lanes that are written) of a data-parallel primitive."""
    control, masks = np.int64(code[row, DPP]), np.int64(code[row, DPP_MASKS])
    moved_low = moved_high = written = np.int64(0)
    for lane in range(64):
        source = dpp_lane(control, lane)
        valid = source >= 0 and (exec_mask >> source) & 1
        if valid:
            moved_low |= ((low >> source) & 1) << lane
            moved_high |= ((high >> source) & 1) << lane
        enabled = (masks >> (lane >> 4)) & 1 and (masks >> (4 + ((lane >> 2) & 3))) & 1
        if enabled and (valid or (masks >> 8) & 1):
            written |= np.int64(1) << lane
    return moved_low, moved_high, written & exec_mask


@inner
def flow_of(k, columns, literals, flow, S, scalar_taint):
    """Flow of source k of one row's instruction, as narrow as its values now allow."""
    if flow[RULE] == NO_RULE:
        return np.int64(flow[FLOW + k])
    steering = np.int64(flow[STEERING])
    register, value = np.int64(columns[SOURCE + steering]), literals[steering]
    if register >= SCALAR:
        if scalar_taint[register - SCALAR]:
            return np.int64(flow[FLOW + k])
        value = np.int64(S[register - SCALAR])
    return np.int64(flow[FLOW + k]) & steered_flow(flow[RULE], flow[DETAIL], k, value)


@into_caller
def taint_vector(code, literals, row, S, shadow, wave, exec_mask, group):
    columns, flow, taints = code[row], shadow.flows[row], shadow.taint[wave]
    mask_source = np.int64(columns[MASK_SOURCE]) - 1
    low = high = np.int64(0)  # of the destination
    written = exec_mask
    for k in range(np.uint64(columns[SOURCES])):
        register, words = np.int64(columns[SOURCE + k]), np.int64(columns[SOURCE_MODE + k]) & WORDS
        source_low = source_high = np.int64(0)
        if register >= SCALAR:
            if np.int64(k) == mask_source:
                source_low = source_high = scalar_pair_taint(shadow, wave, register - SCALAR)
            else:
                for w in range(register - SCALAR, register - SCALAR + words):
                    if shadow.scalar_taint[wave, w]:
                        source_low |= ALL if shadow.scalar_taint[wave, w] & LOW_BITS else 0
                        source_high |= ALL if shadow.scalar_taint[wave, w] & HIGH_BITS else 0
        elif register >= 0:
            for w in range(np.uint64(register), np.uint64(register + words)):
                source_low |= taints[w, 0]
                source_high |= taints[w, 1]
        if k == 0 and columns[DPP] >= 0:
            source_low, source_high, written = dpp_taint(code, row, source_low, source_high, exec_mask)
        if source_low | source_high:
            if k < 2 and mask_source == 2 and columns[OPCODE] == _CNDMASK and columns[SOURCE + 2] >= SCALAR:
                chosen = scalar64(S, np.int64(columns[SOURCE + 2]) - SCALAR)
                chosen = chosen if k == 1 else ~chosen
                source_low, source_high = source_low & chosen, source_high & chosen
            reach = flow_of(np.int64(k), columns, literals[row], flow, S, shadow.scalar_taint[wave])
            low |= (source_low if reach & LOW_TO_LOW else 0) | (source_high if reach & HIGH_TO_LOW else 0)
            high |= (source_low if reach & LOW_TO_HIGH else 0) | (source_high if reach & HIGH_TO_HIGH else 0)
    taint = low | high
    destination = np.int64(columns[DESTINATION])
    if destination >= 0:
        if flow[KEPT]:
            low |= taints[destination, 0] if flow[KEPT] & 1 else 0
            high |= taints[destination, 1] if flow[KEPT] & 2 else 0
        words = np.int64(columns[DESTINATION_MODE]) & WORDS
        for w in range(np.uint64(destination), np.uint64(destination + words)):
            taints[w, 0] = (taints[w, 0] & ~written) | (low & written)
            taints[w, 1] = (taints[w, 1] & ~written) | (high & written)
    mask_destination = np.int64(columns[MASK_DESTINATION])
    if mask_destination == SCALAR + EXEC or columns[EXEC_DESTINATION]:
        set_exec_taint(shadow, row, wave, taint & exec_mask, group)
    if mask_destination >= 0 and mask_destination != SCALAR + EXEC:
        set_scalar_pair_taint(shadow, wave, mask_destination - SCALAR, taint & exec_mask)


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
def truth(table, x, y):
    """A bitwise operation of two variables, by its truth table."""
    value = np.int64(0)
    if table & 1:
        value |= ~x & ~y
    if table & 2:
        value |= ~x & y
    if table & 4:
        value |= x & ~y
    if table & 8:
        value |= x & y
    return value


@inner
def bitwise_taint(table, x, y, a, b):
    """(bits of a bitwise result that depend on the tainted bits a of x and b of y, bits that are certainly 1)."""
    value = truth(table, x, y)
    taint = value ^ truth(table, x ^ a, y)
    taint |= value ^ truth(table, x, y ^ b)
    taint |= value ^ truth(table, x ^ a, y ^ b)
    return taint, value & ~taint


@into_caller
def taint_scalar(code, literals, row, S, shadow, wave, group):
    opcode, destination = np.int64(code[row, OPCODE]), np.int64(code[row, DESTINATION])
    a = scalar_operand_taint(code, row, 0, shadow, wave) if code[row, SOURCES] > 0 else np.int64(0)
    b = scalar_operand_taint(code, row, 1, shadow, wave) if code[row, SOURCES] > 1 else np.int64(0)
    c = scalar_operand_taint(code, row, 2, shadow, wave) if code[row, SOURCES] > 2 else np.int64(0)
    is_wide = code[row, DESTINATION_MODE] & WORDS == 2
    taint = condition = np.int64(0)
    if a | b | c:
        condition = ALL32
        if opcode in (_CSELECT32, _CSELECT64):
            taint = ALL if c else (a if S[SCC] else b)
        elif opcode in (_CMOV32, _CMOV64):
            taint = ALL if b else (a if S[SCC] else c)
        elif shadow.bitwise[opcode]:
            x = scalar_source(S, code, literals, row, 0)
            y = scalar_source(S, code, literals, row, 1) if code[row, SOURCES] > 1 else np.int64(0)
            taint, certain = bitwise_taint(np.int64(shadow.bitwise[opcode]), x, y, a, b)
            keep = ALL if is_wide else ALL32
            if taint & keep == 0 or certain & keep:
                condition = np.int64(0)
        else:
            taint = ALL
    if code[row, EXEC_DESTINATION]:
        set_exec_taint(shadow, row, wave, taint, group)
        taint = np.int64(0)  # the old EXEC
    if destination >= SCALAR + EXEC and destination < SCALAR + EXEC + 2:
        set_exec_taint(shadow, row, wave, taint if is_wide else taint & ALL32, group)
    elif destination >= 0:
        shadow.scalar_taint[wave, destination - SCALAR] = taint & ALL32
        if is_wide:
            shadow.scalar_taint[wave, destination - SCALAR + 1] = (taint >> 32) & ALL32
    if code[row, MASK_DESTINATION] >= 0:
        shadow.scalar_taint[wave, SCC] = condition


@inner
def taint_lane(code, literals, row, S, shadow, wave, exec_mask, opcode):
    destination, taint = np.int64(code[row, DESTINATION]), shadow.taint[wave]
    if opcode in (_READFIRSTLANE, _READLANE):
        selector = np.int64(0)
        if opcode == _READLANE:
            lane = scalar_source(S, code, literals, row, 1) & 63
            selector = source_taint(code, row, 1, 1, shadow, wave)
        else:
            lane = first_lane(exec_mask) if exec_mask else np.int64(0)
        low = (selector | half_taint(code, row, 0, 0, shadow, wave) >> lane) & 1
        high = (selector | half_taint(code, row, 0, 1, shadow, wave) >> lane) & 1
        shadow.scalar_taint[wave, destination - SCALAR] = low * LOW_BITS | high * HIGH_BITS
        return
    for half in range(2 if destination >= 0 else 0):
        if opcode == _WRITELANE:
            bit = np.int64(1) << (scalar_source(S, code, literals, row, 1) & 63)
            set_taint(shadow, wave, destination, half, bit, half_taint(code, row, 0, half, shadow, wave))
            taint[destination, half] |= source_taint(code, row, 1, 1, shadow, wave)
            continue
        other = np.int64(code[row, SOURCE + 1])
        a, b = taint[destination, half], taint[other, half]
        if opcode == _PERMLANE16:
            rows = np.int64(0x0000FFFF0000FFFF)
            taint[destination, half] = (a & rows) | (b & rows) << 16
            taint[other, half] = (b & ~rows) | ((a >> 16) & rows)
        elif opcode == _PERMLANE32:
            taint[destination, half] = (a & ALL32) | b << 32
            taint[other, half] = (b & ~ALL32) | ((a >> 32) & ALL32)
        else:
            taint[destination, half] = (a & ~exec_mask) | (b & exec_mask)
            taint[other, half] = (b & ~exec_mask) | (a & exec_mask)


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
    is_double = shapes[opcode, 3] == F64
    a = b = np.int64(0)
    for w in range(shapes[opcode, 4]):
        a |= either_half(shadow, wave, np.int64(code[row, SOURCE]) + w)
        b |= either_half(shadow, wave, np.int64(code[row, SOURCE + 1]) + w)
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
                if is_double:
                    i = 4 * (r // 2) + group
                if (spoilt_rows >> i) & 1:
                    lanes |= ((np.int64(1) << rows) - 1) << (group * rows)
        if accumulator >= 0:
            lanes |= either_half(shadow, wave, accumulator + r)
        shadow.taint[wave, destination + r, :] = lanes


# ---------------------------------------------------------------- LDS


@inner
def touch_local(shadow, row, wave, lane, at, size, kind, group):
    """One lane's access to LDS bytes: is it ordered after every other wave's, and after this wave's DMA?

    It is ordered after an access that the other wave had waited for when it came to a barrier since.
    """
    counts, touched, numbers = shadow.counts, shadow.touched, shadow.touch_numbers
    own = np.int64(1) << wave
    for byte in range(at, at + size):
        for other in range(4):
            waves = np.int64(touched[byte, other])
            if waves == 0:
                continue
            is_own_dma = other == DMA and kind != DMA and waves & own
            if is_own_dma and numbers[byte, DMA, wave] > counts[wave, VECTOR_DONE]:
                report(shadow, WAIT, row, wave, lane, ~byte, group)
            if waves == own or (other <= ATOMIC and (other == kind or kind == COMPARE)):
                continue
            done = VECTOR_DONE_AT_BARRIER if other == DMA else LOCAL_DONE_AT_BARRIER
            for w in range(counts.shape[0]):
                if w != wave and (waves >> w) & 1 and numbers[byte, other, w] > counts[w, done]:
                    report(shadow, RACE, row, wave, lane, ~at, group)
        if kind == COMPARE:
            continue
        if kind >= WRITE:
            touched[byte, :] = 0
        touched[byte, kind] |= own
        numbers[byte, kind, wave] = counts[wave, VECTOR_ISSUED if kind == DMA else LOCAL_ISSUED] + 1


@inner
def undefined_halves(shadow, at, size):
    """Bit h is set if any byte of half h of the LDS bytes [at, at + size) is undefined."""
    bits = np.int64(0)
    if (at | size) & 3 == 0:
        for w in range(size >> 2):
            defined = shadow.local_words[(at >> 2) + w]
            if defined != 0x01010101:
                bits |= np.int64((defined & 0xFFFF) != 0x0101) << (2 * w)
                bits |= np.int64((defined >> 16) != 0x0101) << (2 * w + 1)
        return bits
    for i in range(size):
        if not shadow.local_defined[at + i]:
            bits |= np.int64(1) << (i >> 1)
    return bits


@inner
def taint_exchange(code, row, R, shadow, wave, exec_mask):
    """Lane permutations through the LDS crossbar: taint moves as the values do."""
    transfer, offset = np.int64(code[row, TRANSFER]), np.int64(code[row, OFFSET])
    address = np.int64(code[row, SOURCE])
    is_swizzle = transfer == TRANSFER_SWIZZLE
    selector = np.int64(0)
    if not is_swizzle:
        selector = source_taint(code, row, 0, 1, shadow, wave) & exec_mask
        if transfer == TRANSFER_PERMUTE and selector:
            selector = exec_mask  # any lane may have been meant
    for half in range(2):
        value = half_taint(code, row, 0 if is_swizzle else 1, half, shadow, wave)
        moved = np.int64(0)
        for lane in range(64 if value else 0):
            source = np.int64(lane)
            if is_swizzle:
                source = swizzle_lane(offset, lane)
            elif 0 <= address < SCALAR:
                source = ((np.int64(R[address * 64 + lane]) + offset) >> 2) & 63
            if transfer == TRANSFER_PERMUTE:
                if (exec_mask >> lane) & 1:
                    bit = np.int64(1) << source
                    moved = moved | bit if (value >> lane) & 1 else moved & ~bit
            elif (exec_mask >> source) & 1 and (value >> source) & 1:
                moved |= np.int64(1) << lane
        set_taint(shadow, wave, np.int64(code[row, DESTINATION]), half, exec_mask, moved | selector)


@inner
def taint_transpose(code, row, R, lds, shadow, wave, exec_mask):
    """A transposing read: each half of a result is bytes that some lane of the same row of 16 addresses."""
    address, register = np.int64(code[row, SOURCE]), np.int64(code[row, DESTINATION])
    for element in range(4):
        taint = np.int64(0)
        for lane in range(64):
            source = (lane & 0x30) + 4 * element + (lane & 15) // 4
            at = np.int64(R[address * 64 + source]) + np.int64(code[row, OFFSET]) + 2 * (lane & 3)
            if at + 2 <= lds.size and undefined_halves(shadow, at, 2):
                taint |= np.int64(1) << lane
        set_taint(shadow, wave, register, element, exec_mask, taint)


@inner
def set_stored_taint(code, row, k, shadow, wave):
    """Look up what a store moves; source k is its data. Returns lanes in which any of it is tainted."""
    size, taint = np.int64(code[row, BYTES]), np.int64(0)
    first = 1 if size < 4 and np.int64(code[row, FLAGS]) & FLAG_HIGH else 0
    for h in range(max(size >> 1, np.int64(1))):
        shadow.moved_taint[1, h] = half_taint(code, row, k, first + h, shadow, wave)
        taint |= shadow.moved_taint[1, h]
    return taint


@inner
def add_loaded_taint(shadow, lane, undefined):
    """Note the halves, a bit each, that a lane loads and nothing defined."""
    for h in range(MOST_HALVES):
        shadow.moved_taint[0, h] |= ((undefined >> h) & 1) << lane


@inner
def set_loaded_taint(code, row, shadow, wave, exec_mask):
    """Move the noted taint to the registers that a load writes, or an atomic that returns the old value."""
    register, flags = np.int64(code[row, DESTINATION]), np.int64(code[row, FLAGS])
    words = np.int64(code[row, DESTINATION_MODE]) & 0x3F
    loaded = shadow.moved_taint[0]
    if code[row, BYTES] >= 4:
        for h in range(2 * words):
            set_taint(shadow, wave, register, h, exec_mask, loaded[h])
        return
    set_taint(shadow, wave, register, 1 if flags & FLAG_HIGH else 0, exec_mask, loaded[0])
    if flags & (FLAG_LOW | FLAG_HIGH) == 0:
        set_taint(shadow, wave, register, 1, exec_mask, loaded[0] if flags & FLAG_SIGNED else np.int64(0))


@inner
def bank_conflicts(code, row, R, shadow, exec_mask):
    """Cycles beyond the first that one LDS instruction needs because lanes want different words of one bank.

    As many lanes go at a time as fill the banks once; lanes that want the same word share it.
    """
    size = np.int64(code[row, BYTES])
    words = max(size >> 2, np.int64(1))
    address = np.int64(code[row, SOURCE]) * 64
    lanes_at_a_time = LDS_BANKS // words
    lost = np.int64(0)
    for piece in range(2 if code[row, FLAGS] & FLAG_PAIR else 1):
        offset = np.int64(code[row, OFFSET1 if piece else OFFSET])
        for first in range(0, 64, lanes_at_a_time):
            shadow.banks[:] = 0
            most = np.int64(1)
            for lane in range(first, min(first + lanes_at_a_time, 64)):
                if not (exec_mask >> lane) & 1:
                    continue
                for w in range(words):
                    word = ((np.int64(R[address + lane]) + offset) >> 2) + w
                    shared = False
                    for other in range(first, lane):
                        start = (np.int64(R[address + other]) + offset) >> 2
                        if (exec_mask >> other) & 1 and start <= word < start + words:
                            shared = True
                    if not shared:
                        shadow.banks[word % LDS_BANKS] += 1
                        most = max(most, shadow.banks[word % LDS_BANKS])
            lost += most - 1
    return lost


@inner
def check_local(code, row, R, lds, shadow, wave, exec_mask, group):
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    if transfer in (TRANSFER_BPERMUTE, TRANSFER_PERMUTE, TRANSFER_SWIZZLE):
        taint_exchange(code, row, R, shadow, wave, exec_mask)
        return
    size, register = np.int64(code[row, BYTES]), np.int64(code[row, DESTINATION])
    address = np.int64(code[row, SOURCE])
    is_load = transfer in (TRANSFER_LOAD, TRANSFER_TRANSPOSE)
    kind = READ if is_load else (ATOMIC if transfer == TRANSFER_ATOMIC else WRITE)
    access = COMPARE if kind == ATOMIC and code[row, SOURCE + 2] >= 0 else kind
    bad = source_taint(code, row, 0, 1, shadow, wave) & exec_mask
    if bad:
        report(shadow, UNINITIALISED, row, wave, first_lane(bad), 0, group)
    if shadow.conflicts.size > 0:
        shadow.conflicts[row] += bank_conflicts(code, row, R, shadow, exec_mask)
    tracked = shadow.touched.shape[0] > 0
    pieces = 2 if flags & FLAG_PAIR else 1
    halves = max(size >> 1, np.int64(1))
    alignment = (size & -size) - 1
    loaded, stored = shadow.moved_taint[0], shadow.moved_taint[1]
    loaded[:] = 0
    for piece in range(pieces):
        offset = np.int64(code[row, OFFSET1 if piece else OFFSET])
        for lane in range(64):
            if not (exec_mask >> lane) & 1:
                continue
            at = offset + np.int64(R[address * 64 + lane])
            if at + size > lds.size:
                continue  # the access itself faults
            if at & alignment:
                report(shadow, MISALIGNED, row, wave, lane, ~at, group)
            if tracked:
                touch_local(shadow, row, wave, lane, at, size, access, group)
            if kind != WRITE:
                undefined = undefined_halves(shadow, at, size) << (piece * halves)
                if undefined:
                    add_loaded_taint(shadow, lane, undefined)
        if is_load:
            continue
        junk = set_stored_taint(code, row, 1 + piece, shadow, wave)
        if kind == ATOMIC:
            # Its result depends on every operand and on what was there; it is as junk as any of them.
            if code[row, SOURCE + 2] >= 0:
                junk |= source_taint(code, row, 2, size >> 2, shadow, wave)
            for h in range(halves):
                junk |= loaded[h]
            stored[:] = junk
        junk &= exec_mask
        for lane in range(64):
            if not (exec_mask >> lane) & 1:
                continue
            at = offset + np.int64(R[address * 64 + lane])
            if at + size > lds.size:
                continue
            if not (junk >> lane) & 1 and (at | size) & 3 == 0:
                for w in range(size >> 2):
                    shadow.local_words[(at >> 2) + w] = 0x01010101
                continue
            for i in range(size):
                shadow.local_defined[at + i] = 0 if (stored[i >> 1] >> lane) & 1 else 1
    if register < 0:
        return
    if transfer == TRANSFER_TRANSPOSE:
        taint_transpose(code, row, R, lds, shadow, wave, exec_mask)
    else:
        set_loaded_taint(code, row, shadow, wave, exec_mask)


# ---------------------------------------------------------------- global memory


@inner
def touched_by_others(toucher, at, size, me):
    """Whether a workgroup other than `me` has touched any of the bytes."""
    found = False
    for byte in range(np.uint64(at), np.uint64(at + size)):
        found |= (toucher[byte] != 0) & (toucher[byte] != me)
    return found


@inner
def mark(toucher, at, size, me):
    start = np.uint64(at)
    if size & 3 == 0:  # loops of a fixed length become vector instructions
        for w in range(np.uint64(size >> 2)):
            for i in range(np.uint64(4)):
                old = toucher[start + np.uint64(4) * w + i]
                toucher[start + np.uint64(4) * w + i] = me if (old == 0) | (old == me) else SEVERAL
        return
    for byte in range(start, np.uint64(at + size)):
        old = toucher[byte]
        toucher[byte] = me if (old == 0) | (old == me) else SEVERAL


@inner
def touch_global(shadow, row, wave, lane, address, at, size, kind, group):
    """One lane's access to arena bytes: does it race with another workgroup's?"""
    me = np.int32(group + 1)
    toucher, lines = shadow.toucher, shadow.lines
    is_changed = lines[at >> LINE] | lines[(at + size - 1) >> LINE]
    if (
        (is_changed and touched_by_others(toucher[WRITE], at, size, me))
        or (is_changed and (kind in (READ, WRITE)) and touched_by_others(toucher[ATOMIC], at, size, me))
        or ((kind in (ATOMIC, WRITE)) and touched_by_others(toucher[READ], at, size, me))
    ):
        report(shadow, RACE, row, wave, lane, address, group)
    if kind != COMPARE:
        mark(toucher[kind], at, size, me)
    if kind != READ:
        lines[at >> LINE] = lines[(at + size - 1) >> LINE] = 1


@inner
def undefined_bytes(shadow, at, size):
    """Bit h is set if any byte of half h of the arena bytes [at, at + size) is undefined."""
    bits = np.int64(0)
    if shadow.lines[at >> LINE] | shadow.lines[(at + size - 1) >> LINE]:
        for i in range(size):
            if shadow.state[at + i] == UNDEFINED:
                bits |= np.int64(1) << (i >> 1)
    return bits


@inner
def check_private(code, literals, row, R, S, shadow, wave, exec_mask):
    """Scratch: every lane has bytes of its own."""
    flags, size = np.int64(code[row, FLAGS]), np.int64(code[row, BYTES])
    is_load = code[row, TRANSFER] == TRANSFER_LOAD
    defined, loaded, stored = shadow.private_defined[wave], shadow.moved_taint[0], shadow.moved_taint[1]
    private = defined.size >> 6
    loaded[:] = 0
    if not is_load:
        set_stored_taint(code, row, 3, shadow, wave)
    for lane in range(64):
        if not (exec_mask >> lane) & 1:
            continue
        at = np.int64(code[row, OFFSET])
        if flags & FLAG_SADDR:
            at += scalar_source(S, code, literals, row, 1)
        if code[row, SOURCE] >= 0:
            at += np.int64(R[np.int64(code[row, SOURCE]) * 64 + lane])
        if at < 0 or at + size > private:
            continue  # the access itself faults
        at += lane * private
        for i in range(size):
            if not is_load:
                defined[at + i] = 0 if (stored[i >> 1] >> lane) & 1 else 1
            elif not defined[at + i]:
                loaded[i >> 1] |= np.int64(1) << lane
    if is_load:
        set_loaded_taint(code, row, shadow, wave, exec_mask)


@inner
def check_global(code, literals, row, R, S, lds, memory, shadow, wave, exec_mask, group):
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size, register = np.int64(code[row, BYTES]), np.int64(code[row, DESTINATION])
    address_register = np.int64(code[row, SOURCE])
    is_load = transfer == TRANSFER_LOAD
    kind = READ if is_load else (ATOMIC if transfer == TRANSFER_ATOMIC else WRITE)
    access = COMPARE if kind == ATOMIC and 4 * (np.int64(code[row, SOURCE_MODE + 3]) & 0x3F) > size else kind
    is_scratch, to_lds = flags & FLAG_SCRATCH != 0, flags & FLAG_TO_LDS != 0
    bad = np.int64(0)
    if address_register >= 0:
        bad = source_taint(code, row, 0, np.int64(code[row, SOURCE_MODE]) & 0x3F, shadow, wave)
    for k in range(1, 3):
        if code[row, SOURCE + k] >= SCALAR:
            bad |= source_taint(code, row, k, np.int64(code[row, SOURCE_MODE + k]) & 0x3F, shadow, wave)
    if kind == WRITE and not is_scratch:
        bad |= set_stored_taint(code, row, 3, shadow, wave)
    elif kind == ATOMIC:
        bad |= source_taint(code, row, 3, np.int64(code[row, SOURCE_MODE + 3]) & 0x3F, shadow, wave)
    if to_lds and shadow.scalar_taint[wave, M0]:
        bad = ALL
    bad &= exec_mask
    if bad:
        report(shadow, UNINITIALISED, row, wave, first_lane(bad), 0, group)
    if is_scratch:
        check_private(code, literals, row, R, S, shadow, wave, exec_mask)
        return
    shadow.moved_taint[0, :] = 0
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
        touch_global(shadow, row, wave, lane, address, at, size, access, group)
        undefined = undefined_bytes(shadow, at, size) if kind != WRITE else np.int64(0)
        if to_lds:
            to = (np.int64(S[M0]) & 0xFFFF) + np.int64(code[row, OFFSET]) + lane * max(size, np.int64(4))
            if to + size <= lds.size:
                touch_local(shadow, row, wave, lane, to, size, DMA, group)
                for i in range(size):
                    shadow.local_defined[to + i] = 0 if (undefined >> (i >> 1)) & 1 else 1
            continue
        if undefined:
            add_loaded_taint(shadow, lane, undefined if is_load else ALL)
        if kind == READ:
            continue
        for byte in range(at, at + size):
            if kind == WRITE and shadow.is_output[last] and shadow.state[byte] == WRITTEN:
                report(shadow, DOUBLE_WRITE, row, wave, lane, address, group)
            # An atomic on junk leaves junk.
            shadow.state[byte] = UNDEFINED if undefined else WRITTEN
    if register >= 0:
        set_loaded_taint(code, row, shadow, wave, exec_mask)


@inner
def check_scalar_load(code, literals, row, S, memory, shadow, wave, group):
    destination, size = np.int64(code[row, DESTINATION]) - SCALAR, np.int64(code[row, BYTES])
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
    base = np.int64(code[row, SOURCE]) - SCALAR
    address, valid = scalar64(S, base), size
    if code[row, FLAGS] & FLAG_CLAMPED:
        address &= 0xFFFFFFFFFFFF
        valid = min(max(np.int64(S[base + 2]) - offset, np.int64(0)), size)
    address += offset
    if valid < size:
        report(shadow, OUT_OF_BOUNDS, row, wave, 0, address + valid, group)
    if address & 3:
        report(shadow, MISALIGNED, row, wave, 0, address, group)
    address, valid = address & ~3, valid & ~3
    region = find(address, valid, memory, -1) if valid else -1
    at = place(memory, region, address) if region >= 0 else np.int64(0)
    undefined = np.int64(0)
    if region >= 0:
        touch_global(shadow, row, wave, 0, address, at, valid, READ, group)
        undefined = undefined_bytes(shadow, at, valid)
    for w in range(size >> 2):
        low, high = (undefined >> (2 * w)) & 1, (undefined >> (2 * w + 1)) & 1
        shadow.scalar_taint[wave, destination + w] = low * LOW_BITS | high * HIGH_BITS


# ---------------------------------------------------------------- every row


@inner
def check_branch(opcode, row, S, shadow, wave, group):
    bad = False
    if opcode in (_SCC0, _SCC1):
        bad = shadow.scalar_taint[wave, SCC] != 0
    elif opcode in (_VCCZ, _VCCNZ):
        taint = scalar_pair_taint(shadow, wave, VCC)
        bad = taint != 0 and scalar64(S, VCC) & ~taint == 0  # one certain bit settles it
    if bad:
        report(shadow, UNINITIALISED, row, wave, 0, 0, group)


@into_caller
def check(code, literals, shapes, row, R, S, lds, memory, shadow, wave, group):
    """Look at a row before it runs."""
    unit, opcode = code[row, UNIT], np.int64(code[row, OPCODE])
    check_waits(code, row, shadow, wave, group)
    exec_mask = scalar64(S, EXEC)
    if unit == UNIT_VECTOR:
        taint_vector(code, literals, row, S, shadow, wave, exec_mask, group)
    elif unit == UNIT_SCALAR:
        taint_scalar(code, literals, row, S, shadow, wave, group)
    elif unit == UNIT_MATRIX:
        taint_matrix(code, row, shapes, shadow, wave)
    elif unit == UNIT_LANE:
        taint_lane(code, literals, row, S, shadow, wave, exec_mask, opcode)
    elif unit == UNIT_LDS:
        check_local(code, row, R, lds, shadow, wave, exec_mask, group)
        issue(code, row, shadow, wave)
    elif unit == UNIT_MEMORY:
        check_global(code, literals, row, R, S, lds, memory, shadow, wave, exec_mask, group)
        issue(code, row, shadow, wave)
    elif unit == UNIT_SCALAR_MEMORY:
        check_scalar_load(code, literals, row, S, memory, shadow, wave, group)
        issue(code, row, shadow, wave)
    elif opcode == CODE_WAIT:
        wait(code, row, shadow, wave)
    else:
        check_branch(opcode, row, S, shadow, wave, group)
