"""Small FlyDSL kernels that have nothing to do with attention: vector add, row softmax, one-tile GEMM."""

from __future__ import annotations

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T


def build_vector_add(block_size: int = 64):
    """f32 c[i] = a[i] + b[i] for i < n; grid (ceil(n / block_size))."""

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def vector_add_kernel(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, n: fx.Int32):
        index = fx.block_idx.x * block_size + fx.thread_idx.x
        if index < n:
            c[index] = a[index] + b[index]

    @flyc.jit
    def vector_add(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, n: fx.Int32):
        vector_add_kernel(a, b, c, n).launch(grid=((n + block_size - 1) // block_size,), block=(block_size,))

    return vector_add


def build_softmax(fastmath: str | None = "fast"):
    """f32 y[row, 0:64] = softmax(x[row, 0:64]); one wave per row. `fastmath` is what exp2 is allowed."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def softmax_kernel(x: fx.Pointer, y: fx.Pointer):
        index = fx.block_idx.x * 64 + fx.thread_idx.x
        value = x[index]
        maximum = value
        for distance in fx.range_constexpr(6):
            maximum = fx.maximumf(maximum, maximum.shuffle_xor(1 << distance, 64))
        weight = fx.exp2((value - maximum) * 1.4426950408889634, fastmath=fastmath)
        total = weight
        for distance in fx.range_constexpr(6):
            total = total + total.shuffle_xor(1 << distance, 64)
        y[index] = weight / total

    @flyc.jit
    def softmax(x: fx.Pointer, y: fx.Pointer, rows: fx.Int32):
        softmax_kernel(x, y).launch(grid=(rows,), block=(64,))

    return softmax


def build_gemm(k_tiles: int = 4):
    """f32 c[16, 16] = a[16, K] @ b[16, K].T with bf16 a and b, K = 16 * k_tiles; one wave."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def gemm_kernel(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer):
        row, group = fx.thread_idx.x & 15, fx.thread_idx.x >> 4
        four = fx.Vector.make_type(4, fx.Int16)
        total = fx.Vector.filled(4, 0.0, fx.Float32)
        for tile in range(0, k_tiles, 1):
            offset = row * (16 * k_tiles) + tile * 16 + group * 4
            left = fx.ptr_load(a + offset, result_type=four)
            right = fx.ptr_load(b + offset, result_type=four)
            total = fx.Vector(rocdl.mfma_f32_16x16x16bf16_1k(T.f32x4, [left, right, total, 0, 0, 0]))
        for element in fx.range_constexpr(4):
            c[(group * 4 + element) * 16 + row] = total[element]

    @flyc.jit
    def gemm(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer):
        gemm_kernel(a, b, c).launch(grid=(1,), block=(64,))

    return gemm
