"""The gate sees a single wrong bit, names its place, and treats NaNs and faults as promised."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tqkernel
from tqkernel.backends import POISON_BYTE, FindingsError, RunError, poisoned_outputs
from tqkernel.gate import compare, largest_error, run_case
from tqref import DEFAULT_PROFILE, Case, Partials, Profile, decode

QUIET_NAN = np.uint32(0x7FC00000).view(np.float32)
OTHER_NAN = np.uint32(0xFFC00001).view(np.float32)


class FakeBackend:
    """The oracle as a backend, its outputs passed through `tamper`."""

    name = "fake"

    def __init__(self, tamper: Callable[[Partials], Partials] = lambda partials: partials) -> None:
        self.tamper = tamper

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        return self.tamper(decode(case, profile))


@pytest.fixture(scope="module")
def case() -> Case:
    rng = np.random.default_rng(5)

    def gaussian(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    keys, values = ([gaussian(length, 2, 128) for length in (20, 270)] for _ in range(2))
    return Case.build("gaussian", gaussian(2, 16, 128), keys, values)


@pytest.fixture(scope="module")
def partials(case: Case) -> Partials:
    return decode(case)


def with_bits(partials: Partials, output: str, place: tuple[int, ...], flip: int) -> Partials:
    """A copy with one element's bits flipped by the mask `flip`."""
    array = getattr(partials, output).copy()
    array.view(np.uint16 if output == "out" else np.uint32)[place] ^= flip
    return replace(partials, **{output: array})


def with_value(partials: Partials, place: tuple[int, ...], value: np.float32) -> Partials:
    array = partials.max_logits.copy()
    array[place] = value
    return replace(partials, max_logits=array)


def test_agreement_is_ok_and_every_bit_is_counted(case: Case) -> None:
    verdict = run_case(case, True, FakeBackend())
    assert verdict.ok
    assert verdict.bits_differing == 0 and verdict.first is None and verdict.worst_ulps == 0
    rows = 2 * 2 * 2 * 8
    assert verdict.bits_compared == rows * 128 * 16 + rows * 32 + rows * 32
    assert (verdict.tokens, verdict.partitions) == (290, 2)
    assert (verdict.backend, verdict.profile) == ("fake", DEFAULT_PROFILE.key)
    assert 0 < verdict.max_error < 0.01


@pytest.mark.parametrize(
    "output, place",
    [
        ("out", (1, 0, 1, 7, 127)),
        ("out", (0, 0, 0, 0, 0)),
        ("exp_sums", (1, 1, 0, 3)),
        ("max_logits", (1, 1, 1, 5)),
    ],
)
def test_one_flipped_bit_is_found_and_named(case: Case, output: str, place: tuple[int, ...]) -> None:
    verdict = run_case(case, False, FakeBackend(lambda partials: with_bits(partials, output, place, 1)))
    assert not verdict.ok
    assert verdict.bits_differing == 1
    first = verdict.first
    assert first is not None
    found = (first.sequence, first.head, first.partition, first.row, first.dim)
    assert found == (place if output == "out" else (*place, None))
    assert first.output == output
    assert first.expected ^ first.actual == 1
    assert first.ulps == verdict.worst_ulps == 1


def test_description_of_a_difference(partials: Partials) -> None:
    expected = replace(partials, out=np.full_like(partials.out, 0x3F80))
    first = compare(expected, with_bits(expected, "out", (1, 0, 1, 7, 99), 0x0003)).first
    assert str(first) == (
        "out[sequence 1, head 0, partition 1, row 7, dim 99]: kernel 0x3f83 (1.0234375), oracle 0x3f80 (1), "
        "3 ulp apart"
    )
    expected = replace(partials, exp_sums=np.full_like(partials.exp_sums, 2))
    first = compare(expected, with_bits(expected, "exp_sums", (0, 1, 0, 2), 1)).first
    assert str(first) == (
        "exp_sums[sequence 0, head 1, partition 0, row 2]: kernel 0x40000001 (2.00000024), "
        "oracle 0x40000000 (2), 1 ulp apart"
    )


def test_first_is_by_place_then_by_order_of_computation(partials: Partials) -> None:
    late_logit = with_bits(partials, "max_logits", (1, 0, 0, 0), 1)
    early_out = with_bits(late_logit, "out", (0, 1, 0, 4, 9), 1)
    first = compare(partials, early_out).first
    assert first is not None and (first.output, first.sequence) == ("out", 0)
    both = with_bits(early_out, "exp_sums", (0, 1, 0, 4), 1)
    first = compare(partials, both).first
    assert first is not None and first.output == "exp_sums"


def test_bits_and_ulps_add_up_over_outputs(partials: Partials) -> None:
    actual = with_bits(with_bits(partials, "out", (0, 0, 0, 0, 0), 0b1), "max_logits", (1, 1, 0, 7), 0b110)
    found = compare(partials, actual)
    assert found.bits_differing == 3
    assert found.worst_ulps in (2, 6)  # 0b110 flipped: 6 or 2 apart, as bits go both ways or the same


def test_ulps_across_zero_count_the_numbers_between(partials: Partials) -> None:
    smallest = np.float32(1e-45)
    found = compare(
        with_value(partials, (0, 0, 0, 0), smallest), with_value(partials, (0, 0, 0, 0), -smallest)
    )
    assert found.worst_ulps == 2
    place = (0, 0, 0, 0)
    zeros = compare(
        with_value(partials, place, np.float32(0.0)), with_value(partials, place, np.float32(-0.0))
    )
    assert (zeros.bits_differing, zeros.worst_ulps) == (1, 0)


def test_any_nan_equals_any_nan_unless_strict(partials: Partials) -> None:
    place = (1, 0, 0, 2)
    expected, actual = with_value(partials, place, QUIET_NAN), with_value(partials, place, OTHER_NAN)
    assert compare(expected, actual).bits_differing == 0
    assert compare(expected, actual, strict=True).bits_differing == 2
    assert compare(expected, expected, strict=True).bits_differing == 0


def test_a_nan_never_equals_a_number(partials: Partials) -> None:
    place = (1, 0, 0, 2)
    broken = with_value(partials, place, QUIET_NAN)
    for found in (compare(partials, broken), compare(broken, partials)):
        assert found.first is not None
        assert found.first.ulps is None and found.worst_ulps == 0
        assert str(found.first).endswith(")")


def test_nan_in_bfloat16_is_recognised(partials: Partials) -> None:
    expected = replace(partials, out=np.full_like(partials.out, 0x7FC0))
    assert compare(expected, with_bits(expected, "out", (0, 0, 0, 0, 5), 0x8001)).bits_differing == 0
    assert compare(expected, with_bits(expected, "out", (0, 0, 0, 0, 5), 0x0040)).bits_differing == 1


def test_elements_left_alone_differ(case: Case) -> None:
    def leave_one_row(partials: Partials) -> Partials:
        out = partials.out.copy()
        out[1, 1, 0, 6] = poisoned_outputs(case)["out"][1, 1, 0, 6]
        return replace(partials, out=out)

    verdict = run_case(case, True, FakeBackend(leave_one_row))
    assert verdict.first is not None
    assert (verdict.first.row, verdict.first.dim) == (6, 0)
    assert verdict.first.actual == POISON_BYTE * 0x0101


def test_a_fault_is_a_verdict_with_every_bit_differing(case: Case) -> None:
    def fault(partials: Partials) -> Partials:
        raise RunError("read outside every allocation")

    verdict = run_case(case, True, FakeBackend(fault))
    assert not verdict.ok
    assert verdict.error == "read outside every allocation"
    assert verdict.bits_differing == verdict.bits_compared > 0
    assert np.isnan(verdict.max_error)


def test_findings_fail_a_case_and_its_bits_are_compared(case: Case) -> None:
    def find(partials: Partials) -> Partials:
        raise FindingsError(["race: line 7", "wait: line 9"], partials)

    verdict = run_case(case, True, FakeBackend(find))
    assert not verdict.ok and verdict.error is None and verdict.bits_differing == 0
    assert verdict.findings == ("race: line 7", "wait: line 9") and verdict.max_error < 1


def test_other_errors_are_not_swallowed(case: Case) -> None:
    def broken(partials: Partials) -> Partials:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_case(case, True, FakeBackend(broken))


def test_shapes_must_agree(partials: Partials) -> None:
    message = r"exp_sums: expected float32\[2, 2, 2, 8\], got float32\[2, 2, 1, 8\]"
    with pytest.raises(ValueError, match=message):
        compare(partials, replace(partials, exp_sums=partials.exp_sums[:, :, :1]))
    with pytest.raises(ValueError, match="max_logits: expected float32.*, got float64"):
        compare(partials, replace(partials, max_logits=partials.max_logits.astype(np.float64)))


def test_error_against_attention_sees_what_bits_alone_would_call_equal(case: Case) -> None:
    def shift(partials: Partials) -> Partials:
        return replace(partials, out=np.full_like(partials.out, 0x4000))

    assert run_case(case, True, FakeBackend(shift)).max_error > 1


@pytest.mark.parametrize(
    "actual, expected, error",
    [
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.25], 0.25),
        ([np.nan, 1.0], [0.0, 1.0], np.inf),
        ([0.0, 1.0], [np.nan, 1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([], [], 0.0),
    ],
)
def test_largest_error(actual: list[float], expected: list[float], error: float) -> None:
    assert largest_error(np.array(actual, np.float32), np.array(expected)) == error


def names_the_oracles_decode(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="tqref.decode"):
            return True
        case ast.ImportFrom(module="tqref", names=names):
            return "decode" in {name.name for name in names}
        case ast.Attribute(value=ast.Name(id="tqref"), attr="decode"):
            return True
    return False


def test_only_the_gate_knows_the_oracles_decode() -> None:
    """A backend that could call the oracle could agree with it without running anything."""
    package = Path(tqkernel.__file__).parent
    importers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(map(names_the_oracles_decode, ast.walk(ast.parse(path.read_text()))))
    }
    assert importers == {"gate.py"}
