"""The matrix core's dot, against the published simulator and against exact arithmetic."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tqref import PROFILES, FmaChainDot, GroupedDot, Profile
from tqref.numerics import bf16_to_f32, dot, f32_to_bf16

Generator = np.random.Generator
SameBits = Callable[[np.ndarray, np.ndarray], None]


def signed(rng: Generator, magnitude: np.ndarray) -> np.ndarray:
    return (magnitude | (rng.integers(0, 2, magnitude.shape) << 15)).astype(np.uint16)


def mixed(rng: Generator, shape: tuple[int, ...], special: list[int], share: float) -> np.ndarray:
    """Numbers around 1 over 24 binades, a share of them replaced by `special` bit patterns."""
    usual = signed(rng, rng.integers(0x3980, 0x4580, shape))
    return np.where(rng.random(shape) < share, rng.choice(special, shape), usual).astype(np.uint16)


OPERANDS: dict[str, Callable[[Generator, tuple[int, ...]], np.ndarray]] = {
    "any bits": lambda rng, shape: rng.integers(0, 1 << 16, shape).astype(np.uint16),
    "gaussian": lambda rng, shape: f32_to_bf16(rng.standard_normal(shape).astype(np.float32)),
    "cancelling": lambda rng, shape: signed(rng, rng.integers(0x3F80, 0x3F84, shape)),
    "subnormal": lambda rng, shape: signed(rng, rng.integers(0, 0x100, shape)),
    "tiny": lambda rng, shape: signed(rng, rng.integers(0x1900, 0x1E00, shape)),  # products around 2**-150
    "huge": lambda rng, shape: signed(rng, rng.integers(0x7E00, 0x7F80, shape)),
    "zeros": lambda rng, shape: signed(rng, np.zeros(shape, np.int64)),
    "some zeros": lambda rng, shape: mixed(rng, shape, [0, 0x8000], 0.5),
    "infinities": lambda rng, shape: mixed(rng, shape, [0x7F80, 0xFF80, 0], 0.1),
    "nan": lambda rng, shape: mixed(rng, shape, [0x7FC0, 0xFF81], 0.05),
}
ACCUMULATORS: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "any bits": lambda rng, n: rng.integers(0, 1 << 32, n).astype(np.uint32).view(np.float32),
    "gaussian": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "subnormal": lambda rng, n: (
        (rng.integers(0, 1 << 24, n) | (rng.integers(0, 2, n) << 31)).astype(np.uint32).view(np.float32)
    ),
    "huge": lambda rng, n: (
        (rng.integers(0x7E000000, 0x7F800001, n) | (rng.integers(0, 2, n) << 31))
        .astype(np.uint32)
        .view(np.float32)
    ),
    "zeros": lambda rng, n: rng.choice(np.array([0.0, -0.0], np.float32), n),
}
VECTORS = list(itertools.product(OPERANDS, OPERANDS, ACCUMULATORS))


def vector_dot(a: np.ndarray, b: np.ndarray, c: np.ndarray, profile: Profile) -> np.ndarray:
    """Dot products of vectors [n, k], one per element of c [n]."""
    return dot(a[:, None], b[:, None], c[:, None, None], profile)[:, 0, 0]


@pytest.mark.parametrize(
    "group, fraction, result_fraction", [(8, 24, 31), (4, 24, 31), (16, 20, 27), (8, 30, 33), (2, 10, 12)]
)
def test_grouped_dot_is_the_published_model(
    rng: Generator, assert_same_bits: SameBits, group: int, fraction: int, result_fraction: int
) -> None:
    torch = pytest.importorskip("torch")
    fdpa = pytest.importorskip("mmasim.arithmetic.fdpa")
    model = fdpa.MMA_TR_FDPA(fraction, result_fraction, "RNE-FP32", group)
    grouped = GroupedDot(group, fraction, result_fraction + 1, fraction, result_fraction)

    def tensor(bits: np.ndarray) -> object:
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)

    a = np.concatenate([OPERANDS[first](rng, (60, 32)) for first, _, _ in VECTORS])
    b = np.concatenate([OPERANDS[second](rng, (60, 32)) for _, second, _ in VECTORS])
    c = np.concatenate([ACCUMULATORS[accumulator](rng, 60) for _, _, accumulator in VECTORS])
    expected = model.dpa(tensor(a), tensor(b), torch.from_numpy(c)).numpy()
    assert_same_bits(vector_dot(a, b, c, Profile("p", 1, "", grouped)), expected)


def bits(*values: float) -> np.ndarray:
    return f32_to_bf16(np.array(values, np.float32))


def grouped_example(products: list[float], c: float) -> float:
    """One group whose products are the given numbers (bfloat16-representable), onto c."""
    a = bits(*products, *[0.0] * (8 - len(products)))[None]
    return float(vector_dot(a, bits(*[1.0] * 8)[None], np.array([c], np.float32), PROFILES["cdna3"])[0])


def test_grouped_dot_by_hand() -> None:
    # A product more than 24 bits below the largest is lost, toward zero whatever its sign.
    assert grouped_example([1.0, 2.0**-25, -1.0], 0.0) == 0.0
    assert grouped_example([1.0, -(2.0**-25), -1.0], 0.0) == 0.0
    assert grouped_example([1.0, 2.0**-24, -1.0], 0.0) == 2.0**-24
    # An accumulator more than 24 bits below the sum is floored: only a positive one is lost.
    assert grouped_example([1.0, -1.0 + 2.0**-7], 2.0**-26) == 2.0**-7
    assert grouped_example([1.0, -1.0 + 2.0**-7], -(2.0**-26)) == 2.0**-7 - 2.0**-24
    # The largest exponent is that of the products, even when they cancel; a zero product has none.
    assert grouped_example([0.0, 0.0], 2.0**-140) == 2.0**-140
    # Products and accumulator of -0 make +0.
    minus = np.array([-0.0], np.float32)
    zero = vector_dot(bits(*[-0.0] * 8)[None], bits(*[1.0] * 8)[None], minus, PROFILES["cdna3"])
    assert zero[0] == 0 and not np.signbit(zero[0])
    # Below the normal range the sum keeps 32 bits under 2**-126: this one loses what would break its tie.
    a, b = bits(2.0**-75, 2.0**-80, *[0.0] * 6)[None], bits(2.0**-75, 2.0**-85, *[0.0] * 6)[None]
    assert vector_dot(a, b, np.zeros(1, np.float32), PROFILES["cdna3"])[0] == 0
    assert vector_dot(a, b, np.zeros(1, np.float32), PROFILES["fma-chain"])[0] == 0
    # A product of 2**128 or more is an infinity even where the sum would come back.
    a = bits(2.0**64, 2.0**64, *[0.0] * 6)[None]
    b = bits(2.0**64, -(2.0**64), *[0.0] * 6)[None]
    assert np.isnan(vector_dot(a, b, np.zeros(1, np.float32), PROFILES["cdna3"])[0])


def to_float32(value: Fraction) -> float:
    """`value` rounded to float32, nearest even, subnormals kept; overflow gives an infinity."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(magnitude / unit) * unit  # Fraction rounds half to even
    result = float("inf") if rounded >= Fraction(2) ** 128 else float(rounded)
    return -result if value < 0 else result


def exact_fma(a: float, b: float, c: float) -> float:
    product = a * b  # exact in float64: 16 significant bits
    if not np.isfinite([product, c]).all() or (product == 0 and c == 0):
        return product + c
    return to_float32(Fraction(a) * Fraction(b) + Fraction(c))


@pytest.mark.parametrize("accumulator", ACCUMULATORS)
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_fma_chain_is_exact_and_rounded_once(
    rng: Generator, assert_same_bits: SameBits, operand: str, accumulator: str
) -> None:
    a, b = OPERANDS[operand](rng, (40, 16)), OPERANDS[operand](rng, (40, 16))
    c = ACCUMULATORS[accumulator](rng, 40)
    expected = []
    for x, y, total in zip(bf16_to_f32(a).tolist(), bf16_to_f32(b).tolist(), c.tolist(), strict=True):
        for left, right in zip(x, y, strict=True):
            total = exact_fma(left, right, total)
        expected.append(total)
    assert_same_bits(vector_dot(a, b, c, PROFILES["fma-chain"]), np.array(expected, np.float32))


def test_fma_chain_of_terms_far_apart() -> None:
    # Terms up to 60 binades apart, on ties, at a power of two and in the subnormal range.
    for distance in range(20, 61):
        for a in (1.0, 1 + 2.0**-7, -1.0, -1 - 2.0**-7):
            for c in (1.0, 1 + 2.0**-23, 2 - 2.0**-23):
                for x, y, z in (
                    (a, 2.0**-distance, c),
                    (a, 2.0**distance, c),
                    (a * 2.0**-60, 2.0 ** (-46 - distance), c * 2.0**-126),
                ):
                    total = np.array([z], np.float32)
                    result = vector_dot(bits(x)[None], bits(y)[None], total, PROFILES["fma-chain"])
                    assert result[0] == exact_fma(x, y, z)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.key)
def test_rows_times_rows_is_each_row_times_each_row(
    rng: Generator, assert_same_bits: SameBits, profile: Profile
) -> None:
    a, b = OPERANDS["gaussian"](rng, (3, 2, 5, 32)), OPERANDS["gaussian"](rng, (3, 2, 7, 32))
    c = rng.standard_normal((3, 2, 5, 7)).astype(np.float32)
    result = dot(a, b, c, profile)
    for index in np.ndindex(3, 2, 5, 7):
        row, column = a[index[:3]], b[index[:2] + index[3:]]
        assert_same_bits(result[index], vector_dot(row[None], column[None], c[index][None], profile)[0])
    assert_same_bits(dot(b, a, c.swapaxes(-1, -2), profile), np.ascontiguousarray(result.swapaxes(-1, -2)))


def test_the_number_of_problems_at_a_time_changes_nothing(rng: Generator, assert_same_bits: SameBits) -> None:
    a, b = OPERANDS["any bits"](rng, (300, 8, 16)), OPERANDS["any bits"](rng, (300, 128, 16))
    c = np.zeros((300, 8, 128), np.float32)
    whole = dot(a, b, c)
    for start in (0, 31, 32, 33, 299):
        assert_same_bits(dot(a[start : start + 1], b[start : start + 1], c[:1]), whole[start : start + 1])


def test_refusals_name_the_argument() -> None:
    a, c = np.zeros((2, 16), np.uint16), np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"a, b, c: expected shapes .*got \[2, 16\], \[3, 16\] and \[2, 2\]"):
        dot(a, np.zeros((3, 16), np.uint16), c)
    with pytest.raises(ValueError, match="a: expected k to be a multiple of the group of 8, got k = 12"):
        dot(a[:, :12], a[:, :12], c)
    with pytest.raises(ValueError, match="product_fraction: expected 0 to 47, got 48"):
        GroupedDot(product_fraction=48)
    with pytest.raises(ValueError, match="group: expected at least 1, got 0"):
        GroupedDot(group=0)


def test_profiles_are_named_and_say_where_they_come_from() -> None:
    assert PROFILES["cdna3"].key == "cdna3@1"
    assert PROFILES["cdna3"].dot == GroupedDot(8, 24, 32, 24, 31)
    assert isinstance(PROFILES["fma-chain"].dot, FmaChainDot)
    assert all(profile.provenance and PROFILES[name] is profile for name, profile in PROFILES.items())


def test_bf16_rounds_to_nearest_even() -> None:
    def rounded(pattern: int) -> int:
        value = np.array(struct.unpack("<f", struct.pack("<I", pattern)), np.float32)
        return int(f32_to_bf16(value)[0])

    assert rounded(0x3F808000) == 0x3F80  # a tie, even below
    assert rounded(0x3F818000) == 0x3F82  # a tie, even above
    assert rounded(0x3F808001) == 0x3F81
    assert rounded(0x3F807FFF) == 0x3F80
    assert rounded(0x7F7FFFFF) == 0x7F80  # overflow
    assert rounded(0x00008001) == 0x0001  # a subnormal
    assert rounded(0x80000001) == 0x8000
    assert rounded(0xFF800000) == 0xFF80


def test_bf16_keeps_every_nan_and_every_bf16(assert_same_bits: SameBits) -> None:
    nan = (np.arange(1, 1 << 23, 4099, dtype=np.uint32) | np.uint32(0x7F800000)).view(np.float32)
    for values in (nan, -nan):
        assert np.isnan(bf16_to_f32(f32_to_bf16(values))).all()
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    number = ~np.isnan(bf16_to_f32(every))
    assert_same_bits(f32_to_bf16(bf16_to_f32(every))[number], every[number])
    assert f32_to_bf16(np.array(1.0, np.float32)).shape == ()
