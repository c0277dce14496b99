"""What an execution was made of: instructions by class, and bytes moved."""

from __future__ import annotations

import numpy as np

from . import encoding as enc
from .footprint import instruction_name
from .launch import Run
from .listing import Program

CLASSES = ("VALU", "LDS", "VMEM", "SMEM", "MFMA", "SALU", "waits", "nops")
_CLASS_OF_UNIT = {
    "vector": "VALU", "lane": "VALU", "lds": "LDS", "memory": "VMEM", "scalar_memory": "SMEM", "matrix": "MFMA",
    "scalar": "SALU", "control": "SALU",
}  # fmt: skip
_CLASS_OF_NAME = {"s_waitcnt": "waits", "s_nop": "nops"}


def instruction_class(program: Program, row: int) -> str:
    """Which of CLASSES the instruction of a row belongs to; branches and barriers count as SALU."""
    name = instruction_name(program, row)
    return _CLASS_OF_NAME.get(name, _CLASS_OF_UNIT[enc.UNITS[program.code[row, enc.UNIT]]])


def instruction_counts(run: Run) -> dict[str, int]:
    """Instructions executed, by class, over all waves."""
    counts = dict.fromkeys(CLASSES, 0)
    for row in np.flatnonzero((run.executed > 0) & (run.program.code[:, enc.FIRST] == 1)).tolist():
        counts[instruction_class(run.program, row)] += int(run.executed[row])
    return counts


def bytes_moved(run: Run) -> dict[str, int]:
    """Bytes that executed loads and stores move with every lane active, by ``global`` and ``LDS``."""
    code = run.program.code
    pieces = np.where(code[:, enc.FLAGS] & enc.FLAG_PAIR, 2, 1)
    moved = code[:, enc.BYTES].astype(np.int64) * pieces * enc.LANES * run.executed
    return {
        "global": int(moved[code[:, enc.UNIT] == enc.UNIT_MEMORY].sum()),
        "LDS": int(moved[code[:, enc.UNIT] == enc.UNIT_LDS].sum()),
    }


def resources(program: Program) -> dict[str, int]:
    """Registers and LDS bytes that the listing asks for."""
    return {
        "VGPRs": program.directives.get("next_free_vgpr", 0),
        "SGPRs": program.directives.get("next_free_sgpr", 0),
        "LDS bytes": program.lds_bytes,
    }
