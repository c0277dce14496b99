"""Local data share (AMD's DS): reads, writes, atomics, and lane permutations that use its crossbar.

The meaning of a transfer: ``load|store BYTES [signed] [low|high] [pair STRIDE]``. ``low`` and ``high`` name the
half of the register that a 16-bit transfer uses, the other half being kept. ``pair STRIDE``: two transfers, at offset0
and offset1 times STRIDE. The meaning of an atomic: its width, then the new memory value from the old value ``m`` and
the data ``a`` (and ``b``).
"""

from __future__ import annotations

from . import Instruction, parse_table

TRANSFERS = """
ds_read_b32             r1 = address         : load 4
ds_read_b64             r2 = address         : load 8
ds_read_b96             r3 = address         : load 12
ds_read_b128            r4 = address         : load 16
ds_read_u8              r1 = address         : load 1
ds_read_i8              r1 = address         : load 1 signed
ds_read_u16             r1 = address         : load 2
ds_read_i16             r1 = address         : load 2 signed
ds_read_u8_d16          r1 = address         : load 1 low
ds_read_u8_d16_hi       r1 = address         : load 1 high
ds_read_i8_d16          r1 = address         : load 1 signed low
ds_read_i8_d16_hi       r1 = address         : load 1 signed high
ds_read_u16_d16         r1 = address         : load 2 low
ds_read_u16_d16_hi      r1 = address         : load 2 high
ds_read2_b32            r2 = address         : load 4 pair 4
ds_read2_b64            r4 = address         : load 8 pair 8
ds_read2st64_b32        r2 = address         : load 4 pair 256
ds_read2st64_b64        r4 = address         : load 8 pair 512
ds_read_b64_tr_b16      r2 = address         : load 8 transpose
ds_write_b8                = address r1      : store 1
ds_write_b8_d16_hi         = address r1      : store 1 high
ds_write_b16               = address r1      : store 2
ds_write_b16_d16_hi        = address r1      : store 2 high
ds_write_b32               = address r1      : store 4
ds_write_b64               = address r2      : store 8
ds_write_b96               = address r3      : store 12
ds_write_b128              = address r4      : store 16
ds_write2_b32              = address r1 r1   : store 4 pair 4
ds_write2_b64              = address r2 r2   : store 8 pair 8
ds_write2st64_b32          = address r1 r1   : store 4 pair 256
ds_write2st64_b64          = address r2 r2   : store 8 pair 512
"""

PERMUTATIONS = """
ds_bpermute_b32         r1 = address r1      : bpermute
ds_permute_b32          r1 = address r1      : permute
ds_swizzle_b32          r1 = address         : swizzle
"""

_ATOMICS = (
    ("add_u32", 4, "m + a"), ("sub_u32", 4, "m - a"), ("rsub_u32", 4, "a - m"),
    ("inc_u32", 4, "0 if m >= a else m + 1"), ("dec_u32", 4, "a if m == 0 or m > a else m - 1"),
    ("min_i32", 4, "min(signed32(m), signed32(a))"), ("max_i32", 4, "max(signed32(m), signed32(a))"),
    ("min_u32", 4, "min(m, a)"), ("max_u32", 4, "max(m, a)"),
    ("and_b32", 4, "m & a"), ("or_b32", 4, "m | a"), ("xor_b32", 4, "m ^ a"),
    ("add_f32", 4, "add_bits32(m, a)"), ("min_f32", 4, "min_bits32(m, a)"), ("max_f32", 4, "max_bits32(m, a)"),
    ("add_u64", 8, "m + a"), ("or_b64", 8, "m | a"), ("and_b64", 8, "m & a"), ("add_f64", 8, "add_bits64(m, a)"),
    ("pk_add_f16", 4, "add_halves_f16(m, a)"), ("pk_add_bf16", 4, "add_halves_bf16(m, a)"),
)  # fmt: skip


def _atomics() -> list[Instruction]:
    rows = []
    for name, width, meaning in _ATOMICS:
        operation, _, kind = name.rpartition("_")
        register = f"r{width // 4}"
        rows.append(f"ds_{name} = address {register} : atomic {width} {meaning}")
        rows.append(f"ds_{operation}_rtn_{kind} {register} = address {register} : atomic {width} {meaning}")
    for width, kind in ((4, "b32"), (8, "b64")):
        register = f"r{width // 4}"
        rows.append(f"ds_wrxchg_rtn_{kind} {register} = address {register} : atomic {width} a")
        compare = f"address {register} {register} : atomic {width} b if m == a else m"
        rows.append(f"ds_cmpst_{kind} = {compare}")
        rows.append(f"ds_cmpst_rtn_{kind} {register} = {compare}")
    return parse_table("lds", "\n".join(rows))


INSTRUCTIONS = [*parse_table("lds", TRANSFERS + PERMUTATIONS), *_atomics()]
