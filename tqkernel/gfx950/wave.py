"""The interpreter: waves of 64 lanes, stepped through a decoded program by one numba-compiled loop.

What an instruction means is not here: scalar, vector and branch meanings come from the tables in `isa`, matrix sums
from `matrix`, memory from `transfer`. With `sanitize` set, `sanitize.check` sees every row just before it runs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import generate
from .encoding import (
    BAD_BRANCH,
    CODE_BARRIER,
    CODE_END,
    DESTINATION,
    DESTINATION_MODE,
    EXEC,
    FAULT_GROUP,
    FAULT_WAVE,
    NO_FAULT,
    OFFSET,
    OPCODE,
    RUNAWAY,
    SCALAR,
    SCALARS,
    SCC,
    SOURCE,
    UNIT,
    UNIT_CONTROL,
    UNIT_LANE,
    UNIT_LDS,
    UNIT_MATRIX,
    UNIT_MEMORY,
    UNIT_SCALAR,
    UNIT_VECTOR,
    VCC,
    VECTOR_ROWS,
    WORDS,
)  # fmt: skip
from .lanes import step_lane
from .matrix import multiply
from .operands import scalar64, step_scalar, step_vector
from .sanitize import check, meet_at_barrier, start_workgroup
from .scalar import inner
from .state import LocalMemory
from .transfer import set_fault, step_lds, step_memory, step_scalar_memory

branches = generate.module().branches

STOP_BUDGET, STOP_END, STOP_BARRIER, STOP_FAULT = range(4)


@inner
def step_matrix(R, F, code, literals, shapes, row, numerics):
    has_c = code[row, SOURCE + 2] >= 0
    opcode = code[row, OPCODE]
    multiply(
        R, F, np.uint64(np.int64(code[row, DESTINATION]) * 64), np.uint64(np.int64(code[row, SOURCE]) * 64),
        np.uint64(np.int64(code[row, SOURCE + 1]) * 64),
        np.uint64(np.int64(code[row, SOURCE + 2]) * 64 if has_c else 0), has_c, literals[row, 2],
        shapes[opcode, 0], shapes[opcode, 1], shapes[opcode, 2], shapes[opcode, 3],
        numerics.dot, numerics.work, numerics.outputs,
    )  # fmt: skip


@inner
def record(code, row, R, trace):
    """Append the vector registers that a row has just written to the trace."""
    destination, unit = np.int64(code[row, DESTINATION]), code[row, UNIT]
    if destination < 0 or destination >= SCALAR or unit == UNIT_CONTROL:
        return
    words = np.int64(code[row, DESTINATION_MODE]) & (WORDS if unit == UNIT_VECTOR else 0x3F)
    for w in range(words):
        at = trace.recorded[0]
        if at >= trace.rows.size:
            return
        trace.rows[at], trace.registers[at] = row, destination + w
        for lane in range(64):
            trace.values[at, lane] = R[(destination + w) * 64 + lane]
        trace.recorded[0] = at + 1


@inner
def run_wave(
    code, literals, shapes, R, F, S, pc, budget, lds, private, memory, numerics, executed, fault,
    sanitize, shadow, trace, wave, group,
):  # fmt: skip
    """Run one wave from row `pc` until it ends, waits at a barrier, faults or has spent its budget of rows.

    Returns (next row, why it stopped, what is left of the budget).
    """
    rows = code.shape[0]
    while budget > 0:
        budget -= 1
        if pc >= rows:
            set_fault(fault, BAD_BRANCH, pc - 1, 0, 0, 0, False)
            return pc, STOP_FAULT, budget
        row = pc
        pc += 1
        executed[row] += 1
        unit, opcode = code[row, UNIT], np.int64(code[row, OPCODE])
        stop = NO_FAULT
        if sanitize:
            check(code, literals, shapes, row, R, S, lds, memory, shadow, wave, group)
        if unit == UNIT_VECTOR:
            step_vector(R, F, S, code, literals, row, numerics)
        elif unit == UNIT_SCALAR:
            step_scalar(S, code, literals, row)
        elif unit == UNIT_LDS:
            stop = step_lds(R, S, code, literals, row, lds, fault)
        elif unit == UNIT_MATRIX:
            step_matrix(R, F, code, literals, shapes, row, numerics)
        elif unit == UNIT_MEMORY:
            stop = step_memory(R, S, code, literals, row, memory, lds, private, fault)
        elif unit == UNIT_CONTROL:
            if opcode == CODE_END:
                return pc, STOP_END, budget
            if opcode == CODE_BARRIER:
                return pc, STOP_BARRIER, budget
            if branches(opcode, np.int64(S[SCC]), scalar64(S, VCC), scalar64(S, EXEC)):
                pc = np.int64(code[row, OFFSET])
        elif unit == UNIT_LANE:
            step_lane(R, S, code, literals, row, opcode)
        else:
            stop = step_scalar_memory(S, code, literals, row, memory, np.int64(executed[row]), fault)
        if stop != NO_FAULT:
            return pc, STOP_FAULT, budget
        if trace.rows.size > 0:
            record(code, row, R, trace)
    return pc, STOP_BUDGET, budget


@inner
def next_random(random):
    """One step of Knuth's linear congruential generator."""
    return random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@inner
def start_waves(R, S, initial, workgroup_register, group, grid, block, poison):
    """Registers of every wave of a workgroup as the hardware hands them over."""
    x, y, z = group % grid[0], group // grid[0] % grid[1], group // grid[0] // grid[1]
    for wave in range(R.shape[0]):
        R[wave, :] = np.uint32(poison)
        for register in range(initial.size):
            S[wave, register] = initial[register]
        for axis in range(3):
            if workgroup_register[axis] >= 0:
                S[wave, workgroup_register[axis]] = x if axis == 0 else (y if axis == 1 else z)
        for lane in range(64):
            item = wave * 64 + lane
            i, j, k = item % block[0], item // block[0] % block[1], item // (block[0] * block[1])
            R[wave, lane] = i | j << 10 | k << 20


def _build(fingerprint: str):
    """The entry point; numba keeps it on disk under a key that includes the fingerprint."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def run_workgroups(
        code, literals, shapes, first, last, step, grid, block, quantum, seed, poison, initial, workgroup_register,
        lds_size, private_size, memory, numerics, executed, fault, limit, sanitize, shadow, trace,
    ):  # fmt: skip
        """Run workgroups first, first + step, ... < last; stop at the first fault.

        `initial` is the scalar registers every wave starts with, `workgroup_register` where the three workgroup ids go
        (-1 for none). Up to `quantum` rows of one wave run before another of its workgroup is picked; `seed` drives
        both choices. A workgroup that takes more than `limit` rows is a fault.
        """
        if fingerprint == "":
            return
        waves = block[0] * block[1] * block[2] // 64
        R = np.empty((waves, VECTOR_ROWS * 64), np.uint32)
        S = np.empty((waves, SCALARS), np.uint32)
        lds_data = np.empty((lds_size + 15) // 8 * 8 + 16, np.uint8)
        lds = LocalMemory(lds_data, lds_data.view(np.uint32), lds_size)
        private_data = np.empty((waves, private_size * 64 + 8), np.uint8)
        pcs = np.zeros(waves, np.int64)
        states = np.zeros(waves, np.int64)
        for group in range(first, last, step):
            start_waves(R, S, initial, workgroup_register, group, grid, block, poison)
            lds.words[:] = np.uint32(poison)
            private_data[:, :] = np.uint8(poison & 0xFF)
            pcs[:] = 0
            states[:] = STOP_BUDGET
            if sanitize:
                start_workgroup(shadow)
            random = next_random(np.uint64(seed) + np.uint64(group))
            alive, waiting, wave = waves, 0, 0
            left = np.int64(limit)
            while alive > 0:
                budget = left
                if waves > 1:
                    random = next_random(random)
                    wave = np.int64(random >> np.uint64(33)) % waves
                    while states[wave] != STOP_BUDGET:
                        wave = (wave + 1) % waves
                    budget = min(left, 1 + np.int64(random >> np.uint64(40)) % quantum)
                private = LocalMemory(private_data[wave], private_data[wave].view(np.uint32), private_size)
                pcs[wave], why, unused = run_wave(
                    code, literals, shapes, R[wave], R[wave].view(np.float32), S[wave], pcs[wave], budget, lds, private,
                    memory, numerics, executed, fault, sanitize, shadow, trace, wave, group,
                )  # fmt: skip
                left -= budget - unused
                if why == STOP_BUDGET and left <= 0:
                    set_fault(fault, RUNAWAY, pcs[wave], 0, 0, 0, False)
                    why = STOP_FAULT
                if why == STOP_FAULT:
                    fault[FAULT_WAVE], fault[FAULT_GROUP] = wave, group
                    return
                states[wave] = why
                if why == STOP_END:
                    alive -= 1
                elif why == STOP_BARRIER:
                    waiting += 1
                if alive > 0 and waiting == alive:
                    if sanitize:
                        meet_at_barrier(shadow, states, pcs, STOP_BARRIER, group)
                    for other in range(waves):
                        if states[other] == STOP_BARRIER:
                            states[other] = STOP_BUDGET
                    waiting = 0

    return run_workgroups


run_workgroups = _build(generate.fingerprint())
