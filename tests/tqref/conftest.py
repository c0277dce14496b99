from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tqref import Case


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20250611)


@pytest.fixture
def make_case(rng: np.random.Generator) -> Callable[..., Case]:
    """Build a Gaussian case from sequence lengths; keywords go to `Case.build`."""

    def make(lengths: Sequence[int], num_kv_heads: int = 2, query_group_size: int = 8, **build: Any) -> Case:
        def gaussian(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        return Case.build(
            "gaussian",
            gaussian(len(lengths), num_kv_heads * query_group_size, 128),
            [gaussian(length, num_kv_heads, 128) for length in lengths],
            [gaussian(length, num_kv_heads, 128) for length in lengths],
            **build,
        )

    return make


@pytest.fixture
def assert_same_bits() -> Callable[[np.ndarray, np.ndarray], None]:
    """Same shape, dtype and bits; a float NaN equals any float NaN."""

    def check(actual: np.ndarray, expected: np.ndarray) -> None:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        unsigned = np.dtype(f"u{actual.dtype.itemsize}")
        same = np.atleast_1d(actual).view(unsigned) == np.atleast_1d(expected).view(unsigned)
        if actual.dtype.kind == "f":
            same |= np.atleast_1d(np.isnan(actual) & np.isnan(expected))
        assert same.all(), (
            f"{np.count_nonzero(~same)} of {same.size} differ, first at {np.argwhere(~same)[0]}"
        )

    return check
