"""Wait states that a kernel must insert itself, because the hardware does not check for them.

`RULES` states as data what AMD's instruction set manuals tabulate: CDNA3 (gfx942) in 4.5 and 7.5, CDNA4
(gfx950) in 4.5 and 7.6. LLVM's GCNHazardRecognizer.cpp inserts nops by the same rules; where one is LLVM's
alone, or the two differ, its source says so. Left out are rules on what a listing here cannot hold: vskip,
s_setreg, s_rfe, s_movrel, execz and vccz as operands, conversions to fp8 and fp4.

Every instruction is one wait state, ``s_nop N`` is N + 1. The check follows every path of the control-flow
graph, loops included, from each first instruction of a rule for as long as the rule reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from . import encoding as enc
from .footprint import footprint, instruction_name
from .isa import instruction_set
from .isa.matrix import SHAPES, Shape
from .listing import Program

TARGETS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Hazard:
    """Two instructions closer than a rule allows.

    ``line`` and ``producer_line`` are 1-based lines of the listing, ``row`` the first row of the later
    instruction; ``required`` and ``found`` count the wait states between; of several registers
    ``register`` names the first.
    """

    rule: str
    line: int
    row: int
    producer_line: int
    register: str
    required: int
    found: int
    kind: str = "hazard"

    def __str__(self) -> str:
        return (
            f"{self.kind} at line {self.line}: {self.rule} on {self.register} after line "
            f"{self.producer_line} needs {self.required} wait states, has {self.found}"
        )


# ---------------------------------------------------------------- sets of registers, a bit for each code


def _range(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


VECTORS = _range(0, enc.HIDDEN)
SCALARS = _range(enc.SCALAR, enc.SCALARS)
VCC = _range(enc.SCALAR + enc.VCC, 2)
EXEC = _range(enc.SCALAR + enc.EXEC, 2)
M0 = _range(enc.SCALAR + enc.M0, 1)
ISSUE = _range(enc.SCALAR + enc.SCALARS, 1)
"""Stands for a unit, not a register: a rule that holds whatever the two instructions read and write."""

_SCALAR_NAMES = {
    enc.FLAT_SCRATCH: "flat_scratch", enc.XNACK: "xnack_mask", enc.VCC: "vcc", enc.EXEC: "exec",
}  # fmt: skip


def _register_name(code: int) -> str:
    if code < enc.HIDDEN:
        return f"v{code}" if code < enc.ACCUMULATION else f"a{code - enc.ACCUMULATION}"
    scalar = code - enc.SCALAR
    if scalar & ~1 in _SCALAR_NAMES:
        return _SCALAR_NAMES[scalar & ~1] + ("_hi" if scalar & 1 else "_lo")
    return {enc.M0: "m0", enc.SCALARS: "any register"}.get(scalar, f"s{scalar}")


def _first_register(registers: int) -> str:
    return _register_name((registers & -registers).bit_length() - 1)


# ---------------------------------------------------------------- instructions as the rules see them


@dataclass(frozen=True, eq=False)
class _Line:
    """One assembly line: what it is (`traits`), which registers it uses in which role, what may follow it."""

    row: int
    number: int
    name: str
    traits: frozenset[str]
    roles: Mapping[str, int]
    states: int
    passes: int = 0
    successors: list[int] = field(default_factory=list)


_TRANSCENDENTAL = frozenset(
    f"v_{operation}_{kind}"
    for operation, kinds in {
        "exp": ("f16", "f32"), "log": ("f16", "f32"), "sin": ("f16", "f32"), "cos": ("f16", "f32"),
        "rcp": ("f16", "f32", "f64"), "rsq": ("f16", "f32", "f64"), "sqrt": ("f16", "f32", "f64"),
        "rcp_iflag": ("f32",), "exp_legacy": ("f32",), "log_legacy": ("f32",),
    }.items()
    for kind in kinds
)  # fmt: skip
"""CDNA4 4.5, table 12."""

_CARRY_IN = ("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32", "v_div_fmas_f32", "v_div_fmas_f64")
"""Read their lane mask beside the operands, not as a constant."""

_NAMED_TRAITS = {
    "v_readlane_b32": ("readlane", "lane select"),
    "v_readfirstlane_b32": ("readlane",),
    "v_writelane_b32": ("writelane", "lane select"),
    "v_permlane16_swap_b32": ("permlane",),
    "v_permlane32_swap_b32": ("permlane",),
    "v_div_fmas_f32": ("division",),
    "v_div_fmas_f64": ("division",),
    "v_fma_f64": ("fma64",),
    "v_fmac_f64": ("fma64",),
    "s_sendmsg": ("reads m0",),
    "s_ttracedata": ("reads m0",),
} | {name: ("transcendental",) for name in _TRANSCENDENTAL}

_UNIT_TRAITS = {
    "vector": ("valu",), "lane": ("valu",), "matrix": ("valu", "mfma"), "scalar": ("salu",),
    "memory": ("memory", "vmem"), "lds": ("memory",),
}  # fmt: skip

_MULTIPLIERS = {"f32": "sgemm", "f64": "dgemm"}
"""What multiplies: the matrix core proper (xdl) except for these elements."""

_PRINTED_SOURCES = {
    name: sum(not kind.startswith("+") and kind not in ("vcc", "table") for kind in instruction.sources)
    for name, instruction in instruction_set().items()
}


def matrix_passes(shape: Shape, target: str) -> int:
    """Passes of four cycles that an MFMA takes.

    From the gfx942 and gfx950 models of LLVM's SISchedule.td (AMD's cycle counts by four).
    """
    if shape.element == "f64":
        return 4 if shape.rows == 4 else {"gfx942": 8, "gfx950": 16}[target]
    slow = shape.element == "f32" or shape.blocks > 1
    return shape.rows // 4 * (2 if slow else 1)


def _moves_result(text: str, sources: int) -> bool:
    """Whether SDWA, or op_sel by its entry after the sources', says where in the register a result goes."""
    _, _, selected = text.partition("dst_sel:")
    if selected:
        return not selected.startswith("DWORD")
    _, _, selected = text.partition("op_sel:[")
    entries = selected.partition("]")[0].split(",") if selected else []
    return len(entries) > sources and int(entries[-1]) == 1


def _store_traits(code: list[int]) -> tuple[str, ...]:
    """Stores and atomics of more than 64 bits go on reading their data after they have issued."""
    words = code[enc.SOURCE_MODE + 3] & 0x3F
    if code[enc.TRANSFER] not in (enc.TRANSFER_STORE, enc.TRANSFER_ATOMIC) or words <= 2:
        return ()
    has_scalar_offset = code[enc.SOURCE + 2] >= 0
    return ("wide store with scalar offset",) if has_scalar_offset else ("wide store",)


def _lines(program: Program) -> list[_Line]:
    """The program's assembly lines with their successors, in order."""
    codes = program.code.tolist()
    reads, writes = (table.tolist() for table in footprint(program))
    starts = [row for row, code in enumerate(codes) if code[enc.FIRST]]
    lines = []
    for row, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        name, code = instruction_name(program, row), codes[row]
        unit = enc.UNITS[code[enc.UNIT]]
        roles = _source_roles(name, unit, code) if end == row + 1 else _packed_roles(codes[row:end], unit)
        # The second half of a packed instruction keeps the first half, which is no read of the register.
        roles["reads"] = roles["sources"] | (_union(reads[row : row + 1]) if end == row + 1 else 0)
        roles["writes"] = _union(writes[row:end])
        traits = frozenset(
            (
                *_UNIT_TRAITS.get(unit, ()),
                *_NAMED_TRAITS.get(name, ()),
                *_form_traits(program, row, name, unit, code),
            )
        )
        states = code[enc.OFFSET] + 1 if name == "s_nop" else 1
        passes = matrix_passes(SHAPES[name], program.target) if unit == "matrix" else 0
        lines.append(_Line(row, int(program.lines[row]), name, traits, roles, states, passes))
    _connect(lines, codes)
    return lines


def _form_traits(program: Program, row: int, name: str, unit: str, code: list[int]) -> tuple[str, ...]:
    """Traits that a name alone does not tell."""
    if unit == "matrix":
        return (_MULTIPLIERS.get(SHAPES[name].element, "xdl"),)
    if unit == "memory":
        return _store_traits(code) + (("reads m0",) if code[enc.FLAGS] & enc.FLAG_TO_LDS else ())
    traits: tuple[str, ...] = ()
    if unit == "vector":
        text = program.line(row)
        if name.startswith("v_dot"):
            traits += ("dot",)
        if code[enc.DPP] != enc.NONE:
            traits += ("dpp",)
        if "_sel:" in text and not text.startswith("v_pk_") and _moves_result(text, _PRINTED_SOURCES[name]):
            traits += ("moves result",)
    return traits


def _source_roles(name: str, unit: str, code: list[int]) -> dict[str, int]:
    """Registers of an instruction's sources, by what they are to it."""
    first, second, third, fourth = _sources(code, unit)
    every = first | second | third | fourth
    beside = 0
    if name in _CARRY_IN:
        beside = _sources(code, unit)[code[enc.MASK_SOURCE] - 1]
    elif "lane select" in _NAMED_TRAITS.get(name, ()):
        beside = second
    return {
        "sources": every, "ab": first | second, "c": third, "data": fourth, "mask or lane": beside,
        "constants": every & ~beside,
    }  # fmt: skip


def _packed_roles(codes: list[list[int]], unit: str) -> dict[str, int]:
    every = 0
    for code in codes:
        for registers in _sources(code, unit):
            every |= registers
    return {"sources": every, "constants": every}


def _sources(code: list[int], unit: str) -> list[int]:
    """Registers of each source slot; only the vector unit has modifiers above the count of registers."""
    words = enc.WORDS if unit == "vector" else 0x3F
    registers = [0] * enc.MAX_SOURCES
    for k in range(enc.MAX_SOURCES):
        if code[enc.SOURCE + k] >= 0:
            registers[k] = _range(code[enc.SOURCE + k], code[enc.SOURCE_MODE + k] & words)
    return registers


def _union(rows: list[list[list[int]]]) -> int:
    registers = 0
    for row in rows:
        for first, count in row:
            if count:
                registers |= _range(first, count)
    return registers


def _connect(lines: list[_Line], codes: list[list[int]]) -> None:
    at = {line.row: index for index, line in enumerate(lines)}
    for index, line in enumerate(lines):
        if line.name in ("s_endpgm", "s_code_end"):
            continue
        if line.name.startswith(("s_branch", "s_cbranch")) and codes[line.row][enc.OFFSET] in at:
            line.successors.append(at[codes[line.row][enc.OFFSET]])
        if line.name != "s_branch" and index + 1 < len(lines):
            line.successors.append(index + 1)


# ---------------------------------------------------------------- the rules


@dataclass(frozen=True)
class Operands:
    """The registers that an instruction with all of `traits` and none of `without` uses in a role.

    Without a role it is `registers` themselves that are concerned, whatever the instruction names.
    """

    traits: frozenset[str]
    role: str
    registers: int
    without: frozenset[str]

    def accept(self, traits: frozenset[str]) -> bool:
        return self.traits <= traits and not self.without & traits


def _operands(traits: str, role: str, registers: int = VECTORS, without: str = "") -> Operands:
    """`traits` and `without`: names separated by commas."""
    without_traits = frozenset(without.split(",")) if without else frozenset()
    return Operands(frozenset(traits.split(",") if traits else ()), role, registers, without_traits)


def _forwarded(first: _Line, second: _Line) -> bool:
    """Whether source C of the second is exactly the first's result, and takes as many passes."""
    return first.roles["writes"] == second.roles["c"] and first.passes == second.passes


RELATIONS: dict[str, Callable[[_Line, _Line], bool]] = {
    "overlap": lambda first, second: True,
    "accumulates": _forwarded,
    "overlap only": lambda first, second: not _forwarded(first, second),
    "same opcode": lambda first, second: first.name == second.name,
    "other opcode": lambda first, second: first.name != second.name,
}
"""How two instructions must be related besides sharing a register."""


@dataclass(frozen=True)
class Rule:
    """Wait states between a first instruction (`producer`) and a second one (`consumer`).

    ``states`` is a count, or counts by the passes of the first; ``gfx942`` replaces it on that chip.
    """

    name: str
    producer: Operands
    consumer: Operands
    states: int | Mapping[int, int]
    source: str
    gfx942: int | Mapping[int, int] | None = None
    relation: str = "overlap"

    def required(self, passes: int, target: str) -> int:
        states = self.gfx942 if target == "gfx942" and self.gfx942 is not None else self.states
        return states if isinstance(states, int) else states[passes]


_TABLE_11 = "CDNA3 and CDNA4 ISA 4.5, table 11"
_TABLE_38 = "CDNA4 ISA 7.6, table 38; CDNA3 ISA 7.5, table 37"
_LLVM = "LLVM GCNHazardRecognizer.cpp "

_VALU_WRITES_VECTOR = _operands("valu", "writes")
_VALU_WRITES_SCALAR = _operands("valu", "writes", SCALARS & ~EXEC)
_VALU_WRITES_EXEC = _operands("valu", "writes", EXEC)
_SALU_WRITES_M0 = _operands("salu", "writes", M0)
_READS_M0 = _operands("reads m0", "", M0)
_XDL, _SGEMM, _DGEMM = (_operands(unit, "writes") for unit in ("xdl", "sgemm", "dgemm"))
# By passes: until a result is in its registers, for all but a following accumulation.
_XDL_DONE, _XDL_DONE_GFX942 = {2: 5, 4: 8, 8: 12, 16: 20}, {2: 5, 4: 7, 8: 11, 16: 19}
_SGEMM_DONE = {2: 4, 8: 10, 16: 18}
_DGEMM_DONE, _DGEMM_DONE_GFX942 = {4: 6, 16: 19}, {4: 6, 8: 11}
_MFMA_AB, _XDL_C = _operands("mfma", "ab"), _operands("xdl", "c")
_OTHER_C = _operands("mfma", "c", without="xdl")
_VALU_READS = _operands("valu", "reads", without="mfma")
_VALU_WRITES = _operands("valu", "writes", without="mfma")
_MEMORY_READS = _operands("memory", "reads")

RULES: tuple[Rule, ...] = (
    # Scalar registers and EXEC
    Rule("valu-sgpr-vmem", _VALU_WRITES_SCALAR, _operands("vmem", "reads", SCALARS), 5,
         f"{_TABLE_11}; {_LLVM}checkVMEMHazards"),
    Rule("valu-sgpr-valu", _operands("valu", "writes", SCALARS), _operands("valu", "constants", SCALARS), 2,
         f"{_TABLE_11}, which lets a carry-in follow at once; {_LLVM}checkVALUHazards, which does not; "
         "the mask of v_cndmask counts as a constant, as in LLVM"),
    Rule("valu-vcc-division", _operands("valu", "writes", VCC), _operands("division", "mask or lane", VCC), 4,
         f"{_TABLE_11}; {_LLVM}checkDivFMasHazards"),
    Rule("valu-sgpr-lane-select", _VALU_WRITES_SCALAR, _operands("lane select", "mask or lane", SCALARS), 4,
         f"{_TABLE_11}; {_LLVM}checkRWLaneHazards"),
    Rule("valu-exec-readlane", _VALU_WRITES_EXEC, _operands("readlane", "", EXEC), 4,
         f"{_TABLE_11}; {_LLVM}checkVALUHazards"),
    Rule("valu-exec-writelane", _VALU_WRITES_EXEC, _operands("writelane", "", EXEC), 4,
         f"{_TABLE_11}; {_LLVM}checkVALUHazards"),
    Rule("valu-exec-dpp", _VALU_WRITES_EXEC, _operands("dpp", "", EXEC), 5,
         f"{_TABLE_11}; {_LLVM}checkDPPHazards"),
    Rule("valu-exec-permlane", _VALU_WRITES_EXEC, _operands("permlane", "", EXEC), 4,
         f"CDNA4 ISA 4.5, table 11; {_LLVM}checkPermlaneHazards"),
    Rule("valu-exec-mfma", _VALU_WRITES_EXEC, _operands("mfma", "", EXEC), 4,
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A"),
    Rule("salu-m0", _SALU_WRITES_M0, _READS_M0, 1,
         f"{_TABLE_11}; {_LLVM}checkReadM0Hazards"),
    # Vector registers
    Rule("valu-readlane", _VALU_WRITES_VECTOR, _operands("readlane", "reads"), 1,
         f"{_TABLE_11}; {_LLVM}checkVALUHazards"),
    Rule("valu-dpp", _VALU_WRITES_VECTOR, _operands("dpp", "reads"), 2,
         f"{_TABLE_11}; {_LLVM}checkDPPHazards, which counts the old destination as read too"),
    Rule("valu-permlane", _VALU_WRITES_VECTOR, _operands("permlane", "reads"), 2,
         f"CDNA4 ISA 4.5, table 11; {_LLVM}checkPermlaneHazards"),
    Rule("transcendental-valu", _operands("transcendental", "writes"),
         _operands("valu", "reads", without="transcendental"), 1,
         f"{_TABLE_11} and 12; {_LLVM}checkVALUHazards"),
    Rule("moved-result-valu", _operands("moves result", "writes"), _operands("valu", "reads"), 1,
         f"{_TABLE_11}; {_LLVM}checkVALUHazards, which counts overwriting it too"),
    Rule("store-data", _operands("wide store", "data"), _operands("valu", "writes"), 2,
         f"{_TABLE_11}; {_LLVM}checkVALUHazardsHelper"),
    Rule("store-data", _operands("wide store with scalar offset", "data"), _operands("valu", "writes"), 1,
         "measured on gfx950, llvm/llvm-project pull request 197267, against table 11, which says 0"),
    # Into the matrix core, and dot products
    Rule("valu-mfma", _operands("valu", "writes", without="mfma,dot"), _operands("mfma", "reads"), 2,
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A"),
    Rule("dot-dot", _operands("dot", "writes"), _operands("dot", "ab"), 3,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", relation="same opcode"),
    Rule("dot-read", _operands("dot", "writes"), _operands("", "reads"), 3,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards, except into an MFMA", relation="other opcode"),
    Rule("dot-overwrite", _operands("dot", "writes"), _operands("", "writes"), 3,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", relation="other opcode"),
    # From one MFMA to another
    Rule("xdl-accumulate", _XDL, _XDL_C, {2: 2, 4: 0, 8: 0, 16: 0},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", relation="accumulates"),
    Rule("xdl-source-c", _XDL, _XDL_C, {2: 4, 4: 6, 8: 10, 16: 18},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", {2: 3, 4: 5, 8: 9, 16: 17}, "overlap only"),
    Rule("xdl-source-c", _XDL, _OTHER_C, {2: 3, 4: 6, 8: 10, 16: 18},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A, except in place", {2: 3, 4: 5, 8: 9, 16: 17}),
    Rule("xdl-source-ab", _XDL, _MFMA_AB, _XDL_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", _XDL_DONE_GFX942),
    Rule("sgemm-accumulate", _SGEMM, _OTHER_C, {2: 2, 8: 0, 16: 0},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", relation="accumulates"),
    Rule("sgemm-source-c", _SGEMM, _OTHER_C, {2: 2, 8: 8, 16: 16},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", relation="overlap only"),
    Rule("sgemm-source-ab", _SGEMM, _MFMA_AB, _SGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A"),
    Rule("dgemm-accumulate", _DGEMM, _OTHER_C, {4: 4, 8: 0, 16: 0},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", relation="accumulates"),
    Rule("dgemm-source-c", _DGEMM, _OTHER_C, {4: 4, 16: 17},
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", {4: 4, 8: 9}, "overlap only"),
    Rule("dgemm-source-ab", _DGEMM, _MFMA_AB, _DGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIHazards90A", _DGEMM_DONE_GFX942),
    # Out of the matrix core
    Rule("xdl-read", _XDL, _VALU_READS, _XDL_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", _XDL_DONE_GFX942),
    Rule("xdl-read", _XDL, _MEMORY_READS, _XDL_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", _XDL_DONE_GFX942),
    Rule("xdl-overwrite", _XDL, _VALU_WRITES, _XDL_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards, for loads too", _XDL_DONE_GFX942),
    Rule("sgemm-read", _SGEMM, _VALU_READS, _SGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards"),
    Rule("sgemm-read", _SGEMM, _MEMORY_READS, _SGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards"),
    Rule("sgemm-overwrite", _SGEMM, _VALU_WRITES, _SGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards, for loads too"),
    Rule("dgemm-read", _DGEMM, _VALU_READS, _DGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", _DGEMM_DONE_GFX942),
    Rule("dgemm-read", _DGEMM, _MEMORY_READS, {4: 9, 16: 18},
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards", {4: 9, 8: 18}),
    Rule("dgemm-overwrite", _DGEMM, _VALU_WRITES, _DGEMM_DONE,
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards, which has 11 on gfx950", _DGEMM_DONE_GFX942),
    Rule("dgemm-fma64", _operands("dgemm", "", ISSUE), _operands("fma64", "", ISSUE), 2,
         f"{_LLVM}checkMAIVALUHazards"),
    Rule("xdl-source-c-overwrite", _operands("xdl", "c"), _VALU_WRITES, {2: 1, 4: 3, 8: 7, 16: 15},
         f"{_TABLE_38}; {_LLVM}checkMAIVALUHazards, for loads too"),
)  # fmt: skip


# ---------------------------------------------------------------- the check


@cache
def _produced_by(traits: frozenset[str]) -> tuple[int, ...]:
    return tuple(i for i, rule in enumerate(RULES) if rule.producer.accept(traits))


@cache
def _consumed_by(traits: frozenset[str]) -> tuple[int, ...]:
    return tuple(i for i, rule in enumerate(RULES) if rule.consumer.accept(traits))


def _concerned(line: _Line, operands: Operands) -> int:
    return line.roles.get(operands.role, 0) & operands.registers if operands.role else operands.registers


def find_hazards(program: Program) -> list[Hazard]:
    """Every place where wait states are missing, in the order of the listing.

    A register that another vector instruction has overwritten in the meantime no longer counts, since that
    instruction had to keep its own distance.

    Raises
    ------
    ValueError
        If the program's target is neither gfx942 nor gfx950.
    """
    if program.target not in TARGETS:
        raise ValueError(f"program: expected a target of {' or '.join(TARGETS)}, got {program.target}")
    lines = _lines(program)
    at_risk = [
        {i: used for i in _consumed_by(line.traits) if (used := _concerned(line, RULES[i].consumer))}
        for line in lines
    ]
    hazards: dict[tuple[int, int, int], Hazard] = {}
    for index, line in enumerate(lines):
        live = {}
        for i in _produced_by(line.traits):
            required = RULES[i].required(line.passes, program.target)
            if required and (registers := _concerned(line, RULES[i].producer)):
                live[i] = registers, required
        if live:
            _follow(lines, at_risk, index, live, hazards)
    return sorted(hazards.values(), key=lambda hazard: (hazard.row, hazard.producer_line, hazard.rule))


def _follow(
    lines: list[_Line],
    at_risk: list[dict[int, int]],
    start: int,
    live: dict[int, tuple[int, int]],
    hazards: dict[tuple[int, int, int], Hazard],
) -> None:
    """Add the hazards that line `start` causes; `live` after it are rule -> (registers, states required)."""
    first = lines[start]
    pending = [(index, 0, live) for index in first.successors]
    nearest: dict[tuple, int] = {}
    while pending:
        index, found, live = pending.pop()
        state = (index, *live.items())
        if nearest.get(state, found + 1) <= found:
            continue
        nearest[state] = found
        line, risks = lines[index], at_risk[index]
        for i, (registers, required) in live.items():
            shared = risks.get(i, 0) & registers
            if not shared or not RELATIONS[RULES[i].relation](first, line):
                continue
            key = (i, start, index)
            if key not in hazards or hazards[key].found > found:
                register = _first_register(shared)
                hazards[key] = Hazard(
                    RULES[i].name, line.number, line.row, first.number, register, required, found
                )
        found += line.states
        overwritten = line.roles["writes"] if "valu" in line.traits else 0
        remaining = {
            i: (left, required)
            for i, (registers, required) in live.items()
            if required > found and (left := registers & ~overwritten)
        }
        if remaining:
            pending += [(successor, found, remaining) for successor in line.successors]
