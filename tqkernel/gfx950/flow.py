"""Which 16-bit halves of its result each half of a vector instruction's source can reach.

The sanitizer follows undefined values by this. Compilers build packed values of halves that they leave undefined and
drop again, so whole registers would not do. An instruction that has no rule here lets every half reach every half.

Some instructions say more once one source, the one that steers them, is the same known value in every lane: a shift's
amount, a permutation's selector, a mask.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from . import encoding as enc
from .footprint import instruction_name
from .isa import instruction_set
from .listing import Program
from .scalar import inner

# A flow has bit 2 s + r set if half s of the source (0 is the low one) can reach half r of the result.
LOW_TO_LOW, LOW_TO_HIGH, HIGH_TO_LOW, HIGH_TO_HIGH = 1, 2, 4, 8
SAME = LOW_TO_LOW | HIGH_TO_HIGH
TO_LOW, TO_HIGH = LOW_TO_LOW | HIGH_TO_LOW, LOW_TO_HIGH | HIGH_TO_HIGH
EVERYWHERE = TO_LOW | TO_HIGH

# Columns of the table that `flows` makes.
FLOW = 0  # FLOW + k: flow of source k into the destination register
KEPT = FLOW + enc.MAX_SOURCES  # halves of the destination that stay as they were, in whole or in part: a bit each
RULE = KEPT + 1  # what the steering source's value says
STEERING = RULE + 1  # which source that is
DETAIL = STEERING + 1  # the rule's own, four bits for each source
COLUMNS = DETAIL + 1

NO_RULE, PERMUTE, SHIFT, BITWISE = range(4)
UNSHIFTED, LEFT, LEFT_BY_REST, RIGHT, RIGHT_SIGNED = range(5)  # DETAIL of SHIFT; the rest is 32 less the amount
WHERE_ZERO, WHERE_ONE = 1, 2  # DETAIL of BITWISE: the source counts where the steering one has such bits

_SAME = ("v_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32", "v_not_b32")
_BITWISE = (
    "v_and_b32", "v_or_b32", "v_xor_b32", "v_xnor_b32", "v_and_or_b32", "v_or3_b32", "v_bfi_b32", "v_bitop3_b32",
)  # fmt: skip
_PAIRS = (
    "v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32", "v_cvt_pkrtz_f16_f32", "v_cvt_pk_i16_i32", "v_cvt_pk_u16_u32",
    "v_pack_b32_f16",
)  # fmt: skip
_FLOWS = {
    **dict.fromkeys(_SAME, (SAME,)),
    **dict.fromkeys(_BITWISE, (SAME, SAME, SAME)),
    **dict.fromkeys(_PAIRS, (TO_LOW, TO_HIGH)),
    "v_cndmask_b32": (SAME, SAME),
    "v_lshl_or_b32": (EVERYWHERE, EVERYWHERE, SAME),
}
"""Flows from an instruction's operands, each as its meaning sees it, to its result; EVERYWHERE for the others."""

_SHIFTS = {
    "v_lshlrev_b32": (0, (UNSHIFTED, LEFT)),
    "v_lshrrev_b32": (0, (UNSHIFTED, RIGHT)),
    "v_ashrrev_i32": (0, (UNSHIFTED, RIGHT_SIGNED)),
    "v_lshl_or_b32": (1, (LEFT,)),
    "v_alignbit_b32": (2, (LEFT_BY_REST, RIGHT)),
}
"""The source that holds the amount, and how each is shifted."""


@cache
def _flow(source_mode: int, operation: int, destination_mode: int) -> int:
    """From a source's registers through the operand that is selected of them and the result to the destination."""
    return _then(_then(_selected(source_mode), operation), _placed(destination_mode)[0])


def _then(first: int, second: int) -> int:
    return sum(
        1 << (2 * source + result)
        for source in range(2)
        for result in range(2)
        if any(first >> (2 * source + between) & 1 and second >> (2 * between + result) & 1 for between in range(2))
    )


def _selected(mode: int) -> int:
    """Flow from a source's register to the operand."""
    select = (mode & enc.SELECT) >> enc.SELECT_SHIFT
    widened = mode & (enc.SIGN_EXTEND | enc.FROM_F16 | enc.FROM_BF16)
    if not select:
        return EVERYWHERE if widened else SAME
    is_high = select in (3, 4, 6)
    flow = HIGH_TO_LOW | HIGH_TO_HIGH if is_high else LOW_TO_LOW | LOW_TO_HIGH
    return flow if widened else flow & TO_LOW


def _placed(mode: int) -> tuple[int, int]:
    """(flow from a result to the destination register, halves of it that keep something)."""
    keeps, byte = mode & enc.KEEP_OTHER_HALF, mode >> enc.BYTE_SHIFT & 7
    is_high = byte > 2 if byte else bool(mode & enc.HIGH_HALF)
    if not (byte or mode & (enc.TO_F16 | enc.HALF | enc.HIGH_HALF)):
        return SAME, 0
    flow = (TO_HIGH if is_high else TO_LOW) & (EVERYWHERE if mode & enc.TO_F16 else LOW_TO_LOW | LOW_TO_HIGH)
    other = 1 if is_high else 2
    return flow, (3 if byte else other) if keeps else 0


def _is_uniform(code: np.ndarray, source: int) -> bool:
    register = code[enc.SOURCE + source]
    return bool(register == enc.LITERAL or register >= enc.SCALAR)


@cache
def _bitwise_detail(table: int, steering: int, count: int) -> int:
    """How each of `count` sources counts, by the operation's truth table (as v_bitop3_b32 takes it)."""
    weights = (4, 2, 1)
    detail = 0
    for source in range(count):
        if source == steering:
            continue
        for i in range(8):
            if (table >> i ^ table >> (i ^ weights[source])) & 1:
                detail |= (WHERE_ONE if i & weights[steering] else WHERE_ZERO) << (4 * source)
    return detail


@cache
def _truth_table(name: str) -> int:
    # The table's meaning, for every combination of a, b and c at once.
    return int(eval(instruction_set()[name].meaning, {"a": 0xF0, "b": 0xCC, "c": 0xAA})) & 0xFF


def _rule(name: str, code: np.ndarray, literals: np.ndarray) -> tuple[int, int, int]:
    """(rule, steering source, detail) of a row."""
    modes = code[enc.SOURCE_MODE : enc.SOURCE_MODE + code[enc.SOURCES]]
    if (modes & enc.MODIFIED).any() or code[enc.DESTINATION_MODE] & enc.RESULT_MODIFIED:
        return NO_RULE, 0, 0
    if name == "v_perm_b32" and _is_uniform(code, 2):
        return PERMUTE, 2, 0
    if name in _SHIFTS:
        steering, shifts = _SHIFTS[name]
        detail = sum(shift << (4 * source) for source, shift in enumerate(shifts))
        return (SHIFT, steering, detail) if _is_uniform(code, steering) else (NO_RULE, 0, 0)
    if name in _BITWISE:
        is_given = name == "v_bitop3_b32"
        table = int(literals[3]) & 0xFF if is_given else _truth_table(name)
        count = 3 if is_given else int(code[enc.SOURCES])
        for steering in range(count):
            if _is_uniform(code, steering):
                return BITWISE, steering, _bitwise_detail(table, steering, count)
    return NO_RULE, 0, 0


def flows(program: Program) -> np.ndarray:
    """int32 [rows, COLUMNS]: how each vector instruction's sources reach its destination."""
    result = np.zeros((len(program.code), COLUMNS), np.int32)
    for row in np.flatnonzero(program.code[:, enc.UNIT] == enc.UNIT_VECTOR):
        code, name = program.code[row], instruction_name(program, int(row))
        operations = _FLOWS.get(name, ())
        mode = int(code[enc.DESTINATION_MODE])
        for k in range(code[enc.SOURCES]):
            operation = operations[k] if k < len(operations) else EVERYWHERE
            result[row, FLOW + k] = _flow(int(code[enc.SOURCE_MODE + k]), operation, mode)
        result[row, KEPT] = _placed(mode)[1]
        result[row, [RULE, STEERING, DETAIL]] = _rule(name, code, program.literals[row])
    return result


@inner
def steered_flow(rule, detail, k, value):
    """Flow of source k, given the value of the source that steers the instruction."""
    flow = np.int64(0)
    if rule == PERMUTE:
        for i in range(4):
            choice = (value >> (8 * i)) & 0xFF
            source, half = 1 - (choice >> 2), (choice >> 1) & 1
            if choice >= 8:  # the sign of a half
                source, half = 1 - ((choice - 8) >> 1), choice & 1
            if source == k and choice < 12:
                flow |= np.int64(1) << (2 * half + (i >> 1))
        return flow
    how = (detail >> (4 * k)) & 15
    if rule == BITWISE:
        for half in range(2):
            bits = (value >> (16 * half)) & 0xFFFF
            if (how & WHERE_ZERO and bits != 0xFFFF) or (how & WHERE_ONE and bits != 0):
                flow |= LOW_TO_LOW if half == 0 else HIGH_TO_HIGH
        return flow
    if how == UNSHIFTED:
        return np.int64(EVERYWHERE)
    amount = 32 - (value & 31) if how == LEFT_BY_REST else value & 31
    if amount < 16:
        flow |= SAME
    if 0 < amount < 32:
        flow |= LOW_TO_HIGH if how <= LEFT_BY_REST else HIGH_TO_LOW
    if how == RIGHT_SIGNED:
        flow |= HIGH_TO_HIGH
    return flow
