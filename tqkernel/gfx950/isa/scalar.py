"""Scalar ALU (AMD's SOP1, SOP2, SOPC, SOPK): one value per wave. A second result ``scc`` is the condition bit."""

from __future__ import annotations

from . import Instruction, parse_table

ARITHMETIC = """
s_add_u32       u32 scc = u32 u32       : a + b ; (a + b) >> 32
s_sub_u32       u32 scc = u32 u32       : a - b ; b > a
s_addc_u32      u32 scc = u32 u32 scc   : a + b + c ; (a + b + c) >> 32
s_subb_u32      u32 scc = u32 u32 scc   : a - b - c ; b + c > a
s_add_i32       u32 scc = i32 i32       : a + b ; overflows32(a + b)
s_sub_i32       u32 scc = i32 i32       : a - b ; overflows32(a - b)
s_addk_i32      u32 scc = +i32 i16      : a + b ; overflows32(a + b)
s_mulk_i32      u32     = +i32 i16      : a * b
s_mul_i32       u32     = i32 i32       : a * b
s_mul_hi_u32    u32     = u32 u32       : multiply_high_unsigned(a, b)
s_mul_hi_i32    u32     = i32 i32       : (a * b) >> 32
s_absdiff_i32   u32 scc = i32 i32       : abs(signed32(a - b)) ; a != b
s_abs_i32       u32 scc = i32           : abs(a) ; a != 0
s_min_i32       u32 scc = i32 i32       : min(a, b) ; a < b
s_min_u32       u32 scc = u32 u32       : min(a, b) ; a < b
s_max_i32       u32 scc = i32 i32       : max(a, b) ; a >= b
s_max_u32       u32 scc = u32 u32       : max(a, b) ; a >= b
s_lshl1_add_u32 u32 scc = u32 u32       : (a << 1) + b ; ((a << 1) + b) >> 32 != 0
s_lshl2_add_u32 u32 scc = u32 u32       : (a << 2) + b ; ((a << 2) + b) >> 32 != 0
s_lshl3_add_u32 u32 scc = u32 u32       : (a << 3) + b ; ((a << 3) + b) >> 32 != 0
s_lshl4_add_u32 u32 scc = u32 u32       : (a << 4) + b ; ((a << 4) + b) >> 32 != 0
"""

SHIFTS = """
s_lshl_b32      u32 scc = u32 u32       : a << (b & 31) ; (a << (b & 31)) & 0xFFFFFFFF != 0
s_lshr_b32      u32 scc = u32 u32       : a >> (b & 31) ; a >> (b & 31) != 0
s_ashr_i32      u32 scc = i32 u32       : a >> (b & 31) ; a >> (b & 31) != 0
s_lshl_b64      u64 scc = u64 u32       : a << (b & 63) ; a << (b & 63) != 0
s_lshr_b64      u64 scc = u64 u32       : logical_right(a, b & 63) ; logical_right(a, b & 63) != 0
s_ashr_i64      u64 scc = u64 u32       : a >> (b & 63) ; a >> (b & 63) != 0
s_bfe_u32       u32 scc = u32 u32       : extract(a, b, (b >> 16) & 127) ; extract(a, b, (b >> 16) & 127) != 0
s_bfe_i32 u32 scc = u32 u32 : extract_signed(a, b, (b >> 16) & 127) ; extract_signed(a, b, (b >> 16) & 127) != 0
s_bfe_u64       u64 scc = u64 u32       : extract64(a, b, b >> 16) ; extract64(a, b, b >> 16) != 0
s_bfm_b32       u32     = u32 u32       : ((1 << (a & 31)) - 1) << (b & 31)
s_bfm_b64       u64     = u32 u32       : ((1 << (a & 63)) - 1) << (b & 63)
s_pack_ll_b32_b16 u32   = u32 u32       : (b << 16) | (a & 0xFFFF)
s_pack_lh_b32_b16 u32   = u32 u32       : (b & 0xFFFF0000) | (a & 0xFFFF)
s_pack_hh_b32_b16 u32   = u32 u32       : (b & 0xFFFF0000) | (a >> 16)
s_sext_i32_i8   u32     = u32           : sign_extend(a, 8)
s_sext_i32_i16  u32     = u32           : sign_extend(a, 16)
"""

MOVES = """
s_mov_b32       u32     = u32           : a
s_mov_b64       u64     = u64           : a
s_movk_i32      u32     = i16           : a
s_cmov_b32      u32     = u32 scc +u32  : a if b else c
s_cmov_b64      u64     = u64 scc +u64  : a if b else c
s_cmovk_i32     u32     = i16 scc +u32  : a if b else c
s_cselect_b32   u32     = u32 u32 scc   : a if c else b
s_cselect_b64   u64     = u64 u64 scc   : a if c else b
s_bitset0_b32   u32     = u32 +u32      : b & ~(1 << (a & 31))
s_bitset1_b32   u32     = u32 +u32      : b | (1 << (a & 31))
s_bitcmp0_b32   scc     = u32 u32       : (a >> (b & 31)) & 1 == 0
s_bitcmp1_b32   scc     = u32 u32       : (a >> (b & 31)) & 1
s_bitcmp0_b64   scc     = u64 u32       : (a >> (b & 63)) & 1 == 0
s_bitcmp1_b64   scc     = u64 u32       : (a >> (b & 63)) & 1
s_brev_b32      u32     = u32           : reverse32(a)
s_bcnt1_i32_b32 u32 scc = u32           : count_ones(a) ; a != 0
s_bcnt0_i32_b32 u32 scc = u32           : 32 - count_ones(a) ; a != 0xFFFFFFFF
s_bcnt1_i32_b64 u32 scc = u64           : count_ones(a) ; a != 0
s_bcnt0_i32_b64 u32 scc = u64           : 64 - count_ones(a) ; a != -1
s_ff1_i32_b32   u32     = u32           : first_one(a)
s_ff1_i32_b64   u32     = u64           : first_one(a)
s_flbit_i32_b32 u32     = u32           : leading_zeros32(a)
s_flbit_i32_b64 u32     = u64           : leading_zeros64(a)
s_flbit_i32     u32     = i32           : leading_sign_bits32(a)
"""

_LOGIC = (
    ("and", "a & b"),
    ("or", "a | b"),
    ("xor", "a ^ b"),
    ("andn2", "a & ~b"),
    ("orn2", "a | ~b"),
    ("nand", "~(a & b)"),
    ("nor", "~(a | b)"),
    ("xnor", "~(a ^ b)"),
)

_COMPARISONS = (("eq", "=="), ("lg", "!="), ("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def _logic() -> list[Instruction]:
    rows = []
    for bits, mask in ((32, " & 0xFFFFFFFF"), (64, "")):
        for name, meaning in _LOGIC:
            t = f"u{bits}"
            rows.append(f"s_{name}_b{bits} {t} scc = {t} {t} : {meaning} ; ({meaning}){mask} != 0")
        rows.append(f"s_not_b{bits} u{bits} scc = u{bits} : ~a ; (~a){mask} != 0")
    for name, meaning in _LOGIC:
        rows.append(f"s_{name}_saveexec_b64 u64 exec scc = u64 exec : b ; {meaning} ; ({meaning}) != 0")
    rows.append("s_andn1_saveexec_b64 u64 exec scc = u64 exec : b ; ~a & b ; (~a & b) != 0")
    rows.append("s_orn1_saveexec_b64 u64 exec scc = u64 exec : b ; ~a | b ; (~a | b) != 0")
    rows.append("s_andn1_wrexec_b64 u64 exec scc = u64 exec : ~a & b ; ~a & b ; (~a & b) != 0")
    rows.append("s_andn2_wrexec_b64 u64 exec scc = u64 exec : a & ~b ; a & ~b ; (a & ~b) != 0")
    return parse_table("scalar", "\n".join(rows))


def _compares() -> list[Instruction]:
    rows = []
    for name, operator in _COMPARISONS:
        for letter in "iu":
            rows.append(f"s_cmp_{name}_{letter}32 scc = {letter}32 {letter}32 : a {operator} b")
            rows.append(f"s_cmpk_{name}_{letter}32 scc = {letter}32 {letter}16 : a {operator} b")
    rows.append("s_cmp_eq_u64 scc = u64 u64 : a == b")
    rows.append("s_cmp_lg_u64 scc = u64 u64 : a != b")
    return parse_table("scalar", "\n".join(rows))


INSTRUCTIONS = [
    *parse_table("scalar", ARITHMETIC + SHIFTS + MOVES),
    *_logic(),
    *_compares(),
]
