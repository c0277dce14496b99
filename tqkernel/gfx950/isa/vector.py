"""Vector ALU on 32-bit values (AMD's VOP1, VOP2, VOP3): one value per lane."""

from __future__ import annotations

from . import parse_table

FLOAT = """
v_add_f32         f32 = f32 f32             : a + b
v_sub_f32         f32 = f32 f32             : a - b
v_subrev_f32      f32 = f32 f32             : b - a
v_mul_f32         f32 = f32 f32             : a * b
v_mul_legacy_f32  f32 = f32 f32             : F0 if a == 0 or b == 0 else a * b
v_fma_f32         f32 = f32 f32 f32         : fma32(a, b, c)
v_fmac_f32        f32 = f32 f32 +f32        : fma32(a, b, c)
v_fmamk_f32       f32 = f32 f32 f32         : fma32(a, b, c)
v_fmaak_f32       f32 = f32 f32 f32         : fma32(a, b, c)
v_fma_mix_f32     f32 = mix mix mix         : fma32(a, b, c)
v_mad_mix_f32     f32 = mix mix mix         : fma32(a, b, c)
v_max_f32         f32 = f32 f32             : maximum_number(a, b)
v_min_f32         f32 = f32 f32             : minimum_number(a, b)
v_max3_f32        f32 = f32 f32 f32         : maximum_number(maximum_number(a, b), c)
v_min3_f32        f32 = f32 f32 f32         : minimum_number(minimum_number(a, b), c)
v_maximum3_f32    f32 = f32 f32 f32         : maximum(maximum(a, b), c)
v_minimum3_f32    f32 = f32 f32 f32         : minimum(minimum(a, b), c)
v_med3_f32        f32 = f32 f32 f32         : median_number(a, b, c)
v_ldexp_f32       f32 = f32 i32             : scale32(a, b)
v_floor_f32       f32 = f32                 : floor32(a)
v_ceil_f32        f32 = f32                 : ceil32(a)
v_trunc_f32       f32 = f32                 : trunc32(a)
v_rndne_f32       f32 = f32                 : round_even32(a)
v_fract_f32       f32 = f32                 : fraction32(a)
v_frexp_mant_f32  f32 = f32                 : frexp_mantissa32(a)
v_frexp_exp_i32_f32 u32 = f32               : frexp_exponent32(a)
"""

# The manual's description of the steps of a division does not divide correctly at the ends of the range; these do.
DIVISION = """
v_div_fixup_f32   f32 = f32 f32 f32         : divide_fixup(a, b, c)
v_div_fmas_f32    f32 = f32 f32 f32 vcc     : divide_fmas(a, b, c, d)
v_div_scale_f32   f32 mask = f32 f32 f32    : divide_scale(a, b, c) ; divide_scale_flag(a, b, c)
"""

# AMD states these to within 1 ulp. The model: subnormals flushed; correct rounding for exp2 (which the profile can
# override input by input), log2, sine and cosine; reciprocals and roots cut short, so that a kernel that takes them
# for exact shows.
TRANSCENDENTAL = """
v_exp_f32         f32 = f32                 : exp2(a, exp2_inputs, exp2_outputs)
v_log_f32         f32 = f32                 : log2(a)
v_rcp_f32         f32 = f32                 : reciprocal(a)
v_rcp_iflag_f32   f32 = f32                 : reciprocal(a)
v_rsq_f32         f32 = f32                 : reciprocal_root(a)
v_sqrt_f32        f32 = f32                 : root(a)
v_sin_f32         f32 = f32                 : sine(a)
v_cos_f32         f32 = f32                 : cosine(a)
"""

INTEGER = """
v_add_u32         u32 = u32 u32             : a + b
v_sub_u32         u32 = u32 u32             : a - b
v_subrev_u32      u32 = u32 u32             : b - a
v_add_i32         u32 = u32 u32             : a + b
v_sub_i32         u32 = u32 u32             : a - b
v_add3_u32        u32 = u32 u32 u32         : a + b + c
v_add_lshl_u32    u32 = u32 u32 u32         : (a + b) << (c & 31)
v_lshl_add_u32    u32 = u32 u32 u32         : (a << (b & 31)) + c
v_xad_u32         u32 = u32 u32 u32         : (a ^ b) + c
v_add_co_u32      u32 mask = u32 u32        : a + b ; (a + b) >> 32
v_sub_co_u32      u32 mask = u32 u32        : a - b ; b > a
v_subrev_co_u32   u32 mask = u32 u32        : b - a ; a > b
v_addc_co_u32     u32 mask = u32 u32 mask   : a + b + c ; (a + b + c) >> 32
v_subb_co_u32     u32 mask = u32 u32 mask   : a - b - c ; b + c > a
v_subbrev_co_u32  u32 mask = u32 u32 mask   : b - a - c ; a + c > b
v_mul_lo_u32      u32 = u32 u32             : a * b
v_mul_hi_u32      u32 = u32 u32             : multiply_high_unsigned(a, b)
v_mul_hi_i32      u32 = i32 i32             : (a * b) >> 32
v_mul_u32_u24     u32 = u32 u32             : (a & 0xFFFFFF) * (b & 0xFFFFFF)
v_mul_i32_i24     u32 = u32 u32             : sign_extend(a, 24) * sign_extend(b, 24)
v_mul_hi_u32_u24  u32 = u32 u32             : ((a & 0xFFFFFF) * (b & 0xFFFFFF)) >> 32
v_mul_hi_i32_i24  u32 = u32 u32             : (sign_extend(a, 24) * sign_extend(b, 24)) >> 32
v_mad_u32_u24     u32 = u32 u32 u32         : (a & 0xFFFFFF) * (b & 0xFFFFFF) + c
v_mad_i32_i24     u32 = u32 u32 u32         : sign_extend(a, 24) * sign_extend(b, 24) + c
v_mad_u32_u16     u32 = u16 u16 u32         : a * b + c
v_mad_i32_i16     u32 = i16 i16 u32         : a * b + c
v_min_i32         u32 = i32 i32             : min(a, b)
v_max_i32         u32 = i32 i32             : max(a, b)
v_min_u32         u32 = u32 u32             : min(a, b)
v_max_u32         u32 = u32 u32             : max(a, b)
v_min3_i32        u32 = i32 i32 i32         : min(min(a, b), c)
v_max3_i32        u32 = i32 i32 i32         : max(max(a, b), c)
v_min3_u32        u32 = u32 u32 u32         : min(min(a, b), c)
v_max3_u32        u32 = u32 u32 u32         : max(max(a, b), c)
v_med3_i32        u32 = i32 i32 i32         : max(min(a, b), min(max(a, b), c))
v_med3_u32        u32 = u32 u32 u32         : max(min(a, b), min(max(a, b), c))
v_sad_u32         u32 = u32 u32 u32         : abs(a - b) + c
"""

# An integer instruction with the clamp modifier saturates.
SATURATING = """
v_add_u32:clamp     u32 = u32 u32           : min(a + b, 0xFFFFFFFF)
v_sub_u32:clamp     u32 = u32 u32           : max(a - b, 0)
v_subrev_u32:clamp  u32 = u32 u32           : max(b - a, 0)
v_add_i32:clamp     u32 = i32 i32           : clamp(a + b, -0x80000000, 0x7FFFFFFF)
v_sub_i32:clamp     u32 = i32 i32           : clamp(a - b, -0x80000000, 0x7FFFFFFF)
"""

BITS = """
v_mov_b32         u32 = u32                 : a
v_accvgpr_read_b32  u32 = u32               : a
v_accvgpr_write_b32 u32 = u32               : a
v_accvgpr_mov_b32   u32 = u32               : a
v_not_b32         u32 = u32                 : ~a
v_and_b32         u32 = u32 u32             : a & b
v_or_b32          u32 = u32 u32             : a | b
v_xor_b32         u32 = u32 u32             : a ^ b
v_xnor_b32        u32 = u32 u32             : ~(a ^ b)
v_and_or_b32      u32 = u32 u32 u32         : (a & b) | c
v_or3_b32         u32 = u32 u32 u32         : a | b | c
v_lshl_or_b32     u32 = u32 u32 u32         : (a << (b & 31)) | c
v_lshlrev_b32     u32 = u32 u32             : b << (a & 31)
v_lshrrev_b32     u32 = u32 u32             : b >> (a & 31)
v_ashrrev_i32     u32 = u32 i32             : b >> (a & 31)
v_bfe_u32         u32 = u32 u32 u32         : extract(a, b, c & 31)
v_bfe_i32         u32 = u32 u32 u32         : extract_signed(a, b, c & 31)
v_bfi_b32         u32 = u32 u32 u32         : (a & b) | (~a & c)
v_bfm_b32         u32 = u32 u32             : ((1 << (a & 31)) - 1) << (b & 31)
v_bfrev_b32       u32 = u32                 : reverse32(a)
v_bcnt_u32_b32    u32 = u32 u32             : count_ones(a) + b
v_ffbh_u32        u32 = u32                 : leading_zeros32(a)
v_ffbh_i32        u32 = i32                 : leading_sign_bits32(a)
v_ffbl_b32        u32 = u32                 : first_one(a)
v_alignbit_b32    u32 = u32 u32 u32         : ((a << 32) | b) >> (c & 31)
v_alignbyte_b32   u32 = u32 u32 u32         : ((a << 32) | b) >> (8 * (c & 3))
v_perm_b32        u32 = u32 u32 u32         : permute_bytes(a, b, c)
v_bitop3_b32      u32 = u32 u32 u32 table   : truth_table(a, b, c, d)
v_cndmask_b32     u32 = u32 u32 mask        : b if c else a
v_mbcnt_lo_u32_b32 u32 = u32 u32            : count_ones(a & lanes_below(lane) & 0xFFFFFFFF) + b
v_mbcnt_hi_u32_b32 u32 = u32 u32            : count_ones(a & (lanes_below(lane) >> 32)) + b
v_prng_b32        u32 = u32                 : (a << 1) ^ (197 if a >> 31 else 0)
"""

CONVERSIONS = """
v_cvt_f32_i32     f32 = i32                 : float32(a)
v_cvt_f32_u32     f32 = u32                 : float32(a)
v_cvt_i32_f32     u32 = f32                 : to_i32(float64(a))
v_cvt_u32_f32     u32 = f32                 : to_u32(float64(a))
v_cvt_flr_i32_f32 u32 = f32                 : to_i32(floor(float64(a)))
v_cvt_rpi_i32_f32 u32 = f32                 : to_i32(floor(float64(a) + 0.5))
v_cvt_f32_ubyte0  f32 = u32                 : float32(a & 255)
v_cvt_f32_ubyte1  f32 = u32                 : float32((a >> 8) & 255)
v_cvt_f32_ubyte2  f32 = u32                 : float32((a >> 16) & 255)
v_cvt_f32_ubyte3  f32 = u32                 : float32(a >> 24)
v_cvt_f32_f16     f32 = f16                 : a
v_cvt_f16_f32     f16 = f32                 : a
v_cvt_f32_bf16    f32 = bf16                : a
v_cvt_pk_bf16_f32 u32 = f32 f32             : bf16_bits(a) | (bf16_bits(b) << 16)
v_cvt_pk_f16_f32  u32 = f32 f32             : f16_bits(a) | (f16_bits(b) << 16)
v_cvt_pkrtz_f16_f32 u32 = f32 f32           : f16_bits_toward_zero(a) | (f16_bits_toward_zero(b) << 16)
v_cvt_pk_i16_i32  u32 = i32 i32             : (clamp(a, -32768, 32767) & 0xFFFF) | (clamp(b, -32768, 32767) << 16)
v_cvt_pk_u16_u32  u32 = u32 u32             : min(a, 65535) | (min(b, 65535) << 16)
v_dot2_f32_bf16   f32 = u32 u32 f32         : dot2_bf16(a, b, c)
v_dot2c_f32_bf16  f32 = u32 u32 +f32        : dot2c_bf16(a, b, c)
v_dot2_f32_f16    f32 = u32 u32 f32         : dot2_f16(a, b, c)
v_dot2c_f32_f16   f32 = u32 u32 +f32        : dot2_f16(a, b, c)
v_dot4_i32_i8     u32 = u32 u32 u32         : dot4_i8(a, b, c)
v_dot4c_i32_i8    u32 = u32 u32 +u32        : dot4_i8(a, b, c)
v_dot4_u32_u8     u32 = u32 u32 u32         : dot4_u8(a, b, c)
"""

INSTRUCTIONS = [
    *parse_table("vector", FLOAT + INTEGER + SATURATING + BITS),
    *parse_table("vector", DIVISION + TRANSCENDENTAL, "modelled"),
    *[
        instruction
        for line in CONVERSIONS.splitlines()
        for instruction in parse_table("vector", line, "modelled" if line.startswith("v_dot2") else "exact")
    ],
]
