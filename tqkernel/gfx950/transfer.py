"""Loads, stores and atomics: LDS, global, flat, private and scalar memory, and lane exchange through LDS.

Every access is checked against the bounds of what it touches; the first that fails is recorded in `fault` and stops
the wave.
"""

from __future__ import annotations

import numpy as np

from . import generate
from .encoding import (
    BYTES,
    DESTINATION,
    EXEC,
    FAULT_ADDRESS,
    FAULT_BYTES,
    FAULT_KIND,
    FAULT_LANE,
    FAULT_ROW,
    FAULT_WRITE,
    FLAG_BUFFER,
    FLAG_CLAMPED,
    FLAG_HIGH,
    FLAG_IDXEN,
    FLAG_LOW,
    FLAG_OFFEN,
    FLAG_PAIR,
    FLAG_RETURN,
    FLAG_SADDR,
    FLAG_SCRATCH,
    FLAG_SIGNED,
    FLAG_TO_LDS,
    FLAGS,
    LDS_FAULT,
    M0,
    MEANING,
    MEMORY_FAULT,
    NO_FAULT,
    OFFSET,
    OFFSET1,
    SCALAR,
    SOURCE,
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
    UNIT_LDS,
    UNIT_MEMORY,
)  # fmt: skip
from .operands import (
    ADDRESS_ROW,
    ALL,
    RESULT_ROW,
    N,
    scalar64,
    scalar_source,
    set_scalar64,
    vector_source,
    write_back,
)
from .scalar import inner, sign_extend

atomic = generate.module().atomic


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
def find(address, size, memory, last):
    """Index of the region that holds [address, address + size), -1 if none; `last` is tried first."""
    starts, ends = memory.starts, memory.ends
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
def place(memory, region, address):
    """Offset into the arena of an address of a region."""
    return memory.offsets[region] + address - memory.starts[region]


@inner
def move_lane(R, code, row, lane, register, bytes_, words, at, size, flags, transfer):
    """One lane's move between `size` bytes at `at` and consecutive registers; atomics return the old value."""
    if transfer == TRANSFER_ATOMIC:
        data = np.int64(code[row, SOURCE + (3 if code[row, UNIT] == UNIT_MEMORY else 1)])
        a = np.int64(R[data * 64 + lane])
        second = np.int64(code[row, SOURCE + 2]) if code[row, UNIT] == UNIT_LDS else data + size // 4
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
def lds_load_aligned(R, A, target, offset, size, lds):
    """All lanes, whole aligned words: True if it could be done this way."""
    bad = np.int64(0)
    for i in range(N):
        at = np.int64(R[A + i]) + offset
        bad |= (at & 3) | np.int64(at + size > lds.size)
    if bad:
        return False
    # Addresses are copied first: a load may overwrite its own address register.
    scratch = np.uint64(ADDRESS_ROW * 64)
    for i in range(N):
        R[scratch + i] = (np.int64(R[A + i]) + offset) >> 2
    for w in range(np.uint64(size >> 2)):
        row = target + w * N
        for i in range(N):
            R[row + i] = lds.words[np.uint64(R[scratch + i]) + w]
    return True


@inner
def lds_store_aligned(R, A, source, offset, size, lds):
    bad = np.int64(0)
    for i in range(N):
        at = np.int64(R[A + i]) + offset
        bad |= (at & 3) | np.int64(at + size > lds.size)
    if bad:
        return False
    for i in range(N):
        at = np.uint64((np.int64(R[A + i]) + offset) >> 2)
        for w in range(np.uint64(size >> 2)):
            lds.words[at + w] = R[source + w * N + i]
    return True


@inner
def step_lds(R, S, code, literals, row, lds, fault):
    exec_mask = scalar64(S, EXEC)
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size, offset = np.int64(code[row, BYTES]), np.int64(code[row, OFFSET])
    A = vector_source(R, S, code, literals, row, 0)
    if transfer >= TRANSFER_TRANSPOSE and transfer != TRANSFER_ATOMIC:
        return exchange(R, S, code, literals, row, A, transfer, size, offset, lds, exec_mask, fault)
    pieces = 2 if flags & FLAG_PAIR else 1
    # A paired load that overwrites its own address register would lose it between its halves.
    addresses = A
    if pieces == 2 and transfer == TRANSFER_LOAD:
        addresses = np.uint64((ADDRESS_ROW + 1) * 64)
        for i in range(N):
            R[addresses + i] = R[A + i]
    for piece in range(pieces):
        at_offset = offset if piece == 0 else np.int64(code[row, OFFSET1])
        if transfer == TRANSFER_LOAD:
            register = np.int64(code[row, DESTINATION]) + piece * (size >> 2)
        else:
            register = np.int64(code[row, SOURCE + 1 + piece])
        if exec_mask == ALL and size >= 4:
            if transfer == TRANSFER_LOAD:
                if lds_load_aligned(R, addresses, np.uint64(register * 64), at_offset, size, lds):
                    continue
            elif transfer == TRANSFER_STORE and 0 <= register < SCALAR and lds_store_aligned(
                R, addresses, np.uint64(register * 64), at_offset, size, lds
            ):
                continue
        if transfer == TRANSFER_STORE:
            register = np.int64(vector_source(R, S, code, literals, row, 1 + piece)) // 64
        for lane in range(64):
            if not (exec_mask >> lane) & 1:
                continue
            at = np.int64(R[addresses + np.uint64(lane)]) + at_offset
            if at + size > lds.size:
                return set_fault(fault, LDS_FAULT, row, lane, at, size, transfer != TRANSFER_LOAD)
            move_lane(R, code, row, lane, register, lds.data, lds.words, at, size, flags, transfer)
    return NO_FAULT


@inner
def set_fault(fault, kind, row, lane, address, size, write):
    fault[FAULT_KIND], fault[FAULT_ROW], fault[FAULT_LANE] = kind, row, lane
    fault[FAULT_ADDRESS], fault[FAULT_BYTES], fault[FAULT_WRITE] = address, size, write
    return kind


@inner
def swizzle_lane(pattern, lane):
    """Lane that ds_swizzle_b32 reads for `lane`."""
    if pattern & 0x8000:
        return (lane & ~3) | ((pattern >> (2 * (lane & 3))) & 3)
    within = (((lane & 31) & (pattern & 31)) | ((pattern >> 5) & 31)) ^ ((pattern >> 10) & 31)
    return (lane & 32) | within


@inner
def exchange(R, S, code, literals, row, A, transfer, size, offset, lds, exec_mask, fault):
    """Reads that cross lanes: the transposing read and the permutations through the LDS crossbar."""
    target = np.int64(code[row, DESTINATION])
    result = np.uint64(RESULT_ROW * 64)
    if transfer == TRANSFER_TRANSPOSE:
        for lane in range(64):
            at = np.int64(R[A + np.uint64(lane)]) + offset
            if (exec_mask >> lane) & 1 and at + size > lds.size:
                return set_fault(fault, LDS_FAULT, row, lane, at, size, False)
        for lane in range(64):
            group, within = lane & 0x30, lane & 15
            for w in range(2):
                value = np.int64(0)
                for half in range(2):
                    element = 2 * w + half
                    source = group + 4 * element + within // 4
                    at = np.int64(R[A + np.uint64(source)]) + offset + 2 * (within % 4)
                    if at + 2 <= lds.size:
                        value |= read_bytes(lds.data, lds.words, at, 2) << (16 * half)
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
        else:
            source = swizzle_lane(offset, lane)
        if (exec_mask >> source) & 1:
            R[result + np.uint64(lane)] = R[data + np.uint64(source)]
    write_back(R, result, np.uint64(target * 64), 1, exec_mask)
    return NO_FAULT


@inner
def lane_address(R, S, code, literals, row, A, lane, size):
    """(address, bytes in bounds) of one lane's global access; fewer than `size` mean a buffer's bounds cut it."""
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
def step_memory(R, S, code, literals, row, memory, lds, private, fault):
    exec_mask = scalar64(S, EXEC)
    transfer, flags = np.int64(code[row, TRANSFER]), np.int64(code[row, FLAGS])
    size = np.int64(code[row, BYTES])
    register = np.int64(code[row, DESTINATION] if transfer == TRANSFER_LOAD else code[row, SOURCE + 3])
    A = np.uint64(ADDRESS_ROW * 64)
    if code[row, SOURCE] >= 0:
        # A load may overwrite its own address registers.
        source = vector_source(R, S, code, literals, row, 0)
        for i in range(np.uint64(128)):
            R[A + i] = R[source + i]
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
            if at < 0 or at + size > private.size:
                return set_fault(fault, MEMORY_FAULT, row, lane, at, size, transfer != TRANSFER_LOAD)
            at += lane * private.size
            move_lane(R, code, row, lane, register, private.data, private.words, at, size, flags, transfer)
            continue
        address, valid = lane_address(R, S, code, literals, row, A, lane, size)
        if valid < size:
            # Past a descriptor's end: loads give zero, stores vanish, word by word.
            if transfer == TRANSFER_LOAD and flags & FLAG_TO_LDS == 0:
                words = max(size >> 2, 1)
                for w in range(words):
                    R[(register + w) * 64 + lane] = 0
            if valid < 4 or transfer == TRANSFER_ATOMIC:
                continue
            valid &= ~3
            last = find(address, valid, memory, last)
            if last < 0:
                return set_fault(fault, MEMORY_FAULT, row, lane, address, valid, transfer != TRANSFER_LOAD)
            at = place(memory, last, address)
            move_lane(R, code, row, lane, register, memory.arena, memory.words, at, valid, flags, transfer)
            continue
        last = find(address, size, memory, last)
        if last < 0:
            return set_fault(fault, MEMORY_FAULT, row, lane, address, size, transfer != TRANSFER_LOAD)
        at = place(memory, last, address)
        if flags & FLAG_TO_LDS:
            to = (np.int64(S[M0]) & 0xFFFF) + np.int64(code[row, OFFSET]) + lane * max(size, np.int64(4))
            if to + size > lds.size:
                return set_fault(fault, LDS_FAULT, row, lane, to, size, True)
            for i in range(size):
                lds.data[to + i] = memory.arena[at + i]
            continue
        move_lane(R, code, row, lane, register, memory.arena, memory.words, at, size, flags, transfer)
    return NO_FAULT


@inner
def step_scalar_memory(S, code, literals, row, memory, clock, fault):
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
        region = find(address, valid, memory, -1)
        if region < 0:
            return set_fault(fault, MEMORY_FAULT, row, 0, address, valid, False)
    for w in range(size >> 2):
        value = np.int64(0)
        if 4 * w < valid:
            value = read_bytes(memory.arena, memory.words, place(memory, region, address) + 4 * w, 4)
        S[destination + w] = value
    return NO_FAULT
