"""Every vector arithmetic instruction against AMD's pseudocode, or a NumPy expression where that is loose."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tqkernel.gfx950.isa import instruction_set
from tqkernel.gfx950.isa.vector16 import PACKED

from .machine import LANES, Step, run
from .pseudocode import Value, bits_of, evaluate, float_of, fused_multiply_add, odd_float32, texts
from .values import assert_same, inputs

Array = np.ndarray
U32, U64 = np.uint32, np.uint64

SPECIAL = {"v_fmamk_f32", "v_fmaak_f32"}
"""Instructions with a literal operand: a test of their own."""

COVERED = frozenset(
    name
    for name, instruction in instruction_set().items()
    if instruction.unit == "vector"
    and not name.startswith(("v_cmp", "v_div_"))
    and (instruction.accuracy == "exact" or name.startswith("v_dot2"))
)


def f32(x: Array) -> Array:
    return x.astype(U32).view(np.float32).astype(np.float64)


def f64(x: Array) -> Array:
    return x.view(np.float64)


def to_f32(x: Array) -> Array:
    return x.astype(np.float32).view(U32)


def half(x: Array, high: bool = False) -> Array:
    return (x >> U32(16 if high else 0)).astype(np.uint16).view(np.float16).astype(np.float64)


def to_half(x: Array) -> Array:
    return x.astype(np.float16).view(np.uint16).astype(U32)


def signed(x: Array, bits: int) -> Array:
    shift = np.int64(64 - bits)
    return (x.astype(np.int64) << shift) >> shift


def _fma32(a: Array, b: Array, c: Array) -> Array:
    return to_f32(fused_multiply_add(f32(a), f32(b), f32(c), 32))


def _exact(function: Callable[..., int], bits: int = 64) -> Callable[..., Array]:
    """Python integers, one lane at a time."""
    kind = U64 if bits == 64 else U32

    def over(*columns: Array) -> Array:
        return np.array(
            [function(*row) & (1 << bits) - 1 for row in zip(*(c.tolist() for c in columns), strict=True)],
            kind,
        )

    return over


def _i32(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def _i64(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _fraction(a: Array) -> Array:
    x = f32(a)
    return to_f32(
        np.where(
            np.isinf(x), np.nan, np.minimum((x - np.floor(x)).astype(np.float32), np.float32(1 - 2**-24))
        )
    )


def _fraction64(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(x), np.nan, np.minimum(x - np.floor(x), 1 - 2.0**-53)).view(U64)


def _maximum(a: Array, b: Array) -> Array:
    """IEEE 754 maximum: NaN if either is, +0 above -0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


def _saturating(operation: str, kind: str) -> Callable[..., Array]:
    """An integer operation whose result is the nearest that its type holds."""
    limits = np.iinfo({"u": "uint", "i": "int"}[kind[0]] + kind[1:])
    exact = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "r": lambda a, b: b - a,
        "m": lambda a, b, c: a * b + c,
    }[operation]

    def over(*columns: Array) -> Array:
        bits = int(kind[1:])
        wide = [signed(c, bits) if kind[0] == "i" else c.astype(np.int64) & (1 << bits) - 1 for c in columns]
        return np.clip(exact(*wide), limits.min, limits.max).astype(np.int64).astype(U32)

    return over


def _leading(x: int) -> int:
    return 32 - x.bit_length() if x else -1


# Where the pseudocode leaves rounding, clamping or a flag open: what LLVM and the manual's prose say.
EXPRESSIONS: dict[str, Callable[..., Array]] = {
    "v_rndne_f32": lambda a: to_f32(np.rint(f32(a))),
    "v_rndne_f64": lambda a: np.rint(f64(a)).view(U64),
    "v_rndne_f16": lambda a: to_half(np.rint(half(a))),
    "v_fract_f32": _fraction,
    "v_fract_f64": lambda a: _fraction64(f64(a)),
    "v_frexp_exp_i32_f64": lambda a: _frexp_exponent(f64(a)),
    "v_maximum3_f16": lambda a, b, c: to_half(_maximum(_maximum(half(a), half(b)), half(c))),
    "v_minimum3_f16": lambda a, b, c: to_half(-_maximum(_maximum(-half(a), -half(b)), -half(c))),
    "v_bitop3_b16": lambda a, b, c: (~a & c) | (a & b),
    "v_mad_legacy_u16": lambda a, b, c: a * b + c,
    "v_mad_legacy_i16": lambda a, b, c: a * b + c,
    **{f"v_{name}_{kind}:clamp": _saturating(operation, kind)
       for name, operation in (("add", "+"), ("sub", "-"), ("subrev", "r"), ("mad", "m"))
       for kind in ("u16", "i16", "u32", "i32")
       if f"v_{name}_{kind}:clamp" in instruction_set()},
    "v_ldexp_f64": lambda a, b: _ldexp64(f64(a), signed(b, 32)),
    "v_ldexp_f16": lambda a, b: to_half(np.ldexp(half(a), signed(b & U32(0xFFFF), 16).astype(np.int32))),
    "v_frexp_mant_f32": lambda a: to_f32(np.frexp(f32(a))[0]),
    "v_frexp_exp_i32_f32": lambda a: _frexp_exponent(f32(a)),
    "v_cvt_rpi_i32_f32": lambda a: _saturate(np.floor(f32(a) + 0.5)),
    "v_mad_u64_u32": _exact(lambda a, b, c: a * b + c),
    "v_mad_i64_i32": _exact(lambda a, b, c: _i32(a) * _i32(b) + _i64(c)),
    "v_accvgpr_read_b32": lambda a: a,
    "v_accvgpr_write_b32": lambda a: a,
    "v_accvgpr_mov_b32": lambda a: a,
    "v_fmac_f16": lambda a, b, old: to_half(odd_float32(fused_multiply_add(half(a), half(b), half(old), 16))),
    "v_mad_mix_f32": _fma32,
    "v_fma_mix_f32": _fma32,
    **{f"v_{kind}_mix{part}_f16": lambda a, b, c: to_half(f32(_fma32(a, b, c)))
       for kind in ("fma", "mad") for part in ("lo", "hi")},
}  # fmt: skip

MASKS: dict[str, Callable[..., Array]] = {
    "v_mad_u64_u32": _exact(lambda a, b, c: a * b + c >> 64, 32),
    "v_mad_i64_i32": _exact(lambda a, b, c: (_i32(a) * _i32(b) + _i64(c)) >> 64 & 1, 32),
}


def _ldexp(x: float, n: int) -> float:
    if not math.isfinite(x):
        return x
    try:
        return math.ldexp(x, n)
    except OverflowError:
        return math.copysign(math.inf, x)


def _ldexp64(x: Array, n: Array) -> Array:
    return np.array([_ldexp(*row) for row in zip(x.tolist(), n.tolist(), strict=True)]).view(U64)


def _frexp_exponent(x: Array) -> Array:
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int64).astype(U32)


def _saturate(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.clip(x, -(2**31), 2**31 - 1)).astype(np.int64).astype(U32)


# What a result register holds, where it is not what the first letter of the instruction's own type says.
PAIRS = {"v_cvt_pk_bf16_f32": "bf16x2", "v_cvt_pk_f16_f32": "f16x2", "v_cvt_pkrtz_f16_f32": "f16x2"}
SOURCES = {
    "v_dot2_f32_bf16": ("bf16", "bf16", "f32"), "v_dot2c_f32_bf16": ("bf16", "bf16", "f32"),
    "v_dot2_f32_f16": ("f16", "f16", "f32"), "v_dot2c_f32_f16": ("f16", "f16", "f32"),
}  # fmt: skip

# LLVM's zeroesHigh16BitsOfDest for gfx9; every other 16-bit result leaves the upper half alone.
ZEROES_HIGH = {
    f"v_{name}"
    for name in [
        "cvt_f16_f32",
        "cvt_f16_u16",
        "cvt_f16_i16",
        "cvt_u16_f16",
        "cvt_i16_f16",
        "rcp_f16",
        "sqrt_f16",
        "rsq_f16",
        "log_f16",
        "exp_f16",
        "floor_f16",
        "ceil_f16",
        "trunc_f16",
        "rndne_f16",
        "add_f16",
        "sub_f16",
        "subrev_f16",
        "mul_f16",
        "fmac_f16",
        "add_u16",
        "sub_u16",
        "subrev_u16",
        "mul_lo_u16",
        "lshlrev_b16",
        "lshrrev_b16",
        "ashrrev_i16",
        "max_f16",
        "min_f16",
        "max_u16",
        "max_i16",
        "min_u16",
        "min_i16",
        "ldexp_f16",
        "mad_legacy_u16",
        "mad_legacy_i16",
    ]
}


def quiet_halves(column: Array) -> Array:
    """Signalling NaN halves made quiet: the machine widens halves on the way in, which quiets them."""
    for shift in (0, 16):
        half_bits = column >> U32(shift)
        column = np.where(
            half_bits & U32(0x7C00) == U32(0x7C00),
            column | (half_bits & U32(0x3FF) != 0) * U32(0x200 << shift),
            column,
        )
    return column.astype(U32)


ORDERING_HALVES = {
    "v_max_f16",
    "v_min_f16",
    "v_max3_f16",
    "v_min3_f16",
    "v_med3_f16",
    "v_pk_max_f16",
    "v_pk_min_f16",
    "v_maximum3_f16",
    "v_minimum3_f16",
    "v_pk_maximum3_f16",
    "v_pk_minimum3_f16",
}


def result_width(name: str, result: str) -> int:
    if result in ("f16", "h16", "lo16", "u16", "k16") or name in ("v_cvt_u16_f16", "v_cvt_i16_f16"):
        return 16
    return 64 if result in ("u64", "f64", "i64") else 32


def pair(first: int, wide: bool) -> str:
    return f"v[{first}:{first + 1}]" if wide else f"v{first}"


def expected(
    name: str, operands: list[Array], old: Array, carry: Array | None, table: int
) -> tuple[Array, Array | None]:
    """(result bits, lane-mask bits) of an instruction on its explicit sources."""
    lanes = len(old)
    if name in EXPRESSIONS:
        arguments = operands + ([old] if name == "v_fmac_f16" else [])
        mask = MASKS[name](*operands) if name in MASKS else None
        return EXPRESSIONS[name](*arguments).astype(U64), mask
    registers = {f"S{i}": Value(operand.astype(U64), "b", 64) for i, operand in enumerate(operands)}
    registers["D0"] = Value(old.astype(U64), "b", 64)
    registers["laneId"] = Value(np.arange(lanes, dtype=U64) % U64(LANES), "u", 32)
    registers["TTBL"] = Value(np.full(lanes, table, U64), "b", 32)
    if carry is not None:
        registers["CARRY"] = Value(carry.astype(U64), "u", 1)
    after = evaluate(name, registers, lanes)
    return after["D0"].bits, after["MASK"].bits if "MASK" in after else None


@pytest.mark.parametrize("name", sorted(COVERED - SPECIAL))
def test_result_is_what_the_manual_says(name: str) -> None:
    instruction = instruction_set()[name]
    kinds = [
        kind.lstrip("+")
        for kind in instruction.sources
        if kind not in ("mask", "vcc", "table") and kind[0] != "+"
    ]
    kinds = ["f32" if kind == "mix" else kind for kind in kinds]
    kinds = list(SOURCES.get(name, kinds))[: len(kinds)]
    columns = inputs((*kinds, "u64" if "64" in instruction.results[0] else "u32"))
    operands, old = columns[:-1], columns[-1]
    if name.startswith(("v_fmac", "v_dot2c")):
        old = inputs((*kinds, kinds[0] if name.startswith("v_fmac") else "f32"))[-1]
    if name in ORDERING_HALVES:
        operands = [quiet_halves(operand) for operand in operands]
    count = len(old)
    random = np.random.default_rng(7)
    carry = random.integers(0, 2, count, dtype=U32)
    vectors, names = {}, []
    for i, operand in enumerate(operands):
        register = pair(2 + 2 * i, operand.dtype == U64)
        vectors[register] = operand
        names.append(register)
    destination = pair(20, old.dtype == U64)
    vectors[destination] = old
    uses_carry = "mask" in instruction.sources
    scalars = {"s[8:9]": np.packbits(carry.astype(bool), bitorder="little").view(U64)}
    operand_text = [destination, *(["s[10:11]"] if "mask" in instruction.results else []), *names]
    table = 0xCA if name == "v_bitop3_b16" else 0xE4 if "table" in instruction.sources else 0
    mnemonic, _, modifier = name.partition(":")
    text = f"{mnemonic} " + ", ".join(operand_text + (["s[8:9]"] if uses_carry else [])) + f" {modifier}"
    text += f" bitop3:{table:#x}" if table else ""
    if name == "v_accvgpr_write_b32":
        text = f"v_accvgpr_write_b32 a3, {names[0]}\nv_accvgpr_read_b32 {destination}, a3"
    elif name == "v_accvgpr_read_b32":
        text = f"v_accvgpr_write_b32 a200, {names[0]}\nv_accvgpr_read_b32 {destination}, a200"
    elif name == "v_accvgpr_mov_b32":
        text = (
            f"v_accvgpr_write_b32 a7, {names[0]}\nv_accvgpr_mov_b32 a8, a7\n"
            f"v_accvgpr_read_b32 {destination}, a8"
        )
    results = (destination, *(["s[10:11]"] if "mask" in instruction.results else []))
    got, *masks = run([Step(text, results)], vectors, scalars)[0]
    want, want_mask = expected(name, operands, old, carry if uses_carry else None, table)
    result = instruction.results[0]
    width = result_width(name, result)
    kind = PAIRS.get(name) or {
        "f32": "f32",
        "f64": "f64",
        "f16": "f16",
        "h16": "f16",
        "lo16": "f16",
        "hi16": "f16",
    }.get(result, "u")
    if result == "hi16":
        assert_same(got & U32(0xFFFF), old & U32(0xFFFF), "u", [*operands, old], f"{name}, the other half")
        got = got >> U32(16)
        want = want & U64(0xFFFF)
    elif width == 16:
        high = np.zeros_like(old) if mnemonic in ZEROES_HIGH else old & U32(0xFFFF0000)
        assert_same(got & U32(0xFFFF0000), high, "u", [*operands, old], f"{name}, the other half")
        got, want = got & U32(0xFFFF), want & U64(0xFFFF)
    elif width == 32:
        want = want & U64(0xFFFFFFFF)
    assert_same(got, want.astype(got.dtype), kind, [*operands, old], name)
    if masks:
        assert want_mask is not None
        bits = np.packbits((want_mask & 1).astype(bool), bitorder="little").view(U64)
        assert masks[0].tolist() == bits.tolist(), f"{name}: lane mask"


CONSTANTS = (0x3FC00000, 0x80000000, 0x7F800000, 0x00000001, 0xC2F6E979)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_fma_with_a_literal(constant: int) -> None:
    a, b = inputs(("f32", "f32"))
    steps = [
        Step(f"v_fmamk_f32 v20, v2, {constant:#x}, v4", ("v20",)),
        Step(f"v_fmaak_f32 v20, v2, v4, {constant:#x}", ("v20",)),
    ]
    (middle,), (last,) = run(steps, {"v2": a, "v4": b})
    literal = np.full_like(a, constant)
    assert_same(middle, _fma32(a, literal, b), "f32", [a, b], "v_fmamk_f32")
    assert_same(last, _fma32(a, b, literal), "f32", [a, b], "v_fmaak_f32")


@pytest.mark.parametrize("table", range(256))
def test_bitop3_reads_its_truth_table(table: int) -> None:
    # 0xF0, 0xCC, 0xAA hold every combination of three bits once.
    a, b, c = (np.full(LANES, byte, U32) for byte in (0xF0, 0xCC, 0xAA))
    ((got,),) = run(
        [Step(f"v_bitop3_b32 v20, v2, v4, v6 bitop3:{table:#x}", ("v20",))], {"v2": a, "v4": b, "v6": c}
    )
    assert (got & U32(0xFF)).tolist() == [table] * LANES


def test_mix_takes_each_operand_from_a_float_or_either_half() -> None:
    a, b, c = inputs(("f16", "f32", "f16"))
    steps = []
    for name in (
        "v_fma_mix_f32",
        "v_mad_mix_f32",
        "v_fma_mixlo_f16",
        "v_fma_mixhi_f16",
        "v_mad_mixlo_f16",
        "v_mad_mixhi_f16",
    ):
        steps.append(
            Step(f"v_mov_b32 v20, 0\n{name} v20, v2, v4, v6 op_sel:[1,0,0] op_sel_hi:[1,0,1]", ("v20",))
        )
        steps.append(
            Step(f"v_mov_b32 v20, 0\n{name} v20, -v2, |v4|, v6 op_sel:[0,0,1] op_sel_hi:[1,0,1]", ("v20",))
        )
    results = run(steps, {"v2": a, "v4": b, "v6": c})
    sums = (
        fused_multiply_add(half(a, True), f32(b), half(c), 32),
        fused_multiply_add(-half(a), np.abs(f32(b)), half(c, True), 32),
    )
    for step, (got,), exact in zip(steps, results, sums * 6, strict=True):
        if "_f32" in step.text:
            assert_same(got, to_f32(exact), "f32", [a, b, c], step.text)
        else:
            shift = U32(16 if "hi_f16" in step.text else 0)
            # Rounded to float32 first: what LLVM selects it for.
            assert_same(got >> shift, to_half(exact.astype(np.float32)), "f16", [a, b, c], step.text)


def select(column: Array, low: int, high: int, width: int) -> Array:
    """A packed operand whose low and high result read the halves that op_sel and op_sel_hi name."""
    bits, mask = (U64(32), U64(0xFFFFFFFF)) if width == 32 else (U32(16), U32(0xFFFF))
    kind = type(bits)
    return ((column >> bits * kind(low)) & mask) | ((column >> bits * kind(high)) & mask) << bits


PACKED_COVERED = frozenset(PACKED)
SELECTS = (((0, 0, 0), (1, 1, 1)), ((1, 0, 1), (0, 1, 0)), ((0, 1, 0), (0, 0, 1)), ((1, 1, 1), (1, 1, 1)))


def packed_kinds(name: str) -> tuple[str, int]:
    if name.endswith("32"):
        return ("f32" if name.endswith("f32") else "u32"), 32
    return ("f16" if name.endswith("f16") else "u16"), 16


def packed_operands(name: str) -> int:
    return 3 if any(kind in name for kind in ("fma", "mad", "3_")) else 2


@pytest.mark.parametrize("name", sorted(PACKED))
def test_packed_form_does_both_halves(name: str) -> None:
    kind, width = packed_kinds(name)
    count = packed_operands(name)
    if width == 32:
        halves = inputs((kind,) * count * 2)
        operands = [
            a.astype(U64) | b.astype(U64) << U64(32) for a, b in zip(halves[::2], halves[1::2], strict=True)
        ]
    else:
        operands = [quiet_halves(o) if name in ORDERING_HALVES else o for o in inputs((kind,) * count)]
    registers = [pair(2 + 2 * i, width == 32) for i in range(count)]
    destination = pair(20, width == 32)
    steps, expectations = [], []
    for lows, highs in SELECTS:
        if name == "v_pk_mov_b32":
            highs = tuple(1 for _ in lows)  # only op_sel means anything
        selects = f"op_sel:{list(lows[:count])} op_sel_hi:{list(highs[:count])}".replace(", ", ",")
        text = f"{name} {destination}, {', '.join(registers)} {selects}"
        steps.append(Step(text, (destination,)))
        values = {
            f"S{i}": Value(select(o, lows[i], highs[i], width).astype(U64), "b", 64)
            for i, o in enumerate(operands)
        }
        if name == "v_pk_mov_b32":
            x, y = operands
            low = (x >> U64(32 * lows[0])) & U64(0xFFFFFFFF)
            expectations.append(low | ((y >> U64(32 * lows[1])) & U64(0xFFFFFFFF)) << U64(32))
        elif "imum3" in name:
            function = EXPRESSIONS[PACKED[name][0]]
            chosen = [select(o, lows[i], highs[i], width) for i, o in enumerate(operands)]
            low, high = (function(*(c >> U32(shift) & U32(0xFFFF) for c in chosen)) for shift in (0, 16))
            expectations.append(low | high << U32(16))
        else:
            expectations.append(evaluate(name, values, len(operands[0]))["D0"].bits)
    results = run(steps, dict(zip(registers, operands, strict=True)))
    for step, (got,), want in zip(steps, results, expectations, strict=True):
        if width == 32:
            for shift in (U64(0), U64(32)):
                one, other = ((x >> shift).astype(U32) for x in (got, want))
                assert_same(one, other, kind, operands, step.text)
        else:
            assert_same(got, want.astype(U32), "f16x2" if kind == "f16" else "u", operands, step.text)


@pytest.mark.parametrize("name", sorted(PACKED))
def test_packed_form_may_overwrite_its_own_source(name: str) -> None:
    kind, width = packed_kinds(name)
    count = packed_operands(name)
    operands = inputs((("f64" if kind == "f32" else "u64") if width == 32 else kind,) * count, 512)
    registers = [pair(2 + 2 * i, width == 32) for i in range(count)]
    swapped = "op_sel:[1,1,1] op_sel_hi:[0,0,0]" if count == 3 else "op_sel:[1,1] op_sel_hi:[0,0]"
    fresh = Step(
        f"{name} {pair(20, width == 32)}, {', '.join(registers)} {swapped}", (pair(20, width == 32),)
    )
    for position in range(count):
        in_place = Step(
            f"{name} {registers[position]}, {', '.join(registers)} {swapped}", (registers[position],)
        )
        (want,), (got,) = run([fresh, in_place], dict(zip(registers, operands, strict=True)))
        assert (got == want).all(), in_place.text


def test_pseudocode_is_there() -> None:
    assert len(texts()) > 700
    assert float_of(bits_of(np.array([1.5]), "bf", 16), "bf", 16)[0] == 1.5
