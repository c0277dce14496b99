"""The verdict: run a case on the oracle and on a backend, and compare the two bit for bit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import Backend, RunError
from tqref import DEFAULT_PROFILE, Case, Partials, Profile, attention, combine, decode
from tqref.numerics import bf16_to_f32

if TYPE_CHECKING:
    from tqkernel.parting import Parting

OUTPUTS = ("max_logits", "exp_sums", "out")
"""In the order a wave computes them: of two that differ at the same row, the earlier is nearer the cause."""


@dataclass(frozen=True)
class Difference:
    """One element that differs. `dim` is None for the outputs that have one value per row.

    expected and actual: bit patterns, 16 bits wide for `out` (bfloat16) and 32 for the others (float32).
    ulps: how many representable numbers apart they are; None when one of them is a NaN.
    """

    output: str
    sequence: int
    head: int
    partition: int
    row: int
    dim: int | None
    expected: int
    actual: int
    ulps: int | None

    def __str__(self) -> str:
        """E.g. `out[sequence 0, head 1, partition 0, row 3, dim 17]: kernel 0x3f81 (1.0078125), ...`."""
        axes = {name: getattr(self, name) for name in ("sequence", "head", "partition", "row", "dim")}
        where = ", ".join(f"{name} {index}" for name, index in axes.items() if index is not None)
        kernel, oracle = (describe_bits(bits, self.width) for bits in (self.actual, self.expected))
        distance = "" if self.ulps is None else f", {self.ulps} ulp apart"
        return f"{self.output}[{where}]: kernel {kernel}, oracle {oracle}{distance}"

    @property
    def width(self) -> int:
        """Of the bit patterns, in bits."""
        return 16 if self.output == "out" else 32


@dataclass(frozen=True)
class Verdict:
    """What the gate found for one case.

    tokens          summed over the sequences
    bits_compared   all bits of the three outputs
    bits_differing  of these; all of them when the kernel did not finish, and then `error` says why
    worst_ulps      the largest distance between two numbers
    max_error       largest absolute difference between the kernel's combined output and float64 attention;
                    infinite where only one of the two is a NaN, NaN when the kernel did not finish
    seconds         wall time of oracle, kernel and comparison
    parting         where, inside the wave of `first`, kernel and oracle part, if that was looked for and found
    notes           what more is known, a line each
    """

    name: str
    tokens: int
    partitions: int
    bits_compared: int
    bits_differing: int
    first: Difference | None
    worst_ulps: int
    max_error: float
    seconds: float
    backend: str
    profile: str
    error: str | None = None
    parting: Parting | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether not one bit differs."""
        return self.bits_differing == 0 and self.error is None


def oracle(case: Case, profile: Profile = DEFAULT_PROFILE) -> Partials:
    """What the kernel must write. The one way in which this package asks the oracle for a decode."""
    return decode(case, profile)


def expectation(case: Case, profile: Profile = DEFAULT_PROFILE) -> Partials:
    """What the oracle says a decode of `case` must write."""
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
    expected = expectation(case, profile) if expected is None else expected
    differences = Comparison()
    max_error, error = np.nan, None
    try:
        actual = backend.run(case, hw_v_transpose, profile)
    except RunError as failure:
        differing, error = _num_bits(expected), str(failure)
    else:
        differences = compare(expected, actual, strict=strict)
        differing = differences.bits_differing
        with np.errstate(all="ignore"):
            max_error = largest_error(combine(actual), attention(case))
    return Verdict(
        name=case.name,
        tokens=int(case.seq_lens.sum(dtype=np.int64)),
        partitions=case.num_partitions,
        bits_compared=_num_bits(expected),
        bits_differing=differing,
        first=differences.first,
        worst_ulps=differences.worst_ulps,
        max_error=max_error,
        seconds=time.perf_counter() - start,
        backend=backend.name,
        profile=profile.key,
        error=error,
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
        two = _bits(getattr(expected, name)), _bits(getattr(actual, name))
        places = np.argwhere(differing_bits(*two, strict=strict)).tolist()
        found += [_difference(name, tuple(place), *two) for place in places]
    return sorted(found, key=_place)


def differing_bits(expected: NDArray[Any], actual: NDArray[Any], *, strict: bool = False) -> NDArray[Any]:
    """The bits in which two outputs of the same shape and dtype differ; see `compare` for NaNs."""
    expected, actual = _bits(expected), _bits(actual)
    differing: NDArray[Any] = expected ^ actual
    if not strict:
        differing[np.isnan(_values(expected)) & np.isnan(_values(actual))] = 0
    return differing


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
    expected, actual = _bits(expected), _bits(actual)
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


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """Bit patterns: uint16 for an array that holds bfloat16 bits, uint32 for float32."""
    return array.view(np.uint32) if array.dtype == np.float32 else array


def _values(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers that bit patterns stand for: bfloat16 when they are uint16, float32 when uint32."""
    return bf16_to_f32(bits) if bits.dtype == np.uint16 else bits.view(np.float32)


def describe_bits(bits: int, width: int) -> str:
    """Such as `0x3f81 (1.0078125)`. width: 16 for bfloat16, 32 for float32."""
    value = _values(np.array(bits, _DTYPES[width]))
    return f"0x{bits:0{width // 4}x} ({value:.9g})"


_DTYPES = {16: np.uint16, 32: np.uint32}


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
