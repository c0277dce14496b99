"""Functions that the chip only approximates: the model's choice within their error.

exp2 and log2 are rounded to nearest, float32 reciprocals and roots toward zero; its subnormals are flushed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import pytest

from tqkernel.gfx950.isa import instruction_set

from .machine import Step, run
from .values import assert_same, inputs

Array = np.ndarray
U32 = np.uint32
COVERED = frozenset(
    name
    for name, instruction in instruction_set().items()
    if instruction.unit == "vector"
    and instruction.accuracy == "modelled"
    and name.endswith(("_f16", "_f32"))
    and not name.startswith(("v_dot2", "v_div_"))
)

_CONTEXT = Context(prec=60)
_LN2 = Decimal(2).ln(_CONTEXT)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def _exp2(x: float) -> float:
    if x > 1100 or x < -1200:
        return math.inf if x > 0 else 0.0
    return _round_to_odd((Decimal(x) * _LN2).exp(_CONTEXT))


def _log2(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else _round_to_odd(_CONTEXT.divide(Decimal(x).ln(_CONTEXT), _LN2))


def _reciprocal(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else _round_to_odd(_CONTEXT.divide(Decimal(1), Decimal(x)))


def _root(x: float) -> float:
    return x if x == 0 else math.nan if x < 0 else _round_to_odd(Decimal(x).sqrt(_CONTEXT))


def _reciprocal_root(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.nan if x < 0 else _round_to_odd(_CONTEXT.divide(Decimal(1), Decimal(x).sqrt(_CONTEXT)))


def _round_to_odd(value: Decimal) -> float:
    """A double that rounds to float32 or float16 as the exact value does."""
    near = float(value)
    if math.isinf(near) or Decimal(near) == value:
        return near
    bits = int(np.float64(near).view(np.int64))
    if abs(Decimal(near)) > abs(value):
        bits -= 1
    return float(np.int64(bits | 1).view(np.float64))


_AT_INFINITY = {
    _exp2: (0.0, math.inf), _log2: (math.nan, math.inf), _reciprocal: (-0.0, 0.0),
    _root: (math.nan, math.inf),
    _reciprocal_root: (math.nan, 0.0),
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": _exp2, "log": _log2, "rcp": _reciprocal, "rcp_iflag": _reciprocal, "sqrt": _root, "rsq":
    _reciprocal_root,
}  # fmt: skip


def apply(function: Callable[[float], float], x: Array) -> Array:
    def one(value: float) -> float:
        if math.isnan(value):
            return math.nan
        if math.isinf(value):
            return _AT_INFINITY[function][value > 0]
        return function(value)

    return np.array([one(value) for value in x.tolist()])


def flush(x: Array) -> Array:
    """float32 subnormals to zero of the same sign."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x).astype(np.float32)


def nearest(x: Array) -> Array:
    return x.astype(np.float32)


def toward_zero(x: Array) -> Array:
    """float64 rounded to odd -> float32 next to it that is no larger in magnitude."""
    narrow = x.astype(np.float32)
    too_large = (np.abs(narrow) > np.abs(x)) & np.isfinite(narrow)
    return np.where(too_large, np.nextafter(narrow, np.float32(0)), narrow)


def all_ones(x: Array) -> Array:
    """Denominators whose reciprocal must be rounded to nearest, or a division by them would not be."""
    return x & U32(0x7FFFFF) == U32(0x7FFFFF)


def near_range_ends(name: str) -> Array:
    """Inputs whose results are about to overflow or to become subnormal, and where argument reduction is
    hard.
    """
    if "exp" in name:
        ends = np.array(
            [-126.0, -125.999, -126.0001, -127.0, -149.0, -150.0, 127.9999, 128.0, 1e-8, -1e-8], np.float32
        )
        return np.concatenate(
            [ends.view(U32), np.random.default_rng(1).uniform(-130, 130, 502).astype(np.float32).view(U32)]
        )
    return np.random.default_rng(1).uniform(0.5, 2.0, 512).astype(np.float32).view(U32)


@pytest.mark.parametrize(
    "name", sorted(name for name in COVERED if name.endswith("_f32") and name[2:5] not in ("sin", "cos"))
)
def test_float_is_rounded_as_modelled_and_flushed(name: str) -> None:
    x = np.concatenate([inputs(("f32",))[0], near_range_ends(name)])
    ((got,),) = run([Step(f"{name}_e32 v20, v2", ("v20",))], {"v2": x})
    function = _FUNCTIONS[name[2:-4]]
    exact = apply(function, flush(x.view(np.float32)).astype(np.float64))
    if function in (_exp2, _log2):
        rounded = nearest(exact)
    elif function is _reciprocal:
        rounded = np.where(all_ones(x), nearest(exact), toward_zero(exact))
    else:
        rounded = toward_zero(exact)
    assert_same(got, flush(rounded).view(U32), "f32", [x], name)


@pytest.mark.parametrize("name", sorted(name for name in COVERED if name.endswith("_f16")))
def test_every_half_is_correctly_rounded(name: str) -> None:
    x = np.arange(1 << 16, dtype=U32)
    ((got,),) = run([Step(f"{name}_e32 v20, v2", ("v20",))], {"v2": x})
    exact = apply(_FUNCTIONS[name[2:-4]], x.astype(np.uint16).view(np.float16).astype(np.float64))
    # The doubles are rounded to odd, so that NumPy's one rounding to half is the right one.
    assert_same(got, exact.astype(np.float16).view(np.uint16).astype(U32), "f16", [x], name)


def _turn(x: float, quarter: int) -> float:
    """sin (quarter 0) or cos (1) of x revolutions, by its series in decimals."""
    if not math.isfinite(x):
        return math.nan
    angle = _CONTEXT.multiply(2 * _PI, Decimal(x) % 1) + quarter * _PI / 2
    term, total = angle, angle
    for n in range(1, 60):
        term = _CONTEXT.divide(-term * angle * angle, Decimal(2 * n * (2 * n + 1)))
        total += term
    return float(total)


@pytest.mark.parametrize("name, quarter", (("v_sin_f32", 0), ("v_cos_f32", 1)))
def test_sine_takes_revolutions(name: str, quarter: int) -> None:
    x = np.concatenate(
        [
            np.random.default_rng(2).uniform(-300, 300, 120).astype(np.float32),
            np.float32([0, 0.25, 0.5, 1, -0.125, 1e-6, np.inf, np.nan]),
        ]
    ).view(U32)
    ((got,),) = run([Step(f"{name}_e32 v20, v2", ("v20",))], {"v2": x})
    exact = np.array([_turn(value, quarter) for value in x.view(np.float32).astype(np.float64).tolist()])
    error = np.abs(got.view(np.float32).astype(np.float64) - exact)
    nan = np.isnan(exact)
    assert (np.isnan(got.view(np.float32)) == nan).all()
    assert (error[~nan] <= np.maximum(np.abs(exact[~nan]) * 2.0**-23, 2.0**-50)).all()
