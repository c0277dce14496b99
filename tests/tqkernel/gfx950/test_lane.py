"""Moves between lanes and parts of registers: swaps, EXEC, DPP, SDWA, op_sel and sign modifiers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tqkernel.gfx950 import UnsupportedInstruction

from .machine import LANES, Step, program, run
from .pseudocode import fused_multiply_add, odd_float32
from .values import assert_same, inputs

Array = np.ndarray
U32, U64 = np.uint32, np.uint64
ALL = U64(2**64 - 1)
COVERED = {
    "v_nop", "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32", "v_swap_b32",
    "v_permlane16_swap_b32", "v_permlane32_swap_b32",
}  # fmt: skip
LANE = np.arange(LANES)
EXEC = U64(0x00F0FF0F_A5C31E70)
ENABLED = np.array([int(EXEC) >> lane & 1 for lane in range(LANES)], dtype=bool)


def columns(count: int) -> list[Array]:
    return list(np.random.default_rng(9).integers(0, 2**32, (count, LANES), dtype=U32))


def one_wave(
    text: str,
    results: tuple[str, ...],
    vectors: dict[str, Array],
    exec_mask: U64 = ALL,
    **scalars: int,
) -> tuple[Array, ...]:
    """Results of a wave's instructions under an EXEC (s[8:9])."""
    values = {"s[8:9]": np.array([exec_mask], U64)} | {
        name: np.array([value], U32) for name, value in scalars.items()
    }
    return run([Step(f"s_mov_b64 exec, s[8:9]\n{text}", results)], vectors, values)[0]


@pytest.mark.parametrize(
    "exec_mask, lane", ((2**64 - 1, 0), (0x10, 4), (1 << 63, 63), (0xF0F0 << 32, 36), (0, 0))
)
def test_readfirstlane_takes_the_first_enabled_lane(exec_mask: int, lane: int) -> None:
    (x,) = columns(1)
    (got,) = one_wave("v_readfirstlane_b32 s20, v2", ("s20",), {"v2": x}, U64(exec_mask))
    assert got[0] == x[lane]


@pytest.mark.parametrize("lane", (0, 17, 63, 64 + 5))
def test_readlane_and_writelane_ignore_exec(lane: int) -> None:
    x, old = columns(2)
    text = (
        "v_readlane_b32 s20, v2, s10\nv_writelane_b32 v4, s11, s10\nv_writelane_b32 v6, -7, 3\n"
        "v_readlane_b32 s21, v2, 9"
    )
    got = one_wave(
        text, ("s20", "v4", "v6", "s21"), {"v2": x, "v4": old, "v6": old}, U64(0), s10=lane, s11=123
    )
    assert got[0][0] == x[lane & 63] and got[3][0] == x[9]
    assert (got[1] == np.where(lane & 63 == LANE, 123, old)).all()
    assert (got[2] == np.where(LANE == 3, U32(2**32 - 7), old)).all()


def test_swap_exchanges_enabled_lanes() -> None:
    a, b = columns(2)
    x, y = one_wave("v_swap_b32 v2, v4\nv_nop", ("v2", "v4"), {"v2": a, "v4": b}, EXEC)
    assert (x == np.where(ENABLED, b, a)).all() and (y == np.where(ENABLED, a, b)).all()


def test_permlane16_swap_exchanges_odd_rows_with_even_rows() -> None:
    a, b = columns(2)
    x, y = one_wave("v_permlane16_swap_b32 v2, v4", ("v2", "v4"), {"v2": a, "v4": b})
    first, second = a.reshape(4, 16).copy(), b.reshape(4, 16).copy()
    first[[1, 3]], second[[0, 2]] = b.reshape(4, 16)[[0, 2]], a.reshape(4, 16)[[1, 3]]
    assert (x.reshape(4, 16) == first).all() and (y.reshape(4, 16) == second).all()


def test_permlane32_swap_exchanges_halves() -> None:
    a, b = columns(2)
    x, y = one_wave("v_permlane32_swap_b32 v2, v4", ("v2", "v4"), {"v2": a, "v4": b})
    assert (x == np.concatenate([a[:32], b[:32]])).all() and (y == np.concatenate([a[32:], b[32:]])).all()


# ---------------------------------------------------------------- EXEC


def test_disabled_lanes_keep_their_results() -> None:
    a, b, old = columns(3)
    wide = np.stack([old, ~old], -1).view(U64).reshape(-1)
    text = "v_add_u32_e32 v20, v2, v4\nv_lshlrev_b64 v[22:23], 1, v[22:23]\nv_add_co_u32_e32 v24, vcc, v2, v4"
    got, pair, total, carry = one_wave(
        text,
        ("v20", "v[22:23]", "v24", "vcc"),
        {"v2": a, "v4": b, "v20": old, "v[22:23]": wide, "v24": old},
        EXEC,
    )
    assert (got == np.where(ENABLED, a + b, old)).all()
    assert (pair == np.where(ENABLED, wide << U64(1), wide)).all()
    assert (total == np.where(ENABLED, a + b, old)).all()
    carries = (a.astype(U64) + b >> U64(32)).astype(bool) & ENABLED
    assert carry[0] == np.packbits(carries, bitorder="little").view(U64)[0]


# ---------------------------------------------------------------- DPP

# Control -> the lane each lane reads, -1 for none.
ROW, AT = LANE // 16 * 16, LANE % 16
DPP = {
    "quad_perm:[3,1,0,2]": LANE // 4 * 4 + np.array([3, 1, 0, 2])[LANE % 4],
    "quad_perm:[0,0,2,2]": LANE // 4 * 4 + np.array([0, 0, 2, 2])[LANE % 4],
    **{f"row_shl:{n}": np.where(AT + n < 16, LANE + n, -1) for n in (1, 4, 15)},
    **{f"row_shr:{n}": np.where(n <= AT, LANE - n, -1) for n in (1, 8, 15)},
    **{f"row_ror:{n}": ROW + (AT - n) % 16 for n in (1, 5, 15)},
    "wave_shl:1": np.where(LANE < 63, LANE + 1, -1),
    "wave_rol:1": (LANE + 1) % 64,
    "wave_shr:1": LANE - 1,
    "wave_ror:1": (LANE - 1) % 64,
    "row_mirror": ROW + 15 - AT,
    "row_half_mirror": LANE // 8 * 8 + 7 - LANE % 8,
    "row_bcast:15": np.where(LANE >= 16, ROW - 1, -1),
    "row_bcast:31": np.where(LANE >= 32, 31, -1),
    **{f"row_newbcast:{n}": ROW + n for n in (0, 7, 15)},
}


@pytest.mark.parametrize("bound", (False, True), ids=("keep", "zero"))
@pytest.mark.parametrize("exec_mask", (ALL, EXEC), ids=("all", "some"))
@pytest.mark.parametrize("control", DPP)
def test_dpp_reads_another_lane(control: str, exec_mask: U64, bound: bool) -> None:
    x, y, old = columns(3)
    enabled = np.array([int(exec_mask) >> lane & 1 for lane in range(LANES)], dtype=bool)
    for row_mask, bank_mask in ((15, 15), (0b1010, 15), (15, 0b0110)):
        masks = f"row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}" + (" bound_ctrl:1" if bound else "")
        text = f"v_mov_b32_dpp v20, v2 {control} {masks}\nv_sub_u32_dpp v22, v2, v4 {control} {masks}"
        moved, subtracted = one_wave(
            text, ("v20", "v22"), {"v2": x, "v4": y, "v20": old, "v22": old}, exec_mask
        )
        source = DPP[control]
        valid = (source >= 0) & enabled[source]
        value = np.where(valid, x[source], 0).astype(U32)
        write = (
            enabled
            & (row_mask >> LANE // 16 & 1 == 1)
            & (bank_mask >> LANE % 16 // 4 & 1 == 1)
            & (valid | bound)
        )
        assert (moved == np.where(write, value, old)).all(), text
        assert (subtracted == np.where(write, value - y, old)).all(), text


def test_dpp_takes_sign_modifiers() -> None:
    x, y = (column.view(np.float32) for column in (inputs(("f32",))[0][:64], inputs(("f32",))[0][64:128]))
    text = "v_add_f32_dpp v20, -v2, |v4| row_ror:3 row_mask:0xf bank_mask:0xf"
    (got,) = one_wave(text, ("v20",), {"v2": x.view(U32), "v4": y.view(U32)})
    assert_same(got, (-x[DPP_ROTATED] + np.abs(y)).view(U32), "f32", [x.view(U32), y.view(U32)], text)


DPP_ROTATED = ROW + (AT - 3) % 16

# ---------------------------------------------------------------- SDWA

SELECTS = {
    "DWORD": (0, 32), "BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8),
    "WORD_0": (0, 16), "WORD_1": (16, 16),
}  # fmt: skip


def selected(x: Array, select: str, extend: bool = False) -> Array:
    shift, bits = SELECTS[select]
    field = (x >> U32(shift)) & U32(2**bits - 1)
    return (field.astype(np.int64) - (field >> U32(bits - 1)).astype(np.int64) * 2**bits * extend).astype(U32)


@pytest.mark.parametrize("extend", (False, True), ids=("zero", "sign"))
@pytest.mark.parametrize("select", SELECTS)
def test_sdwa_selects_parts_of_sources(select: str, extend: bool) -> None:
    x, y = inputs(("u32", "u32"))
    a = "sext(v2)" if extend else "v2"
    whole = "dst_sel:DWORD dst_unused:UNUSED_PAD"
    steps = [
        Step(
            f"v_add_u32_sdwa v20, {a}, v4 {whole} src0_sel:{select} src1_sel:WORD_1",
            ("v20",),
        ),
        Step(
            f"v_and_b32_sdwa v20, v4, {a} {whole} src0_sel:DWORD src1_sel:{select}",
            ("v20",),
        ),
        Step(f"v_mov_b32_sdwa v20, {a} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:{select}", ("v20",)),
        Step(f"v_cmp_lt_u32_sdwa vcc, {a}, v4 src0_sel:{select} src1_sel:DWORD", ("vcc",)),
    ]
    (total,), (both,), (moved,), (less,) = run(steps, {"v2": x, "v4": y})
    part = selected(x, select, extend)
    assert (total == part + (y >> U32(16))).all()
    assert (both == (part & y)).all()
    assert (moved == part).all()
    assert (less == np.packbits(part < y, bitorder="little").view(U64)).all()


@pytest.mark.parametrize("unused", ("UNUSED_PAD", "UNUSED_PRESERVE"))
@pytest.mark.parametrize("select", SELECTS)
def test_sdwa_writes_part_of_the_destination(select: str, unused: str) -> None:
    x, y, old = inputs(("u32", "u32", "u32"))
    text = f"v_add_u32_sdwa v20, v2, v4 dst_sel:{select} dst_unused:{unused} src0_sel:DWORD src1_sel:DWORD"
    ((got,),) = run([Step(text, ("v20",))], {"v2": x, "v4": y, "v20": old})
    shift, bits = SELECTS[select]
    field = U32((2**bits - 1) << shift & 0xFFFFFFFF)
    kept = U32(0) if unused == "UNUSED_PAD" else old & ~field
    assert (got == (kept | ((x + y) << U32(shift)) & field)).all(), text


@pytest.mark.parametrize("half", (0, 1))
def test_sdwa_selects_a_half_to_compute_with(half: int) -> None:
    x, y = inputs(("f16", "f16"))
    part = [(column >> U32(16 * half)).astype(np.uint16).view(np.float16) for column in (x, y)]
    steps = [
        Step(
            f"v_cvt_f32_f16_sdwa v20, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_{half}", ("v20",)
        ),
        Step(
            f"v_add_f16_sdwa v20, -v2, |v4| dst_sel:WORD_{half} dst_unused:UNUSED_PAD "
            f"src0_sel:WORD_{half} src1_sel:WORD_{half}",
            ("v20",),
        ),
    ]
    (wide,), (total,) = run(steps, {"v2": x, "v4": y})
    assert_same(wide, part[0].astype(np.float32).view(U32), "f32", [x], "v_cvt_f32_f16_sdwa")
    expected = (np.abs(part[1]) - part[0]).view(np.uint16).astype(U32)
    assert_same(total >> U32(16 * half), expected, "f16", [x, y], "v_add_f16_sdwa")
    assert not (total & U32(0xFFFF0000 if half == 0 else 0xFFFF)).any()


# ---------------------------------------------------------------- sign modifiers, clamp, op_sel


@pytest.mark.parametrize("a, b", list(itertools.product(("{}", "-{}", "|{}|", "-|{}|"), repeat=2)))
def test_negate_and_absolute_act_on_the_sign_bit(a: str, b: str) -> None:
    def modified(column: Array, how: str) -> Array:
        sign = U64(1 << 63) if column.dtype == U64 else U32(1 << 31)
        column = column & ~sign if "|" in how else column
        return column ^ sign if "-" in how else column

    x, y = inputs(("f32", "f32"))
    p, q = inputs(("f64", "f64"))
    steps = [
        Step(f"v_mul_f32_e64 v20, {a.format('v2')}, {b.format('v4')}", ("v20",)),
        Step(f"v_mul_f64 v[20:21], {a.format('v[6:7]')}, {b.format('v[8:9]')}", ("v[20:21]",)),
        Step(f"v_cndmask_b32_e64 v20, {a.format('v2')}, {b.format('v4')}, s[8:9]", ("v20",)),
    ]
    mask = np.random.default_rng(2).integers(0, 2**64, len(x) // 64, dtype=U64)
    (single,), (double,), (picked,) = run(
        steps, {"v2": x, "v4": y, "v[6:7]": p, "v[8:9]": q}, {"s[8:9]": mask}
    )
    product = modified(x, a).view(np.float32) * modified(y, b).view(np.float32)
    assert_same(single, product.view(U32), "f32", [x, y], steps[0].text)
    product64 = modified(p, a).view(np.float64) * modified(q, b).view(np.float64)
    assert_same(double, product64.view(U64), "f64", [p, q], steps[1].text)
    lanes = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    assert (picked == np.where(lanes, modified(y, b), modified(x, a))).all(), steps[2].text


def test_modifiers_reach_scalars_and_constants() -> None:
    (x,) = inputs(("f32",))
    steps = [
        Step("v_mul_f32_e64 v20, -s10, |v2|", ("v20",)), Step("v_add_f32_e32 v20, 0.15915494, v2", ("v20",)),
        Step("v_add_f32_e32 v20, 0x40490fdb, v2", ("v20",)), Step("v_mul_f32_e32 v20, -4.0, v2", ("v20",)),
        Step("v_add_u32_e32 v20, -5, v2", ("v20",)), Step("v_max_f32_e64 v20, v2, neg(0)", ("v20",)),
    ]  # fmt: skip
    results = [row[0] for row in run(steps, {"v2": x}, {"s10": np.full(len(x) // 64, 0x40200000, U32)})]
    real = x.view(np.float32)
    for step, got, want in zip(
        steps[:4],
        results,
        (
            np.float32(-2.5) * np.abs(real),
            real + np.float32(0.15915494),
            real + np.float32(np.pi),
            real * np.float32(-4),
        ),
        strict=False,
    ):
        assert_same(got, want.view(U32), "f32", [x], step.text)
    assert (results[4] == x - U32(5)).all()
    positive = real > 0
    assert (results[5][positive] == x[positive]).all()


def test_clamp_holds_a_float_between_zero_and_one() -> None:
    x, y = inputs(("f32", "f32"))
    h, k = inputs(("f16", "f16"))
    steps = [
        Step("v_add_f32_e64 v20, v2, v4 clamp", ("v20",)), Step("v_mul_f16_e64 v20, v6, v8 clamp", ("v20",)),
        Step("v_pk_add_f16 v20, v6, v8 clamp", ("v20",)),
    ]  # fmt: skip
    (single,), (half,), (pair,) = run(steps, {"v2": x, "v4": y, "v6": h, "v8": k})

    def clamped(value: Array) -> Array:  # NaN to zero, as DX10_CLAMP says
        return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))

    def halves(column: Array, shift: int) -> Array:
        return (column >> U32(shift)).astype(np.uint16).view(np.float16)

    assert (single == clamped(x.view(np.float32) + y.view(np.float32)).view(U32)).all()
    assert (half == clamped(halves(h, 0) * halves(k, 0)).view(np.uint16)).all()
    for shift in (0, 16):
        want = clamped(halves(h, shift) + halves(k, shift)).view(np.uint16)
        assert ((pair >> U32(shift) & U32(0xFFFF)) == want).all()


@pytest.mark.parametrize("modifier", ("mul:2", "mul:4", "div:2"))
def test_output_scaling_is_refused(modifier: str) -> None:
    """The chip ignores it while subnormals are enabled, which launch requires."""
    with pytest.raises(UnsupportedInstruction, match="line 4: v_add_f32_e64: .*output"):
        program(f"v_add_f32_e64 v1, v2, v3 {modifier}")


@pytest.mark.parametrize("selects", list(itertools.product((0, 1), repeat=4)))
def test_op_sel_picks_halves_and_keeps_the_other(selects: tuple[int, ...]) -> None:
    x, y, z = inputs(("f16", "f16", "f16"))
    u, v, old = inputs(("u16", "u16", "u32"))
    text = f"op_sel:[{','.join(map(str, selects))}]"
    two = f"op_sel:[{selects[0]},{selects[1]},{selects[3]}]"
    steps = [
        Step(f"v_mov_b32 v20, v12\nv_fma_f16 v20, v2, -v4, |v6| {text}", ("v20",)),
        Step(f"v_mov_b32 v20, v12\nv_mad_u16 v20, v8, v10, v8 {text}", ("v20",)),
        Step(f"v_pack_b32_f16 v20, v2, v4 {two}", ("v20",)),
    ]
    (fused,), (mad,), (packed,) = run(steps, {"v2": x, "v4": y, "v6": z, "v8": u, "v10": v, "v12": old})

    def half(column: Array, which: int) -> Array:
        return column >> U32(16 * which) & U32(0xFFFF)

    def real(column: Array) -> Array:
        return column.astype(np.uint16).view(np.float16).astype(np.float64)

    shift = U32(16 * selects[3])
    a, b, c = (real(half(column, which)) for column, which in zip((x, y, z), selects, strict=False))
    want = (
        odd_float32(fused_multiply_add(a, -b, np.abs(c), 16)).astype(np.float16).view(np.uint16).astype(U32)
    )
    assert_same(fused >> shift & U32(0xFFFF), want, "f16", [x, y, z], steps[0].text)
    keep = ~(U32(0xFFFF) << shift)
    assert (fused & keep == old & keep).all()
    want = half(u, selects[0]) * half(v, selects[1]) + half(u, selects[2]) & U32(0xFFFF)
    assert (mad == (old & keep | want << shift)).all(), steps[1].text
    assert (packed == (half(x, selects[0]) | half(y, selects[1]) << U32(16))).all(), steps[2].text
