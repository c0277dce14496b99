"""Vector ALU on 64-bit values (register pairs)."""

from __future__ import annotations

from . import parse_table

TABLE = """
v_mov_b64         u64 = u64                 : a
v_lshlrev_b64     u64 = u32 u64             : b << (a & 63)
v_lshrrev_b64     u64 = u32 u64             : logical_right(b, a & 63)
v_ashrrev_i64     u64 = u32 u64             : b >> (a & 63)
v_lshl_add_u64    u64 = u64 u32 u64         : (a << (b & 7)) + c
v_mad_u64_u32     u64 mask = u32 u32 u64    : a * b + c ; multiply_add_carry(a, b, c)
v_mad_i64_i32     u64 mask = i32 i32 u64    : a * b + c ; multiply_add_sign(a, b, c)
v_add_f64         f64 = f64 f64             : a + b
v_mul_f64         f64 = f64 f64             : a * b
v_fma_f64         f64 = f64 f64 f64         : fma64(a, b, c)
v_fmac_f64        f64 = f64 f64 +f64        : fma64(a, b, c)
v_max_f64         f64 = f64 f64             : maximum_number64(a, b)
v_min_f64         f64 = f64 f64             : minimum_number64(a, b)
v_ldexp_f64       f64 = f64 i32             : scale64(a, b)
v_floor_f64       f64 = f64                 : floor(a)
v_ceil_f64        f64 = f64                 : ceil(a)
v_trunc_f64       f64 = f64                 : trunc(a)
v_rndne_f64       f64 = f64                 : round_even(a)
v_fract_f64       f64 = f64                 : fraction64(a)
v_frexp_mant_f64  f64 = f64                 : frexp_mantissa64(a)
v_frexp_exp_i32_f64 u32 = f64               : frexp_exponent64(a)
v_cvt_f64_f32     f64 = f32                 : float64(a)
v_cvt_f64_i32     f64 = i32                 : float64(a)
v_cvt_f64_u32     f64 = u32                 : float64(a)
v_cvt_f32_f64     f32 = f64                 : float32(a)
v_cvt_i32_f64     u32 = f64                 : to_i32(a)
v_cvt_u32_f64     u32 = f64                 : to_u32(a)
"""

# The chip's reciprocal and roots are good to 2**29 ulp; the steps that follow make up for it.
MODELLED = """
v_rcp_f64         f64 = f64                 : reciprocal64(a)
v_rsq_f64         f64 = f64                 : reciprocal_root64(a)
v_sqrt_f64        f64 = f64                 : root64(a)
v_div_fixup_f64   f64 = f64 f64 f64         : divide_fixup64(a, b, c)
v_div_fmas_f64    f64 = f64 f64 f64 vcc     : divide_fmas64(a, b, c, d)
v_div_scale_f64   f64 mask = f64 f64 f64    : divide_scale64(a, b, c) ; divide_scale_flag64(a, b, c)
"""

INSTRUCTIONS = [*parse_table("vector", TABLE), *parse_table("vector", MODELLED, "modelled")]
