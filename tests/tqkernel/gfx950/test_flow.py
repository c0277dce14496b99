"""Which halves of a result the sanitizer calls junk, against those that differ when the junk does."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tqkernel.gfx950 import Memory, launch
from tqkernel.gfx950.isa import instruction_set
from tqkernel.gfx950.isa.vector16 import PACKED
from tqref import DEFAULT_PROFILE

from .machine import FIRST_LINE, program

EXACT = """\
v_mov_b32_e32 v8, v10
v_not_b32_e32 v8, v10
v_accvgpr_write_b32 a0, v10; v_accvgpr_read_b32 v8, a0
v_and_b32_e32 v8, v10, v11
v_and_b32_e32 v8, 0xffff, v10
v_and_b32_e32 v8, 0xffff0000, v10
v_and_b32_e32 v8, 0x18000, v10
s_mov_b32 s20, 0xffff; v_and_b32_e64 v8, v10, s20
v_or_b32_e32 v8, 0xffff0000, v10
v_or_b32_e32 v8, 0xffff, v10
v_xor_b32_e32 v8, 0xffff, v10
s_mov_b32 s20, 0xffff; v_and_or_b32 v8, v10, s20, v11
s_mov_b32 s20, 0xffff0000; v_or3_b32 v8, v10, s20, v11
s_mov_b32 s20, 0xffff; v_bfi_b32 v8, s20, v10, v11
s_mov_b32 s20, 0xff00ff; v_bfi_b32 v8, s20, v10, v11
v_bfi_b32 v8, v10, v11, v12
s_mov_b32 s20, 0xffff; v_bitop3_b32 v8, v10, s20, v11 bitop3:0xe4
s_mov_b32 s20, 0xffff; v_bitop3_b32 v8, s20, v10, v11 bitop3:0x48
v_cndmask_b32_e64 v8, v10, v11, s[20:21]
v_lshlrev_b32_e32 v8, 0, v10
v_lshlrev_b32_e32 v8, 15, v10
v_lshlrev_b32_e32 v8, 16, v10
v_lshlrev_b32_e32 v8, 48, v10
v_lshrrev_b32_e32 v8, 0, v10
v_lshrrev_b32_e32 v8, 15, v10
v_lshrrev_b32_e32 v8, 16, v10
v_ashrrev_i32_e32 v8, 0, v10
v_ashrrev_i32_e32 v8, 15, v10
v_ashrrev_i32_e32 v8, 16, v10
v_lshl_or_b32 v8, v10, 16, v11
v_lshl_or_b32 v8, v10, 4, v11
v_alignbit_b32 v8, v10, v11, 16
v_alignbit_b32 v8, v10, v11, 0
v_alignbit_b32 v8, v10, v11, 4
v_alignbit_b32 v8, v10, v11, 20
s_mov_b32 s20, 0x5040100; v_perm_b32 v8, v10, v11, s20
s_mov_b32 s20, 0x7060302; v_perm_b32 v8, v10, v11, s20
s_mov_b32 s20, 0xc0c0400; v_perm_b32 v8, v10, v11, s20
s_mov_b32 s20, 0xd0a0c09; v_perm_b32 v8, v10, v11, s20
s_mov_b32 s20, 0x80dff0b; v_perm_b32 v8, v10, v11, s20
v_cvt_pk_bf16_f32 v8, v10, v11
v_cvt_pk_f16_f32 v8, v10, v11
v_cvt_pkrtz_f16_f32 v8, v10, v11
v_pack_b32_f16 v8, v10, v11
v_pack_b32_f16 v8, v10, v11 op_sel:[1,0,0]
v_pack_b32_f16 v8, v10, v11 op_sel:[0,1,0]
v_mov_b32_dpp v8, v10 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0
v_mov_b32_dpp v8, v10 row_newbcast:3 row_mask:0xf bank_mask:0xf
v_mov_b32_sdwa v8, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1
v_mov_b32_sdwa v8, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1
v_mov_b32_sdwa v8, sext(v10) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2
v_mov_b32_sdwa v8, v10 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0
v_mov_b32_sdwa v8, v10 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD
v_mov_b32_sdwa v8, v10 dst_sel:BYTE_3 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1
v_mov_b32_sdwa v8, v10 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_3
v_mov_b32_sdwa v8, v10 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1
v_or_b32_sdwa v8, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
v_add_f16_e32 v8, v10, v11
v_add_f16_sdwa v8, v10, v11 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0
v_add_u16_e32 v8, v10, v11
v_add_i16 v8, v10, v11 op_sel:[0,1,1]
v_mad_u16 v8, v10, v11, v12
v_fma_f16 v8, v10, v11, v12 op_sel:[1,0,0,1]
v_fmac_f16_e32 v8, v10, v11
v_fma_mixlo_f16 v8, v10, v11, v12 op_sel_hi:[1,1,1] op_sel:[1,0,0]
v_fma_mixhi_f16 v8, v10, v11, v12 op_sel_hi:[1,1,1]
v_cvt_f32_f16_e32 v8, v10
v_cvt_f16_f32_e32 v8, v10
v_pk_add_f16 v8, v10, v11
v_pk_add_f16 v8, v10, v11 op_sel:[1,0] op_sel_hi:[0,0]
v_pk_fma_f16 v8, v10, v11, v12 op_sel:[0,1,0]
v_pk_add_u16 v10, v10, v11 op_sel:[1,0] op_sel_hi:[0,1]; v_mov_b32_e32 v8, v10
v_pk_mul_f32 v[8:9], v[10:11], v[12:13]
v_pk_mul_f32 v[8:9], v[10:11], v[12:13] op_sel_hi:[0,1]
v_pk_mul_f32 v[8:9], v[10:11], v[12:13] op_sel:[1,0] op_sel_hi:[1,0]
v_pk_mul_f32 v[10:11], v[10:11], v[12:13] op_sel:[1,0] op_sel_hi:[0,1]; v_mov_b32_e32 v8, v10; v_mov_b32_e32 v9, v11
v_pk_mov_b32 v[8:9], v[10:11], v[12:13] op_sel:[1,0]
v_swap_b32 v8, v10
v_permlane32_swap_b32_e32 v8, v10
v_permlane16_swap_b32_e32 v8, v10
v_readlane_b32 s22, v10, 5; v_mov_b32_e32 v8, s22
v_readfirstlane_b32 s22, v10; v_writelane_b32 v8, s22, 6
v_cmp_lt_u16_e32 vcc, v10, v11; v_cndmask_b32_e64 v8, 0, -1, vcc
ds_bpermute_b32 v8, v2, v10
ds_swizzle_b32 v8, v10 offset:swizzle(SWAP,1)
ds_write_b32 v2, v10; ds_read_b32 v8, v2
ds_write_b64 v14, v[10:11]; ds_read_b64 v[8:9], v14
ds_write_b16 v2, v10; ds_write_b16_d16_hi v2, v11 offset:2; ds_read_b32 v8, v2
ds_write_b8 v2, v10; ds_write_b8_d16_hi v2, v11 offset:1; ds_read_u16 v8, v2
ds_write_b32 v2, v10; ds_read_u16_d16_hi v8, v2
ds_write_b32 v2, v10; ds_read_i16 v8, v2 offset:2
ds_write_b32 v2, v10; ds_read_u8 v8, v2 offset:1
scratch_store_dwordx2 off, v[10:11], off; scratch_load_dwordx2 v[8:9], off, off
scratch_store_short_d16_hi off, v10, off; scratch_load_ushort v8, off, off
scratch_store_dword off, v10, off; scratch_load_short_d16_hi v8, off, off
"""
"""Instructions that compute v8, or v[8:9], of v10 to v13, and of which it is known which halves matter."""

NO_LESS = """\
v_add_u32_e32 v8, v10, v11
v_add_f32_e32 v8, v10, v11
v_mul_lo_u32 v8, v10, v11
v_mad_u32_u16 v8, v10, v11, v12
v_mul_hi_u32 v8, v10, v11
v_bfe_u32 v8, v10, 8, 12
v_lshlrev_b32_e32 v8, v10, v11
v_perm_b32 v8, v10, v11, v12
v_alignbyte_b32 v8, v10, v11, 2
v_cvt_f32_bf16_e32 v8, v10
v_cvt_f32_ubyte2_e32 v8, v10
v_cvt_pk_u16_u32 v8, v10, v11
v_cvt_pk_i16_i32 v8, v10, v11
v_and_b32_sdwa v8, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
v_lshlrev_b32_sdwa v8, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1
v_mov_b64_e32 v[8:9], v[10:11]
v_lshlrev_b64 v[8:9], 16, v[10:11]
v_mad_u64_u32 v[8:9], s[20:21], v10, v11, v[12:13]
v_fma_mix_f32 v8, v10, v11, v12 op_sel_hi:[1,0,0]
v_dot2_f32_bf16 v8, v10, v11, v12
v_cmp_lt_u32_e32 vcc, v10, v11; v_cndmask_b32_e32 v8, v12, v13, vcc
v_add_co_u32_e32 v8, vcc, v10, v11; v_addc_co_u32_e32 v9, vcc, v12, v13, vcc
ds_write_b32 v2, v10; ds_add_rtn_u32 v8, v2, v11; ds_read_b32 v9, v2
v_mfma_f32_16x16x16_bf16 v[16:19], v[10:11], v[12:13], 0; s_nop 15; v_mov_b32_e32 v8, v16
"""
"""Instructions whose result is said to be junk wherever it may be; one line each, as above."""

START = """\
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[16:17], s[0:1], 0x10
v_lshlrev_b32_e32 v2, 2, v0
v_lshlrev_b32_e32 v14, 3, v0
s_mov_b32 s20, 0x5a5a0ff0
s_mov_b32 s21, 0xf0f05a5a
s_mov_b64 vcc, s[20:21]
s_waitcnt lgkmcnt(0)"""
"""v2 is the lane in words, v14 in pairs; s[4:5] points at numbers, s[6:7] at junk, s[16:17] at the results."""
REGISTERS = (8, 9, 10, 11, 12, 13)
HALVES = ("", "_d16_hi")


def junk_halves(text: str) -> list[tuple[set[int], set[int]]]:
    """For each half of each register that is junk in turn: the halves of v[8:9] called junk, and that depend on it."""
    body, stores = [START], []
    for register in REGISTERS:
        for load in ("short_d16", "short_d16_hi"):
            body += [f"global_load_dword v{r}, v2, s[4:5] offset:{256 * r}" for r in REGISTERS]
            body += [f"global_load_{load} v{register}, v2, s[6:7]", "s_waitcnt vmcnt(0)", *text.split("; ")]
            body.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
            stores.append(len(body) + START.count("\n") + FIRST_LINE)
            body += [
                f"global_store_short{half} v2, v{result}, s[16:17] offset:{256 * (result - 8) + 2 * bool(half)}"
                for result in (8, 9)
                for half in HALVES
            ]
            body += ["s_add_u32 s16, s16, 0x200", "s_addc_u32 s17, s17, 0"]
    random = np.random.default_rng(7)
    numbers = random.integers(0, 1 << 32, 1024, np.uint32)
    called, outputs = [], []
    for _ in range(2):
        memory = Memory()
        addresses = [
            memory.map("numbers", numbers),
            memory.map("junk", random.integers(0, 1 << 32, 64, np.uint32), is_output=True),
            memory.map("results", np.zeros((len(stores), 2, 64, 2), np.uint16)),
        ]
        kernel = program("\n".join(body), lds=512, private=16, kernarg=24)
        found = launch(
            kernel, (1, 1, 1), (64, 1, 1), struct.pack("<QQQ", *addresses), memory, DEFAULT_PROFILE,
            threads=1, sanitize=True,
        ).findings  # fmt: skip
        called.append({finding.line for finding in found if finding.kind == "uninitialised"})
        outputs.append(memory.read("results").view(np.uint16).reshape(len(stores), 2, 64, 2))
    assert called[0] == called[1]
    assert called[0] <= {line + i for line in stores for i in range(4)}
    differs = (outputs[0] != outputs[1]).any(axis=2).reshape(len(stores), 4)
    return [
        ({i for i in range(4) if line + i in called[0]}, set(np.flatnonzero(row).tolist()))
        for line, row in zip(stores, differs, strict=True)
    ]


@pytest.mark.parametrize("text", EXACT.splitlines())
def test_junk_is_followed_by_halves(text: str) -> None:
    for called, differ in junk_halves(text):
        assert called == differ


@pytest.mark.parametrize("text", NO_LESS.splitlines())
def test_junk_is_not_lost(text: str) -> None:
    for called, differ in junk_halves(text):
        assert called >= differ


def example(name: str) -> str:
    """One line as above for a vector instruction; a result that is a lane mask goes to v9."""
    form, width = PACKED.get(name, (name, 32))
    instruction = instruction_set()[form]
    pair = ("u64", "i64", "f64")
    is_wide = name in PACKED and width == 32
    operands = [
        "s[22:23]" if kind == "mask" else "v[8:9]" if is_wide or kind in pair else "v8"
        for kind in instruction.results
    ]
    registers = iter((10, 12, 10) if is_wide or set(pair) & set(instruction.sources) else (10, 11, 12))
    for kind in ("f32", "f32") if name == "v_pk_mov_b32" else instruction.sources:
        if kind == "mask":
            operands.append("s[20:21]")
        elif kind not in ("vcc", "table") and not kind.startswith("+"):
            register = next(registers)
            operands.append(f"v[{register}:{register + 1}]" if is_wide or kind in pair else f"v{register}")
    mnemonic, _, modifier = name.partition(":")
    text = f"{mnemonic} {', '.join(operands)} {modifier}"
    if "table" in instruction.sources:
        text += "bitop3:0x96"
    return text + ("; v_cndmask_b32_e64 v9, 0, -1, s[22:23]" if "mask" in instruction.results else "")


@pytest.mark.parametrize(
    "name",
    [
        *PACKED,
        *(
            name
            for name, instruction in instruction_set().items()
            if instruction.unit == "vector" and not name.startswith("v_cmp")
        ),
    ],
)
def test_no_vector_instruction_loses_junk(name: str) -> None:
    for called, differ in junk_halves(example(name)):
        assert called >= differ
