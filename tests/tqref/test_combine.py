from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tqref import Case, Partials, combine, decode
from tqref.numerics import bf16_to_f32, f32_to_bf16

F32 = np.float32
SameBits = Callable[[np.ndarray, np.ndarray], None]


def random_partials(rng: np.random.Generator, n: int, heads: int, partitions: int, rows: int) -> Partials:
    shape = (n, heads, partitions, rows)
    maxima = (rng.standard_normal(shape) * 10).astype(F32)
    maxima[rng.random(shape) < 0.2] = -np.inf
    sums = np.where(np.isneginf(maxima), F32(0), rng.uniform(1, 300, shape).astype(F32))
    return Partials(f32_to_bf16(rng.standard_normal((*shape, 128)).astype(F32)), sums, maxima)


def test_combine_is_the_sum_in_ascending_order(rng: np.random.Generator, assert_same_bits: SameBits) -> None:
    partials = random_partials(rng, 2, 3, 5, 8)
    combined = combine(partials)
    for n, h, r in np.ndindex(2, 3, 8):
        maxima, sums = partials.max_logits[n, h, :, r], partials.exp_sums[n, h, :, r]
        values = bf16_to_f32(partials.out[n, h, :, r])
        largest = max(maxima)
        total, joined = F32(0), np.zeros(128, F32)
        for p in range(5):
            if maxima[p] == -np.inf:
                continue
            weight = sums[p] * F32(np.exp(np.float64(maxima[p] - largest)))
            total = total + weight
            joined = joined + values[p] * weight
        expected = joined / total if total else np.zeros(128, F32)
        assert_same_bits(combined[n, h * 8 + r], expected)


def test_one_partition_comes_back_within_float32_rounding(make_case: Callable[..., Case]) -> None:
    partials = decode(make_case([200]))
    assert partials.out.shape[2] == 1
    expected = bf16_to_f32(partials.out).reshape(1, 16, 128)
    assert np.allclose(combine(partials), expected, rtol=3e-7, atol=0)


def test_absent_partitions_have_no_weight_whatever_they_hold() -> None:
    partials = Partials(
        f32_to_bf16(np.array([2.0, np.nan], F32))[None, None, :, None, None].repeat(128, -1),
        np.array([3, np.nan], F32)[None, None, :, None],
        np.array([1, -np.inf], F32)[None, None, :, None],
    )
    assert np.all(combine(partials) == 2)


def test_nothing_at_all_is_zero() -> None:
    shape = (2, 1, 3, 8)
    nothing = Partials(np.zeros((*shape, 128), np.uint16), np.zeros(shape, F32), np.full(shape, -np.inf, F32))
    assert np.array_equal(combine(nothing), np.zeros((2, 8, 128), F32))


@pytest.mark.parametrize("name", ["out", "exp_sums", "max_logits"])
def test_nan_in_nan_out(rng: np.random.Generator, name: str) -> None:
    partials = random_partials(rng, 1, 1, 3, 8)
    partials.max_logits[0, 0, 1, 4] = 1
    getattr(partials, name)[0, 0, 1, 4] = 0x7FC0 if name == "out" else np.nan
    isnan = np.isnan(combine(partials))
    assert isnan[0, 4].all() and not np.delete(isnan, 4, axis=1).any()
