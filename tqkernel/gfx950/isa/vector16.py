"""Vector ALU on 16-bit values, and the packed forms (AMD's VOP3P), which do a scalar form twice.

A half operation is done in float32 and rounded once: 24 bits hold a half's sum, product and quotient well enough
(2p + 2 bits) that the second rounding changes nothing. The fused forms go through float64.
"""

from __future__ import annotations

from . import Instruction, parse_table

HALF = """
v_add_f16         f16 = f16 f16             : a + b
v_sub_f16         f16 = f16 f16             : a - b
v_subrev_f16      f16 = f16 f16             : b - a
v_mul_f16         f16 = f16 f16             : a * b
v_fma_f16         h16 = f16 f16 f16         : fma16(a, b, c)
v_fmac_f16        f16 = f16 f16 +f16        : fma16(a, b, c)
v_fma_mixlo_f16   lo16 = mix mix mix        : fma_round16(a, b, c)
v_fma_mixhi_f16   hi16 = mix mix mix        : fma_round16(a, b, c)
v_mad_mixlo_f16   lo16 = mix mix mix        : fma_round16(a, b, c)
v_mad_mixhi_f16   hi16 = mix mix mix        : fma_round16(a, b, c)
v_max_f16         f16 = f16 f16             : maximum_number(a, b)
v_min_f16         f16 = f16 f16             : minimum_number(a, b)
v_max3_f16        h16 = f16 f16 f16         : maximum_number(maximum_number(a, b), c)
v_min3_f16        h16 = f16 f16 f16         : minimum_number(minimum_number(a, b), c)
v_maximum3_f16    h16 = f16 f16 f16         : maximum(maximum(a, b), c)
v_minimum3_f16    h16 = f16 f16 f16         : minimum(minimum(a, b), c)
v_div_fixup_f16   h16 = f16 f16 f16         : divide_fixup16(a, b, c)
v_med3_f16        h16 = f16 f16 f16         : median_number(a, b, c)
v_ldexp_f16       f16 = f16 i16             : scale16(a, b)
v_floor_f16       f16 = f16                 : floor32(a)
v_ceil_f16        f16 = f16                 : ceil32(a)
v_trunc_f16       f16 = f16                 : trunc32(a)
v_rndne_f16       f16 = f16                 : round_even32(a)
v_cvt_f16_u16     f16 = u16                 : float32(a)
v_cvt_f16_i16     f16 = i16                 : float32(a)
v_cvt_u16_f16     u32 = f16                 : clamp(to_i32(float64(a)), 0, 65535)
v_cvt_i16_f16     u32 = f16                 : clamp(to_i32(float64(a)), -32768, 32767) & 0xFFFF
"""

HALF_TRANSCENDENTAL = """
v_exp_f16         f16 = f16                 : exp2_half(a)
v_log_f16         f16 = f16                 : log2_half(a)
v_rcp_f16         f16 = f16                 : reciprocal_half(a)
v_rsq_f16         f16 = f16                 : reciprocal_root_half(a)
v_sqrt_f16        f16 = f16                 : root_half(a)
"""

SHORT = """
v_add_u16         u16 = u16 u16             : a + b
v_sub_u16         u16 = u16 u16             : a - b
v_subrev_u16      u16 = u16 u16             : b - a
v_mul_lo_u16      u16 = u16 u16             : a * b
v_min_u16         u16 = u16 u16             : min(a, b)
v_max_u16         u16 = u16 u16             : max(a, b)
v_min_i16         u16 = i16 i16             : min(a, b)
v_max_i16         u16 = i16 i16             : max(a, b)
v_add_i16         k16 = i16 i16             : a + b
v_sub_i16         k16 = i16 i16             : a - b
v_mad_u16         k16 = u16 u16 u16         : a * b + c
v_mad_i16         k16 = i16 i16 i16         : a * b + c
v_min3_i16        k16 = i16 i16 i16         : min(min(a, b), c)
v_max3_i16        k16 = i16 i16 i16         : max(max(a, b), c)
v_min3_u16        k16 = u16 u16 u16         : min(min(a, b), c)
v_max3_u16        k16 = u16 u16 u16         : max(max(a, b), c)
v_med3_i16        k16 = i16 i16 i16         : max(min(a, b), min(max(a, b), c))
v_med3_u16        k16 = u16 u16 u16         : max(min(a, b), min(max(a, b), c))
v_mad_legacy_u16  u16 = u16 u16 u16         : a * b + c
v_mad_legacy_i16  u16 = i16 i16 i16         : a * b + c
v_bitop3_b16      k16 = u16 u16 u16 table   : truth_table(a, b, c, d)
v_lshlrev_b16     u16 = u16 u16             : b << (a & 15)
v_lshrrev_b16     u16 = u16 u16             : b >> (a & 15)
v_ashrrev_i16     u16 = u16 i16             : b >> (a & 15)
v_pack_b32_f16    u32 = u16 u16             : a | (b << 16)
"""

SATURATING = """
v_add_u16:clamp   u16 = u16 u16             : min(a + b, 0xFFFF)
v_sub_u16:clamp   u16 = u16 u16             : max(a - b, 0)
v_subrev_u16:clamp u16 = u16 u16            : max(b - a, 0)
v_add_i16:clamp   k16 = i16 i16             : clamp(a + b, -0x8000, 0x7FFF)
v_sub_i16:clamp   k16 = i16 i16             : clamp(a - b, -0x8000, 0x7FFF)
v_mad_u16:clamp   k16 = u16 u16 u16         : min(a * b + c, 0xFFFF)
v_mad_i16:clamp   k16 = i16 i16 i16         : clamp(a * b + c, -0x8000, 0x7FFF)
"""

INSTRUCTIONS = [
    *parse_table("vector", HALF + SHORT + SATURATING),
    *parse_table("vector", HALF_TRANSCENDENTAL, "modelled"),
]

PACKED: dict[str, tuple[str, int]] = {
    "v_pk_add_f32": ("v_add_f32", 32),
    "v_pk_mul_f32": ("v_mul_f32", 32),
    "v_pk_fma_f32": ("v_fma_f32", 32),
    "v_pk_mov_b32": ("v_mov_b32", 32),
    "v_pk_add_f16": ("v_add_f16", 16),
    "v_pk_mul_f16": ("v_mul_f16", 16),
    "v_pk_fma_f16": ("v_fma_f16", 16),
    "v_pk_max_f16": ("v_max_f16", 16),
    "v_pk_min_f16": ("v_min_f16", 16),
    "v_pk_maximum3_f16": ("v_maximum3_f16", 16),
    "v_pk_minimum3_f16": ("v_minimum3_f16", 16),
    "v_pk_add_u16": ("v_add_u16", 16),
    "v_pk_sub_u16": ("v_sub_u16", 16),
    "v_pk_add_i16": ("v_add_i16", 16),
    "v_pk_sub_i16": ("v_sub_i16", 16),
    "v_pk_mul_lo_u16": ("v_mul_lo_u16", 16),
    "v_pk_mad_u16": ("v_mad_u16", 16),
    "v_pk_mad_i16": ("v_mad_i16", 16),
    "v_pk_min_u16": ("v_min_u16", 16),
    "v_pk_max_u16": ("v_max_u16", 16),
    "v_pk_min_i16": ("v_min_i16", 16),
    "v_pk_max_i16": ("v_max_i16", 16),
    "v_pk_lshlrev_b16": ("v_lshlrev_b16", 16),
    "v_pk_lshrrev_b16": ("v_lshrrev_b16", 16),
    "v_pk_ashrrev_i16": ("v_ashrrev_i16", 16),
}
"""A packed instruction's scalar form, done once for each half of width bits."""


def packed_instruction(name: str, forms: dict[str, Instruction]) -> Instruction:
    """The signature of a packed instruction's scalar form under the packed name."""
    form = forms[PACKED[name][0]]
    return Instruction(name, form.unit, form.results, form.sources, form.meaning, form.accuracy)
