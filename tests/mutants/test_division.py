"""Four steps of the division can be deleted one at a time with no change to a quotient, proven over all mantissas.

LLVM divides by v_rcp_f32 and five fused steps, the last in v_div_fmas_f32, for reciprocals that may be off by an
ulp either way. The emulated one is rounded towards zero, so that less is needed, at least for a numerator of 1.
"""

from __future__ import annotations

import re

import numba
import numpy as np
import pytest

from tqkernel.compile import compile_listing
from tqkernel.gfx950.scalar import float32_of, fma32, reciprocal

from .judge import BY_NAME, killer_of
from .listing_faults import Mutant, instructions

REASON = (
    "1 / sum is right for every mantissa without this step, see test_division.py. The first step's register then "
    "holds 0 or a byte offset, a float below 2**-100, which the next step loses beside the reciprocal."
)
STEPS = ("v_fma_f32 error", "v_fmac_f32 reciprocal", "v_mul_f32 quotient", "v_fmac_f32 quotient")


@numba.njit
def inverse(denominator, skipped):
    """1 / denominator as the listing computes it, without one of `STEPS`. A register keeps what it had: 0."""
    one, quotient = np.float32(1), np.float32(0)
    approximate = reciprocal(denominator)
    if skipped != 0:
        quotient = fma32(-denominator, approximate, one)
    if skipped != 1:
        approximate = fma32(quotient, approximate, approximate)
    if skipped != 2:
        quotient = np.float32(one * approximate)
    error = fma32(-denominator, quotient, one)
    if skipped != 3:
        quotient = fma32(error, approximate, quotient)
    error = fma32(-denominator, quotient, one)
    return fma32(error, approximate, quotient)


@numba.njit
def first_wrong(skipped):
    """The first mantissa for which the quotient is wrong, or -1."""
    for mantissa in range(1 << 23):
        denominator = float32_of(np.int64(0x3F800000 | mantissa))
        if inverse(denominator, skipped) != np.float32(1) / denominator:
            return mantissa
    return -1


@pytest.mark.slow
@pytest.mark.parametrize("skipped", range(-1, len(STEPS)), ids=("none", *STEPS))
def test_one_step_less_divides_as_well(skipped: int) -> None:
    assert first_wrong(skipped) == -1


@pytest.mark.slow
@pytest.mark.parametrize("variant", BY_NAME)
def test_each_step_less_is_equivalent_or_noticed(variant: str, verdict) -> None:
    listing = compile_listing(BY_NAME[variant])
    found = instructions(listing)
    (start,) = (number for number, text in found.items() if text.startswith("v_rcp_f32"))
    (end,) = (number for number, text in found.items() if text.startswith("v_div_fmas_f32"))
    arithmetic = re.compile(r"v_(fma|fmac|mul)_f32")
    steps = [number for number in range(start, end) if arithmetic.match(found.get(number, ""))]
    assert len(steps) == 6
    problems = []
    # The fourth step is the error of the quotient, the last but one: without it the quotient is wrong.
    for number in (*steps[:3], steps[4]):
        mutant = Mutant(f"division: {found[number]}", "division", {number: None})
        # Noticed where a scheduled instruction less is a wait state less, or the register held something else.
        killer = killer_of(mutant.apply(listing), BY_NAME[variant])
        problems.append(verdict(f"{variant} {mutant.name}", killer, "" if killer else REASON))
    assert not any(problems), problems
