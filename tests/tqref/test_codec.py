from __future__ import annotations

import math

import numpy as np
import pytest

from tqref import codec
from tqref.numerics import bf16_to_f32

FP16_ROUNDING = 2.0**-11
FP16_MAX = 65504.0
IDENTITY = np.eye(128, dtype=np.float32)
CENTROIDS = codec.lloyd_max_centroids()


def test_every_byte_unpacks_low_nibble_first_and_packs_back() -> None:
    packed = np.arange(256, dtype=np.uint8)[:, None]
    nibbles = codec.unpack_nibbles(packed)
    assert nibbles.tolist() == [[byte % 16, byte // 16] for byte in range(256)]
    assert np.array_equal(codec.pack_nibbles(nibbles), packed)


def test_nibble_positions_are_kept() -> None:
    nibbles = np.zeros((128, 128), np.uint8)
    np.fill_diagonal(nibbles, 13)
    packed = codec.pack_nibbles(nibbles)
    for element in range(128):
        assert np.flatnonzero(packed[element]).tolist() == [element // 2]
        assert packed[element, element // 2] == 13 << (4 * (element % 2))
    assert np.array_equal(codec.unpack_nibbles(packed), nibbles)


def test_centroids_are_max_1960_table() -> None:
    # J. Max, "Quantizing for minimum distortion", 1960, table I, N = 16, for unit variance.
    positive = [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]
    unit = CENTROIDS.astype(np.float64) * math.sqrt(128)
    assert np.allclose(unit[8:], positive, rtol=0, atol=5e-4)
    assert np.array_equal(CENTROIDS, -CENTROIDS[::-1])
    assert CENTROIDS.dtype == np.float32 and np.all(np.diff(CENTROIDS) > 0)


def test_each_centroid_is_the_mean_of_its_cell() -> None:
    unit = CENTROIDS.astype(np.float64) * math.sqrt(128)
    edges = np.concatenate([[-12.0], (unit[1:] + unit[:-1]) / 2, [12.0]])
    for level, low, high in zip(unit, edges, edges[1:], strict=False):
        x = np.linspace(low, high, 200001)
        density = np.exp(-x * x / 2)
        assert level == pytest.approx(np.trapezoid(x * density, x) / np.trapezoid(density, x), abs=2e-7)


def test_centroids_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        codec.lloyd_max_centroids()[0] = 0


def test_rotation_is_orthonormal_and_reproducible() -> None:
    pi_t = codec.rotation(3)
    assert pi_t.dtype == np.float32
    assert np.allclose(pi_t.astype(np.float64) @ pi_t.T, np.eye(128), rtol=0, atol=2e-7)
    assert np.array_equal(pi_t, codec.rotation(3))
    assert not np.array_equal(pi_t, codec.rotation(4))


def test_a_key_element_becomes_its_nearest_centroid(rng: np.random.Generator) -> None:
    key = rng.standard_normal((50, 128)).astype(np.float32)
    pi_t = codec.rotation()
    index, _ = codec.quantize_key(key, pi_t, CENTROIDS)
    unit = key.astype(np.float64) / np.linalg.norm(key, axis=-1, keepdims=True)
    rotated = unit @ pi_t.astype(np.float64)
    distance = np.abs(rotated[..., None] - CENTROIDS.astype(np.float64))
    chosen = np.take_along_axis(distance, index[..., None].astype(np.int64), -1)[..., 0]
    assert np.all(chosen <= distance.min(axis=-1) + 1e-7)
    assert len(np.unique(index)) == 16


def test_an_element_on_a_midpoint_takes_the_upper_centroid() -> None:
    # The middle midpoint is exactly 0.
    index, _ = codec.quantize_key(np.zeros(128, np.float32), IDENTITY, CENTROIDS)
    assert np.all(index == 8)
    index, _ = codec.quantize_key(np.full(128, -1e-30, np.float32), IDENTITY, CENTROIDS)
    assert np.all(index == 7)


def test_norm_correction_restores_the_norm(rng: np.random.Generator) -> None:
    key = (rng.standard_normal((200, 128)) * 7).astype(np.float32)
    true_norm = np.linalg.norm(key.astype(np.float64), axis=-1)
    index, corrected = codec.quantize_key(key, codec.rotation(), CENTROIDS)
    same_index, plain = codec.quantize_key(key, codec.rotation(), CENTROIDS, norm_correction=False)
    assert np.array_equal(index, same_index)
    assert np.array_equal(plain, true_norm.astype(np.float32).astype(np.float16))
    restored = np.linalg.norm(CENTROIDS.astype(np.float64)[index], axis=-1) * corrected.astype(np.float64)
    assert np.all(np.abs(restored / true_norm - 1) <= FP16_ROUNDING * 1.001)
    assert not np.array_equal(corrected, plain)


def test_a_key_too_long_for_fp16_saturates() -> None:
    _, norm = codec.quantize_key(np.full(128, 1e5, np.float32), IDENTITY, CENTROIDS, norm_correction=False)
    assert norm == np.float16(FP16_MAX)


def value_error_bound(scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Half a step, plus what storing scale and zero as fp16 costs at 15 steps, plus float32 rounding."""
    scale, zero = np.abs(scale.astype(np.float64)), np.abs(zero.astype(np.float64))
    tiniest = 2.0**-25
    stored = 15 * (scale * FP16_ROUNDING + tiniest) + zero * FP16_ROUNDING + tiniest
    return (scale / 2 + stored) * (1 + 1e-5) + 1e-6 * zero


@pytest.mark.parametrize("spread", [1e-3, 1.0, 300.0, 1e4])
def test_a_value_comes_back_within_half_a_step(rng: np.random.Generator, spread: float) -> None:
    value = (rng.standard_normal((300, 128)) * spread).astype(np.float32)
    step, scale, zero = codec.quantize_value(value)
    restored = step * scale.astype(np.float64)[:, None] + zero.astype(np.float64)[:, None]
    assert np.all(np.abs(restored - value) <= value_error_bound(scale, zero)[:, None])
    assert step.min() == 0 and step.max() == 15


@pytest.mark.parametrize("spread", [3.0, 1e-8])  # the smaller one meets the least scale
def test_values_are_what_the_store_kernel_computes(rng: np.random.Generator, spread: float) -> None:
    value = (rng.standard_normal((40, 128)) * spread + spread / 3).astype(np.float32)
    step, scale, zero = codec.quantize_value(value)
    f32 = np.float32
    for row, vector in enumerate(value):
        low = min(vector)
        width = max(f32(f32(max(vector) - low) / f32(15)), f32(1e-8))
        expected = [min(max(int(f32(f32(f32(x - low) / width) + f32(0.5))), 0), 15) for x in vector]
        assert step[row].tolist() == expected
        assert (scale[row], zero[row]) == (np.float16(width), np.float16(low))


def test_a_value_halfway_between_two_steps_takes_the_upper() -> None:
    value = np.resize(np.arange(15, dtype=np.float32) + np.float32(0.5), 128)
    value[:2] = 0, 15
    step, scale, zero = codec.quantize_value(value)
    assert (scale, zero) == (1, 0)
    assert np.array_equal(step[2:], np.resize(np.arange(1, 16), 128)[2:])


def test_a_constant_value_is_all_zero_point() -> None:
    step, scale, zero = codec.quantize_value(np.full(128, 2.5, np.float32))
    assert np.all(step == 0)
    assert (scale, zero) == (0, np.float16(2.5))


@pytest.mark.parametrize(
    "low, high", [(-1e5, 1e5), (-65505.0, 10.0), (-3e38, 3e38), (1e5, 2e5), (0.0, 9.9e5)]
)
def test_values_beyond_fp16_saturate_and_spare_the_others(low: float, high: float) -> None:
    value = np.linspace(low, high, 128).astype(np.float32)
    step, scale, zero = codec.quantize_value(value)
    assert np.isfinite(scale) and np.isfinite(zero)
    restored = step * scale.astype(np.float64) + zero.astype(np.float64)
    reachable = (value >= -FP16_MAX) & (value <= 15 * float(scale) + float(zero))
    error = np.abs(restored - value)[reachable]
    assert np.all(error <= value_error_bound(scale, zero))
    assert np.all(step[value < -FP16_MAX] == 0)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(broken: float) -> None:
    vector = np.ones(128, np.float32)
    vector[5] = broken
    with pytest.raises(ValueError, match="key: expected finite"):
        codec.quantize_key(vector, IDENTITY, CENTROIDS)
    with pytest.raises(ValueError, match="value: expected finite"):
        codec.quantize_value(vector)


def test_other_vector_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"value: expected shape \[\.\.\., 128\], got \[3, 64\]"):
        codec.quantize_value(np.ones((3, 64), np.float32))


def test_dequantising_a_value_rounds_the_product_before_the_sum(rng: np.random.Generator) -> None:
    # An fp16 scale has 11 bits and a step 4, so the product is exact and only the sum rounds: no contraction
    # can change it. What must be seen is one float32 rounding and then one to bfloat16.
    step = rng.integers(0, 16, (500, 128)).astype(np.uint8)
    scale, zero = (
        (rng.standard_normal(500) * 3).astype(np.float16),
        rng.standard_normal(500).astype(np.float16),
    )
    restored = bf16_to_f32(codec.dequantize_value(step, scale, zero))
    exact = step * scale.astype(np.float64)[:, None] + zero.astype(np.float64)[:, None]
    assert np.all(np.abs(restored - exact) <= np.abs(exact) * 2.0**-8 * (1 + 1e-4))
    assert np.all(bf16_to_f32(codec.dequantize_value(step, scale * 0, zero)) == bf16_to_f32_of(zero)[:, None])


def bf16_to_f32_of(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of fp16 numbers, by comparing both neighbours."""
    bits = values.astype(np.float32).view(np.uint32)
    low, high = (bits & 0xFFFF0000).view(np.float32), ((bits & 0xFFFF0000) + 0x10000).view(np.float32)
    exact = values.astype(np.float64)
    below, above = np.abs(exact - low), np.abs(high - exact)
    odd = (bits >> 16) & 1 == 1
    return np.where((above < below) | ((above == below) & odd), high, low)


def test_dequantising_a_key_is_one_product_rounded_to_bf16() -> None:
    index = np.arange(128, dtype=np.uint8) % 16
    norms = np.array([0, 6e-8, 1, 3.14, 65504], np.float16)
    for norm in norms:
        bits = codec.dequantize_key(index, norm, CENTROIDS)
        product = CENTROIDS[index] * np.float32(norm)
        assert np.all(np.abs(bf16_to_f32(bits) - product) <= np.abs(product) * 2.0**-8)
    assert np.isnan(bf16_to_f32(codec.dequantize_key(index, np.float16(np.nan), CENTROIDS))).all()
