"""Small kernels of the kinds that FlyDSL users write: compiled, executed on the emulated machine, compared.

Bits are compared everywhere. The order of every float operation is known from the kernel's source. The matrix
core's sum, which IEEE 754 does not fix, comes from `tqref.numerics`, which shares no code with the emulator,
or the operands are chosen so that every sum is exact.
"""

from __future__ import annotations

import functools
import math
import struct
from fractions import Fraction

import numpy as np
import pytest

from tqkernel import compile as compiling
from tqkernel.gfx950 import Memory, launch, parse_listing
from tqref import DEFAULT_PROFILE, PROFILES
from tqref.numerics import bf16_to_f32, dot, f32_to_bf16

fx = pytest.importorskip("flydsl.expr")

from . import sample_kernels as samples  # noqa: E402

ARCHITECTURES = ("gfx950", "gfx942")
SCHEDULES = ((0, 1), (1, 1), (2, 2), (12345, 2))
"""(seed of the wave order, host threads): none may change a bit."""


@functools.cache
def compiled(builder, arguments, architecture="gfx950", **parameters):
    """Program of a sample kernel; an argument is a FlyDSL type, for a pointer to it, or an integer."""
    made = [argument if isinstance(argument, int) else compiling.pointer(argument) for argument in arguments]
    return parse_listing(compiling.compile_builder(builder, *made, architecture=architecture, **parameters))


def run(program, arguments, grid, block, *, seed=0, threads=1, profile=DEFAULT_PROFILE):
    """Launch on arrays and integers, in the kernel's order; returns the arrays as the kernel left them.

    On one thread the sanitizer watches, and has nothing to say.
    """
    memory, kernarg = Memory(), bytearray(program.kernarg_bytes)
    for position, (slot, argument) in enumerate(zip(program.arguments, arguments, strict=True)):
        if isinstance(argument, int):
            struct.pack_into("<i", kernarg, slot.offset, argument)
        else:
            struct.pack_into("<Q", kernarg, slot.offset, memory.map(str(position), argument))
    result = launch(
        program, grid, (block, 1, 1), bytes(kernarg), memory, profile,
        seed=seed, threads=threads, sanitize=threads == 1,
    )  # fmt: skip
    assert result.findings == ()
    return [
        memory.read(str(position)).view(argument.dtype).reshape(argument.shape)
        for position, argument in enumerate(arguments)
        if not isinstance(argument, int)
    ]


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    unsigned = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(unsigned), expected.view(unsigned))


def across_wave(values):
    """Sum over the last axis, 64 long, as butterflies of distance 1, 2, ... 32 do it."""
    lane = np.arange(64)
    for distance in (1, 2, 4, 8, 16, 32):
        values = values + values[..., lane ^ distance]
    assert (values == values[..., :1]).all()
    return values[..., 0]


def across_block(values):
    """Sum over [..., block_size]: within each wave, then wave after wave."""
    waves = across_wave(values.reshape(*values.shape[:-1], -1, 64))
    return functools.reduce(np.add, np.moveaxis(waves, -1, 0))


def exp2(x):
    """Correctly rounded, subnormal results flushed: the model of v_exp_f32."""
    result = np.exp2(x.astype(np.float64)).astype(np.float32)
    return np.where(np.abs(result) < np.finfo(np.float32).tiny, np.float32(0), result)


# ---------------------------------------------------------------- elementwise, reductions, norms


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("count", [1, 64, 100, 1000])
def test_vector_add(architecture, count):
    program = compiled(samples.build_vector_add, (fx.Float32,) * 3 + (100,), architecture, block_size=128)
    random = np.random.default_rng(count)
    a, b = random.standard_normal((2, count)).astype(np.float32)
    groups = -(-count // 128)
    c = np.full(groups * 128, 7, np.float32)
    _, _, c = run(program, (a, b, c, count), (groups, 1, 1), 128)
    assert_same_bits(c[:count], a + b)
    assert (c[count:] == 7).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_wave_softmax(architecture):
    program = compiled(samples.build_softmax, (fx.Float32, fx.Float32, 3), architecture)
    x = np.random.default_rng(1).uniform(-60, 60, (5, 64)).astype(np.float32)
    _, y = run(program, (x, np.zeros_like(x)), (5, 1, 1), 64)
    weights = exp2((x - x.max(axis=1, keepdims=True)) * np.float32(samples.LOG2E))
    assert_same_bits(y, weights / across_wave(weights)[:, None])


@pytest.mark.parametrize("seed, threads", SCHEDULES)
@pytest.mark.parametrize("columns", [37, 1000])
def test_row_softmax(columns, seed, threads):
    program = compiled(samples.build_row_softmax, (fx.Float32, fx.Float32, 3), columns=columns)
    x = np.random.default_rng(columns).uniform(-100, 100, (3, columns)).astype(np.float32)
    _, y = run(program, (x, np.zeros_like(x)), (3, 1, 1), 256, seed=seed, threads=threads)
    weights = exp2((x - x.max(axis=1, keepdims=True)) * np.float32(samples.LOG2E))
    trips = -(-columns // 256)
    padded = np.pad(weights, ((0, 0), (0, trips * 256 - columns))).reshape(3, trips, 256)
    partial = functools.reduce(np.add, np.moveaxis(padded, 1, 0), np.zeros((3, 256), np.float32))
    assert_same_bits(y, weights / across_block(partial)[:, None])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed, threads", SCHEDULES[1:3])
def test_rms_norm(architecture, seed, threads):
    columns, epsilon = 6144, np.float32(1e-6)
    program = compiled(samples.build_rms_norm, (fx.BFloat16,) * 3 + (3,), architecture, columns=columns)
    random = np.random.default_rng(3)
    x = f32_to_bf16(
        random.standard_normal((3, columns)).astype(np.float32) * np.float32([[1], [1e-4], [300]])
    )
    weight = f32_to_bf16(random.uniform(0.5, 2, columns).astype(np.float32))
    *_, y = run(program, (x, weight, np.zeros_like(x)), (3, 1, 1), 256, seed=seed, threads=threads)
    value = bf16_to_f32(x)
    squares = (value * value).reshape(3, columns // 2048, 256, 8)
    partial = np.zeros((3, 256), np.float32)
    for trip in range(columns // 2048):
        for element in range(8):
            partial = partial + squares[:, trip, :, element]
    scale = np.float32(1) / np.sqrt(across_block(partial) / np.float32(columns) + epsilon)
    assert_same_bits(y, f32_to_bf16(value * scale[:, None] * bf16_to_f32(weight)))


@pytest.mark.parametrize("seed, threads", SCHEDULES)
@pytest.mark.parametrize("dtype, block_size", [("f32", 256), ("f32", 1024), ("i64", 512)])
def test_block_sum(dtype, block_size, seed, threads):
    element = samples.DTYPES[dtype]
    program = compiled(samples.build_block_sum, (element, element, 3), dtype=element, block_size=block_size)
    x = np.random.default_rng(4).uniform(-1e9, 1e9, (5, block_size)).astype(NUMPY[dtype])
    _, y = run(program, (x, np.zeros(5, x.dtype)), (5, 1, 1), block_size, seed=seed, threads=threads)
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    assert_same_bits(y, x[:, 0])


# ---------------------------------------------------------------- matrices

BF16_INSTRUCTIONS = (
    ("mfma_f32_16x16x16bf16_1k", 16, 16, ARCHITECTURES),
    ("mfma_f32_32x32x8bf16_1k", 32, 8, ARCHITECTURES),
    ("mfma_f32_16x16x32_bf16", 16, 32, ("gfx950",)),
    ("mfma_f32_32x32x16_bf16", 32, 16, ("gfx950",)),
)
F16_INSTRUCTIONS = (
    ("mfma_f32_16x16x16f16", 16, 16, ARCHITECTURES),
    ("mfma_f32_32x32x8f16", 32, 8, ARCHITECTURES),
    ("mfma_f32_16x16x32_f16", 16, 32, ("gfx950",)),
    ("mfma_f32_32x32x16_f16", 32, 16, ("gfx950",)),
)
I8_INSTRUCTIONS = (
    ("mfma_i32_16x16x32_i8", 16, 32, ARCHITECTURES),
    ("mfma_i32_32x32x16_i8", 32, 16, ARCHITECTURES),
    ("mfma_i32_16x16x64_i8", 16, 64, ("gfx950",)),
    ("mfma_i32_32x32x32_i8", 32, 32, ("gfx950",)),
)
F32_INSTRUCTIONS = (
    ("mfma_f32_16x16x4f32", 16, 4, ARCHITECTURES),
    ("mfma_f32_32x32x2f32", 32, 2, ARCHITECTURES),
)


def each(instructions):
    return pytest.mark.parametrize(
        "instruction, size, depth, architecture",
        [
            pytest.param(name, size, depth, architecture, id=f"{name}-{architecture}")
            for name, size, depth, architectures in instructions
            for architecture in architectures
        ],
    )


def gemm(
    element, instruction, size, depth, architecture, a, b, *, seed=0, threads=1, profile=DEFAULT_PROFILE
):
    """a @ b.T by the tiled kernel."""
    (m, k), n = a.shape, b.shape[0]
    result = "i32" if element is fx.Int8 else "f32"
    program = compiled(
        samples.build_tiled_gemm, (fx.Uint8, fx.Uint8, samples.DTYPES[result], m, n), architecture,
        element=element, instruction=instruction, size=size, depth=depth, k=k,
    )  # fmt: skip
    c = np.zeros((m, n), NUMPY[result])
    grid = (n // samples.TILE, m // samples.TILE, 1)
    return run(program, (a, b, c, n), grid, 256, seed=seed, threads=threads, profile=profile)[2]


@each(BF16_INSTRUCTIONS)
def test_bf16_gemm(instruction, size, depth, architecture):
    random = np.random.default_rng(5)
    scale = np.exp2(random.integers(-6, 7, (192, 1))).astype(np.float32)
    a, b = np.split(f32_to_bf16(random.standard_normal((192, 96)).astype(np.float32) * scale), [128])
    c = gemm(fx.BFloat16, instruction, size, depth, architecture, a, b)
    assert_same_bits(c, dot(a, b, np.zeros(c.shape, np.float32)))


@pytest.mark.parametrize("seed, threads", SCHEDULES)
def test_gemm_does_not_depend_on_the_schedule(seed, threads):
    a, b = np.split(
        f32_to_bf16(np.random.default_rng(6).standard_normal((256, 64)).astype(np.float32)), [128]
    )
    c = gemm(fx.BFloat16, "mfma_f32_16x16x32_bf16", 16, 32, "gfx950", a, b, seed=seed, threads=threads)
    assert_same_bits(c, dot(a, b, np.zeros(c.shape, np.float32)))


def test_gemm_follows_the_profile():
    profile = PROFILES["fma-chain"]
    a, b = np.split(f32_to_bf16(np.random.default_rng(7).standard_normal((128, 64)).astype(np.float32)), 2)
    c = gemm(fx.BFloat16, "mfma_f32_16x16x16bf16_1k", 16, 16, "gfx950", a, b, profile=profile)
    expected = dot(a, b, np.zeros(c.shape, np.float32), profile)
    assert_same_bits(c, expected)
    assert (expected != dot(a, b, np.zeros(c.shape, np.float32))).any()


@each(F16_INSTRUCTIONS)
def test_f16_gemm_of_bf16_values(instruction, size, depth, architecture):
    """Halves with 8 significant bits are bf16 values too, and the matrix core adds both alike."""
    bits = f32_to_bf16(np.random.default_rng(8).standard_normal((192, 96)).astype(np.float32))
    halves = bf16_to_f32(bits).astype(np.float16)
    a, b = np.split(halves, [128])
    c = gemm(fx.Float16, instruction, size, depth, architecture, a, b)
    assert_same_bits(
        c, dot(*np.split(f32_to_bf16(halves.astype(np.float32)), [128]), np.zeros(c.shape, np.float32))
    )


@each(F16_INSTRUCTIONS)
def test_f16_gemm_of_integers(instruction, size, depth, architecture):
    """All 11 significant bits; products of at most 2**22 and sums below 2**24 are exact in float32."""
    a, b = np.split(np.random.default_rng(9).integers(-2047, 2048, (192, 96)).astype(np.float16), [128])
    b[:, 1::2] = 0
    b[:, ::2] = np.sign(b[:, ::2]) * (np.abs(b[:, ::2]) % 128)
    c = gemm(fx.Float16, instruction, size, depth, architecture, a, b)
    assert_same_bits(c, (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32))


@each(I8_INSTRUCTIONS)
def test_i8_gemm(instruction, size, depth, architecture):
    a, b = np.split(np.random.default_rng(10).integers(-128, 128, (192, 192)).astype(np.int8), [128])
    c = gemm(fx.Int8, instruction, size, depth, architecture, a, b)
    assert_same_bits(c, a.astype(np.int32) @ b.T.astype(np.int32))


@each(F32_INSTRUCTIONS)
def test_f32_gemm(instruction, size, depth, architecture):
    """Products and sums of multiples of 2**-12 are exact in float64: rounding each once is a fused step."""
    a, b = np.split(
        np.random.default_rng(11).integers(-(1 << 14), 1 << 14, (128, 48)) / np.float32(1 << 12), 2
    )
    c = gemm(fx.Float32, instruction, size, depth, architecture, a.astype(np.float32), b.astype(np.float32))
    expected = np.zeros(c.shape, np.float32)
    for left, right in zip(a.T.astype(np.float64), b.T.astype(np.float64), strict=True):
        expected = (np.multiply.outer(left, right) + expected).astype(np.float32)
    assert_same_bits(c, expected)


# ---------------------------------------------------------------- atomics


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_histogram(seed):
    bins, count = 50, 900
    program = compiled(samples.build_histogram, (fx.Int32,) * 3 + (100,), bins=bins)
    x = np.random.default_rng(12).integers(0, bins, count, dtype=np.int32)
    before = np.arange(bins, dtype=np.int32)
    _, counts, slots = run(program, (x, before, np.zeros_like(x), count), (4, 1, 1), 256, seed=seed)
    assert_same_bits(counts, before + np.bincount(x, minlength=bins).astype(np.int32))
    for k in range(bins):
        assert sorted(slots[x == k]) == list(range(before[k], counts[k]))


NUMPY_ATOMICS = {
    "add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def accumulated(name, initial, values):
    """What an integer atomic leaves of `initial` after every value, whatever their order."""
    return NUMPY_ATOMICS[name].accumulate(np.concatenate([[initial], values]), dtype=values.dtype)[-1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_atomics(architecture):
    groups, block = 3, 128
    types = (fx.Int32, fx.Int32, fx.Int32, fx.Uint32, fx.Float32, fx.Float64, fx.Int32)
    program = compiled(samples.build_atomics, (*types, 2), architecture)
    random = np.random.default_rng(13)
    x = random.integers(-1000, 1000, groups * block, dtype=np.int32)
    initial = random.integers(-1 << 31, 1 << 31, 7).astype(np.int32)
    initial[2:4] = 5, -5
    floats = np.array([0, -1e9, *[7] * groups], np.float32)
    arrays = (
        x,
        initial,
        initial,
        initial.view(np.uint32),
        floats,
        np.zeros(1),
        np.zeros((groups, 7), np.int32),
    )
    _, _, signed, unsigned, floats, doubles, lds = run(program, arrays, (groups, 1, 1), block)
    for k, name in enumerate(samples.INTEGER_ATOMICS):
        assert signed[k] == accumulated(name, initial[k], x), name
        assert unsigned[k] == accumulated(name, initial.view(np.uint32)[k], x.view(np.uint32)), name
        for group, part in enumerate(x.reshape(groups, block)):
            assert lds[group, k] == accumulated(name, initial[k], part), name
    sums = x.reshape(groups, block).sum(axis=1)
    assert_same_bits(floats, np.array([x.sum(), x.max(), *sums], np.float32))
    assert doubles[0] == x.sum()


# ---------------------------------------------------------------- lanes and control flow


def lane_sources():
    """For each output of the cross-lane kernel that is a move, the lane that each lane reads, -1 for none."""
    lane = np.arange(64)
    row, at = lane & ~15, lane & 15

    def shifted(by):
        return np.where((at + by >= 0) & (at + by < 16), row + at + by, -1)

    moves = {f"xor {distance}": lane ^ distance for distance in (1, 2, 4, 8, 16, 32)}
    moves |= {
        "up 3": (lane - 3) % 64,  # FlyDSL leaves the lanes below 3 to a lane number that wraps
        "down 5": np.where(lane + 5 < 64, lane + 5, lane),
        "quad_perm:[1,0,3,2]": lane ^ 1,
        "quad_perm:[0,0,2,2]": lane & ~1,
        "row_shl:1": shifted(1),
        "row_shr:3": shifted(-3),
        "row_ror:5": row + (at - 5) % 16,
        "wave_shl:1": np.where(lane < 63, lane + 1, -1),
        "wave_rol:1": (lane + 1) % 64,
        "wave_shr:1": lane - 1,
        "wave_ror:1": (lane - 1) % 64,
        "row_mirror": row + 15 - at,
        "row_half_mirror": lane ^ 7,
        "row_bcast:15": row - 1,
        "row_bcast:31": np.where(lane >= 32, 31, -1),
        "row_newbcast:5": row + 5,
        "row_shr:1 row_mask:0xa": np.where(row // 16 % 2 == 1, shifted(-1), -1),
        "xor 16 by swizzle": lane ^ 16,
        "last of 8": lane | 7,
        "quads reversed": lane ^ 3,
        "first": np.zeros(64, int),
        "lane 17": np.full(64, 17),
    }
    return moves


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cross_lane(architecture):
    program = compiled(samples.build_cross_lane, (fx.Int32,) * 3, architecture)
    random = np.random.default_rng(14)
    x = random.integers(-1000, 1000, 64, dtype=np.int32)
    at = random.integers(0, 64, 64, dtype=np.int32)
    y = run(program, (x, at, np.zeros((len(samples.LANE_OUTPUTS), 64), np.int32)), (1, 1, 1), 64)[2]
    ballot = np.packbits(x < 0, bitorder="little").view(np.int32)
    expected = {
        "index": x[at], "bpermute": x[at], "ballot low": ballot[0], "ballot high": ballot[1],
        "scan": np.cumsum(x), "reduce": x.max(),
    }  # fmt: skip
    expected |= {
        name: np.where(lanes < 0, np.arange(64) + 1000, x[lanes]) for name, lanes in lane_sources().items()
    }
    assert set(expected) == set(samples.LANE_OUTPUTS)
    for name, actual in zip(samples.LANE_OUTPUTS, y, strict=True):
        np.testing.assert_array_equal(actual, expected[name], err_msg=name)


@pytest.mark.parametrize("seed, threads", SCHEDULES)
def test_divergent_loops(seed, threads):
    program = compiled(samples.build_collatz, (fx.Int32,) * 3 + (100,))
    x = np.random.default_rng(15).integers(-20, 3000, 300, dtype=np.int32)
    x[:3] = 0, 1, 2919  # 2919 takes 216 steps
    blank = np.full(384, 7, np.int32)
    _, steps, peak = run(program, (x, blank, blank, 300), (3, 1, 1), 128, seed=seed, threads=threads)
    for value, count, largest in zip(x.tolist(), steps.tolist(), peak.tolist(), strict=False):
        path = [value]
        while value > 0 and path[-1] != 1:
            path.append(path[-1] // 2 if path[-1] % 2 == 0 else 3 * path[-1] + 1)
        assert (count, largest) == ((len(path) - 1, max(path)) if value > 0 else (-1, 0))
    assert (steps[300:] == 7).all() and (peak[300:] == 7).all()


# ---------------------------------------------------------------- 64 bits, conversions

NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i16": np.int16,
    "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "bf16": np.uint16,
}  # fmt: skip
"""bf16 is held as its bits."""


def values_of(dtype, result):
    """128 values of one type that another can hold or round: edges of floats, an integer's whole range."""
    random = np.random.default_rng(16)
    if dtype in ("f16", "bf16", "f32", "f64"):
        if result in ("f16", "bf16", "f32", "f64"):
            magnitude = np.exp2(random.uniform(-30, 16, 128)) * random.choice([-1.0, 1.0], 128)
            magnitude[:8] = 0.0, -0.0, np.inf, -np.inf, 65504, 65520, 1 / 3, 2.0**-24
        else:
            bits = min(np.iinfo(NUMPY[result]).bits, 15 if dtype == "f16" else 63) - 1
            magnitude = random.uniform(0 if result[0] == "u" else -1, 1, 128) * 2.0**bits
        with np.errstate(over="ignore"):
            return (
                f32_to_bf16(magnitude.astype(np.float32))
                if dtype == "bf16"
                else magnitude.astype(NUMPY[dtype])
            )
    limits = np.iinfo(NUMPY[dtype])
    values = random.integers(limits.min, limits.max, 128, dtype=NUMPY[dtype], endpoint=True)
    values[64:] >>= random.integers(0, limits.bits, 64).astype(values.dtype)
    values[:3] = limits.min, limits.max, 1
    return values


def converted(values, dtype, result):
    if dtype == "bf16":
        values = bf16_to_f32(values)
    with np.errstate(over="ignore"):  # of float64 and float32 values past the largest half
        return f32_to_bf16(values.astype(np.float32)) if result == "bf16" else values.astype(NUMPY[result])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype, result", samples.CONVERSIONS)
def test_conversions(architecture, dtype, result):
    types = samples.DTYPES[dtype], samples.DTYPES[result]
    program = compiled(samples.build_conversion, (*types, 2), architecture, source=types[0], result=types[1])
    x = values_of(dtype, result)
    _, y = run(program, (x, np.zeros(128, NUMPY[result])), (2, 1, 1), 64)
    assert_same_bits(y, converted(x, dtype, result))


def wide_values():
    """f64 and i64 operands, no integer divisor zero; quotients overflow, underflow and are subnormal too."""
    random = np.random.default_rng(17)
    floats = random.standard_normal((2, 512)) * np.exp2(random.uniform(-40, 40, (2, 512)))
    floats[:, 256:384] *= np.exp2([[-600.0], [460.0]])
    floats[:, 384:400] *= np.exp2([[500.0], [-500.0]])
    integers = random.integers(-1 << 63, 1 << 63, (2, 512), dtype=np.int64)
    integers >>= random.integers(0, 63, (2, 512))
    integers[1] |= 1
    return (*floats, *integers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_wide_arithmetic(architecture):
    types = (fx.Float64, fx.Float64, fx.Int64, fx.Int64, fx.Float64, fx.Int64)
    program = compiled(samples.build_wide, (*types, 512), architecture)
    a, b, i, j = wide_values()
    floats = np.zeros((len(samples.WIDE_FLOAT_OUTPUTS), 512))
    integers = np.zeros((len(samples.WIDE_INTEGER_OUTPUTS), 512), np.int64)
    *_, floats, integers = run(program, (a, b, i, j, floats, integers, 512), (8, 1, 1), 64)
    whole = np.clip(a, -(2.0**62), 2.0**62)
    with np.errstate(over="ignore", under="ignore"):
        expected = {
            "sum": a + b, "product": a * b, "quotient": a / b, "root": np.sqrt(np.abs(a)),
            "fma": np.array([fused(x, y, x) for x, y in zip(a.tolist(), b.tolist(), strict=True)]),
            "least": np.minimum(a, b), "greatest": np.maximum(a, b), "truncated": np.trunc(a),
            "rounded": np.rint(a), "from i64": i.astype(np.float64),
        }  # fmt: skip
    for name, actual in zip(samples.WIDE_FLOAT_OUTPUTS, floats, strict=True):
        np.testing.assert_array_equal(actual.view("u8"), expected[name].view("u8"), err_msg=name)
    unsigned = i.view("u8")
    expected = {
        "sum": i + j, "product": i * j, "quotient": i // j, "remainder": np.fmod(i, j),
        "shift": i >> (j & 63), "logical": (unsigned >> (j & 63).view("u8")).view("i8"), "and": i & j,
        "less": (i < j).astype(np.int64), "unsigned quotient": (unsigned // j.view("u8")).view("i8"),
        "from f64": whole.astype(np.int64),
        "leading zeros": np.array([64 - int(x).bit_length() for x in unsigned]),
    }  # fmt: skip
    in_range = {"from f64": whole == a}
    for name, actual in zip(samples.WIDE_INTEGER_OUTPUTS, integers, strict=True):
        kept = in_range.get(name, slice(None))
        np.testing.assert_array_equal(actual[kept], expected[name][kept], err_msg=name)


def fused(a, b, c):
    """a * b + c rounded once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)


def median(a, b, c):
    return fx.max(fx.min(a, b), fx.min(fx.max(a, b), c))


def bits_set(a, b, c):
    return np.bitwise_count(a).astype(a.dtype)


def greatest(a, b, c):
    """IEEE 754 maximum: NaN if either is, and +0 above -0, which NumPy does not promise."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


def either(*pair):
    """The same expression for FlyDSL and for NumPy."""
    return pair * 2 if len(pair) == 1 else pair


FLOATS, SHORT = ("f16", "f32", "f64"), ("i16", "u16")
INTEGERS = ("i8", "u8", *SHORT, "i32", "u32", "i64", "u64")
UNSIGNED = ("u8", "u16", "u32", "u64")
ELEMENTWISE = {
    "quotient": (*either(lambda a, b, c: a / b), FLOATS),
    "small quotient": (*either(lambda a, b, c: a * c * c / b), FLOATS),
    "polynomial": (*either(lambda a, b, c: (a * b + c) * a), (*FLOATS, *INTEGERS)),
    "root": (lambda a, b, c: fx.sqrt(fx.absf(a)), lambda a, b, c: np.sqrt(np.abs(a)), FLOATS),
    "maximum": (lambda a, b, c: fx.maximumf(a, b), greatest, FLOATS),
    "minimum": (lambda a, b, c: fx.minimumf(a, b), lambda a, b, c: -greatest(-a, -b, c), FLOATS),
    "rounded": (lambda a, b, c: fx.roundeven(a), lambda a, b, c: np.rint(a), FLOATS),
    "median": (median, lambda a, b, c: np.sort([a, b, c], axis=0)[1], INTEGERS),
    "choice": (*either(lambda a, b, c: (a & b) | (~a & c)), INTEGERS),
    "majority": (*either(lambda a, b, c: (a & b) | (b & c) | (a & c)), INTEGERS),
    "and or": (*either(lambda a, b, c: (a & b) | c), INTEGERS),
    "monus": (
        lambda a, b, c: (a > b).select(a - b, a * 0),
        lambda a, b, c: np.where(a > b, a - b, 0).astype(a.dtype),
        UNSIGNED,
    ),
    "constants": (*either(lambda a, b, c: a // 7 + b * 3 - (c >> 2)), INTEGERS),
    "ones": (lambda a, b, c: fx.ctpop(a), bits_set, UNSIGNED),
}
"""An expression for FlyDSL, the same for NumPy, and the types it is tried on."""


def operands_of(dtype):
    """Three arrays of 256 elements of a type: floats from subnormal to nearly overflowing, any integers."""
    random = np.random.default_rng(18)
    if dtype[0] == "f":
        largest = {"f16": 7, "f32": 60, "f64": 500}[dtype]
        values = random.standard_normal((3, 256)) * np.exp2(random.uniform(-largest, largest, (3, 256)))
        values[:, :3] = [[0.0, -0.0, np.inf], [-0.0, 0.0, 3.0], [1.0, 1.0, 1.0]]
        return values.astype(NUMPY[dtype])
    limits = np.iinfo(NUMPY[dtype])
    return random.integers(limits.min, limits.max, (3, 256), dtype=NUMPY[dtype], endpoint=True)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "name, dtype", [(name, dtype) for name, (*_, dtypes) in ELEMENTWISE.items() for dtype in dtypes]
)
def test_elementwise(architecture, name, dtype):
    operation, reference, _ = ELEMENTWISE[name]
    element = samples.DTYPES[dtype]
    program = compiled(
        samples.build_elementwise, (element,) * 4 + (4,), architecture, dtype=element, operation=operation
    )
    operands = operands_of(dtype)
    *_, y = run(program, (*operands, np.zeros(256, NUMPY[dtype])), (4, 1, 1), 64)
    with np.errstate(all="ignore"):
        expected = reference(*operands)
    if dtype[0] == "f":
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        y, expected = y[~np.isnan(y)], expected[~np.isnan(expected)]
    assert_same_bits(y, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "name, dtype",
    [
        ("polynomial", "f32"),
        ("polynomial", "f16"),
        ("maximum", "f16"),
        ("median", "i16"),
        ("constants", "i16"),
    ],
)
def test_packed(architecture, name, dtype):
    operation, reference, _ = ELEMENTWISE[name]
    element = samples.DTYPES[dtype]
    program = compiled(
        samples.build_packed, (element,) * 4 + (1,), architecture, dtype=element, operation=operation
    )
    operands = operands_of(dtype)[:, 3:131].copy()
    *_, y = run(program, (*operands, np.zeros(128, NUMPY[dtype])), (1, 1, 1), 64)
    with np.errstate(all="ignore"):
        assert_same_bits(y, reference(*operands))
