"""Which registers each row of a program reads and writes, as ranges of register codes (see `encoding`).

Taint, wait and hazard checks all ask this one question; the interpreter does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import encoding as enc
from .isa import instruction_set
from .listing import Program

MAX_READS, MAX_WRITES = 7, 4
_EXEC = (enc.SCALAR + enc.EXEC, 2)
_M0 = (enc.SCALAR + enc.M0, 1)
_VCC = (enc.SCALAR + enc.VCC, 2)
_SCC = (enc.SCALAR + enc.SCC, 1)

Ranges = list[tuple[int, int]]


_INSTRUCTIONS = instruction_set()


def _names() -> dict[tuple[str, int], str]:
    counts: dict[str, int] = {}
    names = {}
    for name, instruction in _INSTRUCTIONS.items():
        opcode = counts.get(instruction.unit, 0)
        counts[instruction.unit] = opcode + 1
        names[instruction.unit, opcode] = name
    return names


_NAMES = _names()


def instruction_name(program: Program, row: int) -> str:
    """Name of the instruction of a row (of a packed instruction's scalar form, for its rows)."""
    code = program.code[row]
    return _NAMES[enc.UNITS[code[enc.UNIT]], int(code[enc.OPCODE])]


def _words(code: np.ndarray, mode: int) -> int:
    """Registers that an operand spans; only the vector unit has modifiers above the count."""
    is_vector = enc.UNITS[code[enc.UNIT]] == "vector"
    return int(mode) & (enc.WORDS if is_vector else 0x3F)


def _sources(code: np.ndarray) -> Iterator[tuple[int, int]]:
    for k in range(enc.MAX_SOURCES):
        register = int(code[enc.SOURCE + k])
        if register >= 0:
            yield register, _words(code, code[enc.SOURCE_MODE + k])


def row_footprint(program: Program, row: int) -> tuple[Ranges, Ranges]:
    """(registers read, registers written) of one row, each a list of (first code, count)."""
    code = program.code[row]
    unit = enc.UNITS[code[enc.UNIT]]
    instruction = _INSTRUCTIONS[instruction_name(program, row)]
    reads: Ranges = list(_sources(code))
    writes: Ranges = []
    destination, mode = int(code[enc.DESTINATION]), int(code[enc.DESTINATION_MODE])
    if destination >= 0:
        writes.append((destination, _words(code, mode)))
        if unit == "vector" and mode & enc.KEEP_OTHER_HALF:
            reads.append((destination, 1))
        if code[enc.FLAGS] & (enc.FLAG_LOW | enc.FLAG_HIGH) and code[enc.TRANSFER] == enc.TRANSFER_LOAD:
            reads.append((destination, 1))
    if code[enc.MASK_DESTINATION] >= 0:
        scalar_condition = code[enc.MASK_DESTINATION] == enc.SCALAR + enc.SCC
        writes.append((int(code[enc.MASK_DESTINATION]), 1 if scalar_condition else 2))
    if code[enc.EXEC_DESTINATION]:
        writes.append(_EXEC)
    if unit in ("vector", "lane", "lds", "memory") and instruction.name not in ("v_readlane_b32", "v_writelane_b32"):
        reads.append(_EXEC)
    if unit == "lane" and "swap" in instruction.name:
        writes.append((int(code[enc.SOURCE + 1]), 1))
    if code[enc.FLAGS] & enc.FLAG_TO_LDS and unit == "memory":
        reads.append(_M0)
    if unit == "control" and instruction.sources == ("label",):
        for word, extra in (("vcc", _VCC), ("exec", _EXEC), ("scc", _SCC)):
            if word in instruction.meaning:
                reads.append(extra)
    return reads, writes


def footprint(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Reads int32 [rows, MAX_READS, 2] and writes int32 [rows, MAX_WRITES, 2] of (first code, count); 0 is none."""
    reads = np.zeros((len(program.code), MAX_READS, 2), dtype=np.int32)
    writes = np.zeros((len(program.code), MAX_WRITES, 2), dtype=np.int32)
    for row in range(len(program.code)):
        for table, ranges in zip((reads, writes), row_footprint(program, row), strict=True):
            for slot, pair in enumerate(ranges):
                table[row, slot] = pair
    return reads, writes
