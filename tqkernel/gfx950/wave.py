"""The interpreter: waves of 64 lanes, stepped through a decoded program by one numba-compiled loop.

State of a wave: `R` uint32 [rows * 64], the vector registers row by row (`F` is the same memory as float32), and `S`
uint32, the scalar registers with VCC, EXEC and SCC at their numbers in `encoding`. Offsets into `R` are uint64, which
keeps numba from adding a wrap-around test to every access.

What an instruction means is not here: `vector`, `scalar`, `branches` and `atomic` come from the tables in `isa`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import encoding as enc
from . import generate
from .encoding import (
    ABSOLUTE, BAD_BRANCH, BYTE_SHIFT, BYTES, CLAMP, CODE_BARRIER, CODE_END, DESTINATION, DESTINATION_MODE, DOUBLE, DPP, DPP_MASKS,
    EXEC, EXEC_DESTINATION, FLAG_BUFFER, FLAG_CLAMPED, FLAG_HIGH, FLAG_IDXEN, FLAG_LOW, FLAG_OFFEN, FLAG_PAIR,
    FLAG_RETURN, FLAG_SADDR, FLAG_SCRATCH, FLAG_SIGNED, FLAG_TO_LDS, FLAGS, FROM_BF16, FROM_F16, HALF, HIGH_HALF,
    KEEP_OTHER_HALF, LDS_FAULT, LITERAL, M0, MASK_DESTINATION, MASK_SOURCE, MEANING, MEMORY_FAULT, MODIFIED, NEGATE,
    NO_FAULT, OFFSET, OFFSET1, OPCODE, OUTPUT, OUTPUT_SHIFT, RESULT_MODIFIED, RUNAWAY, SCALAR, SCC, SCRATCH, SELECT,
    SELECT_SHIFT, SIGN_EXTEND, SOURCE, SOURCE_MODE, SOURCES, TO_F16, TRANSFER, TRANSFER_ATOMIC, TRANSFER_BPERMUTE,
    TRANSFER_CLOCK, TRANSFER_LOAD, TRANSFER_PERMUTE, TRANSFER_STORE, TRANSFER_SWIZZLE, TRANSFER_TRANSPOSE, UNIT,
    VCC, WORDS,
)  # fmt: skip
from .matrix import multiply
from .scalar import inner, bits32, half_bits, half_to_float32, sign_extend

_cases = generate.module()
vector, scalar, branches, atomic = _cases.vector, _cases.scalar, _cases.branches, _cases.atomic

N = np.uint64(64)
ALL = np.int64(-1)
VECTOR_UNIT, SCALAR_UNIT, CONTROL_UNIT, LANE_UNIT, LDS_UNIT, MEMORY_UNIT, SCALAR_MEMORY_UNIT, MATRIX_UNIT = range(8)
RESULT_ROW = SCRATCH + 8
DPP_ROW = SCRATCH + 12
ADDRESS_ROW = SCRATCH + 16

STOP_BUDGET, STOP_END, STOP_BARRIER, STOP_FAULT = range(4)

# Offsets into the fault record.
FAULT_KIND, FAULT_ROW, FAULT_LANE, FAULT_ADDRESS, FAULT_BYTES, FAULT_WAVE, FAULT_WRITE, FAULT_GROUP = range(8)


# ---------------------------------------------------------------- scalar registers


@inner
def scalar64(S, index):
    return np.int64(S[index]) | np.int64(S[index + 1]) << 32


@inner
def set_scalar64(S, index, value):
    S[index] = value & 0xFFFFFFFF
    S[index + 1] = (value >> 32) & 0xFFFFFFFF


@inner
def scalar_source(S, code, literals, row, k):
    """Source k as a scalar instruction sees it: an int64."""
    register, mode = np.int64(code[row, SOURCE + k]), np.int64(code[row, SOURCE_MODE + k])
    if mode & WORDS == 2:
        return literals[row, k] if register == LITERAL else scalar64(S, register - SCALAR)
    value = literals[row, k] if register == LITERAL else np.int64(S[register - SCALAR])
    return sign_extend(value, 32) if mode & SIGN_EXTEND else value


# ---------------------------------------------------------------- vector operands


@inner
def modify(R, base, target, mode):
    """Apply a source's selection, conversion and sign modifiers."""
    if mode & DOUBLE:
        for l in range(N):
            high = np.int64(R[base + N + l])
            if mode & ABSOLUTE:
                high &= 0x7FFFFFFF
            if mode & NEGATE:
                high ^= 0x80000000
            R[target + l] = R[base + l]
            R[target + N + l] = high
        return
    select = (mode & SELECT) >> SELECT_SHIFT
    shift, bits = np.int64(0), np.int64(32)
    if select >= 5:
        shift, bits = (select - 5) * 16, np.int64(16)
    elif select >= 1:
        shift, bits = (select - 1) * 8, np.int64(8)
    mask = (np.int64(1) << bits) - 1
    keep = np.int64(0x7FFFFFFF) if mode & ABSOLUTE else np.int64(0xFFFFFFFF)
    flip = np.int64(0x80000000) if mode & NEGATE else np.int64(0)
    if mode & FROM_F16:
        for l in range(N):
            R[target + l] = (bits32(half_to_float32(np.int64(R[base + l]) >> shift)) & keep) ^ flip
    elif mode & FROM_BF16:
        for l in range(N):
            R[target + l] = ((((np.int64(R[base + l]) >> shift) << 16) & 0xFFFFFFFF) & keep) ^ flip
    elif mode & SIGN_EXTEND:
        for l in range(N):
            R[target + l] = (sign_extend(np.int64(R[base + l]) >> shift, bits) & keep) ^ flip
    else:
        for l in range(N):
            R[target + l] = (((np.int64(R[base + l]) >> shift) & mask) & keep) ^ flip


@inner
def vector_source(R, S, code, literals, row, k):
    """Offset into R of source k, materialised in a scratch row when it is no plain vector register."""
    register, mode = np.int64(code[row, SOURCE + k]), np.int64(code[row, SOURCE_MODE + k])
    scratch = np.uint64((SCRATCH + 2 * k) * 64)
    if 0 <= register < SCALAR:
        base = np.uint64(register * 64)
    else:
        base = scratch
        for w in range(min(mode & WORDS, 2)):
            value = (literals[row, k] >> (32 * w)) & 0xFFFFFFFF if register == LITERAL else np.int64(S[register - SCALAR + w])
            word = np.uint32(value)
            start = base + np.uint64(w * 64)
            for l in range(N):
                R[start + l] = word
    if mode & MODIFIED:
        modify(R, base, scratch, mode)
        return scratch
    return base


@inner
def dpp_lane(control, lane):
    """Lane that a data-parallel primitive reads for `lane`, -1 for none."""
    row, at = lane & 0x30, lane & 15
    if control < 0x100:
        return (lane & ~3) | ((control >> (2 * (lane & 3))) & 3)
    amount = control & 15
    if control < 0x110:
        return row | (at + amount) if at + amount < 16 else -1
    if control < 0x120:
        return row | (at - amount) if at >= amount else -1
    if control < 0x130:
        return row | ((at - amount) & 15)
    if control == 0x130:
        return lane + 1 if lane < 63 else -1
    if control == 0x134:
        return (lane + 1) & 63
    if control == 0x138:
        return lane - 1
    if control == 0x13C:
        return (lane - 1) & 63
    if control == 0x140:
        return row | (15 - at)
    if control == 0x141:
        return (lane & 0x38) | (7 - (lane & 7))
    if control == 0x142:
        return row - 1 if row > 0 else -1
    if control == 0x143:
        return 31 if lane >= 32 else -1
    return row | amount  # row_newbcast


@inner
def dpp(R, code, row, base, exec_mask):
    """Permute source 0 over lanes; return (its new offset, the lanes that may be written)."""
    control, masks = np.int64(code[row, DPP]), np.int64(code[row, DPP_MASKS])
    target = np.uint64(DPP_ROW * 64)
    words = np.int64(code[row, SOURCE_MODE]) & WORDS
    enabled = np.int64(0)
    for lane in range(64):
        source = dpp_lane(control, lane)
        write = (masks >> (lane >> 4)) & 1 and (masks >> (4 + ((lane >> 2) & 3))) & 1
        valid = source >= 0 and (exec_mask >> source) & 1
        for w in range(words):
            at = np.uint64(w * 64)
            R[target + at + np.uint64(lane)] = R[base + at + np.uint64(source)] if valid else np.uint32(0)
        if write and (valid or (masks >> 8) & 1):
            enabled |= np.int64(1) << lane
    return target, exec_mask & enabled


@inner
def finish(R, F, result, target, mode):
    """Apply a result's modifiers in place, before it is written to `target`."""
    output = (mode & OUTPUT) >> OUTPUT_SHIFT
    if output:
        factor = np.float32(2.0) if output == 1 else (np.float32(4.0) if output == 2 else np.float32(0.5))
        for l in range(N):
            F[result + l] *= factor
    if mode & CLAMP:
        for l in range(N):
            x = F[result + l]
            F[result + l] = np.float32(0.0) if not x > np.float32(0.0) else min(x, np.float32(1.0))
    byte = mode >> BYTE_SHIFT & 7
    if mode & (TO_F16 | HALF) or byte:
        if mode & TO_F16:
            for l in range(N):
                R[result + l] = half_bits(F[result + l])
        shift, mask = np.int64(0), np.int64(0xFFFF)
        if mode & HIGH_HALF:
            shift = np.int64(16)
        if byte:
            shift, mask = 8 * (byte - 1), np.int64(0xFF)
        kept = ~(mask << shift) & 0xFFFFFFFF if mode & KEEP_OTHER_HALF else np.int64(0)
        for l in range(N):
            R[result + l] = ((np.int64(R[result + l]) & mask) << shift) | (np.int64(R[target + l]) & kept)
    elif mode & HIGH_HALF:  # SDWA WORD_1 of a 32-bit result
        kept = np.int64(0xFFFF) if mode & KEEP_OTHER_HALF else np.int64(0)
        for l in range(N):
            R[result + l] = ((np.int64(R[result + l]) & 0xFFFF) << 16) | (np.int64(R[target + l]) & kept)


@inner
def write_back(R, result, target, words, exec_mask):
    """Copy a result's rows to their registers in the lanes that EXEC enables."""
    count = np.uint64(words * 64)
    if exec_mask == ALL:
        for l in range(count):
            R[target + l] = R[result + l]
    else:
        for l in range(count):
            if (exec_mask >> np.int64(l & np.uint64(63))) & 1:
                R[target + l] = R[result + l]


@inner
def step_vector(R, F, S, code, literals, row, exp2_inputs, exp2_outputs):
    exec_mask = scalar64(S, EXEC)
    count = np.int64(code[row, SOURCES])
    mask_source = np.int64(code[row, MASK_SOURCE]) - 1
    m = np.int64(0)
    if mask_source >= 0:
        register = np.int64(code[row, SOURCE + mask_source])
        m = literals[row, mask_source] if register == LITERAL else scalar64(S, register - SCALAR)
    A = vector_source(R, S, code, literals, row, 0) if count > 0 and mask_source != 0 else np.uint64(0)
    B = vector_source(R, S, code, literals, row, 1) if count > 1 and mask_source != 1 else np.uint64(0)
    C = vector_source(R, S, code, literals, row, 2) if count > 2 and mask_source != 2 else np.uint64(0)
    written = exec_mask
    if code[row, DPP] >= 0:
        A, written = dpp(R, code, row, A, exec_mask)
    D = np.uint64(RESULT_ROW * 64)
    mask = vector(np.int64(code[row, OPCODE]), R, F, D, A, B, C, m, exp2_inputs, exp2_outputs)
    destination = np.int64(code[row, DESTINATION])
    if destination >= 0:
        mode = np.int64(code[row, DESTINATION_MODE])
        target = np.uint64(destination * 64)
        if mode & RESULT_MODIFIED:
            finish(R, F, D, target, mode)
        write_back(R, D, target, mode & WORDS, written)
    if code[row, MASK_DESTINATION] >= 0:
        set_scalar64(S, np.int64(code[row, MASK_DESTINATION]) - SCALAR, mask & exec_mask)
    if code[row, EXEC_DESTINATION]:
        set_scalar64(S, EXEC, mask & exec_mask)


@inner
def step_scalar(S, code, literals, row):
    count = code[row, SOURCES]
    a = scalar_source(S, code, literals, row, 0) if count > 0 else np.int64(0)
    b = scalar_source(S, code, literals, row, 1) if count > 1 else np.int64(0)
    c = scalar_source(S, code, literals, row, 2) if count > 2 else np.int64(0)
    value, exec_value, scc = scalar(np.int64(code[row, OPCODE]), a, b, c)
    if code[row, EXEC_DESTINATION]:
        set_scalar64(S, EXEC, exec_value)
    destination = np.int64(code[row, DESTINATION])
    if destination >= 0:
        S[destination - SCALAR] = value & 0xFFFFFFFF
        if code[row, DESTINATION_MODE] & WORDS == 2:
            S[destination - SCALAR + 1] = (value >> 32) & 0xFFFFFFFF
    if code[row, MASK_DESTINATION] >= 0:
        S[SCC] = scc


# ---------------------------------------------------------------- lanes


@inner
def step_lane(R, S, code, literals, row, opcode):
    """Opcodes in the order of isa.lane."""
    exec_mask = scalar64(S, EXEC)
    destination = np.int64(code[row, DESTINATION])
    if opcode == 0:  # v_nop
        return
    if opcode <= 2:  # v_readfirstlane_b32, v_readlane_b32
        A = vector_source(R, S, code, literals, row, 0)
        lane = np.int64(0)
        if opcode == 2:
            lane = scalar_source(S, code, literals, row, 1) & 63
        else:
            while lane < 63 and not (exec_mask >> lane) & 1:
                lane += 1
            if not (exec_mask >> lane) & 1:
                lane = np.int64(0)
        S[destination - SCALAR] = R[A + np.uint64(lane)]
        return
    if opcode == 3:  # v_writelane_b32
        lane = scalar_source(S, code, literals, row, 1) & 63
        R[np.uint64(destination * 64 + lane)] = scalar_source(S, code, literals, row, 0) & 0xFFFFFFFF
        return
    # The swaps: source 0 is the old first operand, source 1 the second.
    A = np.uint64(destination * 64)
    B = np.uint64(np.int64(code[row, SOURCE + 1]) * 64)
    for lane in range(64):
        other = lane
        if opcode == 5:  # v_permlane16_swap_b32: rows 1 and 3 of the first with rows 0 and 2 of the second
            if not lane & 16:
                continue
            other = lane - 16
        elif opcode == 6:  # v_permlane32_swap_b32: the first's upper half with the second's lower half
            if lane < 32:
                continue
            other = lane - 32
        if opcode == 4 and not (exec_mask >> lane) & 1:
            continue
        x, y = A + np.uint64(lane), B + np.uint64(other)
        R[x], R[y] = R[y], R[x]


# ---------------------------------------------------------------- memory


@inner
def read_bytes(bytes_, words, at, size):
    """`size` <= 8 bytes, little-endian, zero-extended."""
    if size == 4 and at & 3 == 0:
        return np.int64(words[at >> 2])
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(bytes_[at + i]) << (8 * i)
    return value


@inner
def write_bytes(bytes_, words, at, size, value):
    if size == 4 and at & 3 == 0:
        words[at >> 2] = value & 0xFFFFFFFF
        return
    for i in range(size):
        bytes_[at + i] = (value >> (8 * i)) & 0xFF


@inner
def merge(old, value, size, flags):
    """A loaded value as its register will hold it."""
    if flags & FLAG_SIGNED:
        value = sign_extend(value, 8 * size)
    if flags & FLAG_LOW:
        return (old & 0xFFFF0000) | (value & 0xFFFF)
    if flags & FLAG_HIGH:
        return (old & 0xFFFF) | ((value & 0xFFFF) << 16)
    return value & 0xFFFFFFFF


@inner
def find(address, size, starts, ends, last):
    """Index of the region that holds [address, address + size), -1 if none; `last` is tried first."""
    if last >= 0 and starts[last] <= address and address + size <= ends[last]:
        return last
    low, high = 0, starts.size
    while low < high:
        middle = (low + high) // 2
        if starts[middle] <= address:
            low = middle + 1
        else:
            high = middle
    if low > 0 and address + size <= ends[low - 1]:
        return low - 1
    return -1


@inner
def move_lane(R, code, row, lane, register, bytes_, words, at, size, flags, transfer):
    """One lane's transfer between `size` bytes at `at` and consecutive registers; atomics return the old value."""
    if transfer == TRANSFER_ATOMIC:
        data = np.int64(code[row, SOURCE + (3 if code[row, UNIT] == MEMORY_UNIT else 1)])
        a = np.int64(R[data * 64 + lane])
        second = np.int64(code[row, SOURCE + 2]) if code[row, UNIT] == LDS_UNIT else data + size // 4
        b = np.int64(0)
        compares = second >= 0 and second < SCALAR
        if size == 8:
            a |= np.int64(R[(data + 1) * 64 + lane]) << 32
            if compares:
                b = np.int64(R[second * 64 + lane]) | np.int64(R[(second + 1) * 64 + lane]) << 32
        elif compares:
            b = np.int64(R[second * 64 + lane])
        old = read_bytes(bytes_, words, at, size)
        write_bytes(bytes_, words, at, size, atomic(np.int64(code[row, MEANING]), old, a, b))
        if flags & FLAG_RETURN:
            target = np.int64(code[row, DESTINATION])
            R[target * 64 + lane] = old & 0xFFFFFFFF
            if size == 8:
                R[(target + 1) * 64 + lane] = (old >> 32) & 0xFFFFFFFF
        return
    if size < 4:
        index = register * 64 + lane
        if transfer == TRANSFER_LOAD:
            R[index] = merge(np.int64(R[index]), read_bytes(bytes_, words, at, size), size, flags)
        else:
            write_bytes(bytes_, words, at, size, np.int64(R[index]) >> (16 if flags & FLAG_HIGH else 0))
        return
    for w in range(size >> 2):
        index = (register + w) * 64 + lane
        if transfer == TRANSFER_LOAD:
            R[index] = read_bytes(bytes_, words, at + 4 * w, 4)
        else:
            write_bytes(bytes_, words, at + 4 * w, 4, np.int64(R[index]))


@inner
def lds_load_aligned(R, A, target, offset, size, words, limit):
    """All lanes, whole aligned words: True if it could be done this way."""
    bad = np.int64(0)
    for l in range(N):
        at = np.int64(R[A + l]) + offset
        bad |= (at & 3) | np.int64(at + size > limit)
    if bad:
        return False
    # Addresses are copied first: a load may overwrite its own address register.
    scratch = np.uint64(ADDRESS_ROW * 64)
    for l in range(N):
        R[scratch + l] = (np.int64(R[A + l]) + offset) >> 2
    for w in range(np.uint64(size >> 2)):
        row = target + w * N
        for l in range(N):
            R[row + l] = words[np.uint64(R[scratch + l]) + w]
    return True


@inner
def lds_store_aligned(R, A, source, offset, size, words, limit):
    bad = np.int64(0)
    for l in range(N):
        at = np.int64(R[A + l]) + offset
        bad |= (at & 3) | np.int64(at + size > limit)
    if bad:
        return False
    for l in range(N):
        at = np.uint64((np.int64(R[A + l]) + offset) >> 2)
        for w in range(np.uint64(size >> 2)):
            words[at + w] = R[source + w * N + l]
    return True


@inner
def step_lds(R, S, code, literals, row, lds, lds_words, limit, fault):
    exec_mask = scalar64(S, EXEC)
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size, offset = np.int64(code[row, BYTES]), np.int64(code[row, OFFSET])
    A = vector_source(R, S, code, literals, row, 0)
    if transfer >= TRANSFER_TRANSPOSE and transfer != TRANSFER_ATOMIC:
        return exchange(R, S, code, literals, row, A, transfer, size, offset, lds, lds_words, limit, exec_mask, fault)
    pieces = 2 if flags & FLAG_PAIR else 1
    # A paired load that overwrites its own address register would lose it between its halves.
    addresses = A
    if pieces == 2 and transfer == TRANSFER_LOAD:
        addresses = np.uint64((ADDRESS_ROW + 1) * 64)
        for l in range(N):
            R[addresses + l] = R[A + l]
    for piece in range(pieces):
        at_offset = offset if piece == 0 else np.int64(code[row, OFFSET1])
        if transfer == TRANSFER_LOAD:
            register = np.int64(code[row, DESTINATION]) + piece * (size >> 2)
        else:
            register = np.int64(code[row, SOURCE + 1 + piece])
        if exec_mask == ALL and size >= 4:
            if transfer == TRANSFER_LOAD:
                if lds_load_aligned(R, addresses, np.uint64(register * 64), at_offset, size, lds_words, limit):
                    continue
            elif transfer == TRANSFER_STORE and 0 <= register < SCALAR and lds_store_aligned(
                R, addresses, np.uint64(register * 64), at_offset, size, lds_words, limit
            ):
                continue
        if transfer == TRANSFER_STORE:
            register = np.int64(vector_source(R, S, code, literals, row, 1 + piece)) // 64
        for lane in range(64):
            if not (exec_mask >> lane) & 1:
                continue
            at = np.int64(R[addresses + np.uint64(lane)]) + at_offset
            if at + size > limit:
                return set_fault(fault, LDS_FAULT, row, lane, at, size, transfer != TRANSFER_LOAD)
            move_lane(R, code, row, lane, register, lds, lds_words, at, size, flags, transfer)
    return NO_FAULT


@inner
def set_fault(fault, kind, row, lane, address, size, write):
    fault[FAULT_KIND], fault[FAULT_ROW], fault[FAULT_LANE] = kind, row, lane
    fault[FAULT_ADDRESS], fault[FAULT_BYTES], fault[FAULT_WRITE] = address, size, write
    return kind


@inner
def exchange(R, S, code, literals, row, A, transfer, size, offset, lds, lds_words, limit, exec_mask, fault):
    """Reads that cross lanes: the transposing read and the permutations through the LDS crossbar."""
    target = np.int64(code[row, DESTINATION])
    result = np.uint64(RESULT_ROW * 64)
    if transfer == TRANSFER_TRANSPOSE:
        for lane in range(64):
            at = np.int64(R[A + np.uint64(lane)]) + offset
            if (exec_mask >> lane) & 1 and at + size > limit:
                return set_fault(fault, LDS_FAULT, row, lane, at, size, False)
        for lane in range(64):
            group, within = lane & 0x30, lane & 15
            for w in range(2):
                value = np.int64(0)
                for half in range(2):
                    element = 2 * w + half
                    source = group + 4 * element + within // 4
                    at = np.int64(R[A + np.uint64(source)]) + offset + 2 * (within % 4)
                    if at + 2 <= limit:
                        value |= read_bytes(lds, lds_words, at, 2) << (16 * half)
                R[result + np.uint64(w * 64 + lane)] = value
        write_back(R, result, np.uint64(target * 64), 2, exec_mask)
        return NO_FAULT
    data = A if transfer == TRANSFER_SWIZZLE else vector_source(R, S, code, literals, row, 1)
    for lane in range(64):
        R[result + np.uint64(lane)] = 0
    for lane in range(64):
        if transfer == TRANSFER_PERMUTE:
            if (exec_mask >> lane) & 1:
                to = ((np.int64(R[A + np.uint64(lane)]) + offset) >> 2) & 63
                R[result + np.uint64(to)] = R[data + np.uint64(lane)]
            continue
        if transfer == TRANSFER_BPERMUTE:
            source = ((np.int64(R[A + np.uint64(lane)]) + offset) >> 2) & 63
        elif offset & 0x8000:
            source = (lane & ~3) | ((offset >> (2 * (lane & 3))) & 3)
        else:
            within = (((lane & 31) & (offset & 31)) | ((offset >> 5) & 31)) ^ ((offset >> 10) & 31)
            source = (lane & 32) | within
        if (exec_mask >> source) & 1:
            R[result + np.uint64(lane)] = R[data + np.uint64(source)]
    write_back(R, result, np.uint64(target * 64), 1, exec_mask)
    return NO_FAULT


@inner
def lane_address(R, S, code, literals, row, A, lane, size):
    """(address, bytes in bounds) of one lane's global access; fewer bytes than `size` mean a buffer's bounds cut it."""
    flags, offset = np.int64(code[row, FLAGS]), np.int64(code[row, OFFSET])
    if flags & FLAG_BUFFER:
        descriptor = np.int64(code[row, SOURCE + 1]) - SCALAR
        word1 = np.int64(S[descriptor + 1])
        base, records = np.int64(S[descriptor]) | (word1 & 0xFFFF) << 32, np.int64(S[descriptor + 2])
        stride = (word1 >> 16) & 0x3FFF
        scalar_offset = scalar_source(S, code, literals, row, 2)
        index = np.int64(0)
        if flags & FLAG_IDXEN:
            index = np.int64(R[A + np.uint64(lane)])
        if flags & FLAG_OFFEN:
            offset += np.int64(R[A + np.uint64(lane) + (N if flags & FLAG_IDXEN else np.uint64(0))])
        if stride:
            valid = size if index < records else np.int64(0)
            offset += index * stride
        else:
            valid = min(max(records - scalar_offset - offset, np.int64(0)), size)
        return base + scalar_offset + offset, valid
    address = offset
    if flags & FLAG_SADDR:
        address += scalar64(S, np.int64(code[row, SOURCE + 1]) - SCALAR)
        if code[row, SOURCE] >= 0:
            address += np.int64(R[A + np.uint64(lane)])
    else:
        address += np.int64(R[A + np.uint64(lane)]) | np.int64(R[A + N + np.uint64(lane)]) << 32
    return address, size


@inner
def step_memory(R, S, code, literals, row, starts, ends, offsets, arena, arena_words, lds, lds_words, limit, private, private_words, private_size, fault):
    exec_mask = scalar64(S, EXEC)
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size = np.int64(code[row, BYTES])
    register = np.int64(code[row, DESTINATION] if transfer == TRANSFER_LOAD else code[row, SOURCE + 3])
    A = np.uint64(ADDRESS_ROW * 64)
    if code[row, SOURCE] >= 0:
        # A load may overwrite its own address registers.
        source = vector_source(R, S, code, literals, row, 0)
        for l in range(np.uint64(128)):
            R[A + l] = R[source + l]
    last = -1
    for lane in range(64):
        if not (exec_mask >> lane) & 1:
            continue
        if flags & FLAG_SCRATCH:
            at = np.int64(code[row, OFFSET])
            if flags & FLAG_SADDR:
                at += scalar_source(S, code, literals, row, 1)
            if code[row, SOURCE] >= 0:
                at += np.int64(R[A + np.uint64(lane)])
            if at < 0 or at + size > private_size:
                return set_fault(fault, MEMORY_FAULT, row, lane, at, size, transfer != TRANSFER_LOAD)
            move_lane(R, code, row, lane, register, private, private_words, lane * private_size + at, size, flags, transfer)
            continue
        address, valid = lane_address(R, S, code, literals, row, A, lane, size)
        if valid < size:
            # Past a descriptor's end: loads give zero, stores vanish, word by word.
            if transfer == TRANSFER_LOAD and flags & FLAG_TO_LDS == 0:
                for w in range(max(size >> 2, 1)):
                    R[(register + w) * 64 + lane] = 0
            if valid < 4 or transfer == TRANSFER_ATOMIC:
                continue
            valid &= ~3
            last = find(address, valid, starts, ends, last)
            if last < 0:
                return set_fault(fault, MEMORY_FAULT, row, lane, address, valid, transfer != TRANSFER_LOAD)
            move_lane(R, code, row, lane, register, arena, arena_words, offsets[last] + address - starts[last], valid, flags, transfer)
            continue
        last = find(address, size, starts, ends, last)
        if last < 0:
            return set_fault(fault, MEMORY_FAULT, row, lane, address, size, transfer != TRANSFER_LOAD)
        at = offsets[last] + address - starts[last]
        if flags & FLAG_TO_LDS:
            to = (np.int64(S[M0]) & 0xFFFF) + np.int64(code[row, OFFSET]) + lane * max(size, np.int64(4))
            if to + size > limit:
                return set_fault(fault, LDS_FAULT, row, lane, to, size, True)
            for i in range(size):
                lds[to + i] = arena[at + i]
            continue
        move_lane(R, code, row, lane, register, arena, arena_words, at, size, flags, transfer)
    return NO_FAULT


@inner
def step_scalar_memory(S, code, literals, row, starts, ends, offsets, arena, arena_words, clock, fault):
    destination = np.int64(code[row, DESTINATION]) - SCALAR
    if code[row, TRANSFER] == TRANSFER_CLOCK:
        set_scalar64(S, destination, clock)
        return NO_FAULT
    size = np.int64(code[row, BYTES])
    offset = np.int64(code[row, OFFSET])
    if code[row, SOURCES] > 1:
        offset += scalar_source(S, code, literals, row, 1)
    base = np.int64(code[row, SOURCE]) - SCALAR
    address = scalar64(S, base)
    valid = size
    if code[row, FLAGS] & FLAG_CLAMPED:
        address &= 0xFFFFFFFFFFFF
        valid = min(max(np.int64(S[base + 2]) - offset, np.int64(0)), size) & ~3
    address = (address + offset) & ~3
    region = -1
    if valid > 0:
        region = find(address, valid, starts, ends, -1)
        if region < 0:
            return set_fault(fault, MEMORY_FAULT, row, 0, address, valid, False)
    for w in range(size >> 2):
        value = np.int64(0)
        if 4 * w < valid:
            value = read_bytes(arena, arena_words, offsets[region] + address - starts[region] + 4 * w, 4)
        S[destination + w] = value
    return NO_FAULT


# ---------------------------------------------------------------- the loop


@inner
def run_wave(
    code, literals, shapes, R, F, S, pc, budget, lds, lds_words, lds_limit, private, private_words, private_size,
    starts, ends, offsets, arena, arena_words, dot, exp2_inputs, exp2_outputs, work, outputs, executed, fault,
):  # fmt: skip
    """Run one wave from row `pc` until it ends, waits at a barrier, faults or has spent its budget of rows.

    Returns (next row, why it stopped).
    """
    rows = code.shape[0]
    for _ in range(budget):
        if pc >= rows:
            set_fault(fault, BAD_BRANCH, pc - 1, 0, 0, 0, False)
            return pc, STOP_FAULT
        row = pc
        pc += 1
        executed[row] += 1
        unit, opcode = code[row, UNIT], np.int64(code[row, OPCODE])
        stop = NO_FAULT
        if unit == VECTOR_UNIT:
            step_vector(R, F, S, code, literals, row, exp2_inputs, exp2_outputs)
        elif unit == SCALAR_UNIT:
            step_scalar(S, code, literals, row)
        elif unit == LDS_UNIT:
            stop = step_lds(R, S, code, literals, row, lds, lds_words, lds_limit, fault)
        elif unit == MATRIX_UNIT:
            has_c = code[row, SOURCE + 2] >= 0
            multiply(
                R, F, np.uint64(np.int64(code[row, DESTINATION]) * 64), np.uint64(np.int64(code[row, SOURCE]) * 64),
                np.uint64(np.int64(code[row, SOURCE + 1]) * 64),
                np.uint64(np.int64(code[row, SOURCE + 2]) * 64 if has_c else 0), has_c, literals[row, 2],
                shapes[opcode, 0], shapes[opcode, 1], shapes[opcode, 2], shapes[opcode, 3], dot, work, outputs,
            )  # fmt: skip
        elif unit == MEMORY_UNIT:
            stop = step_memory(
                R, S, code, literals, row, starts, ends, offsets, arena, arena_words, lds, lds_words, lds_limit,
                private, private_words, private_size, fault,
            )  # fmt: skip
        elif unit == CONTROL_UNIT:
            if opcode == CODE_END:
                return pc, STOP_END
            if opcode == CODE_BARRIER:
                return pc, STOP_BARRIER
            if branches(opcode, np.int64(S[SCC]), scalar64(S, VCC), scalar64(S, EXEC)):
                pc = np.int64(code[row, OFFSET])
        elif unit == LANE_UNIT:
            step_lane(R, S, code, literals, row, opcode)
        else:
            stop = step_scalar_memory(
                S, code, literals, row, starts, ends, offsets, arena, arena_words, np.int64(executed[row]), fault
            )
        if stop != NO_FAULT:
            return pc, STOP_FAULT
    return pc, STOP_BUDGET


def _build(fingerprint: str):  # type: ignore[no-untyped-def]
    """The entry point; numba keeps it on disk under a key that includes the fingerprint."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def run_workgroups(
        code, literals, shapes, first, last, step, grid_x, grid_y, block_x, block_y, waves, quantum, seed, poison,
        initial, workgroup_register, lds_size, private_size, starts, ends, offsets, arena, arena_words, dot,
        exp2_inputs, exp2_outputs, executed, fault, limit,
    ):  # fmt: skip
        """Run workgroups first, first + step, ... < last; stop at the first fault. Returns the rows executed.

        `initial` is the scalar registers every wave starts with, `workgroup_register` where the three workgroup ids go
        (-1 for none); `quantum` rows of one wave run before another of its workgroup is picked (`seed` drives the choice).
        """
        if fingerprint == "":
            return np.int64(0)
        R = np.empty((waves, enc.VECTOR_ROWS * 64), np.uint32)
        S = np.empty((waves, enc.SCALARS), np.uint32)
        lds = np.empty((lds_size + 15) // 8 * 8 + 16, np.uint8)
        lds_words = lds.view(np.uint32)
        private = np.empty((waves, private_size * 64 + 8), np.uint8)
        work = np.empty((4, 2048), np.float64)
        outputs = np.empty(2048, np.float32)
        pcs = np.zeros(waves, np.int64)
        states = np.zeros(waves, np.int64)
        random = np.uint64(seed)
        total = np.int64(0)
        for group in range(first, last, step):
            R[:, :] = np.uint32(poison)
            lds_words[:] = np.uint32(poison)
            private[:, :] = np.uint8(poison & 0xFF)
            x, y, z = group % grid_x, group // grid_x % grid_y, group // grid_x // grid_y
            for wave in range(waves):
                S[wave, :] = initial
                for axis in range(3):
                    if workgroup_register[axis] >= 0:
                        S[wave, workgroup_register[axis]] = x if axis == 0 else (y if axis == 1 else z)
                threads = block_x * block_y
                for lane in range(64):
                    item = wave * 64 + lane
                    R[wave, lane] = item % block_x | (item // block_x % block_y) << 10 | (item // threads) << 20
                pcs[wave] = 0
                states[wave] = STOP_BUDGET
            alive, waiting = waves, 0
            wave = 0
            while alive > 0:
                if waves > 1:
                    random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    wave = np.int64(random >> np.uint64(33)) % waves
                    while states[wave] != STOP_BUDGET:
                        wave = (wave + 1) % waves
                budget = quantum if waves > 1 else np.int64(1 << 40)
                pcs[wave], why = run_wave(
                    code, literals, shapes, R[wave], R[wave].view(np.float32), S[wave], pcs[wave], min(budget, limit),
                    lds, lds_words, lds_size, private[wave], private[wave].view(np.uint32), private_size, starts, ends,
                    offsets, arena, arena_words, dot, exp2_inputs, exp2_outputs, work, outputs, executed, fault,
                )  # fmt: skip
                total += 1
                if why == STOP_FAULT:
                    fault[FAULT_WAVE], fault[FAULT_GROUP] = wave, group
                    return total
                if why == STOP_END:
                    states[wave] = STOP_END
                    alive -= 1
                elif why == STOP_BARRIER:
                    states[wave] = STOP_BARRIER
                    waiting += 1
                elif waves == 1 or total > limit:
                    fault[FAULT_WAVE], fault[FAULT_GROUP] = wave, group
                    set_fault(fault, RUNAWAY, pcs[wave], 0, 0, 0, False)
                    return total
                if alive > 0 and waiting == alive:
                    for other in range(waves):
                        if states[other] == STOP_BARRIER:
                            states[other] = STOP_BUDGET
                    waiting = 0
        return total

    return run_workgroups


run_workgroups = _build(generate.fingerprint())