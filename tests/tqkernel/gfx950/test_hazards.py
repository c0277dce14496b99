"""Missing wait states: each rule one state short and just met, the paths between, and the nops of LLVM."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tqkernel.compile import compile_builder, compile_listing, pointer
from tqkernel.gfx950 import Program, parse_listing
from tqkernel.gfx950 import encoding as enc
from tqkernel.gfx950.footprint import instruction_name
from tqkernel.gfx950.hazards import RULES, Hazard, find_hazards, matrix_passes
from tqkernel.gfx950.isa.matrix import SHAPES
from tqkernel.plan import VARIANTS

from .machine import FIRST_LINE, program

Y, N = "gfx950", "gfx942"


def hazards(body: str, target: str = Y) -> list[Hazard]:
    return find_hazards(dataclasses.replace(program(body), target=target))


def nops(states: int) -> list[str]:
    return [f"s_nop {min(states - done, 8) - 1}" for done in range(0, states, 8)]


XDL2 = "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[40:41], v[42:43], v[20:23]"
XDL4 = "v_mfma_f32_16x16x16_bf16 v[0:3], v[40:41], v[42:43], v[20:23]"
XDL8 = "v_mfma_f32_32x32x8_f16 v[0:15], v[40:41], v[42:43], v[16:31]"
XDL16 = "v_mfma_i32_32x32x4_2b_i8 v[0:31], v80, v81, v[32:63]"
SGEMM2 = "v_mfma_f32_4x4x1_16b_f32 v[0:3], v40, v42, v[20:23]"
SGEMM8 = "v_mfma_f32_16x16x4_f32 v[0:3], v40, v42, v[20:23]"
SGEMM16 = "v_mfma_f32_32x32x2_f32 v[0:15], v40, v42, v[16:31]"
DGEMM = "v_mfma_f64_16x16x4_f64 v[0:7], v[40:41], v[42:43], v[20:27]"
READ, OVERWRITE = "v_add_f32_e32 v90, 1.0, v3", "v_mov_b32_e32 v3, 0"
LOAD, STORE = "ds_read_b32 v90, v3", "global_store_dword v[90:91], v3, off"
XDL_A = "v_mfma_f32_16x16x16_bf16 v[64:67], v[2:3], v[70:71], 0"
XDL_B = "v_mfma_f32_16x16x16_bf16 v[64:67], v[70:71], v[2:3], 0"
XDL_C = "v_mfma_f32_16x16x16_bf16 v[64:67], v[70:71], v[72:73], v[2:5]"
WORDS = "src0_sel:WORD_0 src1_sel:WORD_0"
SGEMM_A = "v_mfma_f32_16x16x4_f32 v[64:67], v3, v70, 0"
SGEMM_C = "v_mfma_f32_16x16x4_f32 v[64:67], v70, v71, v[2:5]"

# (rule, first instruction, second instruction, wait states that keep them apart on gfx950, on gfx942)
CASES = [
    # scalar registers
    ("valu-sgpr-vmem", "v_readfirstlane_b32 s4, v0", "global_load_dword v1, v2, s[4:5]", 5, 5),
    ("valu-sgpr-vmem", "v_readfirstlane_b32 s7, v0", "buffer_load_dword v1, v2, s[4:7], 0 offen", 5, 5),
    ("valu-sgpr-vmem", "v_readlane_b32 s8, v0, 3", "buffer_store_dword v1, v2, s[4:7], s8 offen", 5, 5),
    ("valu-sgpr-vmem", "v_readfirstlane_b32 m0, v0", "buffer_load_dword v2, s[4:7], 0 offen lds", 5, 5),
    ("valu-sgpr-valu", "v_readfirstlane_b32 s4, v0", "v_add_f32_e32 v1, s4, v2", 2, 2),
    ("valu-sgpr-valu", "v_readfirstlane_b32 s4, v0",
     "v_pk_mul_f32 v[4:5], v[6:7], s[4:5] op_sel_hi:[1,0]", 2, 2),
    ("valu-sgpr-valu", "v_cmp_lt_f32_e32 vcc, v0, v1", "v_cndmask_b32_e32 v2, v3, v4, vcc", 2, 2),
    ("valu-sgpr-valu", "v_cmp_lt_f32_e64 s[4:5], v0, v1", "v_cndmask_b32_e64 v2, v3, v4, s[4:5]", 2, 2),
    ("valu-sgpr-valu", "v_cmpx_lt_f32_e32 vcc, v0, v1", "v_mov_b32_e32 v2, exec_lo", 2, 2),
    ("valu-vcc-division", "v_div_scale_f32 v0, vcc, v1, v2, v1", "v_div_fmas_f32 v4, v5, v6, v7", 4, 4),
    ("valu-vcc-division", "v_cmp_lt_f32_e32 vcc, v1, v2", "v_div_fmas_f32 v4, v5, v6, v7", 4, 4),
    ("valu-sgpr-lane-select", "v_readfirstlane_b32 s4, v0", "v_readlane_b32 s5, v1, s4", 4, 4),
    ("valu-sgpr-lane-select", "v_readfirstlane_b32 s4, v0", "v_writelane_b32 v2, s6, s4", 4, 4),
    ("salu-m0", "s_mov_b32 m0, s9", "buffer_load_dword v2, s[4:7], 0 offen lds", 1, 1),
    ("salu-m0", "s_mov_b32 m0, s9", "s_sendmsg 1", 1, 1),
    # EXEC
    ("valu-exec-readlane", "v_cmpx_lt_f32_e32 vcc, v0, v1", "v_readlane_b32 s5, v2, 3", 4, 4),
    ("valu-exec-readlane", "v_cmpx_lt_f32_e32 vcc, v0, v1", "v_readfirstlane_b32 s5, v2", 4, 4),
    ("valu-exec-writelane", "v_cmpx_lt_f32_e32 vcc, v0, v1", "v_writelane_b32 v2, s6, 3", 4, 4),
    ("valu-exec-dpp", "v_cmpx_lt_f32_e32 vcc, v0, v1",
     "v_mov_b32_dpp v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf", 5, 5),
    ("valu-exec-permlane", "v_cmpx_lt_f32_e32 vcc, v0, v1", "v_permlane32_swap_b32_e32 v2, v3", 4, 4),
    ("valu-exec-mfma", "v_cmpx_lt_f32_e32 vcc, v90, v91", XDL4, 4, 4),
    # vector registers
    ("valu-readlane", "v_mov_b32_e32 v0, v1", "v_readlane_b32 s4, v0, 3", 1, 1),
    ("valu-readlane", "v_mov_b32_e32 v0, v1", "v_readfirstlane_b32 s4, v0", 1, 1),
    ("valu-dpp", "v_mov_b32_e32 v3, v1", "v_mov_b32_dpp v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf", 2, 2),
    ("valu-permlane", "v_mov_b32_e32 v2, v1", "v_permlane16_swap_b32_e32 v2, v3", 2, 2),
    ("valu-permlane", "v_pk_mul_f32 v[2:3], v[2:3], v[4:5]", "v_permlane32_swap_b32_e32 v8, v3", 2, 2),
    ("transcendental-valu", "v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v3", 1, 1),
    ("transcendental-valu", "v_rcp_f32_e32 v5, v0", "v_pk_mul_f32 v[6:7], v[4:5], v[2:3]", 1, 1),
    ("moved-result-valu", f"v_add_f16_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD {WORDS}",
     "v_mov_b32_e32 v3, v0", 1, 1),
    ("moved-result-valu", f"v_add_f16_sdwa v0, v1, v2 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE {WORDS}",
     f"v_add_f16_sdwa v0, v3, v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE {WORDS}", 1, 1),
    ("moved-result-valu", "v_mad_u16 v0, v1, v2, v3 op_sel:[0,0,0,1]", "v_mov_b32_e32 v3, v0", 1, 1),
    ("store-data", "global_store_dwordx4 v[8:9], v[0:3], off", OVERWRITE, 2, 2),
    ("store-data", "global_store_dwordx3 v[8:9], v[1:3], off", OVERWRITE, 2, 2),
    ("store-data", "buffer_store_dwordx4 v[0:3], v8, s[4:7], 0 offen",
     "v_pk_mov_b32 v[2:3], v[4:5], v[4:5]", 2, 2),
    ("store-data", "global_atomic_cmpswap_x2 v[8:9], v[0:3], off", OVERWRITE, 2, 2),
    ("store-data", "buffer_store_dwordx4 v[0:3], v8, s[4:7], s8 offen", OVERWRITE, 1, 1),
    # dot products
    ("dot-dot", "v_dot2_f32_f16 v0, v1, v2, v3", "v_dot2_f32_f16 v4, v0, v2, v3", 3, 3),
    ("dot-read", "v_dot2_f32_f16 v0, v1, v2, v3", "v_dot4_i32_i8 v4, v1, v2, v0", 3, 3),
    ("dot-read", "v_dot2_f32_f16 v0, v1, v2, v3", "v_dot4_i32_i8 v4, v0, v2, v3", 3, 3),
    ("dot-read", "v_dot4_i32_i8 v0, v1, v2, v3", "v_mov_b32_e32 v4, v0", 3, 3),
    ("dot-read", "v_dot4_i32_i8 v0, v1, v2, v3", "ds_read_b32 v4, v0", 3, 3),
    ("dot-overwrite", "v_dot4_i32_i8 v0, v1, v2, v3", "v_mov_b32_e32 v0, v4", 3, 3),
    # into the matrix core
    ("valu-mfma", "v_cvt_pk_bf16_f32 v41, v90, v91", XDL4, 2, 2),
    ("valu-mfma", "v_pk_mul_f32 v[42:43], v[90:91], v[92:93]", XDL4, 2, 2),
    ("valu-mfma", "v_accvgpr_write_b32 a3, v1",
     "v_mfma_f32_16x16x16_bf16 a[4:7], v[4:5], v[6:7], a[0:3]", 2, 2),
    # from one MFMA to another
    ("xdl-accumulate", XDL2, "v_mfma_f32_4x4x4_16b_bf16 v[64:67], v[70:71], v[72:73], v[0:3]", 2, 2),
    ("xdl-source-c", XDL2, XDL_C, 4, 3),
    ("xdl-source-c", XDL2, "v_mfma_f32_16x16x16_bf16 v[0:3], v[70:71], v[72:73], v[0:3]", 4, 3),
    ("xdl-source-c", XDL4, XDL_C, 6, 5),
    ("xdl-source-c", XDL8, XDL_C, 10, 9),
    ("xdl-source-c", XDL16, XDL_C, 18, 17),
    ("xdl-source-c", XDL2, SGEMM_C, 3, 3),
    ("xdl-source-c", XDL4, SGEMM_C, 6, 5),
    ("xdl-source-c", XDL4, "v_mfma_f32_16x16x4_f32 v[0:3], v70, v71, v[0:3]", 6, 5),
    ("xdl-source-c", XDL8, SGEMM_C, 10, 9),
    ("xdl-source-c", XDL16, SGEMM_C, 18, 17),
    ("xdl-source-ab", XDL2, XDL_A, 5, 5),
    ("xdl-source-ab", XDL4, XDL_B, 8, 7),
    ("xdl-source-ab", XDL8, XDL_A, 12, 11),
    ("xdl-source-ab", XDL16, SGEMM_A, 20, 19),
    ("sgemm-accumulate", SGEMM2, "v_mfma_f32_4x4x1_16b_f32 v[64:67], v70, v72, v[0:3]", 2, 2),
    ("sgemm-source-c", SGEMM2, SGEMM_C, 2, 2),
    ("sgemm-source-c", SGEMM8, SGEMM_C, 8, 8),
    ("sgemm-source-c", SGEMM16, SGEMM_C, 16, 16),
    ("sgemm-source-ab", SGEMM2, XDL_A, 4, 4),
    ("sgemm-source-ab", SGEMM8, XDL_B, 10, 10),
    ("sgemm-source-ab", SGEMM16, SGEMM_A, 18, 18),
    ("dgemm-source-c", DGEMM, SGEMM_C, 17, 9),
    ("dgemm-source-ab", DGEMM, XDL_A, 19, 11),
    ("dgemm-source-ab", DGEMM, "v_mfma_f64_16x16x4_f64 v[64:71], v[2:3], v[72:73], 0", 19, 11),
    # out of the matrix core
    ("xdl-read", "v_mfma_f32_16x16x16_bf16 a[0:3], v[4:5], v[6:7], 0", "v_accvgpr_read_b32 v0, a0", 8, 7),
    ("xdl-overwrite", XDL4, "v_pk_mul_f32 v[2:3], v[92:93], v[94:95]", 8, 7),
    *[
        (f"{unit}-{rule}", first, second, *states)
        for unit, first, states in (
            ("xdl", XDL2, (5, 5)), ("xdl", XDL4, (8, 7)), ("xdl", XDL8, (12, 11)), ("xdl", XDL16, (20, 19)),
            ("sgemm", SGEMM2, (4, 4)), ("sgemm", SGEMM8, (10, 10)), ("sgemm", SGEMM16, (18, 18)),
        )
        for rule, second in (("read", READ), ("read", LOAD), ("read", STORE), ("overwrite", OVERWRITE))
    ],
    ("dgemm-read", DGEMM, READ, 19, 11),
    ("dgemm-read", DGEMM, LOAD, 18, 18),
    ("dgemm-read", DGEMM, STORE, 18, 18),
    ("dgemm-overwrite", DGEMM, OVERWRITE, 19, 11),
    ("dgemm-fma64", DGEMM, "v_fma_f64 v[60:61], v[62:63], v[64:65], v[66:67]", 2, 2),
    ("xdl-source-c-overwrite", XDL2, "v_mov_b32_e32 v20, 0", 1, 1),
    ("xdl-source-c-overwrite", XDL4, "v_mov_b32_e32 v23, 0", 3, 3),
    ("xdl-source-c-overwrite", XDL8, "v_mov_b32_e32 v31, 0", 7, 7),
    ("xdl-source-c-overwrite", XDL16, "v_mov_b32_e32 v32, 0", 15, 15),
]  # fmt: skip


@pytest.mark.parametrize("target", [Y, N])
@pytest.mark.parametrize(
    "rule, first, second, gfx950, gfx942",
    CASES,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)],
)
def test_one_state_short(rule, first, second, gfx950, gfx942, target):
    required = gfx950 if target == Y else gfx942
    spacing = nops(required - 1)
    found = hazards("\n".join([first, *spacing, second]), target)
    assert [(h.rule, h.required, h.found) for h in found] == [(rule, required, required - 1)]
    assert (found[0].kind, found[0].producer_line, found[0].line) == (
        "hazard", FIRST_LINE, FIRST_LINE + 1 + len(spacing),
    )  # fmt: skip
    assert not hazards("\n".join([first, *nops(required), second]), target)


def test_every_rule_has_a_case():
    # The only double-precision MFMA that the emulator has, 16x16x4, accumulates in place without waiting.
    assert {rule.name for rule in RULES} - {case[0] for case in CASES} == {"dgemm-accumulate"}


@pytest.mark.parametrize("target", [Y, N])
def test_double_precision_of_four_passes(target):
    """v_mfma_f64_4x4x4, which the emulator does not have, in the order of AMD's table."""
    states = [rule.required(4, target) for rule in RULES if "dgemm" in rule.producer.traits]
    assert states == [4, 4, 6, 6, 9, 6, 2]


# Pairs that no rule holds apart, back to back.
INDEPENDENT = [
    (XDL4, "v_mfma_f32_16x16x16_bf16 v[0:3], v[44:45], v[46:47], v[0:3]"),
    (XDL4, "v_mfma_f32_16x16x32_bf16 v[60:63], v[44:47], v[48:51], v[0:3]"),
    (XDL8, "v_mfma_f32_32x32x8_f16 v[0:15], v[44:45], v[46:47], v[0:15]"),
    (XDL16, "v_mfma_i32_32x32x4_2b_i8 v[0:31], v82, v83, v[0:31]"),
    (SGEMM16, "v_mfma_f32_32x32x2_f32 v[0:15], v44, v46, v[0:15]"),
    (SGEMM8, "v_mfma_f32_16x16x4_f32 v[0:3], v44, v46, v[0:3]"),
    (SGEMM8, XDL_C),
    (DGEMM, XDL_C),
    (DGEMM, "v_mfma_f64_16x16x4_f64 v[0:7], v[44:45], v[46:47], v[0:7]"),
    (XDL4, "v_mfma_f32_16x16x16_bf16 v[0:3], v[40:41], v[42:43], 0"),
    (XDL4, "v_mov_b32_e32 v4, v5"),
    (XDL4, "v_mov_b32_e32 v41, 0"),
    (XDL4, "ds_read_b64 v[0:1], v90"),
    (SGEMM8, "v_mov_b32_e32 v20, 0"),
    ("v_add_co_u32_e32 v0, vcc, v1, v2", "v_addc_co_u32_e32 v3, vcc, v4, v5, vcc"),
    ("v_readfirstlane_b32 s4, v0", "s_add_u32 s5, s4, 1"),
    ("v_readfirstlane_b32 s4, v0", "s_load_dword s6, s[4:5], 0x0"),
    ("s_mov_b32 s4, s5", "global_load_dword v1, v2, s[4:5]"),
    ("s_mov_b32 s4, s5", "v_add_f32_e32 v1, s4, v2"),
    ("s_mov_b64 exec, s[4:5]", "v_readlane_b32 s6, v2, 3"),
    ("s_mov_b64 vcc, s[4:5]", "v_div_fmas_f32 v4, v5, v6, v7"),
    ("s_mov_b32 s4, s5", "v_readlane_b32 s5, v1, s4"),
    ("s_mov_b64 exec, s[4:5]", XDL4),
    ("v_cmpx_lt_f32_e32 vcc, v0, v1", "v_add_f32_e32 v2, v3, v4"),
    ("v_cmpx_lt_f32_e32 vcc, v0, v1", "global_load_dword v1, v2, s[4:5]"),
    ("v_mov_b32_e32 v0, v1", "v_add_f32_e32 v2, v0, v3"),
    ("v_mov_b32_e32 v2, v1", "v_mov_b32_dpp v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf"),
    ("ds_read_b32 v2, v1", "v_permlane16_swap_b32_e32 v2, v3"),
    ("v_mov_b32_e32 v0, v1", "global_store_dword v[2:3], v0, off"),
    ("v_exp_f32_e32 v0, v1", "v_log_f32_e32 v2, v0"),
    ("v_exp_f32_e32 v0, v1", "v_add_f32_e32 v0, v2, v3"),
    ("v_exp_f32_e32 v0, v1", "ds_write_b32 v2, v0"),
    ("v_exp_f16_e32 v0, v1", "v_pk_mul_f16 v0, v2, v3"),
    ("v_lshlrev_b32_sdwa v0, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0",
     "v_mov_b32_e32 v3, v0"),
    ("v_mad_u16 v0, v1, v2, v3 op_sel:[1,1,1,0]", "v_mov_b32_e32 v3, v0"),
    ("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,1] op_sel_hi:[1,1]", "v_mov_b32_e32 v3, v0"),
    ("v_fma_mix_f32 v0, v1, v2, v3 op_sel:[0,0,1] op_sel_hi:[1,1,1]", "v_mov_b32_e32 v3, v0"),
    ("global_store_dwordx2 v[8:9], v[2:3], off", OVERWRITE),
    ("global_store_dwordx4 v[8:9], v[0:3], off", "v_mov_b32_e32 v8, 0"),
    ("global_load_dwordx4 v[0:3], v[8:9], off", "v_mov_b32_e32 v8, 0"),
    ("global_atomic_cmpswap v[8:9], v[2:3], off", OVERWRITE),
    ("v_dot2_f32_f16 v0, v1, v2, v3", "v_dot2_f32_f16 v0, v4, v5, v0"),
    ("s_mov_b32 m0, s9", "buffer_load_dword v1, v2, s[4:7], 0 offen"),
    ("v_mov_b32_e32 v90, v91", XDL4),
]  # fmt: skip


@pytest.mark.parametrize("target", [Y, N])
@pytest.mark.parametrize("first, second", INDEPENDENT, ids=range(len(INDEPENDENT)))
def test_no_rule(first, second, target):
    assert not hazards(f"{first}\n{second}", target)


@pytest.mark.parametrize(
    "rule, first, second, register",
    [
        ("valu-sgpr-vmem", "v_readfirstlane_b32 s5, v0", "global_load_dword v1, v2, s[4:5]", "s5"),
        ("valu-sgpr-valu", "v_cmp_lt_f32_e32 vcc, v0, v1", "v_cndmask_b32_e32 v2, v3, v4, vcc", "vcc_lo"),
        ("salu-m0", "s_mov_b32 m0, s9", "s_sendmsg 1", "m0"),
        ("valu-exec-mfma", "v_cmpx_lt_f32_e32 vcc, v90, v91", XDL4, "exec_lo"),
        ("xdl-read", XDL4, "v_add_f32_e32 v8, v3, v2", "v2"),
        ("xdl-read", "v_mfma_f32_16x16x16_bf16 a[0:3], v[4:5], v[6:7], 0", "ds_write_b32 v0, a1", "a1"),
    ],
)
def test_register(rule, first, second, register):
    assert [(h.rule, h.register) for h in hazards(f"{first}\n{second}")] == [(rule, register)]


@pytest.mark.parametrize(
    "between",
    [
        "s_nop 1",
        "v_mov_b32_e32 v50, v51\nv_mov_b32_e32 v50, v51",
        "s_waitcnt vmcnt(0)\ns_barrier",
        "v_pk_mul_f32 v[50:51], v[50:51], v[52:53]\nv_pk_mul_f16 v50, v50, v53",
    ],
)
def test_every_instruction_is_one_state(between):
    two = f"v_mov_b32_e32 v41, 0\n{between}\n{XDL4}"
    assert not hazards(two)
    lines = two.splitlines()
    short = [lines[0], "s_nop 0" if len(lines) == 3 else lines[1], lines[-1]]
    assert [(h.required, h.found) for h in hazards("\n".join(short))] == [(2, 1)]


# ---------------------------------------------------------------- paths


def test_shortest_path_counts():
    body = f"{XDL4}\ns_cbranch_scc1 short\ns_nop 7\ns_nop 7\nshort:\n{READ}"
    assert [(h.rule, h.found) for h in hazards(body)] == [("xdl-read", 1)]
    assert not hazards(body.replace(XDL4, f"{XDL4}\ns_nop 6"))
    assert [h.found for h in hazards(f"{XDL4}\ns_cbranch_scc1 on\ns_nop 1\non:\n{READ}")] == [1]
    assert [h.found for h in hazards(f"{XDL4}\ns_cbranch_scc1 far\non:\n{READ}\nfar:\ns_branch on")] == [1]


def test_around_a_loop():
    body = "again:\nv_add_f32_e32 v90, 1.0, v3\ns_nop {}\n" + XDL4 + "\ns_cbranch_scc1 again"
    (hazard,) = hazards(body.format(0))
    assert (hazard.rule, hazard.found) == ("xdl-read", 1)
    assert hazard.line < hazard.producer_line
    assert not hazards(body.format(0).replace("s_cbranch", "s_nop 6\ns_cbranch"))


def test_a_loop_may_be_its_own_predecessor():
    """The dot product reads its own result of the last time round."""
    assert [h.found for h in hazards("again:\nv_dot4_i32_i8 v0, v0, v1, v2\ns_branch again")] == [1]
    assert not hazards("again:\nv_dot4_i32_i8 v0, v0, v1, v2\ns_nop 1\ns_branch again")


def test_code_that_does_not_follow():
    assert not hazards(f"{XDL4}\ns_endpgm\n{READ}")
    assert not hazards(f"{XDL4}\ns_branch on\n{READ}\non:\ns_endpgm")


def test_paths_keep_their_own_account():
    """The accumulator is overwritten on the shorter path alone, so the longer one still owes its wait."""
    write = "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[80:81], v[82:83], 0"
    body = f"{XDL16}\ns_cbranch_scc1 far\n{write}\ns_branch join\nfar:\ns_nop 5\njoin:\ns_nop 4\n{READ}"
    assert [(h.required, h.found) for h in hazards(body)] == [(20, 12)]


def test_a_nearer_write_supersedes():
    """What the second MFMA wrote is due after its own passes, however many the first one takes."""
    write = "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[80:81], v[82:83], 0"
    assert not hazards(f"{XDL16}\n{write}\ns_nop 4\n{READ}")
    (hazard,) = hazards(f"{XDL16}\n{write}\ns_nop 4\nv_add_f32_e32 v90, v3, v4")
    assert (hazard.register, hazard.required, hazard.found) == ("v4", 20, 6)


def test_only_vector_instructions_supersede():
    assert [h.found for h in hazards(f"{XDL4}\nds_read_b32 v3, v90\ns_waitcnt lgkmcnt(0)\n{READ}")] == [2]


def test_both_of_two_hazards():
    body = f"v_exp_f32_e32 v0, v1\nv_mov_b32_e32 v40, 0\n{XDL4}\nv_add_f32_e32 v2, v0, v3"
    assert [h.rule for h in hazards(body)] == ["valu-mfma", "xdl-overwrite", "xdl-read"]


def test_unknown_target():
    with pytest.raises(ValueError, match="expected a target of gfx942 or gfx950, got gfx90a"):
        hazards("s_nop 0", "gfx90a")


def test_message():
    (hazard,) = hazards(f"v_mov_b32_e32 v41, 0\ns_nop 0\n{XDL4}")
    assert str(hazard) == (
        f"hazard at line {FIRST_LINE + 2}: valu-mfma on v41 after line {FIRST_LINE} "
        "needs 2 wait states, has 1"
    )


# ---------------------------------------------------------------- passes

PASSES = {
    2: ("f32_4x4x1_16b_f32", "f32_4x4x4_16b_f16", "f32_4x4x4_16b_bf16", "i32_4x4x4_16b_i8"),
    4: ("f32_16x16x16_bf16", "f32_16x16x32_bf16", "f32_16x16x16_f16", "f32_16x16x32_f16", "i32_16x16x32_i8",
        "i32_16x16x64_i8"),
    8: ("f32_16x16x4_f32", "f32_16x16x1_4b_f32", "f32_16x16x4_4b_bf16", "f32_16x16x4_4b_f16",
        "i32_16x16x4_4b_i8", "f32_32x32x8_bf16", "f32_32x32x16_bf16", "f32_32x32x8_f16", "f32_32x32x16_f16",
        "i32_32x32x16_i8", "i32_32x32x32_i8"),
    16: ("f32_32x32x2_f32", "f32_32x32x1_2b_f32", "f32_32x32x4_2b_bf16", "f32_32x32x4_2b_f16",
         "i32_32x32x4_2b_i8", "f64_16x16x4_f64"),
}  # fmt: skip
"""On gfx950, as LLVM's schedule gives them."""


@pytest.mark.parametrize("passes, names", PASSES.items())
def test_passes(passes, names):
    for name in names:
        assert matrix_passes(SHAPES[f"v_mfma_{name}"], Y) == passes, name
        assert matrix_passes(SHAPES[f"v_mfma_{name}"], N) == (8 if "f64" in name else passes), name


def test_passes_of_every_shape():
    assert {f"v_mfma_{name}" for names in PASSES.values() for name in names} == set(SHAPES)


# ---------------------------------------------------------------- compiled kernels


def shortened(kernel: Program) -> list[tuple[int, Program]]:
    """For each s_nop its row and the program with one wait state less there."""
    programs = []
    for row in range(len(kernel.code)):
        if instruction_name(kernel, row) == "s_nop":
            code = kernel.code.copy()
            code[row, enc.OFFSET] -= 1
            programs.append((row, dataclasses.replace(kernel, code=code)))
    return programs


def llvm_alone_waits(before: str, after: str) -> bool:
    """LLVM inserts nops that the manuals do not ask for.

    It takes op_sel_hi of a packed instruction's first source for an op_sel of the result (the two share a
    bit), keeps loads as far from an MFMA as vector instructions, breaks runs of loads that overwrite their
    own address (a replay would need it), and lets a carry wait.
    """
    selected = re.search(r"op_sel_hi:\[(\d)", before)
    packed = before.startswith(("v_pk_", "v_fma_mix")) and (selected is None or selected[1] == "1")
    return packed or after.startswith(("global_load", "buffer_load", "ds_read", "v_addc_co", "v_subb_co"))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_decode_kernel(variant):
    kernel = parse_listing(compile_listing(variant))
    assert find_hazards(kernel) == []
    reported = 0
    for row, short in shortened(kernel):
        if find_hazards(short):
            reported += 1
        else:
            assert llvm_alone_waits(kernel.line(row - 1), kernel.line(row + 1)), kernel.lines[row]
    assert reported >= 4


def sample_kernels():
    fx = pytest.importorskip("flydsl.expr")
    from .. import sample_kernels as samples

    f32 = pointer(fx.Float32)
    yield samples.build_vector_add, (f32, f32, f32, 100), {}
    yield samples.build_softmax, (f32, f32, 3), {}
    yield samples.build_gemm, (pointer(fx.BFloat16), pointer(fx.BFloat16), f32), {}
    yield samples.build_row_softmax, (f32, f32, 3), {"columns": 1000}
    yield samples.build_rms_norm, (pointer(fx.BFloat16),) * 3 + (3,), {"columns": 1000}
    yield samples.build_histogram, (pointer(fx.Int32),) * 3 + (100,), {"bins": 50}
    yield samples.build_cross_lane, (pointer(fx.Int32),) * 3, {}
    for element, instruction, size, depth in (
        (fx.BFloat16, "mfma_f32_16x16x16bf16_1k", 16, 16),
        (fx.Float16, "mfma_f32_32x32x8f16", 32, 8),
        (fx.Int8, "mfma_i32_32x32x16_i8", 32, 16),
        (fx.Float32, "mfma_f32_32x32x2f32", 32, 2),
    ):
        result = fx.Int32 if element is fx.Int8 else fx.Float32
        yield (
            samples.build_tiled_gemm, (pointer(fx.Uint8), pointer(fx.Uint8), pointer(result), 128, 128),
            {"element": element, "instruction": instruction, "size": size, "depth": depth, "k": 64},
        )  # fmt: skip


@pytest.mark.parametrize("target", [Y, N])
def test_sample_kernels(target):
    reported = 0
    for builder, arguments, parameters in sample_kernels():
        listing = compile_builder(builder, *arguments, architecture=target, **parameters)
        kernel = parse_listing(listing)
        assert kernel.target == target
        assert find_hazards(kernel) == [], builder
        for row, short in shortened(kernel):
            if find_hazards(short):
                reported += 1
            else:
                assert llvm_alone_waits(kernel.line(row - 1), kernel.line(row + 1)), (builder, row)
    assert reported >= 10
