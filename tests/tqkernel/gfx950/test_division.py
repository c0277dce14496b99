"""The division sequence that LLVM emits, and its parts: v_div_scale, v_div_fmas and v_div_fixup."""

from __future__ import annotations

import numpy as np
import pytest

from .machine import Step, run
from .pseudocode import fused_multiply_add
from .values import assert_same, inputs

U32, U64 = np.uint32, np.uint64
COVERED = {"v_div_scale_f32", "v_div_fmas_f32", "v_div_fixup_f32", "v_div_fixup_f16"}

SEQUENCE = """v_div_scale_f32 v21, s[4:5], v4, v4, v2
v_rcp_f32_e32 v34, v21
v_div_scale_f32 v36, vcc, v2, v4, v2
v_fma_f32 v37, -v21, v34, 1.0
v_fmac_f32_e32 v34, v37, v34
v_mul_f32_e32 v37, v36, v34
v_fma_f32 v38, -v21, v37, v36
v_fmac_f32_e32 v37, v38, v34
v_fma_f32 v21, -v21, v37, v36
v_div_fmas_f32 v21, v21, v34, v37
v_div_fixup_f32 v21, v21, v4, v2"""


def operands() -> list[np.ndarray]:
    """Numerators and denominators: all edge pairs, random bits, quotients around the ends of the range."""
    edge = inputs(("f32", "f32"), 8192)
    random = np.random.default_rng(5)
    a = random.integers(0, 2**32, 8192, dtype=U32)
    exponent = (a >> 23 & 255).astype(np.int64) + random.choice(
        [-1, 0, 1, 126, 127, 128, 149, 150, -126, -127, -128, 96], 8192
    )
    b = (
        (a & U32(0x80000000))
        | (np.clip(exponent, 0, 254).astype(U32) << 23)
        | random.integers(0, 2**23, 8192, dtype=U32)
    )
    return [np.concatenate([edge[0], a, b]), np.concatenate([edge[1], b, a])]


def test_sequence_is_ieee_division() -> None:
    a, b = operands()
    ((got,),) = run([Step(SEQUENCE, ("v21",))], {"v2": a, "v4": b})
    assert_same(got, (a.view(np.float32) / b.view(np.float32)).view(U32), "f32", [a, b], "division")


def test_scaling_of_each_operand() -> None:
    """One pair for each case of the manual: (numerator, denominator) -> their scalings and the flag."""
    cases = [
        (1.0, 3.0, 0, 0, 0),
        (2.0**120, 2.0**-10, 0, 64, 1),  # quotient near the largest float: only the denominator
        (1.0, 2.0**-130, 0, 0, 1),  # exponents 96 apart come first
        (2.0**-100, 2.0**-130, 64, 64, 0),  # subnormal denominator
        (2.0**10, 2.0**127, -64, -64, 0),  # subnormal reciprocal
        (2.0**-60, 2.0**127, 0, -64, 1),  # subnormal reciprocal and quotient: only the denominator
        (2.0**-120, 2.0**20, 64, 0, 1),  # subnormal quotient: only the numerator
        (2.0**-110, 2.0**-20, 64, 64, 0),  # tiny numerator
    ]
    a, b = (np.array([case[i] for case in cases] * 8, np.float32) for i in range(2))
    steps = [
        Step("v_div_scale_f32 v20, vcc, v2, v4, v2", ("v20", "vcc")),
        Step("v_div_scale_f32 v20, vcc, v4, v4, v2", ("v20", "vcc")),
    ]
    (numerator, flag), (denominator, _) = run(steps, {"v2": a.view(U32), "v4": b.view(U32)})
    for i, (x, y, up, down, scaled) in enumerate(cases):
        if (x, y) == (1.0, 2.0**-130):
            up, down = 0, 64
        assert numerator.view(np.float32)[i] == np.float32(x * 2.0**up), cases[i]
        assert denominator.view(np.float32)[i] == np.float32(y * 2.0**down), cases[i]
        assert int(flag[0]) >> i & 1 == scaled, cases[i]


@pytest.mark.parametrize("zero", (0, 1))
def test_scaling_by_zero_is_nan(zero: int) -> None:
    one, nil = np.full(64, 0x3F800000, U32), np.zeros(64, U32)
    a, b = (nil, one) if zero else (one, nil)
    ((got, flag),) = run([Step("v_div_scale_f32 v20, vcc, v2, v4, v2", ("v20", "vcc"))], {"v2": a, "v4": b})
    assert np.isnan(got.view(np.float32)).all() and flag[0] == 0


def test_fixup_puts_special_cases_right() -> None:
    quotient, b, a = inputs(("f32", "f32", "f32"))
    ((got,),) = run([Step("v_div_fixup_f32 v20, v2, v4, v6", ("v20",))], {"v2": quotient, "v4": b, "v6": a})
    q, x, y = (column.view(np.float32) for column in (quotient, a, b))
    exponents = [(column >> U32(23) & U32(255)).astype(np.int64) for column in (a, b)]
    result = np.abs(q)
    result = np.where(exponents[0] - exponents[1] < -150, np.float32(0), result)  # the quotient underflows
    with np.errstate(all="ignore"):
        special = ~np.isfinite(x) | ~np.isfinite(y) | (x == 0) | (y == 0)
        result = np.where(special, np.abs(x / y), np.where(np.isnan(result), np.inf, result))
    expected = np.where(np.isnan(result), result, np.where((a ^ b) >> U32(31) == 1, -result, result)).astype(
        np.float32
    )
    assert_same(got, expected.view(U32), "f32", [quotient, b, a], "v_div_fixup_f32")


def test_fmas_scales_where_vcc_says() -> None:
    a, b, c = inputs(("f32", "f32", "f32"))
    mask = np.random.default_rng(1).integers(0, 2**64, len(a) // 64, dtype=U64)
    text = "s_mov_b64 vcc, s[8:9]\nv_div_fmas_f32 v20, v2, v4, v6"
    ((got,),) = run([Step(text, ("v20",))], {"v2": a, "v4": b, "v6": c}, {"s[8:9]": mask})
    lanes = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    large = (c >> U32(23) & U32(255)) > 127  # the sum of a scaled pair lies on c's side of one
    exact = fused_multiply_add(*(column.view(np.float32).astype(np.float64) for column in (a, b, c)), 32)
    expected = np.ldexp(exact, np.where(lanes, np.where(large, 64, -64), 0)).astype(np.float32)
    assert_same(got, expected.view(U32), "f32", [a, b, c], "v_div_fmas_f32")


def test_fixup_of_halves_puts_special_cases_right() -> None:
    quotient, b, a = inputs(("f16", "f16", "f16"))
    ((got,),) = run([Step("v_div_fixup_f16 v20, v2, v4, v6", ("v20",))], {"v2": quotient, "v4": b, "v6": a})
    q, x, y = (column.astype(np.uint16).view(np.float16) for column in (quotient, a, b))
    with np.errstate(all="ignore"):
        special = ~np.isfinite(x) | ~np.isfinite(y) | (x == 0) | (y == 0)
        result = np.where(special, np.abs(x / y), np.abs(q))
    expected = np.where(np.signbit(x) != np.signbit(y), -result, result).astype(np.float16)
    same = np.isnan(expected) | (got.astype(np.uint16) == expected.view(np.uint16))
    assert same.all() and np.isnan(got.astype(np.uint16).view(np.float16)[np.isnan(expected)]).all()
