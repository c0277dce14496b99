"""Read the textual gfx9 assembly that LLVM prints into a `Program`: decoded once, to flat arrays."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from . import encoding as enc
from .isa import Instruction, instruction_set
from .isa.matrix import ALIASES
from .isa.vector16 import PACKED, packed_instruction


class UnsupportedInstruction(ValueError):
    """A listing uses an instruction or a modifier that the emulator does not model."""


class ListingError(ValueError):
    """A listing cannot be read."""


@dataclass(frozen=True)
class KernelArgument:
    """One entry of the kernel argument segment, as the listing's metadata gives it (bytes)."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, eq=False)
class Program:
    """A decoded kernel.

    ``code`` is int32 [rows, encoding.COLUMNS], ``literals`` int64 [rows, encoding.MAX_SOURCES]; ``lines`` holds the
    listing's line number (1-based) of each row and ``text`` the listing's lines.
    """

    name: str
    target: str
    code: np.ndarray
    literals: np.ndarray
    lines: np.ndarray
    text: tuple[str, ...]
    arguments: tuple[KernelArgument, ...]
    directives: dict[str, int]
    locations: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Listing line -> (source file, source line), where the listing has debug locations."""

    @property
    def lds_bytes(self) -> int:
        return self.directives.get("group_segment_fixed_size", 0)

    @property
    def private_bytes(self) -> int:
        return self.directives.get("private_segment_fixed_size", 0)

    @property
    def kernarg_bytes(self) -> int:
        return self.directives.get("kernarg_size", 0)

    def line(self, row: int) -> str:
        """The assembly text of a row."""
        return self.text[int(self.lines[row]) - 1].strip()

    def line_and_source(self, row: int) -> str:
        """The assembly text of a row and, if known, the line of source behind it: `s_nop 0; kernel.py:12`."""
        location = self.locations.get(int(self.lines[row]))
        return self.line(row) if location is None else f"{self.line(row)}; {location[0]}:{location[1]}"


@cache
def _instructions() -> dict[str, Instruction]:
    forms = instruction_set()
    return forms | {name: packed_instruction(name, forms) for name in PACKED}


@cache
def opcodes() -> dict[str, int]:
    """Position of each instruction within its unit."""
    counts: dict[str, int] = {}
    positions = {}
    for name, instruction in instruction_set().items():
        positions[name] = counts.get(instruction.unit, 0)
        counts[instruction.unit] = positions[name] + 1
    return positions


@cache
def atomic_meanings() -> tuple[str, ...]:
    """The distinct meanings of atomics; a row names one by its position."""
    return tuple(
        dict.fromkeys(
            i.meaning.split(maxsplit=2)[2] for i in instruction_set().values() if i.meaning.startswith("atomic ")
        )
    )


# ---------------------------------------------------------------- text to tokens

_SUFFIXES = ("_e32", "_e64_dpp", "_e64", "_sdwa", "_dpp")
_COMMENT = re.compile(r"\s*(;|//).*$")


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator character outside brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        elif depth == 0 and (character == separator or (separator == " " and character == "\t")):
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def base_name(mnemonic: str) -> str:
    """A mnemonic without its encoding suffix, under the current assembler's name."""
    for suffix in _SUFFIXES:
        if mnemonic.endswith(suffix):
            mnemonic = mnemonic[: -len(suffix)]
            break
    return ALIASES.get(mnemonic, mnemonic)


@dataclass(frozen=True)
class _Line:
    """One assembly line in pieces."""

    number: int
    mnemonic: str
    operands: list[str]
    modifiers: dict[str, str]

    def fail(self, reason: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(f"line {self.number}: {self.mnemonic}: {reason}")


def _tokens(number: int, text: str) -> _Line:
    mnemonic, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    mnemonic = mnemonic.split("\t")[0]
    rest = text[len(mnemonic) :]
    operands, modifiers = [], {}
    if mnemonic == "s_waitcnt":
        return _Line(number, mnemonic, [rest.strip()], {})
    for piece in _split(rest, ","):
        words = _split(piece, " ")
        is_modifier = ":" in words[0] and "[" not in words[0].split(":")[0]
        if not is_modifier:
            operands.append(words.pop(0))
        for word in words:
            key, _, value = word.partition(":")
            modifiers[key] = value
    return _Line(number, mnemonic, operands, modifiers)


# ---------------------------------------------------------------- operands

_SCALAR_NAMES = {
    "vcc": enc.VCC, "vcc_lo": enc.VCC, "vcc_hi": enc.VCC + 1,
    "exec": enc.EXEC, "exec_lo": enc.EXEC, "exec_hi": enc.EXEC + 1,
    "m0": enc.M0, "scc": enc.SCC, "src_scc": enc.SCC,
    "flat_scratch": enc.FLAT_SCRATCH, "flat_scratch_lo": enc.FLAT_SCRATCH, "flat_scratch_hi": enc.FLAT_SCRATCH + 1,
    "xnack_mask": enc.XNACK, "xnack_mask_lo": enc.XNACK, "xnack_mask_hi": enc.XNACK + 1,
}  # fmt: skip
_REGISTER = re.compile(r"^(v|a|s|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])$")


def _register(text: str) -> int | None:
    """Register code of an operand, None if it is no register."""
    if text in _SCALAR_NAMES:
        return enc.SCALAR + _SCALAR_NAMES[text]
    match = _REGISTER.match(text)
    if not match:
        return None
    first = int(match[2] or match[3])
    base = {"v": 0, "a": enc.ACCUMULATION, "s": enc.SCALAR, "ttmp": enc.SCALAR + 108}[match[1]]
    return base + first


def _float_bits(value: float, kind: str) -> int:
    if kind in ("f64",):
        return struct.unpack("<q", struct.pack("<d", value))[0]
    if kind in ("u16", "i16"):
        return struct.unpack("<H", struct.pack("<e", value))[0]
    return struct.unpack("<I", struct.pack("<f", value))[0]


def _half_value_bits(bits: int) -> int:
    """float32 bits of the value of a half."""
    return struct.unpack("<I", struct.pack("<f", struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]))[0]


_INTEGER = r"-?\d+|-?0x[0-9a-fA-F]+"


def _literal(text: str, kind: str) -> int | None:
    """The 64-bit register image of a constant for a source of that type (f16 constants already widened)."""
    half = kind in ("f16", "mix16")
    if re.fullmatch(_INTEGER, text):
        value = int(text, 0)
        if half:
            return _half_value_bits(value)
        if kind == "bf16":
            return (value & 0xFFFF) << 16
        if kind == "f64":
            return value if text.lstrip("-").isdigit() else value << 32
        if kind in ("u64", "i64"):
            return value
        return value & 0xFFFFFFFF
    try:
        number = float(text)
    except ValueError:
        return None
    return _float_bits(number, "f32" if half else kind)


_WORDS = {"u64": 2, "i64": 2, "f64": 2, "mask": 2, "vcc": 2, "exec": 2}


# ---------------------------------------------------------------- one row


class _Row:
    """A row being filled in."""

    def __init__(self, line: _Line, instruction: Instruction) -> None:
        self.line, self.instruction = line, instruction
        self.values = np.zeros(enc.COLUMNS, dtype=np.int32)
        self.literals = np.zeros(enc.MAX_SOURCES, dtype=np.int64)
        for column in (enc.DESTINATION, enc.MASK_DESTINATION, enc.DPP):
            self.values[column] = enc.NONE
        self.values[enc.SOURCE : enc.SOURCE + enc.MAX_SOURCES] = enc.NONE
        self.values[enc.UNIT] = enc.UNITS.index(instruction.unit)
        self.values[enc.OPCODE] = opcodes().get(instruction.name, 0)

    def set(self, column: int, value: int) -> None:
        self.values[column] = value

    def source(self, position: int, text: str, kind: str, mode: int = 0) -> None:
        """Fill in source `position` from operand text."""
        old = kind.startswith("+")
        kind = kind.lstrip("+")
        inner = text
        if inner.startswith("sext(") and inner.endswith(")"):
            inner, mode = inner[5:-1], mode | enc.SIGN_EXTEND
        if (inner.startswith("-") and not re.match(r"-[\d.]", inner)) or inner.startswith("neg("):
            inner = inner[1:] if inner[0] == "-" else inner[4:-1]
            mode |= enc.NEGATE
        if inner.startswith("|") or inner.startswith("abs("):
            inner = inner[1:-1] if inner[0] == "|" else inner[4:-1]
            mode |= enc.ABSOLUTE
        words = _WORDS.get(kind, 1)
        if kind[0] == "r" and kind[1:].isdigit():
            words = int(kind[1:])
        mode |= words
        if kind == "f64":
            mode |= enc.DOUBLE
        code = _register(inner)
        if code is None:
            value = _literal(inner, kind)
            if value is None:
                raise self.line.fail(f"operand {text!r} is not understood")
            selected = (mode & enc.SELECT) >> enc.SELECT_SHIFT
            if selected not in (0, 5) and kind not in ("f16", "mix16", "bf16"):
                raise self.line.fail("a constant's upper part is selected")
            mode &= ~(enc.SELECT | enc.FROM_F16 | enc.FROM_BF16)
            code = enc.LITERAL
            self.literals[position] = _signed64(value)
        else:
            if kind in ("f16", "mix16"):
                mode |= enc.FROM_F16
            if kind == "bf16":
                mode |= enc.FROM_BF16
            if kind in ("f16", "mix16", "bf16", "u16", "i16") and not mode & enc.SELECT:
                mode |= 5 << enc.SELECT_SHIFT
            if kind == "i16":
                mode |= enc.SIGN_EXTEND
        if kind in ("i16",) and code == enc.LITERAL:
            low = int(self.literals[position]) & 0xFFFF
            self.literals[position] = (low - 0x10000 if low & 0x8000 else low) & 0xFFFFFFFF
        del old
        self.values[enc.SOURCE + position] = code
        self.values[enc.SOURCE_MODE + position] = mode
        self.values[enc.SOURCES] = max(self.values[enc.SOURCES], position + 1)

    def implicit(self, position: int, scalar: int, words: int) -> None:
        self.values[enc.SOURCE + position] = enc.SCALAR + scalar
        self.values[enc.SOURCE_MODE + position] = words
        self.values[enc.SOURCES] = max(self.values[enc.SOURCES], position + 1)


def _signed64(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


# ---------------------------------------------------------------- vector and scalar ALU

_SDWA_SELECT = {"DWORD": 0, "BYTE_0": 1, "BYTE_1": 2, "BYTE_2": 3, "BYTE_3": 4, "WORD_0": 5, "WORD_1": 6}
_KNOWN_MODIFIERS = {
    "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp", "mul", "div", "dst_sel", "dst_unused", "src0_sel",
    "src1_sel", "row_mask", "bank_mask", "bound_ctrl", "bitop3",
}  # fmt: skip
_RESULT_MODES = {
    "f16": enc.TO_F16, "h16": enc.TO_F16 | enc.KEEP_OTHER_HALF, "lo16": enc.TO_F16 | enc.KEEP_OTHER_HALF,
    "hi16": enc.TO_F16 | enc.KEEP_OTHER_HALF | enc.HIGH_HALF, "u16": enc.HALF, "k16": enc.HALF | enc.KEEP_OTHER_HALF,
    "f64": enc.RESULT_DOUBLE,
}  # fmt: skip


def _bits(line: _Line, key: str, count: int, default: int) -> list[int]:
    text = line.modifiers.get(key)
    if text is None:
        return [default] * count
    values = [int(v) for v in text.strip("[]").split(",")]
    return values + [default] * (count - len(values))


def _dpp_control(line: _Line) -> int:
    """The DPP control number of the hardware encoding, NONE without one."""
    m = line.modifiers
    if "quad_perm" in m:
        a, b, c, d = (int(v) for v in m["quad_perm"].strip("[]").split(","))
        return a | b << 2 | c << 4 | d << 6
    for key, base in (("row_shl", 0x100), ("row_shr", 0x110), ("row_ror", 0x120), ("row_newbcast", 0x150)):
        if key in m:
            return base + int(m[key])
    for key, value in (
        ("wave_shl", 0x130), ("wave_rol", 0x134), ("wave_shr", 0x138), ("wave_ror", 0x13C),
        ("row_mirror", 0x140), ("row_half_mirror", 0x141),
    ):  # fmt: skip
        if key in m:
            return value
    if "row_bcast" in m:
        return {"15": 0x142, "31": 0x143}[m["row_bcast"]]
    return enc.NONE


_DPP_KEYS = {
    "quad_perm", "row_shl", "row_shr", "row_ror", "row_newbcast", "wave_shl", "wave_rol", "wave_shr", "wave_ror",
    "row_mirror", "row_half_mirror", "row_bcast",
}  # fmt: skip


def _destination(row: _Row, text: str, kind: str) -> None:
    code = _register(text)
    if code is None:
        raise row.line.fail(f"destination {text!r} is not a register")
    if kind == "mask":
        row.set(enc.MASK_DESTINATION, code)
        return
    words = int(kind[1:]) if kind[0] == "r" else _WORDS.get(kind, 1)
    row.set(enc.DESTINATION, code)
    row.set(enc.DESTINATION_MODE, words | _RESULT_MODES.get(kind, 0))


def _vector(line: _Line, instruction: Instruction) -> list[_Row]:
    unknown = set(line.modifiers) - _KNOWN_MODIFIERS - _DPP_KEYS
    if unknown:
        raise line.fail(f"modifier {sorted(unknown)[0]} is not modelled")
    if instruction.name in PACKED:
        return _packed(line, instruction)
    row = _Row(line, instruction)
    operands = list(line.operands)
    explicit_results = [r for r in instruction.results if r != "exec"]
    for kind in explicit_results:
        _destination(row, operands.pop(0), kind)
    row.set(enc.EXEC_DESTINATION, int("exec" in instruction.results))
    select = _bits(line, "op_sel", 4, 0)
    select_high = _bits(line, "op_sel_hi", 3, 0)
    # op_sel lists the sources that are printed, then the result.
    high_result = select[len(operands)] if len(operands) < len(select) else 0
    for position, kind in enumerate(instruction.sources):
        mode = 0
        if kind.startswith("+"):
            high = high_result and "16" in kind
            row.source(position, line.operands[0], kind, 6 << enc.SELECT_SHIFT if high else 0)
            continue
        if kind == "vcc":
            row.implicit(position, enc.VCC, 2)
            row.set(enc.MASK_SOURCE, position + 1)
            continue
        if kind == "table":
            row.values[enc.SOURCE + position] = enc.LITERAL
            row.values[enc.SOURCE_MODE + position] = 2
            row.values[enc.SOURCES] = position + 1
            row.literals[position] = int(line.modifiers.get("bitop3", "0"), 0)
            row.set(enc.MASK_SOURCE, position + 1)
            continue
        if not operands:
            found = len(line.operands) - len(explicit_results)
            raise line.fail(f"expected {len(instruction.sources)} sources, found {found}")
        text = operands.pop(0)
        if kind == "mask":
            row.set(enc.MASK_SOURCE, position + 1)
        if kind == "mix":
            kind = "mix16" if select_high[position] else "f32"
        if kind == "mix16" or kind in ("f16", "u16", "i16", "bf16"):
            mode = (6 if select[position] else 5) << enc.SELECT_SHIFT
        elif select[position] and "op_sel" in line.modifiers and kind == "f32":
            mode = 0  # v_fma_mix ignores op_sel on a float32 source
        sdwa = line.modifiers.get(f"src{position}_sel")
        if sdwa is not None:
            mode = _SDWA_SELECT[sdwa] << enc.SELECT_SHIFT
            if sdwa == "DWORD" and kind in ("f16", "u16", "i16", "bf16"):
                mode = 5 << enc.SELECT_SHIFT
        row.source(position, text, kind, mode)
    if operands:
        raise line.fail(f"operand {operands[0]!r} is one too many")
    _result_modifiers(row, instruction, high_result)
    row.set(enc.DPP, _dpp_control(line))
    row.set(
        enc.DPP_MASKS,
        int(line.modifiers.get("row_mask", "0xf"), 0)
        | int(line.modifiers.get("bank_mask", "0xf"), 0) << 4
        | (1 << 8 if "bound_ctrl" in line.modifiers else 0),
    )
    return [row]


def _result_modifiers(row: _Row, instruction: Instruction, high: int) -> None:
    line, mode = row.line, int(row.values[enc.DESTINATION_MODE])
    result = instruction.results[0] if instruction.results else ""
    if "clamp" in line.modifiers and not instruction.name.endswith(":clamp"):
        if result not in ("f32", "f16", "h16", "lo16", "hi16"):
            raise line.fail("clamp on an integer or float64 result is not modelled")
        mode |= enc.CLAMP
    if {"mul", "div"} & set(line.modifiers):
        # The chip ignores these while subnormals are enabled, which `launch` requires.
        raise line.fail("output scaling (mul, div) is not modelled")
    if high and "16" in result:
        mode |= enc.HIGH_HALF | enc.KEEP_OTHER_HALF
    select = line.modifiers.get("dst_sel", "DWORD")
    unused = line.modifiers.get("dst_unused", "UNUSED_PAD")
    if select != "DWORD":
        if unused == "UNUSED_SEXT":
            raise line.fail("dst_unused:UNUSED_SEXT is not modelled")
        if select.startswith("WORD"):
            mode |= enc.HALF if not mode & enc.TO_F16 else 0
            mode |= enc.HIGH_HALF if select == "WORD_1" else 0
        else:
            mode |= (1 + int(select[-1])) << enc.BYTE_SHIFT
        if unused == "UNUSED_PRESERVE":
            mode |= enc.KEEP_OTHER_HALF
    row.set(enc.DESTINATION_MODE, mode)


def _upper_half(constant: str) -> str:
    """Bits 16 to 31 of an inline constant: the sign of an integer, nothing of a half."""
    return str(int(constant, 0) >> 16 & 0xFFFF) if re.fullmatch(_INTEGER, constant) else "0"


def _packed(line: _Line, instruction: Instruction) -> list[_Row]:
    """Two rows of the scalar form, and moves from a hidden register where a half would overwrite a source."""
    form_name, width = PACKED[instruction.name]
    if "clamp" in line.modifiers and f"{form_name}:clamp" in instruction_set():
        form_name += ":clamp"
    form = instruction_set()[form_name]
    destination = _register(line.operands[0])
    if destination is None:
        raise line.fail(f"destination {line.operands[0]!r} is not a register")
    count = len(form.sources) if form_name != "v_mov_b32" else 2
    low_select, high_select = _bits(line, "op_sel", count, 0), _bits(line, "op_sel_hi", count, 1)
    if form_name == "v_mov_b32":  # v_pk_mov_b32: op_sel picks the low result from source 0, the high from source 1
        high_select = low_select
    negate = (_bits(line, "neg_lo", count, 0), _bits(line, "neg_hi", count, 0))
    rows = []
    for half, selects in enumerate((low_select, high_select)):
        row = _Row(line, form)
        positions = range(count) if form_name != "v_mov_b32" else [half]
        for slot, position in enumerate(positions):
            text, select = line.operands[1 + position], selects[position]
            mode = enc.NEGATE if negate[half][position] else 0
            if width == 32:
                row.source(slot, text, form.sources[slot], mode)
                if row.values[enc.SOURCE + slot] == enc.LITERAL:
                    if select:
                        raise line.fail("op_sel selects the high half of a constant")
                else:
                    row.values[enc.SOURCE + slot] += select
            else:
                if select and _register(text) is None:
                    text, select = _upper_half(text), 0
                row.source(slot, text, form.sources[slot], mode | (5 + select) << enc.SELECT_SHIFT)
        if width == 32:
            row.set(enc.DESTINATION, destination + half)
            row.set(enc.DESTINATION_MODE, 1)
        else:
            row.set(enc.DESTINATION, destination)
            kind = enc.TO_F16 if form.results[0] in ("f16", "h16") else enc.HALF
            # The low half clears the rest, so that nothing of the register's old value is kept.
            upper = enc.KEEP_OTHER_HALF | enc.HIGH_HALF if half else 0
            row.set(enc.DESTINATION_MODE, 1 | kind | upper)
        if "clamp" in line.modifiers and not form_name.endswith(":clamp"):
            if not form.results[0].startswith(("f", "h")):
                raise line.fail("clamp on an integer result is not modelled")
            row.values[enc.DESTINATION_MODE] |= enc.CLAMP
        rows.append(row)
    low, high = rows
    low_target = int(low.values[enc.DESTINATION])
    if low_target in (int(high.values[enc.SOURCE + k]) for k in range(enc.MAX_SOURCES)):
        low.set(enc.DESTINATION, enc.HIDDEN)
        if width == 16:
            high.set(enc.DESTINATION, enc.HIDDEN)
        move = _Row(line, instruction_set()["v_mov_b32"])
        move.set(enc.DESTINATION, low_target)
        move.set(enc.DESTINATION_MODE, 1)
        move.values[enc.SOURCE], move.values[enc.SOURCE_MODE] = enc.HIDDEN, 1
        move.set(enc.SOURCES, 1)
        rows.append(move)
    return rows


_SCALAR_IMPLICIT = {"scc": (enc.SCC, 1), "exec": (enc.EXEC, 2), "vcc": (enc.VCC, 2)}


def _scalar(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    operands = list(line.operands)
    for kind in instruction.results:
        if kind in ("u32", "u64"):
            _destination(row, operands.pop(0), kind)
    # Results in order: the register (DESTINATION), EXEC, SCC; which of them exist is a property of the opcode.
    row.set(enc.EXEC_DESTINATION, int("exec" in instruction.results))
    row.set(enc.MASK_DESTINATION, enc.SCALAR + enc.SCC if "scc" in instruction.results else enc.NONE)
    for position, kind in enumerate(instruction.sources):
        if kind in _SCALAR_IMPLICIT:
            row.implicit(position, *_SCALAR_IMPLICIT[kind])
        elif kind == "pc":
            row.set(enc.SOURCES, position + 1)
        elif kind.startswith("+"):
            row.source(position, line.operands[0], kind)
        else:
            if not operands:
                raise line.fail("a source is missing")
            row.source(position, operands.pop(0), kind)
        if kind in ("i32", "+i32", "i16"):
            row.values[enc.SOURCE_MODE + position] |= enc.SIGN_EXTEND
    return [row]


# ---------------------------------------------------------------- memory


def _transfer(row: _Row, meaning: str) -> None:
    words = meaning.split()
    kind = words[0]
    flags = 0
    for word, flag in (
        ("signed", enc.FLAG_SIGNED), ("low", enc.FLAG_LOW), ("high", enc.FLAG_HIGH), ("clamped", enc.FLAG_CLAMPED),
    ):  # fmt: skip
        flags |= flag if word in words and kind in ("load", "store") else 0
    transfer = {
        "load": enc.TRANSFER_LOAD, "store": enc.TRANSFER_STORE, "atomic": enc.TRANSFER_ATOMIC,
        "bpermute": enc.TRANSFER_BPERMUTE, "permute": enc.TRANSFER_PERMUTE, "swizzle": enc.TRANSFER_SWIZZLE,
        "clock": enc.TRANSFER_CLOCK,
    }[kind]  # fmt: skip
    if "transpose" in words:
        transfer = enc.TRANSFER_TRANSPOSE
    row.set(enc.TRANSFER, transfer)
    row.set(enc.BYTES, int(words[1]) if len(words) > 1 else 4)
    if kind == "atomic":
        row.set(enc.MEANING, atomic_meanings().index(meaning.split(maxsplit=2)[2]))
    if "pair" in words:
        flags |= enc.FLAG_PAIR
    row.values[enc.FLAGS] |= flags


def _lds(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    if "gds" in line.modifiers:
        raise line.fail("global data share is not modelled")
    unknown = set(line.modifiers) - {"offset", "offset0", "offset1"}
    if unknown:
        raise line.fail(f"modifier {sorted(unknown)[0]} is not modelled")
    operands = list(line.operands)
    for kind in instruction.results:
        _destination(row, operands.pop(0), kind)
    for position, kind in enumerate(instruction.sources):
        row.source(position, operands.pop(0), "u32" if kind == "address" else kind)
    _transfer(row, instruction.meaning)
    if instruction.results and instruction.meaning.startswith("atomic"):
        row.values[enc.FLAGS] |= enc.FLAG_RETURN
    words = instruction.meaning.split()
    if "pair" in words:
        stride = int(words[words.index("pair") + 1])
        row.set(enc.OFFSET, int(line.modifiers.get("offset0", "0"), 0) * stride)
        row.set(enc.OFFSET1, int(line.modifiers.get("offset1", "0"), 0) * stride)
    elif instruction.meaning == "swizzle":
        row.set(enc.OFFSET, _swizzle(line))
    else:
        row.set(enc.OFFSET, int(line.modifiers.get("offset", "0"), 0))
    return [row]


def _swizzle(line: _Line) -> int:
    text = line.modifiers.get("offset", "0")
    if not text.startswith("swizzle("):
        return int(text, 0)
    mode, *rest = [part.strip() for part in text[len("swizzle(") : -1].split(",")]
    if mode == "QUAD_PERM":
        return 0x8000 | sum(int(v) << 2 * i for i, v in enumerate(rest))
    if mode == "BITMASK_PERM":
        pattern = rest[0].strip("\"'")
        fields = {"and": 0, "or": 0, "xor": 0}
        for i, character in enumerate(reversed(pattern)):
            if character == "p":
                fields["and"] |= 1 << i
            elif character == "1":
                fields["or"] |= 1 << i
            elif character == "i":
                fields["and"] |= 1 << i
                fields["xor"] |= 1 << i
        return fields["and"] | fields["or"] << 5 | fields["xor"] << 10
    if mode == "SWAP":
        return 0x1F | int(rest[0]) << 10
    if mode == "REVERSE":
        return 0x1F | (int(rest[0]) - 1) << 10
    if mode == "BROADCAST":
        size, lane = int(rest[0]), int(rest[1])
        return (0x1F & ~(size - 1)) | lane << 5
    raise line.fail(f"swizzle mode {mode} is not modelled")


# Cache policy bits change no value.
_CACHE_MODIFIERS = {"sc0", "sc1", "nt", "glc", "slc", "dlc", "scc"}


def _memory(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    space = instruction.name.split("_")[0]
    unknown = set(line.modifiers) - _CACHE_MODIFIERS - {"offset", "offen", "idxen", "lds"}
    if unknown:
        raise line.fail(f"modifier {sorted(unknown)[0]} is not modelled")
    _transfer(row, instruction.meaning)
    operands = list(line.operands)
    atomic = row.values[enc.TRANSFER] == enc.TRANSFER_ATOMIC
    returns = atomic and bool({"sc0", "glc"} & set(line.modifiers)) and space == "buffer" or (
        atomic and space != "buffer" and len(operands) == (4 if space == "global" else 3)
    )
    row.set(enc.OFFSET, int(line.modifiers.get("offset", "0"), 0))
    load = bool(instruction.results)
    to_lds = "lds" in line.modifiers
    flags = enc.FLAG_RETURN if returns else 0
    if space == "buffer":
        flags |= enc.FLAG_BUFFER
        data = None if to_lds else operands.pop(0)
        address, descriptor, scalar_offset = operands
        flags |= enc.FLAG_OFFEN if "offen" in line.modifiers else 0
        flags |= enc.FLAG_IDXEN if "idxen" in line.modifiers else 0
        flags |= enc.FLAG_TO_LDS if to_lds else 0
        if address != "off":
            row.source(0, address, "r2" if flags & enc.FLAG_OFFEN and flags & enc.FLAG_IDXEN else "u32")
        row.source(1, descriptor, "r4")
        row.source(2, scalar_offset, "u32")
    else:
        if load:
            data, address = operands.pop(0), operands.pop(0)
        elif returns:
            returned, address, data = operands.pop(0), operands.pop(0), operands.pop(0)
            _destination(row, returned, instruction.sources[1])
        else:
            address, data = operands.pop(0), operands.pop(0)
        scalar_address = operands.pop(0) if operands else "off"
        flags |= {"scratch": enc.FLAG_SCRATCH, "flat": enc.FLAG_FLAT}.get(space, 0)
        if scalar_address != "off":
            flags |= enc.FLAG_SADDR
            row.source(1, scalar_address, "u32" if space == "scratch" else "r2")
        if address != "off":
            row.source(0, address, "u32" if flags & enc.FLAG_SADDR or space == "scratch" else "r2")
    if load and data is not None:
        _destination(row, data, instruction.results[0])
    elif data is not None:
        row.source(3, data, instruction.sources[1])
        if returns and space == "buffer":
            _destination(row, data, instruction.sources[1])
    if returns and instruction.name.endswith(("cmpswap", "cmpswap_x2")):
        row.values[enc.DESTINATION_MODE] //= 2
    row.values[enc.FLAGS] |= flags
    return [row]


def _scalar_memory(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    operands = list(line.operands)
    _destination(row, operands.pop(0), instruction.results[0])
    _transfer(row, instruction.meaning)
    if instruction.sources:
        row.source(0, operands.pop(0), "r4" if instruction.sources[0] == "descriptor" else "r2")
        offset = operands.pop(0)
        if _register(offset) is None:
            row.set(enc.OFFSET, int(offset, 0))
        else:
            row.source(1, offset, "u32")
            row.set(enc.OFFSET, int(line.modifiers.get("offset", "0"), 0))
    return [row]


def _matrix(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    for key in line.modifiers:
        if key not in ("cbsz", "abid", "blgp") or int(line.modifiers[key], 0):
            raise line.fail(f"modifier {key} is not modelled")
    _destination(row, line.operands[0], instruction.results[0])
    for position, kind in enumerate(instruction.sources):
        text = line.operands[1 + position]
        if _register(text) is None:
            kind = "f64" if instruction.name.endswith("f64") else "u32"
        row.source(position, text, kind)
    return [row]


def _lane(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    operands = line.operands
    if instruction.results:
        _destination(row, operands[0], "u32")
    explicit = operands[1:]
    for position, kind in enumerate(instruction.sources):
        row.source(position, operands[0] if kind.startswith("+") else explicit.pop(0), "u32")
    return [row]


_WAIT = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")


def wait_counts(text: str) -> tuple[int, int]:
    """(vmcnt, lgkmcnt) that a wait allows to be outstanding, 63 and 15 where it does not say."""
    if re.fullmatch(r"0x[0-9a-f]+|\d+", text.strip()):
        value = int(text, 0)
        return (value & 15) | (value >> 14 & 3) << 4, value >> 8 & 15
    counts = {"vmcnt": 63, "lgkmcnt": 15}
    counts.update({key: int(value) for key, value in _WAIT.findall(text)})
    return counts["vmcnt"], counts["lgkmcnt"]


def _control(line: _Line, instruction: Instruction) -> list[_Row]:
    row = _Row(line, instruction)
    if instruction.name == "s_waitcnt":
        vector, scalar = wait_counts(line.operands[0])
        row.set(enc.OFFSET, vector)
        row.set(enc.OFFSET1, scalar)
    elif line.operands and re.fullmatch(r"-?\d+|0x[0-9a-f]+", line.operands[0]):
        row.set(enc.OFFSET, int(line.operands[0], 0))
    return [row]


_READERS = {
    "vector": _vector, "scalar": _scalar, "lds": _lds, "memory": _memory, "scalar_memory": _scalar_memory,
    "matrix": _matrix, "lane": _lane, "control": _control,
}  # fmt: skip


# ---------------------------------------------------------------- the whole listing

_LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*):")
_DIRECTIVE = re.compile(r"^\.amdhsa_(\w+)\s+(\S+)$")


def _arguments(text: str) -> dict[str, tuple[KernelArgument, ...]]:
    """Kernel arguments by kernel name, from the listing's metadata block."""
    kernels: dict[str, tuple[KernelArgument, ...]] = {}
    for chunk in re.split(r"^  - (?=\.)", text, flags=re.M)[1:]:
        name = re.search(r"^\s*\.name:\s*(\S+)", chunk, flags=re.M)
        section = re.search(r"\.args:\s*\n(.*?)(?=^    \.\w+:)", chunk, flags=re.M | re.S)
        arguments = []
        for entry in re.split(r"^\s+- ", section[1], flags=re.M)[1:] if section else []:
            values = dict(re.findall(r"\.(offset|size|value_kind):\s*(\S+)", entry))
            arguments.append(KernelArgument(int(values["offset"]), int(values["size"]), values["value_kind"]))
        if name:
            kernels[name[1]] = tuple(arguments)
    return kernels


def parse_listing(text: str, kernel: str | None = None) -> Program:
    """Decode one kernel of a listing.

    Parameters
    ----------
    text
        Assembly as LLVM prints it for a gfx9 target, with its directives and metadata.
    kernel
        Which kernel; may be left out when the listing has exactly one.

    Raises
    ------
    UnsupportedInstruction
        If an instruction or modifier is not modelled; nothing has run then.
    ListingError
        If the text is no such listing, or a label is missing.
    """
    lines = text.splitlines()
    names = [line.split()[1] for line in lines if line.strip().startswith(".amdhsa_kernel ")]
    if kernel is None:
        if len(names) != 1:
            raise ListingError(f"kernel: expected a listing with one kernel, got {', '.join(names) or 'none'}")
        kernel = names[0]
    elif kernel not in names:
        raise ListingError(f"kernel: {kernel!r} is not in the listing, which has {', '.join(names) or 'none'}")
    target = re.search(r'\.amdgcn_target\s+"[^"]*-(gfx\w+)', text)

    rows: list[_Row] = []
    numbers: list[int] = []
    labels: dict[str, int] = {}
    branches: list[tuple[_Row, str]] = []
    directives: dict[str, int] = {}
    files: dict[str, str] = {}
    locations: dict[int, tuple[str, int]] = {}
    location: tuple[str, int] | None = None
    inside, section = False, ""
    for number, raw in enumerate(lines, 1):
        line = _COMMENT.sub("", raw).strip()
        if not line:
            continue
        if match := re.match(r'\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"', line):
            files[match[1]] = match[3]
        label = _LABEL.match(line)
        if label:
            if label[1] == kernel:
                inside = True
            elif inside and label[1].startswith(".Lfunc_end"):
                inside = False
            if inside:
                labels[label[1]] = len(rows)
            continue
        if line.startswith(".amdhsa_kernel "):
            section = line.split()[1]
        elif line == ".end_amdhsa_kernel":
            section = ""
        elif section == kernel and (match := _DIRECTIVE.match(line)):
            directives[match[1]] = int(match[2], 0) if re.fullmatch(r"-?\d+|0x[0-9a-f]+", match[2]) else 0
        if not inside:
            continue
        if line.startswith("."):
            if match := re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", line):
                # LLVM writes column 0 where all it knows is the function.
                location = (files.get(match[1], "?"), int(match[2])) if int(match[3]) else None
            elif line.startswith((".section", ".rodata", ".amdgpu_metadata")):
                inside = False
            continue
        decoded = _decode(_tokens(number, line))
        branch = decoded[0].instruction.sources == ("label",)
        if branch:
            branches.append((decoded[0], decoded[0].line.operands[0]))
        decoded[0].set(enc.FIRST, 1)
        rows += decoded
        numbers += [number] * len(decoded)
        if location:
            locations[number] = location
    for row, name in branches:
        if name not in labels:
            raise ListingError(f"line {row.line.number}: branch to {name}, which is not a label of {kernel}")
        row.set(enc.OFFSET, labels[name])
    if not rows:
        raise ListingError(f"kernel {kernel} has no instructions")
    return Program(
        name=kernel,
        target=target[1] if target else "gfx950",
        code=np.stack([row.values for row in rows]),
        literals=np.stack([row.literals for row in rows]),
        lines=np.array(numbers, dtype=np.int32),
        text=tuple(lines),
        arguments=_arguments(text).get(kernel, ()),
        directives=directives,
        locations=locations,
    )


def decode_line(number: int, text: str) -> None:
    """Check that one assembly line can be decoded.

    Raises
    ------
    UnsupportedInstruction
        If its instruction or a modifier is not modelled.
    """
    _decode(_tokens(number, text))


def _decode(line: _Line) -> list[_Row]:
    name = base_name(line.mnemonic)
    instruction = _instructions().get(name)
    if "clamp" in line.modifiers:
        instruction = _instructions().get(f"{name}:clamp", instruction)
    if instruction is None:
        raise UnsupportedInstruction(f"line {line.number}: instruction {line.mnemonic} is not supported")
    try:
        return _READERS[instruction.unit](line, instruction)
    except (IndexError, KeyError, ValueError) as error:
        if isinstance(error, UnsupportedInstruction):
            raise
        raise line.fail(f"operands {', '.join(line.operands)} are not understood ({error})") from error
