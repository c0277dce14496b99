"""Mutants of the listings that no case can tell from the kernel, and why: variant and name -> reason."""

from __future__ import annotations

COMMUTE = "Neither line writes what the other reads or writes, and at most one of them accesses memory."

_TINY_ACCUMULATOR = (
    "Where no tile was computed an accumulator starts from 2**-149 instead of 0; times the inverse, 1, it rounds "
    "to bfloat16 zero, as everything below 2**-134 does."
)
_TINY_ZERO = (
    "A dead token's zero becomes 2**-149 instead of 0; its scale is 0, so its values are bf16(0 + 2**-149), "
    "which is +0 all the same."
)
_UNUSED_BYTE = (
    "The mask changes the register's lowest byte, which nothing reads: v_cvt_f32_ubyte1 and 3 follow."
)
_SHIFTED = "The register was shifted left by three before: the added bit of the mask meets a zero."
_LDS_IN_ORDER = (
    "What is left of a barrier in a workgroup of one wave: the wait stands between LDS writes and reads of one "
    "wave, which the hardware performs in the order they are issued."
)
_NOT_AWAITED = "The instruction uses no register that the loads in flight, which the wait is for, will write."
_HIGH_HALF = (
    "The high half of the output row (sequence * Hk + head) * P + partition is zero up to 2**32 rows, a terabyte "
    "of output. The register then holds the flags of v_div_scale, none of which is set for a sum below 2**126, "
    "and a sum is at most the number of tokens."
)

EQUIVALENT = {
    name: reason
    for reason, names in {
        _TINY_ACCUMULATOR: (
            "qg8_bs16_swtr constant: v_mov_b32_e32 v9, 0 -> v9, 1",
            "qg8_bs16_hwtr constant: v_mov_b32_e32 v9, 0 -> v9, 1",
            "qg8_bs32_swtr constant: v_mov_b32_e32 v9, 0 -> v9, 1",
        ),
        _TINY_ZERO: (
            "qg8_bs16_hwtr constant: v_cndmask_b32_e32 v104, 0, v104, vcc -> v104, 1, v104, vcc",
            "qg16_bs16_hwtr constant: v_cndmask_b32_e32 v104, 0, v104, vcc -> v104, 1, v104, vcc",
        ),
        _UNUSED_BYTE: (
            "qg8_bs16_hwtr constant: v_and_b32_e32 v81, 0xf00, v68 -> v81, 0xf01, v68",
            "qg8_bs32_swtr constant: v_and_b32_e32 v49, 0xf0f0f0f, v62 -> v49, 0xf0f0f10, v62",
        ),
        _SHIFTED: (
            "qg8_bs32_hwtr constant: v_and_b32_e32 v35, 0x7f8, v35 -> v35, 0x7f9, v35",
            "qg16_bs32_hwtr constant: v_and_b32_e32 v35, 0x7f8, v35 -> v35, 0x7f9, v35",
        ),
        _LDS_IN_ORDER: (
            "qg8_bs32_swtr wait removed: s_waitcnt lgkmcnt(0) #8",
            "qg16_bs32_swtr wait removed: s_waitcnt lgkmcnt(0) #8",
            "qg16_bs32_hwtr dependent lines swapped: ds_write_b128 v55, v[86:89] offset:192 <-> "
            "s_waitcnt lgkmcnt(0)",
        ),
        _NOT_AWAITED: (
            "qg8_bs32_hwtr dependent lines swapped: v_lshlrev_b32_e32 v35, 3, v57 <-> s_waitcnt lgkmcnt(3)",
            "qg16_bs16_swtr dependent lines swapped: v_pk_mul_f32 v[22:23], v[22:23], v[66:67] "
            "op_sel_hi:[1,0] <-> s_waitcnt lgkmcnt(0)",
        ),
        _HIGH_HALF: (
            "qg16_bs16_swtr instruction deleted: s_addc_u32 s1, s3, s2",
            "qg16_bs32_swtr instruction deleted: s_addc_u32 s1, s3, s2",
            "qg16_bs32_hwtr instruction deleted: s_addc_u32 s1, s3, s2",
        ),
    }.items()
    for name in names
}
