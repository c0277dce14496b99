"""Global memory: buffer (AMD's MUBUF), global, flat and scratch (FLAT), and scalar loads (SMEM).

Meanings read as in `lds`.
"""

from __future__ import annotations

from . import Instruction, parse_table

_LOADS = (
    ("dword", 1, "4"), ("dwordx2", 2, "8"), ("dwordx3", 3, "12"), ("dwordx4", 4, "16"),
    ("ubyte", 1, "1"), ("sbyte", 1, "1 signed"), ("ushort", 1, "2"), ("sshort", 1, "2 signed"),
    ("ubyte_d16", 1, "1 low"), ("ubyte_d16_hi", 1, "1 high"), ("sbyte_d16", 1, "1 signed low"),
    ("sbyte_d16_hi", 1, "1 signed high"), ("short_d16", 1, "2 low"), ("short_d16_hi", 1, "2 high"),
)  # fmt: skip
_STORES = (
    ("byte", 1, "1"), ("byte_d16_hi", 1, "1 high"), ("short", 1, "2"), ("short_d16_hi", 1, "2 high"),
    ("dword", 1, "4"), ("dwordx2", 2, "8"), ("dwordx3", 3, "12"), ("dwordx4", 4, "16"),
)  # fmt: skip
_ATOMICS = (
    ("swap", "a"), ("add", "m + a"), ("sub", "m - a"), ("and", "m & a"), ("or", "m | a"), ("xor", "m ^ a"),
    ("smin", "min(signed(m), signed(a))"), ("smax", "max(signed(m), signed(a))"),
    ("umin", "min(m, a)"), ("umax", "max(m, a)"),
    ("inc", "0 if m >= a else m + 1"), ("dec", "a if m == 0 or m > a else m - 1"),
)  # fmt: skip
_FLOAT_ATOMICS = (
    ("add_f32", 4, "add_bits32(m, a)"), ("pk_add_f16", 4, "add_halves_f16(m, a)"),
    ("pk_add_bf16", 4, "add_halves_bf16(m, a)"), ("add_f64", 8, "add_bits64(m, a)"),
    ("min_f64", 8, "min_bits64(m, a)"), ("max_f64", 8, "max_bits64(m, a)"),
)  # fmt: skip
_WIDE_ATOMICS = ("swap", "add", "sub", "and", "or", "xor")


def _table() -> list[Instruction]:
    rows = []
    for space in ("buffer", "global", "flat", "scratch"):
        rows += [f"{space}_load_{name} r{n} = address : load {how}" for name, n, how in _LOADS]
        rows += [f"{space}_store_{name} = address r{n} : store {how}" for name, n, how in _STORES]
        if space == "scratch":
            continue
        for name, meaning in _ATOMICS:
            narrow = meaning.replace("signed", "signed32")
            rows.append(f"{space}_atomic_{name} = address r1 : atomic 4 {narrow}")
            if name in _WIDE_ATOMICS:
                rows.append(f"{space}_atomic_{name}_x2 = address r2 : atomic 8 {meaning}")
        for name, width, meaning in _FLOAT_ATOMICS:
            rows.append(f"{space}_atomic_{name} = address r{width // 4} : atomic {width} {meaning}")
        rows.append(f"{space}_atomic_cmpswap = address r2 : atomic 4 a if m == b else m")
        rows.append(f"{space}_atomic_cmpswap_x2 = address r4 : atomic 8 a if m == b else m")
    return parse_table("memory", "\n".join(rows))


def _scalar_loads() -> list[Instruction]:
    rows = []
    for n in (1, 2, 4, 8, 16):
        suffix = "" if n == 1 else f"x{n}"
        rows.append(f"s_load_dword{suffix} r{n} = address offset : load {4 * n}")
        rows.append(f"s_buffer_load_dword{suffix} r{n} = descriptor offset : load {4 * n} clamped")
    rows.append("s_memtime r2 = : clock")
    rows.append("s_memrealtime r2 = : clock")
    return parse_table("scalar_memory", "\n".join(rows))


INSTRUCTIONS = [*_table(), *_scalar_loads()]
