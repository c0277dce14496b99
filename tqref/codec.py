"""Quantising keys and values to 4 bits, and back: what the store kernel writes and the decode reads.

Keys: norm times a unit vector, rotated and rounded per element to the nearest of 16 centroids. Values: 16
equal steps between the vector's extremes. Where the store kernel leaves the order of a float32 sum open (the
norm and the rotation), this computes it in float64 and rounds once, so every machine stores the same bytes.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from tqref.layout import HEAD_SIZE, NUM_CENTROIDS
from tqref.numerics import Float32, Float64, UInt16, f32_to_bf16

UInt8 = NDArray[np.uint8]
Float16 = NDArray[np.float16]

_NORM_EPSILON = np.float32(1e-8)
_MIN_VALUE_SCALE = np.float32(1e-8)
_MAX_NIBBLE = 15


@functools.cache
def lloyd_max_centroids() -> Float32:
    """The 16 Lloyd-Max centroids of N(0, 1/128), ascending, as a read-only float32[16].

    Each centroid is the mean of the Gaussian between the midpoints around it (Lloyd 1982, Max 1960), from
    the closed forms of the density and the distribution, iterated to a fixed point.
    """
    half = NUM_CENTROIDS // 2
    # The solution is symmetric, so only its positive half is iterated, and scaled at the end.
    levels = [(2 * index + 1) / half for index in range(half)]
    change = 1.0
    while change > 1e-14:
        edges = [0.0, *((low + high) / 2 for low, high in zip(levels, levels[1:], strict=False)), math.inf]
        means = [_gaussian_mean(low, high) for low, high in zip(edges, edges[1:], strict=False)]
        change = max(abs(new - old) for new, old in zip(means, levels, strict=True))
        levels = means
    positive = np.array(levels) / math.sqrt(HEAD_SIZE)
    centroids = np.concatenate([-positive[::-1], positive]).astype(np.float32)
    centroids.setflags(write=False)
    return centroids


def _gaussian_mean(low: float, high: float) -> float:
    """Mean of the standard Gaussian between `low` and `high`."""
    density = (math.exp(-low * low / 2) - math.exp(-high * high / 2)) / math.sqrt(2 * math.pi)
    probability = (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2
    return density / probability


def rotation(seed: int = 0) -> Float32:
    """An orthonormal float32[128, 128] PiT: a Hadamard matrix whose rows have random signs.

    Both queries and unit keys are multiplied by it from the right, which leaves their inner product alone
    and spreads a vector's energy evenly over its elements. The same `seed` gives the same matrix everywhere.
    """
    hadamard = np.ones((1, 1), np.float32)
    while hadamard.shape[0] < HEAD_SIZE:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = np.where(np.random.default_rng(seed).random(HEAD_SIZE) < 0.5, np.float32(-1), np.float32(1))
    return signs[:, None] * hadamard * np.float32(1 / math.sqrt(HEAD_SIZE))


def rotate(vectors: Float32, pi_t: Float32) -> Float32:
    """`vectors @ pi_t` for float32[..., 128] and float32[128, 128], rounded once to float32."""
    return (vectors.astype(np.float64) @ pi_t.astype(np.float64)).astype(np.float32)


def quantize_key(
    key: Float32, pi_t: Float32, centroids: Float32, *, norm_correction: bool = True
) -> tuple[UInt8, Float16]:
    """Quantise keys float32[..., 128] to centroid indices uint8[..., 128] and norms float16[...].

    `pi_t` float32[128, 128] is the rotation, `centroids` float32[16] ascend. With `norm_correction` the
    stored norm is divided by the norm of the chosen centroids: the dequantised key then has the key's norm.
    Raises ValueError when `key` has another size or is not finite.
    """
    key = _checked_vectors("key", key)
    norm = _l2_norm(key)
    unit = key / (norm + _NORM_EPSILON)[..., None]
    midpoints = (centroids[:-1] + centroids[1:]) / np.float32(2)
    index = np.searchsorted(midpoints, rotate(unit, pi_t), side="right").astype(np.uint8)
    if norm_correction:
        norm = norm / _l2_norm(centroids[index])
    return index, _saturated(norm).astype(np.float16)


def quantize_value(value: Float32) -> tuple[UInt8, Float16, Float16]:
    """Quantise values float32[..., 128] to steps uint8[..., 128], scales float16[...] and zeros float16[...].

    An element is about step * scale + zero. A scale or zero that fp16 cannot hold is taken to be the nearest
    finite fp16 before the steps are chosen, so that elements within reach keep their precision.
    Raises ValueError when `value` has another size or is not finite.
    """
    value = _checked_vectors("value", value)
    zero = _saturated(value.min(axis=-1))
    with np.errstate(over="ignore"):
        span = value.max(axis=-1) - zero
        scale = _saturated(np.maximum(span / np.float32(_MAX_NIBBLE), _MIN_VALUE_SCALE))
        steps = (value - zero[..., None]) / scale[..., None] + np.float32(0.5)
    return (
        np.clip(np.trunc(steps), 0, _MAX_NIBBLE).astype(np.uint8),
        scale.astype(np.float16),
        zero.astype(np.float16),
    )


def dequantize_key(index: UInt8, norm: Float16, centroids: Float32) -> UInt16:
    """bfloat16 bits uint16[..., 128] of keys: bf16(centroids[index] * f32(norm)), still rotated.

    index: uint8[..., 128]; norm: float16[...]; centroids: float32[16].
    """
    with np.errstate(all="ignore"):
        return f32_to_bf16(centroids[index] * norm.astype(np.float32)[..., None])


def dequantize_value(step: UInt8, scale: Float16, zero: Float16) -> UInt16:
    """bfloat16 bits uint16[..., 128] of values: bf16(f32(step) * f32(scale) + f32(zero)).

    The product is rounded to float32 before the sum. step: uint8[..., 128]; scale, zero: float16[...].
    """
    with np.errstate(all="ignore"):
        product = step.astype(np.float32) * scale.astype(np.float32)[..., None]
        return f32_to_bf16(product + zero.astype(np.float32)[..., None])


def pack_nibbles(nibbles: UInt8) -> UInt8:
    """Pack uint8[..., 2n] of values 0 to 15 into uint8[..., n]: byte i holds 2i low and 2i+1 high."""
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: UInt8) -> UInt8:
    """Undo `pack_nibbles`: uint8[..., n] to uint8[..., 2n]."""
    nibbles = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    nibbles[..., 0::2] = packed & np.uint8(0xF)
    nibbles[..., 1::2] = packed >> np.uint8(4)
    return nibbles


def _l2_norm(vectors: Float32) -> Float32:
    """Euclidean norm over the last axis, rounded once to float32."""
    squared: Float64 = np.square(vectors, dtype=np.float64).sum(axis=-1)
    return np.sqrt(squared).astype(np.float32)


def _saturated(value: Float32) -> Float32:
    """`value`, but the largest finite fp16 of its sign where rounding to fp16 would give an infinity."""
    with np.errstate(over="ignore"):
        overflows = np.isinf(value.astype(np.float16))
    return np.where(overflows, np.copysign(np.float32(np.finfo(np.float16).max), value), value)


def _checked_vectors(name: str, vectors: Float32) -> Float32:
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim == 0 or vectors.shape[-1] != HEAD_SIZE:
        raise ValueError(f"{name}: expected shape [..., {HEAD_SIZE}], got {list(vectors.shape)}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name}: expected finite numbers, got infinities or NaN")
    return vectors
