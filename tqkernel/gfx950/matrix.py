"""The matrix core's sums (MFMA) under a numerics profile, compiled by numba.

The grouped sum is the published bit-accurate model of CDNA3 (MMA-Sim, arXiv 2511.10909), for K products in groups of L:

    in a group, every exact product is aligned to the largest product exponent, truncated to F fractional bits, and
    added exactly; the group's sum (floored to F2 + 1 bits) and the accumulator (floored to F bits) are aligned to the
    larger exponent, added, normalised, floored to F2 bits and rounded to float32, nearest even.

It is done here in float64: exponents are carried as powers of two, so aligning is a multiplication, and every
intermediate has at most 53 significant bits, so nothing is rounded that the formula does not round.
"""

from __future__ import annotations

import numpy as np

from .encoding import LANES
from .scalar import (
    bits32,
    bits64,
    float32_of,
    float64_of,
    floor,
    fma32,
    fma64,
    half_to_float32,
    inner,
    sign_extend,
    trunc,
)

ELEMENTS = ("bf16", "f16", "f32", "i8", "f64")
BF16, F16, F32, I8, F64 = range(len(ELEMENTS))

GROUPED, FMA_CHAIN = 0, 1

MAX_OUTPUTS = 2048  # the largest rows x columns x blocks
MAX_ELEMENTS = 1024  # the largest rows x depth x blocks

# Rows of the float64 workspace.
A_VALUE, A_POWER, B_VALUE, B_POWER = 0, 1, 2, 3
WORKSPACE_ROWS = 4

_EXPONENT = np.int64(0x7FF0000000000000)
_MINIMUM_NORMAL = 2.0**-126


@inner
def _power(x):
    """The power of two at or below |x|, at least float32's smallest normal."""
    power = float64_of(bits64(x) & _EXPONENT)
    return power if power > _MINIMUM_NORMAL else _MINIMUM_NORMAL


@inner
def _unpack(R, row, rows, per_lane, element, values, powers):
    """Operand registers -> float64 values and powers of two, [k, i] flattened per block; their largest magnitude.

    The result is NaN or infinite if an element is.
    """
    minimum = 2.0**-126 if element == BF16 else 2.0**-14
    largest = 0.0
    width = np.uint64(rows)
    for group in range(LANES // rows):
        for j in range(per_lane):
            source = row + np.uint64((j // 2) * LANES + group * rows)
            target = np.uint64((group * per_lane + j) * rows)
            shift = np.int64(16 * (j % 2))
            if element == BF16:
                for i in range(width):
                    bits = np.int64(R[source + i]) >> shift
                    values[target + i] = np.float64(float32_of((bits & 0xFFFF) << 16))
            else:
                for i in range(width):
                    values[target + i] = np.float64(half_to_float32(np.int64(R[source + i]) >> shift))
    for j in range(np.uint64(LANES * per_lane)):
        value = values[j]
        power = float64_of(bits64(value) & _EXPONENT)
        power = power if power > minimum else minimum
        powers[j] = power if value != 0.0 else 0.0
        size = abs(value)
        largest = largest if largest > size else size
        largest = largest if value == value else np.inf
    return largest


@inner
def _accumulate(group_sum, group_power, accumulator, F, FS, FA, F2):
    """Add a group's sum (an integer in units of group_power * 2**-F) to the accumulator."""
    c = np.float64(accumulator)
    c_power = _power(c)
    top = group_power if group_power > c_power else c_power
    aligned_sum = floor(group_sum * (group_power * (FS / F) / top))
    aligned_c = floor(c * (FA / top)) * (FS / FA)
    total = (aligned_sum + aligned_c) * (top / FS)
    power = _power(total)
    result = np.float32(floor(total * (F2 / power)) * (power / F2))
    # An accumulator that an earlier group brought to infinity is left there by finite products.
    return result if abs(c) < np.inf else accumulator


@inner
def _grouped_by_8(A, PA, B, PB, k, i, rows, columns, out, at, F, FS, FA, F2):
    """One group of 8 products for a row of outputs: the loop over columns becomes vector code."""
    a0, a1, a2, a3 = A[k * rows + i], A[(k + 1) * rows + i], A[(k + 2) * rows + i], A[(k + 3) * rows + i]
    a4, a5, a6, a7 = A[(k + 4) * rows + i], A[(k + 5) * rows + i], A[(k + 6) * rows + i], A[(k + 7) * rows + i]
    q0, q1, q2, q3 = PA[k * rows + i], PA[(k + 1) * rows + i], PA[(k + 2) * rows + i], PA[(k + 3) * rows + i]
    q4, q5, q6, q7 = PA[(k + 4) * rows + i], PA[(k + 5) * rows + i], PA[(k + 6) * rows + i], PA[(k + 7) * rows + i]
    step = np.uint64(columns)
    base = np.uint64(k * columns)
    start = np.uint64(at)
    for n in range(step):
        j0 = base + n
        j1 = j0 + step
        j2 = j1 + step
        j3 = j2 + step
        j4 = j3 + step
        j5 = j4 + step
        j6 = j5 + step
        j7 = j6 + step
        power = q0 * PB[j0]
        p1 = q1 * PB[j1]
        p2 = q2 * PB[j2]
        p3 = q3 * PB[j3]
        p4 = q4 * PB[j4]
        p5 = q5 * PB[j5]
        p6 = q6 * PB[j6]
        p7 = q7 * PB[j7]
        power = power if power > p1 else p1
        power = power if power > p2 else p2
        power = power if power > p3 else p3
        power = power if power > p4 else p4
        power = power if power > p5 else p5
        power = power if power > p6 else p6
        power = power if power > p7 else p7
        power = power if power > 1e-300 else 1e-300
        scale = F / power
        total = trunc(a0 * B[j0] * scale) + trunc(a1 * B[j1] * scale)
        total += trunc(a2 * B[j2] * scale) + trunc(a3 * B[j3] * scale)
        total += trunc(a4 * B[j4] * scale) + trunc(a5 * B[j5] * scale)
        total += trunc(a6 * B[j6] * scale) + trunc(a7 * B[j7] * scale)
        out[start + n] = _accumulate(total, power, out[start + n], F, FS, FA, F2)


@inner
def _group_general(A, PA, B, PB, k, count, i, n, rows, columns, accumulator, F, FS, FA, F2):
    """One group of any size for one output, infinities and NaN included."""
    power, special, is_special = 0.0, np.float64(accumulator), not abs(np.float64(accumulator)) < np.inf
    for kk in range(k, k + count):
        a, b = A[kk * rows + i], B[kk * columns + n]
        product = a * b
        # A product that float32 cannot hold is infinite on the chip.
        if not abs(product) < 2.0**128:
            special += product * np.inf if product == product else product
            is_special = True
        elif product != 0.0:
            power = max(power, PA[kk * rows + i] * PB[kk * columns + n])
    if is_special:
        return np.float32(special)
    total = 0.0
    if power > 0.0:
        for kk in range(k, k + count):
            total += trunc(A[kk * rows + i] * B[kk * columns + n] * (F / power))
    return _accumulate(total, max(power, 1e-300), accumulator, F, FS, FA, F2)


@inner
def _grouped(R, F32_, D, A, B, C, has_c, c_value, rows, depth, blocks, element, dot, work, out):
    """bf16 or f16 under the grouped model; `dot` as `dot_parameters` lays it out."""
    group, F, FS, FA, F2 = np.int64(dot[1]), dot[2], dot[3], dot[4], dot[5]
    per_lane = rows * depth * blocks // LANES
    largest_a = _unpack(R, A, rows, per_lane, element, work[A_VALUE], work[A_POWER])
    largest_b = _unpack(R, B, rows, per_lane, element, work[B_VALUE], work[B_POWER])
    finite = _load_c(F32_, C, has_c, c_value, rows, blocks, out) and largest_a * largest_b < 2.0**126
    for block in range(blocks):
        at = block * depth * rows
        AV, AP = work[A_VALUE, at:], work[A_POWER, at:]
        BV, BP = work[B_VALUE, at:], work[B_POWER, at:]
        for i in range(rows):
            first = (block * rows + i) * rows
            for k in range(0, depth, group):
                count = min(group, depth - k)
                if finite and count == 8:
                    _grouped_by_8(AV, AP, BV, BP, k, i, rows, rows, out, first, F, FS, FA, F2)
                else:
                    for n in range(rows):
                        out[first + n] = _group_general(
                            AV, AP, BV, BP, k, count, i, n, rows, rows, out[first + n], F, FS, FA, F2
                        )
    _store(F32_, D, rows, blocks, out)


@inner
def _place(r, group, rows):
    """Where result register r of lanes group * rows and up begins in row-major [block, row, column]."""
    if rows == 4:
        return (group * 4 + r) * 4
    per_block = rows * rows // LANES
    block, inner_r = r // per_block, r % per_block
    lane_groups = LANES // rows
    i = (inner_r // 4) * 4 * lane_groups + group * 4 + inner_r % 4
    return (block * rows + i) * rows


@inner
def _load_c(F, C, has_c, c_value, rows, blocks, out):
    """The accumulator registers into row-major [block, row, column]; True if all are finite."""
    finite = True
    width = np.uint64(rows)
    for r in range(rows * rows * blocks // LANES):
        for group in range(LANES // rows):
            target = np.uint64(_place(r, group, rows))
            source = C + np.uint64(r * LANES + group * rows)
            for n in range(width):
                value = F[source + n] if has_c else c_value
                out[target + n] = value
                finite = finite and abs(value) < np.float32(np.inf)
    return finite


@inner
def _store(F, D, rows, blocks, out):
    width = np.uint64(rows)
    for r in range(rows * rows * blocks // LANES):
        for group in range(LANES // rows):
            source = np.uint64(_place(r, group, rows))
            target = D + np.uint64(r * LANES + group * rows)
            for n in range(width):
                F[target + n] = out[source + n]


@inner
def _element32(R, row, lane, j, element):
    """Element j of a lane's operand as float32 (bf16, f16 and f32)."""
    if element == F32:
        return float32_of(np.int64(R[row + np.uint64(j * LANES + lane)]))
    bits = (np.int64(R[row + np.uint64((j // 2) * LANES + lane)]) >> (16 * (j % 2))) & 0xFFFF
    return float32_of(bits << 16) if element == BF16 else half_to_float32(bits)


@inner
def _chain(R, F, D, A, B, C, has_c, c_value, rows, depth, blocks, element, out):
    """One fused multiply-add per k, ascending: how the chip does f32, and a model for bf16 and f16."""
    _load_c(F, C, has_c, c_value, rows, blocks, out)
    per_lane = max(1, rows * depth * blocks // LANES)
    per_block = LANES // rows // blocks
    for block in range(blocks):
        for i in range(rows):
            for n in range(rows):
                total = out[(block * rows + i) * rows + n]
                for k in range(depth):
                    group = block * per_block + k // per_lane
                    a = _element32(R, A, group * rows + i, k % per_lane, element)
                    b = _element32(R, B, group * rows + n, k % per_lane, element)
                    total = fma32(a, b, total)
                out[(block * rows + i) * rows + n] = total
    _store(F, D, rows, blocks, out)


@inner
def _integer(R, D, A, B, C, has_c, c_value, rows, depth, blocks, totals):
    """int8 products summed exactly, modulo 2**32."""
    per_lane = rows * depth * blocks // LANES
    per_block = LANES // rows // blocks
    results = rows * rows * blocks // LANES
    for r in range(results):
        for lane in range(LANES):
            at = _place(r, lane // rows, rows) // rows
            block, i, n = at // rows, at % rows, lane % rows
            total = np.int64(R[C + np.uint64(r * LANES + lane)]) if has_c else c_value
            for k in range(depth):
                group, j = block * per_block + k // per_lane, k % per_lane
                a = np.int64(R[A + np.uint64(j // 4 * LANES + group * rows + i)]) >> (8 * (j % 4))
                b = np.int64(R[B + np.uint64(j // 4 * LANES + group * rows + n)]) >> (8 * (j % 4))
                total += sign_extend(a, 8) * sign_extend(b, 8)
            totals[r * LANES + lane] = np.float64(total & 0xFFFFFFFF)
    for j in range(results * LANES):
        R[D + np.uint64(j)] = np.int64(totals[j])


@inner
def _double_of(R, row, lane):
    low, high = np.int64(R[row + np.uint64(lane)]), np.int64(R[row + np.uint64(LANES + lane)])
    return float64_of(low | high << 32)


@inner
def _double(R, D, A, B, C, has_c, c_value, totals):
    """v_mfma_f64_16x16x4_f64: a chain of four fused steps; result register r of a lane is row 4r + lane // 16."""
    for r in range(4):
        for lane in range(LANES):
            i, n = 4 * r + lane // 16, lane % 16
            total = _double_of(R, C + np.uint64(2 * r * LANES), lane) if has_c else np.float64(c_value)
            for k in range(4):
                total = fma64(_double_of(R, A, k * 16 + i), _double_of(R, B, k * 16 + n), total)
            totals[r * LANES + lane] = total
    for r in range(4):
        for lane in range(LANES):
            bits = bits64(totals[r * LANES + lane])
            R[D + np.uint64(2 * r * LANES + lane)] = bits & 0xFFFFFFFF
            R[D + np.uint64((2 * r + 1) * LANES + lane)] = (bits >> 32) & 0xFFFFFFFF


@inner
def multiply(R, F, D, A, B, C, has_c, literal, rows, depth, blocks, element, dot, work, out):
    """D = A B + C. D, A, B, C are offsets into the register file; without registers for C, `literal` holds its bits."""
    if element == I8:
        _integer(R, D, A, B, C, has_c, literal, rows, depth, blocks, work[0])
    elif element == F64:
        _double(R, D, A, B, C, has_c, float64_of(literal), work[0])
    elif element == F32 or np.int64(dot[0]) == FMA_CHAIN:
        _chain(R, F, D, A, B, C, has_c, float32_of(literal), rows, depth, blocks, element, out)
    else:
        _grouped(R, F, D, A, B, C, has_c, float32_of(literal), rows, depth, blocks, element, dot, work, out)
    return bits32(np.float32(0.0))


def dot_parameters(dot: object) -> np.ndarray:
    """A profile's dot model as the float64 vector that `multiply` takes: [kind, L, 2**F, 2**FS, 2**FA, 2**F2].

    F, FS, FA and F2 are the fractional bits kept of a product, of a group's sum, of the accumulator and of the result.

    Raises
    ------
    TypeError
        If the model is neither a grouped sum nor a chain of fused multiply-adds.
    """
    fields = ("group", "product_fraction", "sum_fraction", "accumulator_fraction", "result_fraction")
    if all(hasattr(dot, name) for name in fields):
        group, *fractions = (getattr(dot, name) for name in fields)
        return np.array([GROUPED, group, *(2.0**bits for bits in fractions)])
    if type(dot).__name__ == "FmaChainDot":
        return np.array([FMA_CHAIN, 0, 0, 0, 0, 0], dtype=np.float64)
    raise TypeError(f"dot: expected a grouped sum or a chain of fused multiply-adds, got {type(dot).__name__}")
