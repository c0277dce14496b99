"""Scalar and vector instructions: fetch operands, evaluate the table's meaning, write results under EXEC.

`R` is a wave's vector registers, uint32 [rows * 64] (`F` is the same memory as float32); `S` its scalar registers,
uint32, with VCC, EXEC and SCC at their numbers in `encoding`. Offsets into `R` are uint64, which keeps numba from
adding a wrap-around test to every access.
"""

from __future__ import annotations

import numpy as np

from . import generate
from .encoding import (
    ABSOLUTE,
    BYTE_SHIFT,
    CLAMP,
    DESTINATION,
    DESTINATION_MODE,
    DOUBLE,
    DPP,
    DPP_MASKS,
    EXEC,
    EXEC_DESTINATION,
    FROM_BF16,
    FROM_F16,
    HALF,
    HIGH_HALF,
    KEEP_OTHER_HALF,
    LITERAL,
    MASK_DESTINATION,
    MASK_SOURCE,
    MODIFIED,
    NEGATE,
    OPCODE,
    RESULT_MODIFIED,
    SCALAR,
    SCC,
    SCRATCH,
    SELECT,
    SELECT_SHIFT,
    SIGN_EXTEND,
    SOURCE,
    SOURCE_MODE,
    SOURCES,
    TO_F16,
    WORDS,
)  # fmt: skip
from .scalar import bits32, half_bits, half_to_float32, inner, sign_extend

_cases = generate.module()
vector, scalar = _cases.vector, _cases.scalar

N = np.uint64(64)
ALL = np.int64(-1)
RESULT_ROW = SCRATCH + 8
DPP_ROW = SCRATCH + 12
ADDRESS_ROW = SCRATCH + 16


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
        for i in range(N):
            high = np.int64(R[base + N + i])
            if mode & ABSOLUTE:
                high &= 0x7FFFFFFF
            if mode & NEGATE:
                high ^= 0x80000000
            R[target + i] = R[base + i]
            R[target + N + i] = high
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
        for i in range(N):
            R[target + i] = (bits32(half_to_float32(np.int64(R[base + i]) >> shift)) & keep) ^ flip
    elif mode & FROM_BF16:
        for i in range(N):
            R[target + i] = ((((np.int64(R[base + i]) >> shift) << 16) & 0xFFFFFFFF) & keep) ^ flip
    elif mode & SIGN_EXTEND:
        for i in range(N):
            R[target + i] = (sign_extend(np.int64(R[base + i]) >> shift, bits) & keep) ^ flip
    else:
        for i in range(N):
            R[target + i] = (((np.int64(R[base + i]) >> shift) & mask) & keep) ^ flip


@inner
def vector_source(R, S, code, literals, row, k):
    """Offset into R of source k, materialised in a scratch row when it is no plain vector register."""
    register, mode = np.int64(code[row, SOURCE + k]), np.int64(code[row, SOURCE_MODE + k])
    scratch = np.uint64((SCRATCH + 2 * k) * 64)
    if 0 <= register < SCALAR:
        base = np.uint64(register * 64)
    else:
        base = scratch
        words = min(mode & WORDS, 2)
        for w in range(words):
            if register == LITERAL:
                word = np.uint32((literals[row, k] >> (32 * w)) & 0xFFFFFFFF)
            else:
                word = S[register - SCALAR + w]
            start = base + np.uint64(w * 64)
            for i in range(N):
                R[start + i] = word
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
    if mode & CLAMP:
        for i in range(N):
            x = F[result + i]
            F[result + i] = np.float32(0.0) if not x > np.float32(0.0) else min(x, np.float32(1.0))
    byte = mode >> BYTE_SHIFT & 7
    if mode & (TO_F16 | HALF) or byte:
        if mode & TO_F16:
            for i in range(N):
                R[result + i] = half_bits(F[result + i])
        shift, mask = np.int64(0), np.int64(0xFFFF)
        if mode & HIGH_HALF:
            shift = np.int64(16)
        if byte:
            shift, mask = 8 * (byte - 1), np.int64(0xFF)
        kept = ~(mask << shift) & 0xFFFFFFFF if mode & KEEP_OTHER_HALF else np.int64(0)
        for i in range(N):
            R[result + i] = ((np.int64(R[result + i]) & mask) << shift) | (np.int64(R[target + i]) & kept)
    elif mode & HIGH_HALF:  # SDWA WORD_1 of a 32-bit result
        kept = np.int64(0xFFFF) if mode & KEEP_OTHER_HALF else np.int64(0)
        for i in range(N):
            R[result + i] = ((np.int64(R[result + i]) & 0xFFFF) << 16) | (np.int64(R[target + i]) & kept)


@inner
def write_back(R, result, target, words, exec_mask):
    """Copy a result's rows to their registers in the lanes that EXEC enables."""
    count = np.uint64(words * 64)
    if exec_mask == ALL:
        for i in range(count):
            R[target + i] = R[result + i]
    else:
        for i in range(count):
            if (exec_mask >> np.int64(i & np.uint64(63))) & 1:
                R[target + i] = R[result + i]


@inner
def step_vector(R, F, S, code, literals, row, numerics):
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
    mask = vector(np.int64(code[row, OPCODE]), R, F, D, A, B, C, m, numerics.exp2_inputs, numerics.exp2_outputs)
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
