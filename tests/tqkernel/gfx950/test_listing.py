"""What the machine cannot execute is refused by name and line before anything runs."""

from __future__ import annotations

import pytest

from tqkernel.gfx950 import ListingError, UnsupportedInstruction, parse_listing
from tqkernel.gfx950 import encoding as enc

from .machine import FIRST_LINE, listing, program


@pytest.mark.parametrize(
    "text, named",
    (
        (
            "v_smfmac_f32_16x16x32_bf16 v[0:3], v[4:5], v[6:9], v1",
            "v_smfmac_f32_16x16x32_bf16 is not supported",
        ),
        ("s_setpc_b64 s[4:5]", "s_setpc_b64 is not supported"),
        ("v_frobnicate_b32_e32 v0, v1", "v_frobnicate_b32_e32 is not supported"),
        ("image_load v[0:3], v0, s[0:7]", "image_load is not supported"),
        ("v_add_f32_e64 v0, v1, v2 mul:2", "v_add_f32_e64: .*output scaling"),
        ("v_mul_lo_u32 v0, v1, v2 clamp", "v_mul_lo_u32: clamp on an integer"),
        ("v_pk_max_u16 v0, v1, v2 clamp", "v_pk_max_u16: clamp on an integer"),
        (
            "v_add_u32_sdwa v0, v1, v2 dst_sel:BYTE_0 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD",
            "UNUSED_SEXT",
        ),
        ("v_add_u32_e64 v0, v1, v2 wibble:1", "modifier wibble"),
        ("v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3] cbsz:1", "modifier cbsz"),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[4:5], v[6:7], v[0:7] neg:[1,0,0]", "modifier neg"),
        ("ds_add_u32 v0, v1 gds", "global data share"),
        ("ds_read_b32 v0, v1 wibble:3", "modifier wibble"),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(FFT, 3)", "swizzle mode FFT"),
        ("buffer_load_dword v0, v1, s[4:7], 0 tfe", "modifier tfe"),
        ("global_load_dword v0, v1, s[4:5] wibble", "modifier wibble"),
        ("v_add_f32_e32 v0, v1", "expected 2 sources, found 1"),
        ("v_add_f32_e32 v0, v1, v2, v3", "operand 'v3' is one too many"),
        ("v_mov_b32_e32 v0, banana", "operand 'banana'"),
        ("v_mov_b32_e32 5, v1", "destination '5' is not a register"),
        ("s_and_b32 s0, s1", "source is missing"),
        ("s_add_u32 s0, s1, src_shared_base", "src_shared_base"),
    ),
)
def test_unsupported_is_named_with_its_line(text: str, named: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=named) as caught:
        program(f"s_nop 0\n{text}")
    assert f"line {FIRST_LINE + 1}:" in str(caught.value)


def test_branch_to_an_unknown_label_is_named() -> None:
    with pytest.raises(
        ListingError, match=rf"line {FIRST_LINE + 1}: branch to .LBB9_9, which is not a label of kernel"
    ):
        program("s_nop 0\ns_cbranch_scc0 .LBB9_9")


def test_listing_without_or_with_several_kernels() -> None:
    with pytest.raises(ListingError, match="got none"):
        parse_listing("s_endpgm")
    two = listing("s_nop 0") + listing("s_nop 1").replace("kernel:", "other:").replace(
        "_kernel kernel", "_kernel other"
    )
    with pytest.raises(ListingError, match="got kernel, other"):
        parse_listing(two)
    assert parse_listing(two, "other").name == "other"
    assert len(parse_listing(two, "other").code) == 2
    with pytest.raises(ListingError, match="'third' is not in the listing, which has kernel, other"):
        parse_listing(two, "third")


def test_kernel_without_instructions() -> None:
    with pytest.raises(ListingError, match="kernel has no instructions"):
        parse_listing(listing("").replace("\ts_endpgm\n", ""))


def test_comments_and_debug_directives_are_no_instructions() -> None:
    plain = program("s_nop 0\nv_mov_b32_e32 v1, v2")
    noisy = program(
        "; a comment\n\ts_nop 0 ; one more\n\t.p2align 4\n.Lhere:\n\tv_mov_b32_e32 v1, v2 // and another\n"
    )
    assert (plain.code == noisy.code).all()
    assert noisy.line(1).startswith("v_mov_b32_e32 v1, v2")


def test_source_locations_are_read() -> None:
    kernel = program('\t.file\t1 "folder" "kernel.py"\n\t.loc\t1 42 7\n\tv_mov_b32_e32 v1, v2')
    assert kernel.locations[int(kernel.lines[0])] == ("kernel.py", 42)


def test_the_line_of_a_function_is_no_location() -> None:
    kernel = program('\t.file\t1 "kernel.py"\n\t.loc\t1 42 7\n\t.loc\t1 9 0\n\tv_mov_b32_e32 v1, v2')
    assert kernel.locations == {}


@pytest.mark.parametrize("triple", ["amdgcn-amd-amdhsa--gfx942", "amdgcn-amd-amdhsa-unknown-gfx942"])
def test_the_target_is_the_end_of_the_triple(triple: str) -> None:
    listing = f'\t.amdgcn_target "{triple}"\nk:\n\ts_endpgm\n.Lfunc_end0:\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n'
    assert parse_listing(listing).target == "gfx942"


@pytest.mark.parametrize(
    "line",
    [
        "v_add_i16 v1, v2, v3 op_sel:[0,0,1]",
        "v_mad_i16 v1, v2, v3, v4 op_sel:[0,0,0,1]",
        "v_cvt_f16_f32_e64 v1, v2 op_sel:[0,1]",
    ],
)
def test_the_last_entry_of_op_sel_is_the_results(line: str) -> None:
    assert program(line).code[0, enc.DESTINATION_MODE] & enc.HIGH_HALF
    assert not program(line.replace("1]", "0]")).code[0, enc.DESTINATION_MODE] & enc.HIGH_HALF
