"""Outputs as bit patterns: which bits differ, and how far apart the numbers are that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqref.numerics import bf16_to_f32


def bit_patterns(array: NDArray[Any]) -> NDArray[Any]:
    """Bit patterns: uint16 for an array that holds bfloat16 bits, uint32 for float32."""
    return array.view(np.uint32) if array.dtype == np.float32 else array


def differing_bits(expected: NDArray[Any], actual: NDArray[Any], *, strict: bool = False) -> NDArray[Any]:
    """The bits in which two outputs of the same shape and dtype differ.

    Any NaN equals any NaN, unless `strict`.
    """
    expected, actual = bit_patterns(expected), bit_patterns(actual)
    differing: NDArray[Any] = expected ^ actual
    if not strict:
        differing[np.isnan(_values(expected)) & np.isnan(_values(actual))] = 0
    return differing


def _values(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers that bit patterns stand for: bfloat16 when they are uint16, float32 when uint32."""
    return bf16_to_f32(bits) if bits.dtype == np.uint16 else bits.view(np.float32)


def describe_bits(bits: int, width: int) -> str:
    """Such as `0x3f81 (1.0078125)`. width: 16 for bfloat16, 32 for float32."""
    value = _values(np.array(bits, _DTYPES[width]))
    return f"0x{bits:0{width // 4}x} ({value:.9g})"


_DTYPES = {16: np.uint16, 32: np.uint32}


def are_nan(*patterns: int, width: int) -> bool:
    """Whether all of these bit patterns are NaNs. width: 16 for bfloat16, 32 for float32."""
    return bool(np.isnan(_values(np.array(patterns, _DTYPES[width]))).all())


def distances(expected: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.float64]:
    """How many representable numbers apart bit patterns are, element by element.

    Zero for two NaNs, infinite where only one of the two is a NaN.
    """
    apart = np.abs(ordinal(expected) - ordinal(actual)).astype(np.float64)
    nans = np.isnan(_values(expected)).astype(int) + np.isnan(_values(actual))
    return np.select([nans == 2, nans == 1], [0.0, np.inf], apart)


def distance(expected: int, actual: int, width: int) -> int | None:
    """How many representable numbers apart two bit patterns are, None if one is a NaN.

    width: 16 for bfloat16, 32 for float32.
    """
    pair = np.array([expected, actual], _DTYPES[width])
    if np.isnan(_values(pair)).any():
        return None
    first, second = ordinal(pair).tolist()
    return abs(int(first) - int(second))


def ordinal(bits: NDArray[Any]) -> NDArray[np.int64]:
    """Integers in the order of the numbers the bits stand for, neighbours consecutive; both zeros are 0."""
    sign = np.int64(1) << (8 * bits.dtype.itemsize - 1)
    magnitude = bits.astype(np.int64) & (sign - 1)
    return np.where(bits.astype(np.int64) & sign, -magnitude, magnitude)
