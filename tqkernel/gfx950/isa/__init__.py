"""The instruction set as data: one line of meaning for each instruction, grouped as AMD's CDNA manual groups them.

A table line reads ``name  results = sources : meaning``. The meaning is an expression over the sources
``a b c d`` (in the order the assembler prints them) with the functions of `tqkernel.gfx950.scalar`; two
results are separated by ``;``. Types say what a source is when the meaning sees it:

==========  ==================================================================
``u32 i32``  an integer, zero- or sign-extended (all integer arithmetic is 64-bit)
``f32``      a float32; ``f64`` a float64
``f16``      a half, widened to float32; as a result rounded to half, upper 16 bits zeroed
``h16``      the same, but as a result the upper 16 bits are preserved
``u16 i16``  the low (or selected) half, extended
``u64 i64``  a 64-bit integer (two's complement in an int64)
``b128``     four registers, only for moves
``mask``     one bit per lane, held in a scalar register pair: the lane's bit
``vcc scc``  the implicit condition register
``+type``    the destination's old value
``mix``      f16 or f32, as the instruction's op_sel_hi says
==========  ==================================================================

A name with ``:clamp`` is what an instruction means with that modifier.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """What one instruction reads, writes and means."""

    name: str
    unit: str
    """Which part of the wave executes it: vector, scalar, lane, lds, memory, scalar_memory, matrix or control."""
    results: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    meaning: str = ""
    accuracy: str = "exact"
    """``exact``, or ``modelled`` where the chip's result is not given by IEEE 754 and a profile stands in."""


def parse_table(unit: str, text: str, accuracy: str = "exact") -> list[Instruction]:
    """Turn table lines into instructions; blank lines and ``#`` comments are ignored."""
    instructions = []
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        signature, _, meaning = line.partition(" : ")
        left, _, sources = signature.partition(" =")
        name, *results = left.split()
        instructions.append(
            Instruction(name, unit, tuple(results), tuple(sources.split()), meaning.strip(), accuracy)
        )
    return instructions


def instruction_set() -> dict[str, Instruction]:
    """All supported instructions by name, in a fixed order (an instruction's position is its opcode)."""
    from . import compare, control, lane, lds, matrix, memory, scalar, vector, vector16, vector64

    groups = (control, scalar, vector, vector16, vector64, compare, lane, lds, memory, matrix)
    table: dict[str, Instruction] = {}
    for group in groups:
        for instruction in group.INSTRUCTIONS:
            if instruction.name in table:
                raise ValueError(f"instruction {instruction.name} is defined twice")
            table[instruction.name] = instruction
    return table
