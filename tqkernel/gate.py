"""The verdict: run a case on the oracle and on a backend, and compare the two bit for bit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import Backend, FindingsError, RunError
from tqkernel.bits import bit_patterns, differing_bits, distance, distances
from tqkernel.verdict import Difference, Verdict
from tqref import DEFAULT_PROFILE, Case, Partials, Profile, attention, combine, decode

OUTPUTS = ("max_logits", "exp_sums", "out")
"""In the order a wave computes them: of two that differ at the same row, the earlier is nearer the cause."""


def oracle(case: Case, profile: Profile = DEFAULT_PROFILE) -> Partials:
    """What the kernel must write. The one way in which this package asks the oracle for a decode."""
    return decode(case, profile)


def run_case(
    case: Case,
    hw_v_transpose: bool,
    backend: Backend,
    profile: Profile = DEFAULT_PROFILE,
    *,
    strict: bool = False,
    expected: Partials | None = None,
) -> Verdict:
    """Decode `case` on the oracle and on `backend` under `profile`, and compare all bits of what they write.

    hw_v_transpose: which of the kernel's two ways to transpose values. strict: see `compare`.
    expected: bits known already, instead of the oracle's.
    A kernel that faults gives a verdict that is not ok.
    """
    start = time.perf_counter()
    expected = oracle(case, profile) if expected is None else expected
    actual, error = None, None
    findings: tuple[str, ...] = ()
    try:
        actual = backend.run(case, hw_v_transpose, profile)
    except FindingsError as found:
        actual, findings = found.partials, found.findings
    except RunError as failure:
        error = str(failure)
    if actual is None:
        comparison, max_error = Comparison(bits_differing=_num_bits(expected)), np.nan
    else:
        comparison = compare(expected, actual, strict=strict)
        with np.errstate(all="ignore"):
            max_error = largest_error(combine(actual), attention(case))
    return Verdict(
        name=case.name,
        tokens=int(case.seq_lens.sum(dtype=np.int64)),
        partitions=case.num_partitions,
        bits_compared=_num_bits(expected),
        bits_differing=comparison.bits_differing,
        first=comparison.first,
        worst_ulps=comparison.worst_ulps,
        max_error=max_error,
        seconds=time.perf_counter() - start,
        backend=backend.name,
        profile=profile.key,
        error=error,
        findings=findings,
    )


@dataclass(frozen=True)
class Comparison:
    """How two decodes differ, by default not at all.

    first: in order of sequence, head, partition and row. worst_ulps: the largest distance of two numbers.
    """

    bits_differing: int = 0
    first: Difference | None = None
    worst_ulps: int = 0


def compare(expected: Partials, actual: Partials, *, strict: bool = False) -> Comparison:
    """Compare every bit of two decodes of the same case.

    The two zeros differ. Any NaN equals any NaN, unless `strict`: then NaNs are compared by their bits too.
    Raises ValueError when the two have different shapes or dtypes.
    """
    found = [
        _compare_output(name, getattr(expected, name), getattr(actual, name), strict) for name in OUTPUTS
    ]
    firsts = [comparison.first for comparison in found if comparison.first is not None]
    return Comparison(
        bits_differing=sum(comparison.bits_differing for comparison in found),
        first=min(firsts, key=_place, default=None),
        worst_ulps=max(comparison.worst_ulps for comparison in found),
    )


def differences(expected: Partials, actual: Partials, *, strict: bool = False) -> list[Difference]:
    """Every element that differs, in order of sequence, head, partition and row. See `compare`."""
    found = []
    for name in OUTPUTS:
        two = bit_patterns(getattr(expected, name)), bit_patterns(getattr(actual, name))
        places = np.argwhere(differing_bits(*two, strict=strict)).tolist()
        found += [_difference(name, tuple(place), *two) for place in places]
    return sorted(found, key=_place)


def _place(difference: Difference) -> tuple[int, ...]:
    return difference.sequence, difference.head, difference.partition, difference.row


def _difference(
    name: str, place: tuple[int, ...], expected: NDArray[Any], actual: NDArray[Any]
) -> Difference:
    """The difference of two outputs' bits at `place`."""
    sequence, head, partition, row, *dim = place
    want, got = int(expected[place]), int(actual[place])
    return Difference(
        name,
        sequence,
        head,
        partition,
        row,
        dim=dim[0] if dim else None,
        expected=want,
        actual=got,
        ulps=distance(want, got, 8 * expected.itemsize),
    )


def _compare_output(name: str, expected: NDArray[Any], actual: NDArray[Any], strict: bool) -> Comparison:
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        raise ValueError(
            f"{name}: expected {expected.dtype}{list(expected.shape)}, got {actual.dtype}{list(actual.shape)}"
        )
    expected, actual = bit_patterns(expected), bit_patterns(actual)
    differing = differing_bits(expected, actual, strict=strict)
    places = np.argwhere(differing)
    if not len(places):
        return Comparison()
    ulps = distances(expected, actual)[differing != 0]
    return Comparison(
        bits_differing=int(np.bitwise_count(differing).sum()),
        first=_difference(name, tuple(places[0].tolist()), expected, actual),
        worst_ulps=int(ulps[np.isfinite(ulps)].max(initial=0)),
    )


def largest_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest absolute difference between two arrays of floats.

    Equal infinities and two NaNs are no error, a NaN against a number is an infinite one.
    """
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.where(same, 0, np.where(np.isnan(error), np.inf, error)).max(initial=0))


def _num_bits(partials: Partials) -> int:
    return sum(8 * int(getattr(partials, name).nbytes) for name in OUTPUTS)
