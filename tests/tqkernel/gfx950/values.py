"""Edge values and random bit patterns of every operand type, combined over an instruction's sources."""

from __future__ import annotations

import itertools

import numpy as np

Array = np.ndarray

_F32 = [
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,
    0x3F800000, 0xBF800000, 0x3F000000, 0x3FC00000, 0x40200000, 0xC0200000, 0x3EFFFFFF, 0x4B000001,
    0x4F000000, 0x5F800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
    0xFFC12345, 0x33800000, 0x34000000, 0x477FE000, 0x477FF000, 0x38800000, 0x387FC000, 0x33000000,
    0x33000001, 0x3F808000, 0x3F818000, 0x42B17218, 0x0C800000, 0x7E800000, 0xC3160000, 0x43000000,
]  # fmt: skip
_F16 = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x3800, 0x3E00, 0x4100,
    0xC100, 0x37FF, 0x6400, 0x6401, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE55, 0x5BFF, 0x0C00,
    0x1400, 0x77FF,
]  # fmt: skip
_BF16 = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x8080, 0x3F80, 0xBF80, 0x3F00, 0x3FC0, 0x4020, 0x7F7F,
    0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0x5F00, 0x1F00, 0x3380, 0x4B00,
]  # fmt: skip
_F64 = [
    0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x8000000000000001, 0x000FFFFFFFFFFFFF,
    0x0010000000000000, 0x8010000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x3FE0000000000000,
    0x3FF8000000000000, 0x4004000000000000, 0xC004000000000000, 0x3FDFFFFFFFFFFFFF, 0x4330000000000001,
    0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000,
    0x7FF0000000000001, 0xFFF8123456789ABC, 0x3CB0000000000000, 0x47EFFFFFE0000000, 0x47EFFFFFF0000000,
    0x36A0000000000000, 0x3690000000000001, 0x3810000000000000, 0x41DFFFFFFFC00000, 0x41EFFFFFFFE00000,
    0xC1E0000000200000,
]  # fmt: skip
_U32 = [
    0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000,
    0x7FFFFF, 0x800000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x200000,
    0x1F001F, 0x0C050B0D,
]  # fmt: skip
_U64 = [
    0, 1, 2, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF,
    0x8000000000000000, 0x8000000000000001, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF, 0x0123456789ABCDEF,
]  # fmt: skip
_U16 = [0, 1, 2, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF]
# Pairs of halves, so that both halves of a register meet every edge.
_PAIRED = {
    "f16": _F16, "bf16": _BF16, "u16": _U16,
}  # fmt: skip
_WHOLE = {"f32": (_F32, 32), "f64": (_F64, 64), "u32": (_U32, 32), "u64": (_U64, 64)}
ALIASES = {"i32": "u32", "i64": "u64", "i16": "u16", "b32": "u32"}


def edges(kind: str, random: np.random.Generator) -> Array:
    """Edge values of one type as register contents, uint32 or uint64; halves come in pairs."""
    kind = ALIASES.get(kind, kind)
    if kind in _PAIRED:
        halves = np.array(_PAIRED[kind], dtype=np.uint32)
        return halves | random.permutation(halves) << np.uint32(16)
    values, bits = _WHOLE[kind]
    return np.array(values, dtype=np.uint64 if bits == 64 else np.uint32)


def random_bits(kind: str, count: int, random: np.random.Generator) -> Array:
    """Uniformly random bit patterns; for integers half of them small."""
    wide = kind in ("f64", "u64", "i64")
    dtype = np.uint64 if wide else np.uint32
    bits = random.integers(0, 2**64 if wide else 2**32, count, dtype=dtype)
    if kind[0] in "ui":
        bits >>= random.integers(0, 64 if wide else 32, count, dtype=dtype) * random.integers(
            0, 2, count, dtype=dtype
        )
    return bits


def inputs(kinds: tuple[str, ...], count: int = 2048) -> list[Array]:
    """An array [count] for each source: all edge combinations that fit, then random bits."""
    random = np.random.default_rng(sum(ord(letter) for kind in kinds for letter in kind))
    columns = [edges(kind, random) for kind in kinds]
    if np.prod([len(column) for column in columns]) <= count * 3 // 4:
        rows = [np.array(column) for column in zip(*itertools.product(*columns), strict=True)]
    else:
        rows = [random.choice(column, count * 3 // 4) for column in columns]
    rest = count - len(rows[0])
    mixed = []
    for kind, column in zip(kinds, columns, strict=True):
        bits = random_bits(kind, rest, random)
        half = rest // 2  # edges against random patterns
        bits[:half] = np.where(random.integers(0, 2, half) == 1, random.choice(column, half), bits[:half])
        mixed.append(bits)
    return [np.concatenate([a, b]) for a, b in zip(rows, mixed, strict=True)]


_FLOATS = {"f16": (np.uint16, np.float16), "f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}


def same_bits(a: Array, b: Array, kind: str) -> Array:
    """Elementwise equality of bits, any NaN equal to any NaN; kind is a float, a pair (x2), or other."""
    if kind.endswith("x2"):
        low = same_bits(a & np.uint32(0xFFFF), b & np.uint32(0xFFFF), kind[:-2])
        return low & same_bits(a >> np.uint32(16), b >> np.uint32(16), kind[:-2])
    equal = a == b
    if kind == "bf16":
        return equal | (((a & 0x7FFF) > 0x7F80) & ((b & 0x7FFF) > 0x7F80))
    if kind in _FLOATS:
        bits, real = _FLOATS[kind]
        return equal | (np.isnan(a.astype(bits).view(real)) & np.isnan(b.astype(bits).view(real)))
    return equal


def assert_same(got: Array, expected: Array, kind: str, operands: list[Array], what: str) -> None:
    """Fail with the first few operands on which two results differ."""
    wrong = np.flatnonzero(~same_bits(got, expected, kind))
    if wrong.size:
        shown = "; ".join(
            f"({', '.join(hex(int(o[i])) for o in operands)}) -> {got[i]:#x}, expected {expected[i]:#x}"
            for i in wrong[:5]
        )
        raise AssertionError(f"{what}: {wrong.size} of {got.size} differ: {shown}")
