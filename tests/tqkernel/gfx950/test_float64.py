"""float64 reciprocals and roots, which the chip approximates, and the division that LLVM makes of one."""

from __future__ import annotations

import numpy as np
import pytest

from .machine import Step, run
from .values import assert_same, inputs

U64 = np.uint64
COVERED = {
    "v_div_fixup_f64", "v_div_fmas_f64", "v_div_scale_f64", "v_rcp_f64", "v_rsq_f64", "v_sqrt_f64",
}  # fmt: skip

DIVISION = """v_div_scale_f64 v[20:21], s[4:5], v[4:5], v[4:5], v[2:3]
v_rcp_f64_e32 v[30:31], v[20:21]
v_div_scale_f64 v[36:37], vcc, v[2:3], v[4:5], v[2:3]
v_fma_f64 v[38:39], -v[20:21], v[30:31], 1.0
v_fmac_f64_e32 v[30:31], v[30:31], v[38:39]
v_fma_f64 v[38:39], -v[20:21], v[30:31], 1.0
v_fmac_f64_e32 v[30:31], v[30:31], v[38:39]
v_mul_f64 v[38:39], v[36:37], v[30:31]
v_fma_f64 v[20:21], -v[20:21], v[38:39], v[36:37]
v_div_fmas_f64 v[20:21], v[20:21], v[30:31], v[38:39]
v_div_fixup_f64 v[20:21], v[20:21], v[4:5], v[2:3]"""


def operands() -> tuple[np.ndarray, np.ndarray]:
    """Numerators and denominators: all edge pairs, random bits, and quotients around the ends of the range.

    No denominator has a mantissa of all ones: its reciprocal lies so little above the middle of two floats
    that these steps miss it from any first approximation.
    """
    edge = inputs(("f64", "f64"), 8192)
    random = np.random.default_rng(6)
    a = random.integers(0, 2**64, 8192, dtype=U64)
    apart = random.choice(
        [-1, 0, 1, 53, 54, 767, 768, 1022, 1023, 1024, 1070, 1074, 1075, -1022, -1024], 8192
    )
    exponent = np.clip((a >> U64(52) & U64(2047)).astype(np.int64) - apart, 0, 2046).astype(U64)
    b = exponent << U64(52) | random.integers(0, 2**52, 8192, dtype=U64)
    numerator, denominator = np.concatenate([edge[0], a, b]), np.concatenate([edge[1], b, a])
    ones = U64(2**52 - 1)
    return numerator, np.where(denominator & ones == ones, denominator - U64(1), denominator)


def test_sequence_is_ieee_division() -> None:
    a, b = operands()
    ((got,),) = run([Step(DIVISION, ("v[20:21]",))], {"v[2:3]": a, "v[4:5]": b})
    with np.errstate(all="ignore"):
        assert_same(got, (a.view(np.float64) / b.view(np.float64)).view(U64), "f64", [a, b], "division")


@pytest.mark.parametrize(
    "name, function",
    [
        ("v_rcp_f64", lambda x: 1 / x),
        ("v_rsq_f64", lambda x: 1 / np.sqrt(x)),
        ("v_sqrt_f64", np.sqrt),
    ],
)
def test_approximation_is_within_its_error(name: str, function: object) -> None:
    (a,) = inputs(("f64",), 8192)
    ((got,),) = run([Step(f"{name}_e32 v[20:21], v[2:3]", ("v[20:21]",))], {"v[2:3]": a})
    with np.errstate(all="ignore"):
        want = function(a.view(np.float64))
        got = got.view(np.float64)
        normal = np.isfinite(want) & (np.abs(want) >= 2.0**-1022)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
        error = np.abs(got - want)[normal] / np.abs(want)[normal]
    assert 0 < error.max() < 2.0**-23
