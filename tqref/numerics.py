"""The arithmetic that IEEE 754 does not settle, and the roundings around it.

Two things on the chip are free to differ between generations: how the matrix core sums (`dot`) and how
`v_exp_f32` rounds (`exp2`). A `Profile` names one choice of both, as plain data. Everything else is float32
with one rounding (nearest even) per operation and subnormals kept, which NumPy gives directly.

Where a result is NaN, its sign and payload are unspecified: compare NaNs as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

UInt16 = NDArray[np.uint16]
UInt32 = NDArray[np.uint32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LOG2E = np.float32(1.4426950408889634)
"""log2(e) as the kernel holds it: exp(x) is computed as exp2(x * LOG2E)."""

MAX_F32 = float(np.finfo(np.float32).max)
"""Largest finite float32."""

MIN_NORMAL_EXPONENT = -126
"""Least exponent of a normal float32 or bfloat16; their subnormals share it."""


# --- profiles: pure data ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedDot:
    """A matrix core that sums `group` products at a time, truncating as it aligns them.

    Fields are numbers of fractional bits kept after aligning to the larger exponent: `product_fraction` for
    each product (truncated toward zero), `sum_fraction` for the group's sum and `accumulator_fraction` for
    the accumulator (both floored), `result_fraction` for the normalised total (floored) before it is rounded
    to float32. A product's exponent is the sum of its operands' (a subnormal's is -126, not normalised); a
    zero product has none, and one of 2**128 or more is an infinity. The accumulator's and the total's are at
    least -126. Defaults are MMA-Sim's CDNA3 model (arXiv 2511.10909, `tr_fdpa`): F = 24, F2 = 31.
    Raises ValueError when float64 could not hold the intermediate sums exactly.
    """

    group: int = 8
    product_fraction: int = 24
    sum_fraction: int = 32
    accumulator_fraction: int = 24
    result_fraction: int = 31

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ValueError(f"group: expected at least 1, got {self.group}")
        # A product's significand is below 4 and an accumulator's below 2, so a group's sum needs this many
        # integer bits and the total one more.
        integer_bits = 2 + (self.group - 1).bit_length()
        limits = {
            "product_fraction": 52 - integer_bits,
            "sum_fraction": 51 - integer_bits,
            "accumulator_fraction": 51 - integer_bits,
            "result_fraction": 52,
        }
        for name, limit in limits.items():
            if not 0 <= getattr(self, name) <= limit:
                raise ValueError(f"{name}: expected 0 to {limit}, got {getattr(self, name)}")


@dataclass(frozen=True)
class FmaChainDot:
    """A matrix core that performs one fused multiply-add per k, ascending, each rounded to float32."""


@dataclass(frozen=True, eq=False)
class Exp2:
    """`v_exp_f32`: correctly rounded, subnormals flushed, except where a captured table says otherwise.

    `exception_inputs` (uint32, strictly ascending) and `exception_outputs` (uint32, same length) are float32
    bit patterns. Both are empty by default. Raises ValueError when they are not such a table.
    """

    exception_inputs: UInt32 = field(default_factory=lambda: np.empty(0, np.uint32))
    exception_outputs: UInt32 = field(default_factory=lambda: np.empty(0, np.uint32))

    def __post_init__(self) -> None:
        for name in ("exception_inputs", "exception_outputs"):
            table = getattr(self, name)
            if table.dtype != np.uint32 or table.ndim != 1:
                raise ValueError(f"{name}: expected uint32[n], got {table.dtype}{list(table.shape)}")
        if self.exception_inputs.shape != self.exception_outputs.shape:
            raise ValueError(
                f"exception_outputs: expected {self.exception_inputs.size} entries, one per input, "
                f"got {self.exception_outputs.size}"
            )
        if not np.all(self.exception_inputs[1:] > self.exception_inputs[:-1]):
            raise ValueError("exception_inputs: expected strictly ascending bit patterns, got another order")


@dataclass(frozen=True)
class Profile:
    """One named choice of the chip's non-IEEE arithmetic, with where it comes from."""

    name: str
    version: int
    provenance: str
    dot: GroupedDot | FmaChainDot
    exp2: Exp2 = field(default_factory=Exp2)

    @property
    def key(self) -> str:
        """`name@version`: what a stored result quotes."""
        return f"{self.name}@{self.version}"


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="cdna3",
            version=1,
            provenance="dot: MMA-Sim 2.1.1's CDNA3 (arXiv 2511.10909), assumed for gfx950, whose own is "
            "unpublished; exp2: assumed correctly rounded, the vendor promises 1 ulp",
            dot=GroupedDot(),
        ),
        Profile(
            name="fma-chain",
            version=1,
            provenance="dot: hypothetical, one IEEE fused multiply-add per k; exp2: as cdna3",
            dot=FmaChainDot(),
        ),
    )
}
DEFAULT_PROFILE = PROFILES["cdna3"]


# --- bfloat16 and powers of two ---------------------------------------------------------------------------


def bf16_to_f32(bits: UInt16) -> Float32:
    """The float32 values of bfloat16 bit patterns, exactly. Same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Float32) -> UInt16:
    """Round float32 to bfloat16 bit patterns, nearest even; a NaN stays a NaN, made quiet. Same shape."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    top = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (top & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), top | np.uint32(0x40), rounded).astype(np.uint16)


def power_of_two(exponent: Int64) -> Float64:
    """2**exponent, exactly, for int64 exponents of normal float64 numbers (-1022 to 1023)."""
    return ((exponent + 1023) << 52).view(np.float64)


# --- exp2 -------------------------------------------------------------------------------------------------

# A libm's float64 exp2 is good to an ulp or two (2**-52). Only results this close, relatively, to the middle
# of two float32 numbers could be rounded to the wrong one; those few are decided in decimal arithmetic.
_DOUBTFUL = 2.0**-46
_DECIMAL_DIGITS = 60


def exp2(x: Float32, profile: Profile = DEFAULT_PROFILE) -> Float32:
    """2**x in float32 as the profile's chip gives it. Same shape as `x`.

    Correctly rounded to nearest even; subnormal inputs count as zero and results below 2**-126 become +0;
    exp2(-inf) = 0, exp2(+inf) = +inf, NaN gives NaN. The profile's table of exceptions is applied last.
    """
    x = np.asarray(x, dtype=np.float32)
    # Clipping keeps the float64 result normal; both ends lie beyond the last finite or nonzero result.
    exact = np.exp2(np.clip(x, -150.0, 150.0).astype(np.float64))
    with np.errstate(over="ignore", under="ignore"):
        result = np.where(x < MIN_NORMAL_EXPONENT, np.float32(0), exact.astype(np.float32))
    doubtful = _near_rounding_boundary(exact) & (x >= MIN_NORMAL_EXPONENT) & (x < 128)
    for index in map(tuple, np.argwhere(doubtful)):
        result[index] = _exp2_from_decimal(float(x[index]))
    return _with_exceptions(x, result, profile.exp2)


def _near_rounding_boundary(value: Float64) -> NDArray[np.bool_]:
    """Whether positive float64 `value` is within `_DOUBTFUL`, relatively, of a midpoint of two float32s."""
    dropped_bits = 52 - 23
    fraction = value.view(np.int64) & ((1 << dropped_bits) - 1)
    near: NDArray[np.bool_] = np.abs(fraction - (1 << (dropped_bits - 1))) <= int(_DOUBTFUL * 2**52)
    return near


def _exp2_from_decimal(x: float) -> np.float32:
    """2**x rounded to float32, for a result in the normal range that is no tie (x is not an integer)."""
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS
        exact = Decimal(2) ** Decimal(x)
        near = np.float32(float(exact))
        neighbours = (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(np.inf)))
        return min(neighbours, key=lambda candidate: abs(Decimal(float(candidate)) - exact))


def _with_exceptions(x: Float32, result: Float32, table: Exp2) -> Float32:
    """`result` with the outputs that `table` lists for inputs `x` in place of the computed ones."""
    if table.exception_inputs.size == 0:
        return result
    bits = x.view(np.uint32)
    position = np.minimum(np.searchsorted(table.exception_inputs, bits), table.exception_inputs.size - 1)
    listed = table.exception_inputs[position] == bits
    return np.where(listed, table.exception_outputs[position].view(np.float32), result)


# --- the matrix core's dot product --------------------------------------------------------------------------

_SLAB_ELEMENTS = 1 << 15
"""Results computed at a time, so that the temporaries of a slab stay in the processor's cache."""


def dot(a: UInt16, b: UInt16, c: Float32, profile: Profile = DEFAULT_PROFILE) -> Float32:
    """The matrix core's accumulation of a's rows times b's rows onto c.

    a: bfloat16 bits uint16[..., m, k]; b: uint16[..., n, k]; c: float32[..., m, n]; leading axes equal.
    Returns float32[..., m, n] whose element (m, n) sums a[m, k] * b[n, k] over ascending k onto c[m, n].
    The two operands may be exchanged. It is fastest with n the longer of m and n.
    Raises ValueError when the shapes disagree or, for a grouped dot, when k is no multiple of the group.
    """
    batch, depth = c.shape[:-2], a.shape[-1]
    if a.shape != (*batch, c.shape[-2], depth) or b.shape != (*batch, c.shape[-1], depth):
        raise ValueError(
            "a, b, c: expected shapes [..., m, k], [..., n, k] and [..., m, n], "
            f"got {list(a.shape)}, {list(b.shape)} and {list(c.shape)}"
        )
    model = profile.dot
    if isinstance(model, GroupedDot) and depth % model.group:
        raise ValueError(f"a: expected k to be a multiple of the group of {model.group}, got k = {depth}")
    result = np.empty(c.shape, np.float32)
    flat_a, flat_b = a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
    flat_c, flat_result = c.reshape(-1, *c.shape[-2:]), result.reshape(-1, *c.shape[-2:])
    with np.errstate(all="ignore"):
        for slab in _slabs(flat_c.shape):
            left = np.ascontiguousarray(np.moveaxis(flat_a[slab], -1, 0))[..., :, None]
            right = np.ascontiguousarray(np.moveaxis(flat_b[slab], -1, 0))[..., None, :]
            if isinstance(model, GroupedDot):
                flat_result[slab] = _grouped_dot(left, right, flat_c[slab], model)
            else:
                flat_result[slab] = _fma_chain(left, right, flat_c[slab])
    return result


def _slabs(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the first axis of `shape`, of about `_SLAB_ELEMENTS` elements each."""
    step = max(1, _SLAB_ELEMENTS // max(1, shape[1] * shape[2]))
    return (slice(start, start + step) for start in range(0, shape[0], step))


_ZERO_EXPONENT = np.int16(-4096)
"""Exponent of a zero operand: low enough that a zero product never sets a group's exponent."""
_NO_PRODUCT_EXPONENT = -512
"""Exponent of a group whose products are all zero: below every accumulator's."""
_OVERFLOW = 2.0**128
"""A product this large becomes an infinity."""


def _bf16_exponent(bits: UInt16) -> NDArray[np.int16]:
    """Exponent of each bfloat16: subnormals are not normalised, zeros get `_ZERO_EXPONENT`."""
    biased = np.maximum((bits >> np.uint16(7)) & np.uint16(0xFF), np.uint16(1)).astype(np.int16)
    return np.where(bits << np.uint16(1) == 0, _ZERO_EXPONENT, biased - np.int16(127))


def _f64_exponent(value: Float64) -> Int64:
    """floor(log2(abs(value))), but no less than a float32 subnormal's; infinities and NaN give 1024."""
    exponent: Int64 = ((value.view(np.int64) >> 52) & 0x7FF) - 1023
    return np.maximum(exponent, MIN_NORMAL_EXPONENT)


def _grouped_dot(left: UInt16, right: UInt16, c: Float32, model: GroupedDot) -> Float32:
    """`dot` for operands whose k is the first axis and whose other axes broadcast to c's.

    Everything is exact in float64 up to the stated truncations: a product has 16 significant bits, a group's
    sum an integer number of units of its last kept bit.
    """
    left_exponent, right_exponent = _bf16_exponent(left), _bf16_exponent(right)
    left_value, right_value = bf16_to_f32(left).astype(np.float64), bf16_to_f32(right).astype(np.float64)
    exponent, product = np.empty(c.shape, np.int16), np.empty(c.shape)
    for start in range(0, left.shape[0], model.group):
        group = range(start, start + model.group)
        largest = np.full(c.shape, _NO_PRODUCT_EXPONENT, np.int16)
        for k in group:
            np.add(left_exponent[k], right_exponent[k], out=exponent)
            np.maximum(largest, exponent, out=largest)
        may_overflow = bool(largest.max(initial=_NO_PRODUCT_EXPONENT) >= 127)
        group_exponent = largest.astype(np.int64)
        to_units = power_of_two(model.product_fraction - group_exponent)
        # Starting from +0 makes a sum of negative zeros +0, which is what the published model gives.
        units = np.zeros(c.shape)
        for k in group:
            np.multiply(left_value[k], right_value[k], out=product)
            if may_overflow:
                product[np.abs(product) >= _OVERFLOW] *= np.inf
            np.multiply(product, to_units, out=product)
            np.trunc(product, out=product)
            np.add(units, product, out=units)
        c = _add_group(units, group_exponent, c, model)
    return c


def _add_group(units: Float64, group_exponent: Int64, c: Float32, model: GroupedDot) -> Float32:
    """Add a group's sum, `units` of 2**(group_exponent - product_fraction), to the accumulator `c`."""
    accumulator = c.astype(np.float64)
    exponent = np.maximum(group_exponent, _f64_exponent(accumulator))
    shift = np.maximum(group_exponent - exponent, -1000)
    aligned_sum = np.floor(units * power_of_two(shift + (model.sum_fraction - model.product_fraction)))
    aligned_accumulator = np.floor(accumulator * power_of_two(model.accumulator_fraction - exponent))
    total = aligned_sum * 2.0**-model.sum_fraction + aligned_accumulator * 2.0**-model.accumulator_fraction
    total *= power_of_two(exponent)
    exponent = _f64_exponent(total)
    kept = np.floor(total * power_of_two(model.result_fraction - exponent))
    return (kept * power_of_two(exponent - model.result_fraction)).astype(np.float32)


def _fma_chain(left: UInt16, right: UInt16, c: Float32) -> Float32:
    """One fused multiply-add per k: the exact product plus the accumulator, rounded once to float32.

    float64 holds the product exactly, and rounding the sum to float64 on the way to float32 does no harm. A
    term has at most 24 significant bits, so where float64 cannot hold the sum, one term is below 2**-27 of
    the other, which is then a float32 itself, and both roundings lead to it.
    """
    left_value, right_value = bf16_to_f32(left).astype(np.float64), bf16_to_f32(right).astype(np.float64)
    for k in range(left.shape[0]):
        c = (left_value[k] * right_value[k] + c.astype(np.float64)).astype(np.float32)
    return c
