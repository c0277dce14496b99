"""Small FlyDSL kernels of the kinds its users write; none has anything to do with paged attention."""

from __future__ import annotations

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.expr import rocdl
from flydsl.expr.typing import T, as_ir_value


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


WAVE = 64
LOG2E = 1.4426950408889634


def _across_wave(value, combine):
    """`combine` over the 64 lanes, by butterflies of distance 1, 2, ... 32: the same in every lane."""
    for distance in (1, 2, 4, 8, 16, 32):
        value = combine(value, value.shuffle_xor(distance, WAVE))
    return value


def _sum_of(slots, count):
    """slots[0] + slots[1] + ... in that order."""
    total = slots[0]
    for slot in range(1, count):
        total = total + slots[slot]
    return total


def _shared(*arrays):
    """A pointer into LDS for each (dtype, count); a kernel may ask once."""
    allocator = fx.SharedAllocator()
    return [allocator.allocate(fx.Array[dtype, count, 16]).peek().ptr for dtype, count in arrays]


def build_row_softmax(columns: int, block_size: int = 256):
    """f32 y[row, :] = softmax(x[row, :]); a workgroup per row, a thread per block_size columns."""
    waves, trips = block_size // WAVE, -(-columns // block_size)

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def row_softmax_kernel(x: fx.Pointer, y: fx.Pointer):
        thread = fx.thread_idx.x
        wave, lane = thread >> 6, thread & 63
        maxima, sums = _shared((fx.Float32, waves), (fx.Float32, waves))
        row = fx.block_idx.x * columns
        maximum = fx.Float32(float("-inf"))
        for trip in range(0, trips, 1):
            column = trip * block_size + thread
            if column < columns:
                maximum = fx.maximumf(maximum, x[row + column])
        maximum = _across_wave(maximum, fx.maximumf)
        if lane == 0:
            maxima[wave] = maximum
        fx.gpu.barrier()
        for slot in fx.range_constexpr(waves):
            maximum = fx.maximumf(maximum, maxima[slot])
        total = fx.Float32(0.0)
        for trip in range(0, trips, 1):
            column = trip * block_size + thread
            if column < columns:
                weight = fx.exp2((x[row + column] - maximum) * LOG2E, fastmath="fast")
                y[row + column] = weight
                total = total + weight
        total = _across_wave(total, lambda a, b: a + b)
        if lane == 0:
            sums[wave] = total
        fx.gpu.barrier()
        total = _sum_of(sums, waves)
        for trip in range(0, trips, 1):
            column = trip * block_size + thread
            if column < columns:
                y[row + column] = y[row + column] / total

    @flyc.jit
    def row_softmax(x: fx.Pointer, y: fx.Pointer, rows: fx.Int32):
        row_softmax_kernel(x, y).launch(grid=(rows,), block=(block_size,))

    return row_softmax


def build_rms_norm(columns: int, block_size: int = 256, epsilon: float = 1e-6):
    """bf16 y[row, c] = x[row, c] / sqrt(mean(x[row, :]^2) + epsilon) * weight[c]; a workgroup per row.

    Each thread reads 8 consecutive columns at a time; columns is a multiple of 8 * block_size.
    """
    waves, trips = block_size // WAVE, columns // (8 * block_size)

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def rms_norm_kernel(x: fx.Pointer, weight: fx.Pointer, y: fx.Pointer):
        thread = fx.thread_idx.x
        (sums,) = _shared((fx.Float32, waves))
        eight = fx.Vector.make_type(8, fx.BFloat16)
        row = fx.block_idx.x * columns
        parts = []
        total = fx.Float32(0.0)
        for trip in fx.range_constexpr(trips):
            column = (trip * block_size + thread) * 8
            part = fx.Vector(fx.ptr_load(x + (row + column), result_type=eight)).to(fx.Float32)
            parts.append(part)
            for element in fx.range_constexpr(8):
                total = total + part[element] * part[element]
        total = _across_wave(total, lambda a, b: a + b)
        if (thread & 63) == 0:
            sums[thread >> 6] = total
        fx.gpu.barrier()
        scale = 1.0 / fx.sqrt(_sum_of(sums, waves) / float(columns) + epsilon)
        for trip in fx.range_constexpr(trips):
            column = (trip * block_size + thread) * 8
            factor = fx.Vector(fx.ptr_load(weight + column, result_type=eight)).to(fx.Float32)
            elements = [parts[trip][element] * scale * factor[element] for element in range(8)]
            fx.ptr_store(fx.Vector.from_elements(elements, fx.Float32).to(fx.BFloat16), y + (row + column))

    @flyc.jit
    def rms_norm(x: fx.Pointer, weight: fx.Pointer, y: fx.Pointer, rows: fx.Int32):
        rms_norm_kernel(x, weight, y).launch(grid=(rows,), block=(block_size,))

    return rms_norm


def build_block_sum(dtype, block_size: int):
    """y[g] = sum of x[g * block_size :][:block_size], halving the workgroup in LDS with a barrier a step."""

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def block_sum_kernel(x: fx.Pointer, y: fx.Pointer):
        thread = fx.thread_idx.x
        (values,) = _shared((dtype, block_size))
        values[thread] = x[fx.block_idx.x * block_size + thread]
        fx.gpu.barrier()
        for step in fx.range_constexpr(block_size.bit_length() - 1):
            half = block_size >> (step + 1)
            if thread < half:
                values[thread] = values[thread] + values[thread + half]
            fx.gpu.barrier()
        if thread == 0:
            y[fx.block_idx.x] = values[0]

    @flyc.jit
    def block_sum(x: fx.Pointer, y: fx.Pointer, groups: fx.Int32):
        block_sum_kernel(x, y).launch(grid=(groups,), block=(block_size,))

    return block_sum


TILE = 64
"""Rows and columns of C that a workgroup of build_tiled_gemm computes."""
CHUNK_BYTES = 16
ROW_CHUNKS = 4
PITCH = (ROW_CHUNKS + 1) * CHUNK_BYTES
"""LDS bytes from one row of a tile to the next: one 16-byte chunk of padding."""


def _fragment_type(element, count):
    """How a matrix instruction of that element wants `count` of them in one lane."""
    if element is fx.Int8:
        return T.i64 if count == 8 else T.i32x4
    if element is fx.BFloat16 and count == 4:
        return T.i16x4  # the instruction that came with gfx90a
    return fx.Vector.make_type(count, element) if count > 1 else element.ir_type


def _multiply(name, result_type, *operands):
    """One matrix instruction a, b, c -> c + a b, by its rocdl name."""
    operation = getattr(rocdl, name)
    if isinstance(operation, type):  # a name that FlyDSL does not wrap
        plain = ir.Attribute.parse("#rocdl<mfma_perm_b none>")
        return operation(result_type, *map(as_ir_value, operands), 0, 0, plain).result
    return operation(result_type, [*operands, 0, 0, 0])


def build_tiled_gemm(element, instruction: str, size: int, depth: int, k: int):
    """c[M, N] = a[M, k] @ b[N, k].T, in f32 (i8 in i32), a tile of 64 by 64 per workgroup; grid (N/64, M/64).

    Tiles of 64 bytes of k go through LDS. Each of four waves does a 32x32 quarter, by matrix instructions of
    size x size x depth.
    """
    element_bytes = element.width // 8
    tile_k = ROW_CHUNKS * CHUNK_BYTES // element_bytes
    per_lane = size * depth // WAVE
    results = size * size // WAVE
    accumulator = fx.Int32 if element is fx.Int8 else fx.Float32
    blocks = 32 // size

    @flyc.kernel(known_block_size=(256, 1, 1))
    def tiled_gemm_kernel(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, n: fx.Int32):
        thread = fx.thread_idx.x
        wave, lane = thread >> 6, thread & 63
        left_tile, right_tile = _shared((fx.Uint8, TILE * PITCH), (fx.Uint8, TILE * PITCH))
        chunk = fx.Vector.make_type(CHUNK_BYTES, fx.Uint8)
        row, at = thread // ROW_CHUNKS, (thread % ROW_CHUNKS) * CHUNK_BYTES
        left_row = a + ((fx.block_idx.y * TILE + row) * (k * element_bytes) + at)
        right_row = b + ((fx.block_idx.x * TILE + row) * (k * element_bytes) + at)
        to = row * PITCH + at
        wave_row, wave_column = (wave >> 1) * 32, (wave & 1) * 32
        lane_row, group = lane % size, lane // size
        operand = _fragment_type(element, per_lane)
        totals = [fx.Vector.filled(results, 0, accumulator) for _ in fx.range_constexpr(blocks * blocks)]
        for step in range(0, k // tile_k, 1):
            offset = step * (ROW_CHUNKS * CHUNK_BYTES)
            _store_chunk(left_tile, to, _load_chunk(left_row, offset, chunk))
            _store_chunk(right_tile, to, _load_chunk(right_row, offset, chunk))
            fx.gpu.barrier()
            for part in fx.range_constexpr(tile_k // depth):
                inside = (part * depth + group * per_lane) * element_bytes
                lefts = [
                    _load_chunk(
                        left_tile,
                        (wave_row + block * size + lane_row) * PITCH + inside,
                        operand,
                        per_lane * element_bytes,
                    )
                    for block in range(blocks)
                ]
                rights = [
                    _load_chunk(
                        right_tile,
                        (wave_column + block * size + lane_row) * PITCH + inside,
                        operand,
                        per_lane * element_bytes,
                    )
                    for block in range(blocks)
                ]
                totals = [
                    fx.Vector(
                        _multiply(
                            instruction, totals[0].type, lefts[i // blocks], rights[i % blocks], totals[i]
                        )
                    )
                    for i in range(blocks * blocks)
                ]
            fx.gpu.barrier()
        for i in fx.range_constexpr(blocks * blocks):
            for element_index in fx.range_constexpr(results):
                inner = element_index // 4 * (4 * WAVE // size) + group * 4 + element_index % 4
                out_row = fx.block_idx.y * TILE + wave_row + i // blocks * size + inner
                out_column = fx.block_idx.x * TILE + wave_column + i % blocks * size + lane_row
                c[out_row * n + out_column] = totals[i][element_index]

    @flyc.jit
    def tiled_gemm(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, m: fx.Int32, n: fx.Int32):
        tiled_gemm_kernel(a, b, c, n).launch(grid=(n // TILE, m // TILE), block=(256,))

    return tiled_gemm


def _at(base, offset, alignment):
    pointer_type = fx.PointerType.get(fx.Uint8.ir_type, base.address_space, alignment)
    return fx.recast_iter(pointer_type, base + offset)


def _load_chunk(base, offset, result_type, alignment=CHUNK_BYTES):
    return fx.ptr_load(_at(base, offset, alignment), result_type=result_type)


def _store_chunk(base, offset, value):
    fx.ptr_store(value, _at(base, offset, CHUNK_BYTES))


def build_histogram(bins: int, block_size: int = 256):
    """Adds to counts[bins] how often x[i] is each bin; slots[i] is which of them i was.

    Counted in LDS first, then added to global memory, which hands each workgroup its range of slots.
    """

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def histogram_kernel(x: fx.Pointer, counts: fx.Pointer, slots: fx.Pointer, n: fx.Int32):
        thread = fx.thread_idx.x
        index = fx.block_idx.x * block_size + thread
        local, first = _shared((fx.Int32, bins), (fx.Int32, bins))
        if thread < bins:
            local[thread] = fx.Int32(0)
        fx.gpu.barrier()
        place, bin_index = fx.Int32(0), fx.Int32(0)
        if index < n:
            bin_index = x[index]
            place = fx.atomic_add(local + bin_index, fx.Int32(1))
        fx.gpu.barrier()
        if thread < bins:
            first[thread] = fx.atomic_add(counts + thread, local[thread])
        fx.gpu.barrier()
        if index < n:
            slots[index] = first[bin_index] + place

    @flyc.jit
    def histogram(x: fx.Pointer, counts: fx.Pointer, slots: fx.Pointer, n: fx.Int32):
        grid = (n + block_size - 1) // block_size
        histogram_kernel(x, counts, slots, n).launch(grid=(grid,), block=(block_size,))

    return histogram


INTEGER_ATOMICS = ("add", "sub", "min", "max", "and", "or", "xor")


def build_atomics(block_size: int = 128):
    """Every thread applies each of INTEGER_ATOMICS with its x to signed[k], unsigned[k] and an LDS counter.

    The LDS counters start as `initial` and end up in lds[group, k]; floats[0] and floats[1] get the f32 sum
    and maximum of x, floats[2 + group] the sum of a group's x in LDS, doubles[0] the f64 sum.
    """

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def atomics_kernel(
        x: fx.Pointer,
        initial: fx.Pointer,
        signed: fx.Pointer,
        unsigned: fx.Pointer,
        floats: fx.Pointer,
        doubles: fx.Pointer,
        lds: fx.Pointer,
    ):
        thread, group = fx.thread_idx.x, fx.block_idx.x
        count = len(INTEGER_ATOMICS)
        local, local_sum = _shared((fx.Int32, count), (fx.Float32, 1))
        if thread < count:
            local[thread] = initial[thread]
        if thread == 0:
            local_sum[0] = fx.Float32(0.0)
        fx.gpu.barrier()
        value = x[group * block_size + thread]
        for k in fx.range_constexpr(count):
            operation = getattr(fx, f"atomic_{INTEGER_ATOMICS[k]}")
            operation(local + k, value)
            operation(signed + k, value)
            operation(unsigned + k, value.to(fx.Uint32))
        fx.atomic_add(local_sum, value.to(fx.Float32))
        fx.atomic_add(floats, value.to(fx.Float32))
        fx.atomic_fmax(floats + 1, value.to(fx.Float32))
        fx.atomic_add(doubles, value.to(fx.Float64))
        fx.gpu.barrier()
        if thread < count:
            lds[group * count + thread] = local[thread]
        if thread == 0:
            floats[2 + group] = local_sum[0]

    @flyc.jit
    def atomics(
        x: fx.Pointer,
        initial: fx.Pointer,
        signed: fx.Pointer,
        unsigned: fx.Pointer,
        floats: fx.Pointer,
        doubles: fx.Pointer,
        lds: fx.Pointer,
        groups: fx.Int32,
    ):
        atomics_kernel(x, initial, signed, unsigned, floats, doubles, lds).launch(
            grid=(groups,), block=(block_size,)
        )

    return atomics


DPP_CONTROLS = {
    "quad_perm:[1,0,3,2]": 0xB1,
    "quad_perm:[0,0,2,2]": 0xA0,
    "row_shl:1": 0x101,
    "row_shr:3": 0x113,
    "row_ror:5": 0x125,
    "wave_shl:1": 0x130,
    "wave_rol:1": 0x134,
    "wave_shr:1": 0x138,
    "wave_ror:1": 0x13C,
    "row_mirror": 0x140,
    "row_half_mirror": 0x141,
    "row_bcast:15": 0x142,
    "row_bcast:31": 0x143,
    "row_newbcast:5": 0x155,
}
SWIZZLES = {
    "xor 16 by swizzle": (16 << 10) | 0x1F,
    "last of 8": (7 << 5) | 0x18,
    "quads reversed": 0x8000 | 0x1B,
}
LANE_OUTPUTS = (
    *(f"xor {distance}" for distance in (1, 2, 4, 8, 16, 32)),
    "up 3",
    "down 5",
    "index",
    "bpermute",
    *DPP_CONTROLS,
    "row_shr:1 row_mask:0xa",
    *SWIZZLES,
    "first",
    "lane 17",
    "ballot low",
    "ballot high",
    "scan",
    "reduce",
)


def build_cross_lane():
    """i32 y[k, lane] for each of LANE_OUTPUTS, of x[lane]; `index` and `bpermute` of x[at[lane]].

    A DPP move keeps 1000 + lane where it reaches no lane.
    """

    @flyc.kernel(known_block_size=(64, 1, 1))
    def cross_lane_kernel(x: fx.Pointer, at: fx.Pointer, y: fx.Pointer):
        lane = fx.thread_idx.x
        value, source = x[lane], at[lane]
        old = lane + 1000

        def moved(control, row_mask=0xF):
            return rocdl.update_dpp(T.i32, old.ir_value(), value.ir_value(), control, row_mask, 0xF, False)

        outputs = {f"xor {distance}": value.shuffle_xor(distance, WAVE) for distance in (1, 2, 4, 8, 16, 32)}
        outputs["up 3"] = fx.shuffle_up(value, 3, WAVE)
        outputs["down 5"] = fx.shuffle_down(value, 5, WAVE)
        outputs["index"] = fx.shuffle_idx(value, source, WAVE)
        outputs["bpermute"] = rocdl.ds_bpermute(T.i32, source * 4, value)
        for name, control in DPP_CONTROLS.items():
            outputs[name] = moved(control)
        outputs["row_shr:1 row_mask:0xa"] = moved(0x111, 0xA)
        for name, offset in SWIZZLES.items():
            outputs[name] = rocdl.ds_swizzle(T.i32, value.ir_value(), fx.Int32(offset).ir_value())
        outputs["first"] = rocdl.readfirstlane(T.i32, value)
        outputs["lane 17"] = rocdl.readlane(T.i32, value, fx.Int32(17))
        ballot = fx.Int64(rocdl.ballot(T.i64, value < 0))
        outputs["ballot low"] = ballot.to(fx.Int32)
        outputs["ballot high"] = (ballot >> 32).to(fx.Int32)
        outputs["scan"] = fx.coop.warp_inclusive_scan(value, fx.ReductionOp.ADD)
        outputs["reduce"] = fx.coop.warp_reduce(value, fx.ReductionOp.MAX)
        for k, name in enumerate(LANE_OUTPUTS):
            y[k * WAVE + lane] = fx.Int32(outputs[name])

    @flyc.jit
    def cross_lane(x: fx.Pointer, at: fx.Pointer, y: fx.Pointer):
        cross_lane_kernel(x, at, y).launch(grid=(1,), block=(64,))

    return cross_lane


def build_collatz(block_size: int = 128):
    """steps[i] = Collatz steps from x[i] to 1, peak[i] the largest value met; -1 and 0 where x[i] < 1."""

    @flyc.kernel(known_block_size=(block_size, 1, 1))
    def collatz_kernel(x: fx.Pointer, steps: fx.Pointer, peak: fx.Pointer, n: fx.Int32):
        index = fx.block_idx.x * block_size + fx.thread_idx.x
        if index < n:
            value = x[index]
            count, largest = fx.Int32(-1), fx.Int32(0)
            if value > 0:
                count, largest = fx.Int32(0), value
                while value != 1:
                    if (value & 1) == 0:
                        value = value >> 1
                    else:
                        value = value * 3 + 1
                        if value > largest:
                            largest = value
                    count = count + 1
            steps[index] = count
            peak[index] = largest

    @flyc.jit
    def collatz(x: fx.Pointer, steps: fx.Pointer, peak: fx.Pointer, n: fx.Int32):
        grid = (n + block_size - 1) // block_size
        collatz_kernel(x, steps, peak, n).launch(grid=(grid,), block=(block_size,))

    return collatz


WIDE_FLOAT_OUTPUTS = (
    "sum",
    "product",
    "quotient",
    "root",
    "fma",
    "least",
    "greatest",
    "truncated",
    "rounded",
    "from i64",
)
WIDE_INTEGER_OUTPUTS = (
    "sum", "product", "quotient", "remainder", "shift", "logical", "and", "less", "unsigned quotient",
    "from f64", "leading zeros",
)  # fmt: skip


def build_wide():
    """fy[k, i] is WIDE_FLOAT_OUTPUTS[k] of the f64 fa[i], fb[i]; iy[k, i] likewise of the i64 ia, ib."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def wide_kernel(
        fa: fx.Pointer,
        fb: fx.Pointer,
        ia: fx.Pointer,
        ib: fx.Pointer,
        fy: fx.Pointer,
        iy: fx.Pointer,
        n: fx.Int32,
    ):
        index = fx.block_idx.x * 64 + fx.thread_idx.x
        a, b, i, j = fa[index], fb[index], ia[index], ib[index]
        floats = {
            "sum": a + b,
            "product": a * b,
            "quotient": a / b,
            "root": fx.sqrt(fx.absf(a)),
            "fma": fx.fma(a, b, a),
            "least": fx.minnumf(a, b),
            "greatest": fx.maxnumf(a, b),
            "truncated": fx.trunc(a),
            "rounded": fx.roundeven(a),
            "from i64": i.to(fx.Float64),
        }
        unsigned = i.to(fx.Uint64) // j.to(fx.Uint64)
        integers = {
            "sum": i + j,
            "product": i * j,
            "quotient": i // j,
            "remainder": i % j,
            "shift": i >> (j & 63),
            "logical": i.shrui(j & 63),
            "and": i & j,
            "less": (i < j).select(fx.Int64(1), fx.Int64(0)),
            "unsigned quotient": unsigned,
            "from f64": a.to(fx.Int64),
            "leading zeros": fx.ctlz(i),
        }
        for k, name in enumerate(WIDE_FLOAT_OUTPUTS):
            fy[k * n + index] = floats[name]
        for k, name in enumerate(WIDE_INTEGER_OUTPUTS):
            iy[k * n + index] = fx.Int64(integers[name])

    @flyc.jit
    def wide(
        fa: fx.Pointer,
        fb: fx.Pointer,
        ia: fx.Pointer,
        ib: fx.Pointer,
        fy: fx.Pointer,
        iy: fx.Pointer,
        n: fx.Int32,
    ):
        wide_kernel(fa, fb, ia, ib, fy, iy, n).launch(grid=(n // 64,), block=(64,))

    return wide


CONVERSIONS = (
    *(("f32", to) for to in ("f16", "bf16", "f64", "i8", "i16", "i32", "u32", "i64")),
    *(("f64", to) for to in ("f16", "f32", "i32", "i64")),
    *(("f16", to) for to in ("bf16", "f32", "i16")),
    *(("bf16", to) for to in ("f16", "f32")),
    *(("i32", to) for to in ("i8", "i64", "f16", "bf16", "f32", "f64")),
    *(("u32", to) for to in ("i64", "f32", "f64")),
    *(("i64", to) for to in ("f32", "f64")),
    *((of, "f32") for of in ("u64", "u16", "i8", "u8")),
    *((of, "f16") for of in ("i16", "u8")),
)
"""(from, to) of the conversions worth a kernel."""
DTYPES = {
    "f16": fx.Float16, "bf16": fx.BFloat16, "f32": fx.Float32, "f64": fx.Float64,
    "i8": fx.Int8, "i16": fx.Int16, "i32": fx.Int32, "i64": fx.Int64,
    "u8": fx.Uint8, "u16": fx.Uint16, "u32": fx.Uint32, "u64": fx.Uint64,
}  # fmt: skip


def build_conversion(source, result):
    """y[i] = x[i], a `source`, converted to `result`; one wave per 64 elements."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def conversion_kernel(x: fx.Pointer, y: fx.Pointer):
        index = fx.block_idx.x * 64 + fx.thread_idx.x
        # A pointer to integers does not say whether they are signed.
        y[index] = x[index].to(source).to(result)

    @flyc.jit
    def conversion(x: fx.Pointer, y: fx.Pointer, groups: fx.Int32):
        conversion_kernel(x, y).launch(grid=(groups,), block=(64,))

    return conversion


def build_elementwise(dtype, operation):
    """y[i] = operation(a[i], b[i], c[i]) on elements of `dtype`; one wave per 64 elements."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def elementwise_kernel(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, y: fx.Pointer):
        index = fx.block_idx.x * 64 + fx.thread_idx.x
        y[index] = operation(a[index].to(dtype), b[index].to(dtype), c[index].to(dtype)).to(dtype)

    @flyc.jit
    def elementwise(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, y: fx.Pointer, groups: fx.Int32):
        elementwise_kernel(a, b, c, y).launch(grid=(groups,), block=(64,))

    return elementwise


def build_packed(dtype, operation):
    """The same on pairs of elements, one pair per lane."""

    @flyc.kernel(known_block_size=(64, 1, 1))
    def packed_kernel(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, y: fx.Pointer):
        index = fx.thread_idx.x * 2
        pair = fx.Vector.make_type(2, dtype)
        operands = [fx.Vector(fx.ptr_load(pointer + index, result_type=pair)) for pointer in (a, b, c)]
        fx.ptr_store(operation(*operands).to(dtype), y + index)

    @flyc.jit
    def packed(a: fx.Pointer, b: fx.Pointer, c: fx.Pointer, y: fx.Pointer, groups: fx.Int32):
        packed_kernel(a, b, c, y).launch(grid=(groups,), block=(64,))

    return packed
