from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tqref import PROFILES, Exp2, Profile
from tqref.numerics import _near_rounding_boundary, exp2

mpmath = pytest.importorskip("mpmath")
SameBits = Callable[[np.ndarray, np.ndarray], None]

# Every float32 whose 2**x lies within three units in the last place of a float64 of the middle of two float32
# numbers, the closest first; of the first three, a float64 computation lands on the middle itself.
HARD = np.array(
    [
        0x3B429D37,
        0xB52D1F9A,
        0xBCF3A937,
        0x3A07857C,
        0xB8D3D026,
        0xBAEC2B40,
        0x3C02A9AD,
        0x36879CF7,
        0xBE1F29DE,
    ],
    np.uint32,
)


def exact_exp2(x: float) -> Fraction:
    """2**x to 200 bits, as a fraction."""
    with mpmath.workprec(200):
        _, mantissa, exponent, _ = (mpmath.mpf(2) ** mpmath.mpf(x))._mpf_
    return Fraction(int(mantissa)) * Fraction(2) ** exponent


def reference(x: float) -> float:
    """Correctly rounded 2**x, subnormal input and output flushed."""
    if math.isnan(x):
        return math.nan
    if x < -126:
        return 0.0
    if x >= 128:
        return math.inf
    exact = exact_exp2(x)
    unit = Fraction(2) ** (math.floor(x) - 23)
    return float(round(exact / unit) * unit)


def references(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([reference(float(value)) for value in x.ravel()], np.float32).reshape(x.shape)


def ulps_around(value: float, count: int) -> np.ndarray:
    steps = [np.float32(value)]
    for toward in (np.float32(-np.inf), np.float32(np.inf)):
        point = np.float32(value)
        for _ in range(count):
            point = np.nextafter(point, toward)
            steps.append(point)
    return np.array(steps, np.float32)


def test_special_inputs(assert_same_bits: SameBits) -> None:
    inputs = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 1.17e-38, 1e30, -1e30], np.float32)
    outputs = np.array([0, np.inf, np.nan, 1, 1, 1, 1, 1, np.inf, 0], np.float32)
    assert_same_bits(exp2(inputs), outputs)


def test_whole_powers_are_exact(assert_same_bits: SameBits) -> None:
    exponents = np.arange(-126, 128)
    assert_same_bits(exp2(exponents.astype(np.float32)), np.ldexp(np.float32(1), exponents))


@pytest.mark.parametrize("threshold", [-150, -149, -127, -126, -125, 0, 127, 128])
def test_thresholds(assert_same_bits: SameBits, threshold: float) -> None:
    inputs = ulps_around(threshold, 40)
    assert_same_bits(exp2(inputs), references(inputs))


def test_results_below_the_least_normal_are_plus_zero() -> None:
    assert exp2(np.array([-126], np.float32))[0] == np.float32(2.0**-126)
    assert exp2(np.nextafter(np.float32(-126), np.float32(-np.inf))[None]).view(np.uint32)[0] == 0


@pytest.mark.parametrize("low, high", [(-126, 128), (-1, 1), (-1e-3, 1e-3), (-1e-7, 1e-7), (-30, 0)])
def test_random_inputs_are_correctly_rounded(
    rng: np.random.Generator, assert_same_bits: SameBits, low: float, high: float
) -> None:
    inputs = rng.uniform(low, high, 2000).astype(np.float32)
    assert_same_bits(exp2(inputs), references(inputs))


def test_hard_inputs_are_correctly_rounded(assert_same_bits: SameBits) -> None:
    inputs = HARD.view(np.float32)
    unit = [Fraction(2) ** (math.floor(x) - 23) for x in inputs.tolist()]
    for x, ulp in zip(inputs.tolist(), unit, strict=True):
        exact = exact_exp2(x)
        assert abs(exact / ulp % 1 - Fraction(1, 2)) * ulp / exact < Fraction(2) ** -48
    assert _near_rounding_boundary(np.exp2(inputs.astype(np.float64))).all()
    assert_same_bits(exp2(inputs), references(inputs))


def test_shape_is_kept() -> None:
    assert exp2(np.float32(3)).shape == ()
    assert exp2(HARD[:1].view(np.float32)[0]).shape == ()
    assert exp2(np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)


def test_float64_exp2_is_as_good_as_assumed(rng: np.random.Generator) -> None:
    # The decision which results are doubtful rests on this; it leaves a factor of 16.
    for x in rng.uniform(-126, 128, 3000).astype(np.float32).astype(np.float64).tolist():
        exact = exact_exp2(x)
        assert abs(Fraction(float(np.exp2(x))) / exact - 1) < Fraction(2) ** -50


def test_a_captured_table_replaces_listed_inputs_only(assert_same_bits: SameBits) -> None:
    inputs = np.array([0.5, 1.0, -3.25, np.inf], np.float32)
    usual = exp2(inputs)
    listed = np.sort(inputs[[0, 2]].view(np.uint32))
    table = Exp2(listed, (exp2(listed.view(np.float32)).view(np.uint32) + 1).astype(np.uint32))
    changed = exp2(inputs, Profile("captured", 1, "", PROFILES["cdna3"].dot, table))
    expected = usual.view(np.uint32) + np.array([1, 0, 1, 0], np.uint32)
    assert_same_bits(changed, expected.view(np.float32))


def test_tables_that_are_none_are_refused() -> None:
    one, two = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="exception_outputs: expected 1 entries, one per input, got 2"):
        Exp2(one, two)
    with pytest.raises(ValueError, match="exception_inputs: expected strictly ascending"):
        Exp2(two, two)
    with pytest.raises(ValueError, match=r"exception_inputs: expected uint32\[n\], got float32\[1\]"):
        Exp2(one.view(np.float32), one)


@pytest.mark.slow
def test_every_doubtful_input_of_a_dense_scan(assert_same_bits: SameBits) -> None:
    """All of [-2, -1): every fraction of 23 bits, the densest the softmax of near-equal scores meets."""
    patterns = np.arange(0xBF800000, 0xC0000000, dtype=np.uint32)
    for start in range(0, patterns.size, 1 << 20):
        inputs = patterns[start : start + (1 << 20)].view(np.float32)
        doubtful = inputs[_near_rounding_boundary(np.exp2(inputs.astype(np.float64)))]
        assert_same_bits(exp2(doubtful), references(doubtful))
