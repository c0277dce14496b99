"""Instructions that move values between lanes, or swap registers."""

from __future__ import annotations

import numpy as np

from .encoding import (
    DESTINATION,
    EXEC,
    SCALAR,
    SOURCE,
)  # fmt: skip
from .operands import scalar64, scalar_source, vector_source
from .scalar import inner


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
        chosen = scalar_source(S, code, literals, row, 1) & 63
        R[np.uint64(destination * 64 + chosen)] = scalar_source(S, code, literals, row, 0) & 0xFFFFFFFF
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
