"""Matrix instructions: operand layouts, and the sums against the published simulator or exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from mmasim.arithmetic import fdpa

from .machine import LANES, Step, run
from .pseudocode import fused_multiply_add
from .values import edges

Array = np.ndarray
U32, U64 = np.uint32, np.uint64

# rows, depth, blocks, element, as the instruction's name spells them.
SHAPES = {
    **{
        f"v_mfma_f32_{n}x{n}x{k}{f'_{b}b' if b > 1 else ''}_{element}": (n, k, b, element)
        for element in ("bf16", "f16")
        for n, k, b in ((16, 16, 1), (16, 32, 1), (32, 8, 1), (32, 16, 1), (32, 4, 2), (16, 4, 4), (4, 4, 16))
    },
    **{
        f"v_mfma_f32_{n}x{n}x{k}{f'_{b}b' if b > 1 else ''}_f32": (n, k, b, "f32")
        for n, k, b in ((16, 4, 1), (32, 2, 1), (32, 1, 2), (16, 1, 4), (4, 1, 16))
    },
    **{
        f"v_mfma_i32_{n}x{n}x{k}{f'_{b}b' if b > 1 else ''}_i8": (n, k, b, "i8")
        for n, k, b in (
            (16, 32, 1),
            (32, 16, 1),
            (16, 64, 1),
            (32, 32, 1),
            (32, 4, 2),
            (16, 4, 4),
            (4, 4, 16),
        )
    },
    "v_mfma_f64_16x16x4_f64": (16, 4, 1, "f64"),
}
COVERED = frozenset(SHAPES)
ITEM = {"bf16": np.uint16, "f16": np.uint16, "f32": U32, "i8": np.uint8, "f64": U64}


def operand_place(rows: int, depth: int, blocks: int) -> tuple[Array, Array, Array]:
    """(block, row, k) of element j of each lane's operand, [lanes, elements]."""
    per_lane = max(1, rows * depth * blocks // LANES)
    lane, j = np.meshgrid(np.arange(LANES), np.arange(per_lane), indexing="ij")
    group = lane // rows
    groups_per_block = LANES // rows // blocks
    return group // groups_per_block, lane % rows, group % groups_per_block * per_lane + j


def result_place(rows: int, blocks: int, element: str) -> tuple[Array, Array, Array]:
    """(block, row, column) of each result, [lanes, results]."""
    results = rows * rows * blocks // LANES
    lane, r = np.meshgrid(np.arange(LANES), np.arange(results), indexing="ij")
    if element == "f64":
        return np.zeros_like(r), 4 * r + lane // 16, lane % 16
    if rows == 4:
        return lane // 4, r, lane % 4
    if rows == 16:
        return r // 4, lane // 16 * 4 + r % 4, lane % 16
    return r // 16, r % 16 // 4 * 8 + lane // 32 * 4 + r % 4, lane % 32


def registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def to_registers(items: Array, first: int) -> dict[str, Array]:
    """Lane items [lanes, n] as vector registers."""
    words = np.ascontiguousarray(items).view(U32)
    return {f"v{first + i}": np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])}


def multiply(name: str, a: Array, b: Array, c: Array, profile: str = "cdna3", c_operand: str = "") -> Array:
    """Run one instruction on A, B [blocks, rows, depth] and C [blocks, rows, rows]; D likewise, as bits."""
    rows, depth, blocks, element = SHAPES[name]
    where, out = operand_place(rows, depth, blocks), result_place(rows, blocks, element)
    vectors = to_registers(a[where], 2) | to_registers(b[where], 40) | to_registers(c[out], 80)
    count_a = sum(1 for register in vectors if int(register[1:]) < 40)
    count_c = sum(1 for register in vectors if int(register[1:]) >= 80)
    d = registers(120, count_c)
    c_text = c_operand or registers(80, count_c)
    text = f"{name} {d}, {registers(2, count_a)}, {registers(40, count_a)}, {c_text}"
    words = np.stack(
        run([Step(text, tuple(f"v{120 + i}" for i in range(count_c)))], vectors, profile=profile)[0], -1
    )
    results = np.ascontiguousarray(words).view(U64 if element == "f64" else U32)
    d_matrix = np.zeros_like(c)
    d_matrix[out] = results
    return d_matrix


def random_operands(name: str, kind: str, random: np.random.Generator) -> tuple[Array, Array, Array]:
    rows, depth, blocks, element = SHAPES[name]
    a_size, c_size = (2, blocks, rows, depth), (blocks, rows, rows)
    item = ITEM[element]
    c_item = U64 if element == "f64" else U32
    if kind == "edges" and element != "i8":
        pool = edges(element, random)
        pool = (pool & U32(0xFFFF)).astype(item) if element in ("bf16", "f16") else pool
        c_pool = edges("f64" if element == "f64" else "f32", random)
        a, b = random.choice(pool, a_size)
        return a, b, random.choice(c_pool, c_size)
    if kind == "bits" or element == "i8":
        high = 2 ** (8 * np.dtype(item).itemsize)
        a, b = random.integers(0, high, a_size, dtype=item)
        return a, b, random.integers(0, 2 ** (8 * np.dtype(c_item).itemsize), c_size, dtype=c_item)
    real = random.standard_normal(a_size) * 2.0 ** random.integers(-6, 6, a_size)
    c = random.standard_normal(c_size) * 4
    if element == "bf16":
        a, b = (real.astype(np.float32).view(U32) >> U32(16)).astype(np.uint16)
    else:
        kinds = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
        a, b = real.astype(kinds[element]).view(item)
    return a, b, c.astype(np.float64 if element == "f64" else np.float32).view(c_item)


def tensor(bits: Array, element: str) -> torch.Tensor:
    kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[element]
    return torch.from_numpy(bits.view({2: np.int16, 4: np.int32}[bits.itemsize])).view(kind)


def simulated(a: Array, b: Array, c: Array, element: str) -> Array:
    """CDNA3's sum by MMA-Sim: groups of up to 8 products, 24 and 31 fractional bits, nearest even."""
    model = fdpa.MMA_TR_FDPA(F=24, F2=31, rho="RNE-FP32", L_max=8)
    rows = a.shape[1]
    out = [
        model.dpa(
            tensor(a[block], element)[:, None, :].expand(-1, rows, -1),
            tensor(b[block], element)[None, :, :].expand(rows, -1, -1),
            tensor(c[block], "f32"),
        )
        for block in range(len(a))
    ]
    return torch.stack(out).view(torch.int32).numpy().view(U32)


def reals(bits: Array, element: str) -> Array:
    if element == "bf16":
        return (bits.astype(U32) << U32(16)).view(np.float32).astype(np.float64)
    return bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[element]).astype(np.float64)


def chained(a: Array, b: Array, c: Array, element: str) -> Array:
    """One fused multiply-add for each k, ascending, exact before each rounding."""
    total = np.array(c)
    wide = element == "f64"
    x, y = reals(a, element), reals(b, element)
    for k in range(a.shape[-1]):
        left, right = np.broadcast_arrays(x[:, :, None, k], y[:, None, :, k])
        addend = total.view(np.float64 if wide else np.float32).astype(np.float64)
        exact = fused_multiply_add(left.ravel(), right.ravel(), addend.ravel(), 64 if wide else 32).reshape(
            c.shape
        )
        total = exact.view(U64) if wide else exact.astype(np.float32).view(U32)
    return total


def assert_same_matrix(got: Array, expected: Array, is_float: bool) -> None:
    equal = got == expected
    if is_float:
        kind = np.float64 if got.itemsize == 8 else np.float32
        equal |= np.isnan(got.view(kind)) & np.isnan(expected.view(kind))
    assert equal.all(), f"{(~equal).sum()} of {equal.size} differ, first at {np.argwhere(~equal)[0]}"


KINDS = ("normal", "edges", "bits")
HALVES = sorted(name for name in SHAPES if name.endswith("16"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HALVES)
def test_half_products_sum_as_the_published_model(name: str, kind: str) -> None:
    a, b, c = random_operands(name, kind, np.random.default_rng(5))
    assert_same_matrix(multiply(name, a, b, c), simulated(a, b, c, SHAPES[name][3]), True)


@pytest.mark.parametrize("name", sorted(name for name in SHAPES if not name.endswith("i8")))
def test_chain_of_fused_steps(name: str) -> None:
    """float32 and float64 always; halves under the profile that says so."""
    for kind in KINDS[: 1 if name in HALVES else 3]:
        a, b, c = random_operands(name, kind, np.random.default_rng(6))
        assert_same_matrix(multiply(name, a, b, c, "fma-chain"), chained(a, b, c, SHAPES[name][3]), True)


@pytest.mark.parametrize("name", sorted(name for name in SHAPES if name.endswith(("_f32", "_f64"))))
def test_single_and_double_do_not_depend_on_the_profile(name: str) -> None:
    a, b, c = random_operands(name, "normal", np.random.default_rng(7))
    assert_same_matrix(multiply(name, a, b, c, "cdna3"), multiply(name, a, b, c, "fma-chain"), True)


@pytest.mark.parametrize("name", sorted(name for name in SHAPES if name.endswith("i8")))
def test_integer_products_are_exact(name: str) -> None:
    a, b, c = random_operands(name, "bits", np.random.default_rng(8))
    x, y = a.view(np.int8).astype(np.int64), b.view(np.int8).astype(np.int64)
    assert_same_matrix(
        multiply(name, a, b, c), (x @ y.transpose(0, 2, 1) + c.view(np.int32)).astype(U32), False
    )


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_addend_may_be_a_constant(name: str) -> None:
    a, b, c = random_operands(name, "normal", np.random.default_rng(9))
    element = SHAPES[name][3]
    if element == "i8":
        literal, bits = "-3", 2**32 - 3
    else:
        literal, bits = "1.0", 0x3FF0000000000000 if element == "f64" else 0x3F800000
    same = multiply(name, a, b, np.full_like(c, bits))
    assert_same_matrix(multiply(name, a, b, c, c_operand=literal), same, element != "i8")
    assert_same_matrix(
        multiply(name, a, b, c, c_operand="0"), multiply(name, a, b, np.zeros_like(c)), element != "i8"
    )


def test_result_may_overwrite_its_operands() -> None:
    name = "v_mfma_f32_16x16x16_bf16"
    a, b, c = random_operands(name, "normal", np.random.default_rng(9))
    where, out = operand_place(16, 16, 1), result_place(16, 1, "bf16")
    vectors = to_registers(a[where], 2) | to_registers(b[where], 4) | to_registers(c[out], 8)
    for target in (2, 4, 8):
        text = f"{name} v[{target}:{target + 3}], v[2:3], v[4:5], v[8:11]"
        got = np.stack(run([Step(text, tuple(f"v{target + i}" for i in range(4)))], vectors)[0], -1)
        d = np.zeros_like(c)
        d[out] = got
        assert_same_matrix(d, multiply(name, a, b, c), True)


def test_accumulation_registers_and_older_names() -> None:
    name = "v_mfma_f32_32x32x8_bf16"
    a, b, c = random_operands(name, "normal", np.random.default_rng(9))
    where, out = operand_place(32, 8, 1), result_place(32, 1, "bf16")
    vectors = to_registers(a[where], 2) | to_registers(b[where], 4) | to_registers(c[out], 8)
    moves = "\n".join(f"v_accvgpr_write_b32 a{4 + i}, v{8 + i}" for i in range(16))
    text = f"{moves}\nv_mfma_f32_32x32x8bf16_1k a[4:19], v[2:3], v[4:5], a[4:19]"
    got = np.stack(run([Step(text, tuple(f"a{4 + i}" for i in range(16)))], vectors)[0], -1)
    d = np.zeros_like(c)
    d[out] = got
    assert_same_matrix(d, multiply(name, a, b, c), True)


def test_matrix_ignores_exec() -> None:
    name = "v_mfma_f32_16x16x4_f32"
    a, b, c = random_operands(name, "normal", np.random.default_rng(9))
    where, out = operand_place(16, 4, 1), result_place(16, 1, "f32")
    vectors = to_registers(a[where], 2) | to_registers(b[where], 3) | to_registers(c[out], 4)
    results = ("v20", "v21", "v22", "v23")
    plain, masked = run(
        [
            Step(f"{name} v[20:23], v2, v3, v[4:7]", results),
            Step(f"s_mov_b64 exec, 5\n{name} v[20:23], v2, v3, v[4:7]", results),
        ],
        vectors,
    )
    assert all((x == y).all() for x, y in zip(plain, masked, strict=True))


def test_double_layout_by_hand() -> None:
    """One element of A and B each: the only product lands in its row and column."""
    for row, column, k in ((0, 0, 0), (5, 9, 3), (15, 2, 1)):
        a, b = np.zeros((2, 1, 16, 4))
        a[0, row, k], b[0, column, k] = 3.0, 5.0
        got = multiply("v_mfma_f64_16x16x4_f64", a.view(U64), b.view(U64), np.zeros((1, 16, 16), U64)).view(
            np.float64
        )
        assert got[0, row, column] == 15.0 and np.count_nonzero(got) == 1
        assert Fraction(got.sum()) == 15


@pytest.mark.parametrize("sign", (0x0000, 0x8000))
def test_a_sum_that_overflows_on_the_way_stays_infinite(sign: int) -> None:
    """Two groups of eight add up to infinity, two more of the other sign do not bring it back."""
    name = "v_mfma_f32_16x16x32_bf16"
    a = np.full((1, 16, 32), 0x3F80, np.uint16)
    b = np.full((1, 16, 32), 0x7DC0 ^ sign, np.uint16)  # 1.5 * 2**124
    b[..., 16:] ^= 0x8000
    got = multiply(name, a, b, np.zeros((1, 16, 16), U32))
    assert np.all(got == (0xFF800000 if sign else 0x7F800000))
