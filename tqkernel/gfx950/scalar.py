"""The functions that instruction meanings use: one value in, one value out, compiled by numba.

Integers are int64 throughout (a 32-bit source arrives zero- or sign-extended, a result is truncated on the way out),
floats are float32 or float64. Nothing here is contracted or reassociated: numba's default is strict IEEE 754.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

float32, float64 = np.float32, np.float64
F0 = np.float32(0.0)
_INFINITY = np.float32(np.inf)
_NAN = np.float32(np.nan)


def inner(function):
    """Compile for use inside the interpreter: no allocation, and so no reference counting of array arguments."""
    return njit(_nrt=False, error_model="numpy")(function)


# ---------------------------------------------------------------- bit casts and single-instruction operations


def _unary(name: str, result: types.Type, argument: types.Type, build):
    def implementation(typingctx, value):
        def generate(context, builder, signature, args):
            return build(builder, args[0])

        return result(argument), generate

    implementation.__name__ = name
    return intrinsic(implementation)


_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32, _F64, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()

bits32 = _unary("bits32", types.int64, types.float32, lambda b, x: b.zext(b.bitcast(x, _I32), _I64))
bits64 = _unary("bits64", types.int64, types.float64, lambda b, x: b.bitcast(x, _I64))
float32_of = _unary("float32_of", types.float32, types.int64, lambda b, x: b.bitcast(b.trunc(x, _I32), _F32))
float64_of = _unary("float64_of", types.float64, types.int64, lambda b, x: b.bitcast(x, _F64))
half_to_float32 = _unary(
    "half_to_float32", types.float32, types.int64, lambda b, x: b.fpext(b.bitcast(b.trunc(x, _I16), _HALF), _F32)
)
half_bits = _unary(
    "half_bits", types.int64, types.float32, lambda b, x: b.zext(b.bitcast(b.fptrunc(x, _HALF), _I16), _I64)
)


def _call(name: str, llvm_name: str, kind: types.Type, llvm_type: ir.Type, count: int):
    def generate(context, builder, signature, args):
        function_type = ir.FunctionType(llvm_type, [llvm_type] * count)
        function = cgutils.get_or_insert_function(builder.module, function_type, llvm_name)
        return builder.call(function, args)

    def one(typingctx, a):
        return kind(kind), generate

    def three(typingctx, a, b, c):
        return kind(kind, kind, kind), generate

    implementation = {1: one, 3: three}[count]
    implementation.__name__ = name
    return intrinsic(implementation)


fma32 = _call("fma32", "llvm.fma.f32", types.float32, _F32, 3)
fma64 = _call("fma64", "llvm.fma.f64", types.float64, _F64, 3)
trunc = _call("trunc", "llvm.trunc.f64", types.float64, _F64, 1)
floor = _call("floor", "llvm.floor.f64", types.float64, _F64, 1)
ceil = _call("ceil", "llvm.ceil.f64", types.float64, _F64, 1)
round_even = _call("round_even", "llvm.rint.f64", types.float64, _F64, 1)
trunc32 = _call("trunc32", "llvm.trunc.f32", types.float32, _F32, 1)
floor32 = _call("floor32", "llvm.floor.f32", types.float32, _F32, 1)
ceil32 = _call("ceil32", "llvm.ceil.f32", types.float32, _F32, 1)
round_even32 = _call("round_even32", "llvm.rint.f32", types.float32, _F32, 1)
_reverse64 = _call("_reverse64", "llvm.bitreverse.i64", types.int64, _I64, 1)
count_ones = _call("count_ones", "llvm.ctpop.i64", types.int64, _I64, 1)


def _count_zeros(name: str):
    def implementation(typingctx, value):
        def generate(context, builder, signature, args):
            function_type = ir.FunctionType(_I64, [_I64, ir.IntType(1)])
            function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.i64")
            return builder.call(function, [args[0], ir.Constant(ir.IntType(1), 0)])

        return types.int64(types.int64), generate

    implementation.__name__ = name
    return intrinsic(implementation)


_leading_zeros = _count_zeros("ctlz")
_trailing_zeros = _count_zeros("cttz")


# ---------------------------------------------------------------- integers


@inner
def logical_right(a, n):
    return (a >> n) & ((np.int64(1) << (np.int64(64) - n)) - 1) if n > 0 else a


@inner
def order(a):
    """Map an int64 that holds an unsigned value to one whose signed order is the unsigned order."""
    return a ^ np.int64(-0x8000000000000000)


@inner
def sign_extend(a, bits):
    shift = np.int64(64) - bits
    return (a << shift) >> shift


@inner
def overflows32(a):
    return np.int64(a != sign_extend(a, 32))


@inner
def multiply_high_unsigned(a, b):
    return (a >> 16) * b + (((a & 0xFFFF) * b) >> 16) >> 16


@inner
def multiply_add_carry(a, b, c):
    """Carry out of the unsigned 64-bit a * b + c."""
    return np.int64(order(a * b + c) < order(c))


@inner
def multiply_add_sign(a, b, c):
    """Bit 64 of the signed 65-bit a * b + c."""
    product = a * b
    total = product + c
    overflows = (product ^ total) & (c ^ total) < 0
    return np.int64((total < 0) != overflows)


@inner
def clamp(a, low, high):
    return min(max(a, low), high)


@inner
def extract(a, offset, width):
    """`width` (up to 127) bits of a 32-bit value from bit `offset` modulo 32."""
    return (a >> (offset & 31)) & ((np.int64(1) << min(width, np.int64(32))) - 1)


@inner
def extract_signed(a, offset, width):
    n = min(width, np.int64(32))
    return sign_extend(sign_extend(a, 32) >> (offset & 31), n) if n > 0 else np.int64(0)


@inner
def extract64(a, offset, width):
    n = width & 127
    value = logical_right(a, offset & 63)
    return value & ((np.int64(1) << n) - 1) if n < 64 else value


@inner
def reverse32(a):
    return logical_right(_reverse64(a), np.int64(32))


@inner
def first_one(a):
    return np.int64(-1) if a == 0 else _trailing_zeros(a)


@inner
def leading_zeros32(a):
    return np.int64(-1) if a == 0 else _leading_zeros(a) - 32


@inner
def leading_zeros64(a):
    return np.int64(-1) if a == 0 else _leading_zeros(a)


@inner
def leading_sign_bits32(a):
    """Bits equal to the sign bit from the top, -1 if all are."""
    folded = a ^ (a >> 63)
    return np.int64(-1) if folded == 0 else _leading_zeros(folded) - 32


@inner
def lanes_below(lane):
    return (np.int64(1) << np.int64(lane)) - 1


@inner
def permute_bytes(a, b, select):
    """v_perm_b32: four selectors pick among the bytes of {a, b}, their sign bits, 0 and 0xFF."""
    data = (a << 32) | b
    result = np.int64(0)
    for i in range(4):
        choice = (select >> (8 * i)) & 0xFF
        if choice < 8:
            byte = (data >> (8 * choice)) & 0xFF
        elif choice < 12:
            byte = ((data >> (16 * (choice - 8) + 15)) & 1) * 0xFF
        elif choice == 12:
            byte = np.int64(0)
        else:
            byte = np.int64(0xFF)
        result |= byte << (8 * i)
    return result


@inner
def truth_table(a, b, c, table):
    """v_bitop3: bit i of the table is the result where the bits of a, b, c spell i."""
    result = np.int64(0)
    for i in range(8):
        if (table >> i) & 1:
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            z = c if i & 1 else ~c
            result |= x & y & z
    return result


@inner
def signed32(a):
    return sign_extend(a, 32)


@inner
def signed(a):
    return a


@inner
def dot4_i8(a, b, c):
    for i in range(4):
        c += sign_extend(a >> (8 * i), 8) * sign_extend(b >> (8 * i), 8)
    return c


@inner
def dot4_u8(a, b, c):
    for i in range(4):
        c += ((a >> (8 * i)) & 255) * ((b >> (8 * i)) & 255)
    return c


# ---------------------------------------------------------------- floats


# A signalling NaN makes the result of a minimum or maximum NaN, as IEEE 754-2008 says and as the chip does in the mode
# that every compute kernel runs in (halves arrive widened, which quiets them).


@inner
def _is_signalling32(a):
    return a != a and not bits32(a) & 0x00400000


@inner
def _is_signalling64(a):
    return a != a and not bits64(a) & 0x0008000000000000


@inner
def maximum_number(a, b):
    """IEEE 754-2008 maxNum, +0 above -0."""
    if a != a:
        return _NAN if _is_signalling32(a) or _is_signalling32(b) else b
    if b != b:
        return _NAN if _is_signalling32(b) else a
    if a == b:
        return a if bits32(b) >> 31 else b
    return a if a > b else b


@inner
def minimum_number(a, b):
    if a != a:
        return _NAN if _is_signalling32(a) or _is_signalling32(b) else b
    if b != b:
        return _NAN if _is_signalling32(b) else a
    if a == b:
        return b if bits32(b) >> 31 else a
    return a if a < b else b


@inner
def maximum_number64(a, b):
    if a != a:
        return float64(_NAN) if _is_signalling64(a) or _is_signalling64(b) else b
    if b != b:
        return float64(_NAN) if _is_signalling64(b) else a
    if a == b:
        return a if bits64(b) < 0 else b
    return a if a > b else b


@inner
def minimum_number64(a, b):
    if a != a:
        return float64(_NAN) if _is_signalling64(a) or _is_signalling64(b) else b
    if b != b:
        return float64(_NAN) if _is_signalling64(b) else a
    if a == b:
        return b if bits64(b) < 0 else a
    return a if a < b else b


@inner
def maximum(a, b):
    """IEEE 754-2019 maximum: NaN if either is."""
    if a != a:
        return a
    if b != b:
        return b
    return maximum_number(a, b)


@inner
def minimum(a, b):
    if a != a:
        return a
    if b != b:
        return b
    return minimum_number(a, b)


@inner
def median_number(a, b, c):
    if a != a or b != b or c != c:
        return minimum_number(minimum_number(a, b), c)
    largest = maximum_number(maximum_number(a, b), c)
    if largest == a:
        return maximum_number(b, c)
    if largest == b:
        return maximum_number(a, c)
    return maximum_number(a, b)


@inner
def _power_of_two(n):
    """2**n as float64 for -1022 <= n <= 1023."""
    return float64_of((n + 1023) << 52)


@inner
def scale32(a, n):
    return float32(float64(a) * _power_of_two(clamp(n, -400, 400)))


@inner
def scale16(a, n):
    return float32(float64(a) * _power_of_two(clamp(n, -100, 100)))


@inner
def scale64(a, n):
    return math.ldexp(a, clamp(n, -3000, 3000))


@inner
def fraction32(a):
    """a - floor(a), kept below one."""
    if a != a or abs(a) == _INFINITY:
        return _NAN
    return min(a - floor32(a), float32_of(np.int64(0x3F7FFFFF)))


@inner
def frexp_mantissa32(a):
    return a if a != a or abs(a) == _INFINITY else float32(math.frexp(float64(a))[0])


@inner
def frexp_exponent32(a):
    return np.int64(0) if a != a or abs(a) == _INFINITY else np.int64(math.frexp(float64(a))[1])


@inner
def to_i32(a):
    """Truncate, saturate, NaN to 0."""
    if a != a:
        return np.int64(0)
    return np.int64(min(max(trunc(a), -2147483648.0), 2147483647.0))


@inner
def to_u32(a):
    if a != a:
        return np.int64(0)
    return np.int64(min(max(trunc(a), 0.0), 4294967295.0))


@inner
def bf16_bits(a):
    """Round to bf16, nearest even; NaN stays NaN and becomes quiet."""
    x = bits32(a)
    if a != a:
        return (x >> 16) | 0x40
    return (x + 0x7FFF + ((x >> 16) & 1)) >> 16


@inner
def f16_bits(a):
    return half_bits(a)


@inner
def f16_bits_toward_zero(a):
    rounded = half_bits(a)
    return rounded - 1 if abs(half_to_float32(rounded)) > abs(a) else rounded


@inner
def fma16(a, b, c):
    """Fused multiply-add of halves, exact in float64 up to a tie that a half never sees."""
    return float32(half_to_float32(_half_from_double(float64(a) * float64(b) + float64(c))))


@inner
def fma_round16(a, b, c):
    """Fused multiply-add of float32s rounded to half (v_fma_mixlo/hi): float32 first, as the chip does."""
    return fma32(a, b, c)


@inner
def _half_from_double(x):
    return half_bits(_float32_by_odd(x))


@inner
def _float32_by_odd(x):
    """Round float64 to float32 such that one more rounding, to half, is right."""
    narrow = float32(x)
    if float64(narrow) != x and narrow == narrow and abs(narrow) != _INFINITY:
        bits = bits32(narrow)
        if abs(float64(narrow)) > abs(x):
            bits -= 1
        narrow = float32_of(bits | 1)
    return narrow


@inner
def _flush(a):
    return a * F0 if abs(a) < float32_of(np.int64(0x00800000)) else a


# Every float32 whose exp2 lies within 16 float64 ulps of the middle of two float32s, where a float64 exp2 good to
# an ulp cannot tell which way to round, with the correctly rounded result (bits of both). Found by searching all.
_HARD_EXP2 = np.array([
    (0x33B8AA3B, 0x3F800001), (0x36879CF7, 0x3F800018), (0x37E338EB, 0x3F80009D), (0x383ECB1D, 0x3F800109),
    (0x3A07857C, 0x3F800BBE), (0x3A0B4316, 0x3F800C11), (0x3B429D37, 0x3F804385), (0x3B53AA14, 0x3F804971),
    (0x3C02A9AD, 0x3F80B5A3), (0x3D036455, 0x3F82E0C0), (0x3DC9ABE2, 0x3F890AB5), (0x3DEB2F8E, 0x3F8A9AEA),
    (0xB338AA3B, 0x3F800000), (0xB338AA3C, 0x3F7FFFFF), (0xB466D4CB, 0x3F7FFFFE), (0xB4FDEA14, 0x3F7FFFFB),
    (0xB5160A52, 0x3F7FFFF9), (0xB52D1F9A, 0x3F7FFFF8), (0xB63B8CF0, 0x3F7FFFDF), (0xB8ACAD70, 0x3F7FFC42),
    (0xB8BBD3A2, 0x3F7FFBEE), (0xB8D3D026, 0x3F7FFB69), (0xBAE36F38, 0x3F7FB13A), (0xBAEC2B40, 0x3F7FAE34),
    (0xBCAF4D02, 0x3F7C3B19), (0xBCF3A937, 0x3F7AC6B1), (0xBE1F29DE, 0x3F65DA56),
], dtype=np.int64)  # fmt: skip


@inner
def _exp2(a):
    """Correctly rounded 2**a."""
    wide = math.exp2(float64(a))
    if abs((bits64(wide) & 0x1FFFFFFF) - 0x10000000) <= 16:
        for i in range(_HARD_EXP2.shape[0]):
            if _HARD_EXP2[i, 0] == bits32(a):
                return float32_of(_HARD_EXP2[i, 1])
    return float32(wide)


@inner
def exp2(a, exception_inputs, exception_outputs):
    """v_exp_f32: correctly rounded, subnormal input and result flushed; the profile's exceptions come first."""
    if exception_inputs.size > 0:
        bits = bits32(a)
        low, high = 0, exception_inputs.size
        while low < high:
            middle = (low + high) // 2
            if np.int64(exception_inputs[middle]) < bits:
                low = middle + 1
            else:
                high = middle
        if low < exception_inputs.size and np.int64(exception_inputs[low]) == bits:
            return float32_of(np.int64(exception_outputs[low]))
    return _flush(_exp2(_flush(a)))


@inner
def log2(a):
    return float32(math.log2(float64(_flush(a)))) if a > 0 else (-_INFINITY if _flush(a) == 0 else _NAN)


@inner
def _toward_zero(wide):
    """A float64 cut to float32.

    The chip's reciprocals and roots are good to 1 ulp, not correctly rounded: cutting is as good, and a kernel that
    takes them for exact shows.
    """
    narrow = float32(wide)
    if abs(float64(narrow)) > abs(wide) and abs(narrow) < _INFINITY:
        narrow = float32_of(bits32(narrow) - 1)
    return narrow


@inner
def reciprocal(a):
    wide = 1.0 / float64(_flush(a))
    # A division by a number whose mantissa is all ones comes out right only if its reciprocal is rounded to nearest.
    return _flush(float32(wide) if bits32(a) & 0x7FFFFF == 0x7FFFFF else _toward_zero(wide))


@inner
def reciprocal_root(a):
    return _toward_zero(1.0 / math.sqrt(float64(_flush(a)))) if _flush(a) >= 0 else _NAN


@inner
def root(a):
    return _toward_zero(math.sqrt(float64(_flush(a)))) if _flush(a) >= 0 else _NAN


@inner
def sine(a):
    """v_sin_f32 takes revolutions."""
    return float32(math.sin(2 * math.pi * (float64(a) - floor(float64(a))))) if abs(a) < _INFINITY else _NAN


@inner
def cosine(a):
    return float32(math.cos(2 * math.pi * (float64(a) - floor(float64(a))))) if abs(a) < _INFINITY else _NAN


@inner
def exp2_half(a):
    return _float32_by_odd(math.exp2(float64(a)))


@inner
def log2_half(a):
    return _float32_by_odd(math.log2(float64(a))) if a > 0 else (-_INFINITY if a == 0 else _NAN)


@inner
def reciprocal_half(a):
    return float32(1.0 / float64(a))


@inner
def reciprocal_root_half(a):
    return _float32_by_odd(1.0 / math.sqrt(float64(a))) if a >= 0 else _NAN


@inner
def root_half(a):
    return float32(math.sqrt(float64(a))) if a >= 0 else _NAN


# The division sequence (v_div_scale, v_rcp, five fused steps, v_div_fmas, v_div_fixup): operands near the ends of the
# exponent range are scaled by 2**64 first, and the quotient is scaled back last.


@inner
def _exponent32(a):
    return (bits32(a) >> 23) & 255


@inner
def divide_scale_flag(a, b, c):
    """Whether v_div_fmas must undo a scaling; b is the denominator, c the numerator."""
    if b == 0 or c == 0 or b != b or c != c:
        return np.int64(0)
    quotient_tiny = abs(c / b) < float32_of(np.int64(0x00800000))
    if _exponent32(c) - _exponent32(b) >= 96:
        return np.int64(1)
    if abs(b) < float32_of(np.int64(0x00800000)):
        return np.int64(0)
    return np.int64(quotient_tiny)


@inner
def divide_scale(a, b, c):
    """v_div_scale_f32: a is b or c, the operand to be scaled."""
    if b == 0 or c == 0:
        return _NAN
    minimum_normal = float32_of(np.int64(0x00800000))
    up, down = np.int64(64), np.int64(-64)
    quotient_tiny = abs(c / b) < minimum_normal
    reciprocal_tiny = abs(1.0 / float64(b)) < _power_of_two(np.int64(-126))
    is_denominator = bits32(a) == bits32(b)
    if _exponent32(c) - _exponent32(b) >= 96:
        return scale32(a, up) if is_denominator else a
    if abs(b) < minimum_normal:
        return scale32(a, up)
    if reciprocal_tiny and quotient_tiny:
        # The manual scales the denominator up here, which would overflow it; down is what makes the quotient right.
        return scale32(a, down) if is_denominator else a
    if reciprocal_tiny:
        return scale32(a, down)
    if quotient_tiny:
        return scale32(a, up) if bits32(a) == bits32(c) else a
    if _exponent32(c) <= 23:
        return scale32(a, up)
    return a


@inner
def divide_fmas(a, b, c, scaled):
    """v_div_fmas_f32: a fused step whose result is scaled back before its one rounding."""
    if scaled:
        return scale64_to_32(_fma_by_odd(float64(a) * float64(b), float64(c)), _exponent32(c) > 127)
    return fma32(a, b, c)


@inner
def _fma_by_odd(product, c):
    """product + c to float64 by odd, which a later rounding to float32 does not notice."""
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = bits64(total)
    if error != 0 and error == error and not bits & 1:
        bits += 1 if (error > 0) == (total > 0) else -1
    return float64_of(bits)


@inner
def scale64_to_32(x, up):
    return float32(x * _power_of_two(np.int64(64) if up else np.int64(-64)))


@inner
def divide_fixup(a, b, c):
    """v_div_fixup_f32: quotient a of c / b, with the special cases put right."""
    if c != c or b != b:
        return _NAN
    negative = (bits32(b) ^ bits32(c)) >> 31
    result = abs(a)
    if b == 0 and c == 0 or abs(b) == _INFINITY and abs(c) == _INFINITY:
        return _NAN
    if b == 0 or abs(c) == _INFINITY:
        result = _INFINITY
    elif abs(b) == _INFINITY or c == 0 or _exponent32(c) - _exponent32(b) < -150:
        result = F0
    elif a != a:  # infinity minus infinity in a quotient that overflows
        result = _INFINITY
    return -result if negative else result


# Two products and an addend, rounded after every addition in the order of the manual.


@inner
def divide_fixup16(a, b, c):
    """v_div_fixup_f16, on halves widened to float32."""
    if c != c or b != b:
        return _NAN
    negative = (bits32(b) ^ bits32(c)) >> 31
    result = abs(a)
    if b == 0 and c == 0 or abs(b) == _INFINITY and abs(c) == _INFINITY:
        return _NAN
    if b == 0 or abs(c) == _INFINITY:
        result = _INFINITY
    elif abs(b) == _INFINITY or c == 0:
        result = F0
    return -result if negative else result


# The same division for float64, scaled by 2**128.

_TINY = 2.0**-1022


@inner
def _exponent64(a):
    return (bits64(a) >> 52) & 2047


@inner
def divide_scale_flag64(a, b, c):
    if b == 0 or c == 0 or b != b or c != c:
        return np.int64(0)
    if _exponent64(c) - _exponent64(b) >= 768:
        return np.int64(1)
    return np.int64(abs(b) >= _TINY and abs(c / b) < _TINY)


@inner
def divide_scale64(a, b, c):
    if b == 0 or c == 0:
        return np.nan
    up, down = 2.0**128, 2.0**-128
    quotient_tiny, reciprocal_tiny = abs(c / b) < _TINY, abs(1.0 / b) < _TINY
    is_denominator = bits64(a) == bits64(b)
    if _exponent64(c) - _exponent64(b) >= 768:
        return a * up if is_denominator else a
    if abs(b) < _TINY:
        return a * up
    if reciprocal_tiny:
        return a * down if is_denominator or not quotient_tiny else a
    if quotient_tiny:
        return a * up if bits64(a) == bits64(c) else a
    return a * up if _exponent64(c) <= 53 else a


@inner
def divide_fmas64(a, b, c, scaled):
    total = fma64(a, b, c)
    if not scaled:
        return total
    if _exponent64(c) > 1023:
        return total * 2.0**128
    result = total * 2.0**-128
    rest = total - result * 2.0**128
    if abs(rest) == 2.0**-947:  # between two subnormals: what the first rounding dropped decides
        error = fma64(a, b, c - total)
        if rest > 0 and error > 0:
            result += 2.0**-1074
        elif rest < 0 and error < 0:
            result -= 2.0**-1074
    return result


@inner
def divide_fixup64(a, b, c):
    if c != c or b != b:
        return np.nan
    negative = (bits64(b) ^ bits64(c)) < 0
    result = abs(a)
    if b == 0 and c == 0 or abs(b) == np.inf and abs(c) == np.inf:
        return np.nan
    if b == 0 or abs(c) == np.inf:
        result = np.inf
    elif abs(b) == np.inf or c == 0 or _exponent64(c) - _exponent64(b) < -1075:
        result = 0.0
    elif a != a:
        result = np.inf
    return -result if negative else result


@inner
def _approximate64(x):
    """The chip's float64 reciprocals and roots are good to 2**29 ulp: cut to 24 bits of fraction."""
    return float64_of(bits64(x) & ~np.int64((1 << 28) - 1))


@inner
def reciprocal64(a):
    return _approximate64(1.0 / a)


@inner
def root64(a):
    return _approximate64(math.sqrt(a)) if a >= 0 else np.nan


@inner
def reciprocal_root64(a):
    return _approximate64(1.0 / math.sqrt(a)) if a >= 0 else np.nan


@inner
def fraction64(a):
    """a - floor(a), kept below one."""
    if a != a or abs(a) == np.inf:
        return np.nan
    return min(a - floor(a), 1.0 - 2.0**-53)


@inner
def frexp_mantissa64(a):
    return a if a != a or abs(a) == np.inf else math.frexp(a)[0]


@inner
def frexp_exponent64(a):
    return np.int64(0) if a != a or abs(a) == np.inf else np.int64(math.frexp(a)[1])


@inner
def dot2_bf16(a, b, c):
    low = float32_of(a << 16) * float32_of(b << 16)
    high = float32_of(a & 0xFFFF0000) * float32_of(b & 0xFFFF0000)
    return low + high + c


@inner
def dot2c_bf16(a, b, c):
    low = float32_of(a << 16) * float32_of(b << 16)
    high = float32_of(a & 0xFFFF0000) * float32_of(b & 0xFFFF0000)
    return c + low + high


@inner
def dot2_f16(a, b, c):
    low = half_to_float32(a) * half_to_float32(b)
    high = half_to_float32(a >> 16) * half_to_float32(b >> 16)
    return c + low + high


@inner
def _class(is_nan, quiet, infinite, subnormal, zero, negative, mask):
    if is_nan:
        bit = np.int64(1) if quiet else np.int64(0)
    elif infinite:
        bit = np.int64(2) if negative else np.int64(9)
    elif zero:
        bit = np.int64(5) if negative else np.int64(6)
    elif subnormal:
        bit = np.int64(4) if negative else np.int64(7)
    else:
        bit = np.int64(3) if negative else np.int64(8)
    return (mask >> bit) & 1


@inner
def is_class_f32(a, mask):
    x = bits32(a)
    size = x & 0x7FFFFFFF
    return _class(
        size > 0x7F800000, (x >> 22) & 1, size == 0x7F800000, size < 0x00800000, size == 0, x >> 31, mask
    )


@inner
def is_class_f16(a, mask):
    x = half_bits(a)
    size = x & 0x7FFF
    return _class(size > 0x7C00, (x >> 9) & 1, size == 0x7C00, size < 0x0400, size == 0, x >> 15, mask)


@inner
def is_class_f64(a, mask):
    x = bits64(a)
    size = x & 0x7FFFFFFFFFFFFFFF
    infinity = np.int64(0x7FF0000000000000)
    return _class(
        size > infinity, (x >> 51) & 1, size == infinity, size < np.int64(1 << 52), size == 0, np.int64(x < 0), mask
    )


# ---------------------------------------------------------------- atomics on memory bits


@inner
def add_bits32(m, a):
    return bits32(float32_of(m) + float32_of(a))


@inner
def min_bits32(m, a):
    return a if float32_of(a) < float32_of(m) else m


@inner
def max_bits32(m, a):
    return a if float32_of(a) > float32_of(m) else m


@inner
def add_bits64(m, a):
    return bits64(float64_of(m) + float64_of(a))


@inner
def min_bits64(m, a):
    return a if float64_of(a) < float64_of(m) else m


@inner
def max_bits64(m, a):
    return a if float64_of(a) > float64_of(m) else m


@inner
def add_halves_f16(m, a):
    low = half_bits(half_to_float32(m) + half_to_float32(a))
    return low | half_bits(half_to_float32(m >> 16) + half_to_float32(a >> 16)) << 16


@inner
def add_halves_bf16(m, a):
    low = bf16_bits(float32_of(m << 16) + float32_of(a << 16))
    return low | bf16_bits(float32_of(m & 0xFFFF0000) + float32_of(a & 0xFFFF0000)) << 16
