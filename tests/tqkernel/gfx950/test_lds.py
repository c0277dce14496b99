"""Local data share: loads, stores, pairs, atomics, the transposing read, and lane permutations."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tqkernel.gfx950 import Fault
from tqkernel.gfx950.isa import instruction_set

from .machine import LANES, Step, run
from .pseudocode import Value, evaluate
from .values import assert_same, inputs

Array = np.ndarray
U32, U64 = np.uint32, np.uint64
ALL = U64(2**64 - 1)
_LDS = sorted(name for name, instruction in instruction_set().items() if instruction.unit == "lds")
READS = [n for n in _LDS if re.match(r"ds_read_[bui](8|16|32|64|96|128)(_d16(_hi)?)?$", n)]
PAIR_READS = [n for n in _LDS if re.match(r"ds_read2(st64)?_", n)]
WRITES = [n for n in _LDS if re.match(r"ds_write_b", n)]
PAIR_WRITES = [n for n in _LDS if re.match(r"ds_write2(st64)?_", n)]
ATOMICS = [n for n in _LDS if instruction_set()[n].meaning.startswith("atomic")]
OTHERS = {"ds_read_b64_tr_b16", "ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"}
COVERED = OTHERS.union(READS, PAIR_READS, WRITES, PAIR_WRITES, ATOMICS)
SIZE = 8192
LANE = np.arange(LANES, dtype=U32)
EXEC = U64(0x0FF0_1234_8421_FFFE)
ENABLED = np.array([int(EXEC) >> lane & 1 for lane in range(LANES)], dtype=bool)

# Name of a transfer -> bytes at one address, sign extension, half of the register.
WIDTHS = {"b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}


def contents() -> Array:
    return np.random.default_rng(4).integers(0, 256, SIZE, dtype=np.uint8)


FILL = "\n".join(
    ["v_lshlrev_b32_e32 v200, 2, v0"]
    + [
        f"global_load_dword v201, v200, s[80:81] offset:{offset}\nds_write_b32 v200, v201 offset:{offset}"
        for offset in range(0, SIZE, 256)
    ]
)
"""Copies the buffer at s[80:81] to LDS; a lane's words 256 bytes apart."""


def dump(
    lines: str,
    vectors: dict[str, Array],
    registers: tuple[str, ...] = ("v2",),
    exec_mask: U64 = ALL,
) -> tuple[Array, ...]:
    """Run instructions on a filled LDS; the results are registers, then all bytes of LDS."""
    stores = "\n".join(
        f"ds_read_b32 v201, v200 offset:{offset}\nglobal_store_dword v200, v201, s[80:81] offset:{offset}"
        for offset in range(0, SIZE, 256)
    )
    memory = contents()
    text = f"{FILL}\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b64 exec, s[8:9]\n{lines}"
    rows = run(
        [Step(text, registers), Step(stores, ())],
        vectors,
        {"s[8:9]": np.array([exec_mask], U64)},
        lds=SIZE,
        buffers={"s[80:81]": memory},
    )
    return *rows[0], memory


def at(memory: Array, address: Array, size: int) -> Array:
    """Bytes [lanes, size] at each lane's address."""
    return memory[address.astype(np.int64)[:, None] + np.arange(size)]


def words(data: Array) -> Array:
    """Bytes [lanes, n] as registers [lanes, n / 4]."""
    return np.ascontiguousarray(data).view(U32)


def registers(first: int, size: int) -> str:
    count = max(size // 4, 1)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def addresses(alignment: int, span: int = 2048) -> Array:
    return (np.random.default_rng(8).permutation(span // alignment)[:LANES] * alignment).astype(U32)


@pytest.mark.parametrize("offset", (0, 96))
@pytest.mark.parametrize("aligned", (True, False), ids=("aligned", "any"))
@pytest.mark.parametrize("name", READS)
def test_read(name: str, aligned: bool, offset: int) -> None:
    part = name.split("_")[2]
    size = WIDTHS[part]
    address = addresses(max(size, 4) if aligned else 1)
    old = inputs(("u32",), 64)[0]
    count = max(size // 4, 1)
    for exec_mask in (ALL, EXEC):
        results = tuple(f"v{20 + i}" for i in range(count))
        vectors = {"v2": address} | {register: old + U32(i) for i, register in enumerate(results)}
        *got, _ = dump(f"{name} {registers(20, size)}, v2 offset:{offset}", vectors, results, exec_mask)
        data = at(contents(), address + U32(offset), size)
        if size < 4:
            value = data.view(
                {1: np.int8, 2: np.int16}[size] if part[0] == "i" else {1: np.uint8, 2: np.uint16}[size]
            )[:, 0]
            value = value.astype(np.int64).astype(U32)
            if name.endswith("d16_hi"):
                value = (old & U32(0xFFFF)) | value << U32(16)
            elif name.endswith("d16"):
                value = (old & U32(0xFFFF0000)) | value & U32(0xFFFF)
            expected = value[:, None]
        else:
            expected = words(data)
        enabled = ENABLED if exec_mask == EXEC else np.ones(LANES, bool)
        for i in range(count):
            assert (got[i] == np.where(enabled, expected[:, i], old + U32(i))).all(), name


@pytest.mark.parametrize("exec_mask", (ALL, EXEC), ids=("all", "some"))
@pytest.mark.parametrize("name", PAIR_READS)
def test_read_pair(name: str, exec_mask: U64) -> None:
    size = WIDTHS[name.split("_")[2]]
    stride = size * (64 if "st64" in name else 1)
    address = addresses(size, 1024)
    count = size // 2
    results = tuple(f"v{2 + i}" for i in range(count))  # overwrites its own address register
    vectors = {"v2": address} | {register: LANE for register in results[1:]}
    *got, _ = dump(f"{name} v[2:{1 + count}], v2 offset0:3 offset1:9", vectors, results, exec_mask)
    both = np.concatenate([words(at(contents(), address + U32(n * stride), size)) for n in (3, 9)], axis=1)
    enabled = ENABLED if exec_mask == EXEC else np.ones(LANES, bool)
    for i, register in enumerate(results):
        assert (got[i] == np.where(enabled, both[:, i], vectors[register])).all(), (name, i)


@pytest.mark.parametrize("aligned", (True, False), ids=("aligned", "any"))
@pytest.mark.parametrize("name", WRITES)
def test_write(name: str, aligned: bool) -> None:
    size = WIDTHS[name.split("_")[2]]
    address = addresses(max(size, 4) if aligned else 16) + U32(0 if aligned else 3)
    count = max(size // 4, 1)
    data = np.random.default_rng(6).integers(0, 2**32, (LANES, count), dtype=U32)
    vectors = {"v2": address} | {f"v{4 + i}": np.ascontiguousarray(data[:, i]) for i in range(count)}
    for exec_mask in (ALL, EXEC):
        (memory,) = dump(
            f"{name} v2, {registers(4, size)} offset:64\ns_mov_b64 exec, -1", vectors, (), exec_mask
        )
        expected = contents()
        for lane in range(LANES):
            if int(exec_mask) >> lane & 1:
                source = data[lane].tobytes()[2 if name.endswith("hi") else 0 :][:size]
                expected[address[lane] + 64 : address[lane] + 64 + size] = np.frombuffer(source, np.uint8)
        assert (memory == expected).all(), name


@pytest.mark.parametrize("name", PAIR_WRITES)
def test_write_pair(name: str) -> None:
    size = WIDTHS[name.split("_")[2]]
    stride = size * (64 if "st64" in name else 1)
    address = (LANE * U32(size * 4)).astype(U32)
    data = np.random.default_rng(6).integers(0, 2**32, (LANES, size // 2), dtype=U32)
    vectors = {"v2": address} | {f"v{4 + i}": np.ascontiguousarray(data[:, i]) for i in range(size // 2)}
    first, second = registers(4, size), registers(4 + size // 4, size)
    (memory,) = dump(f"{name} v2, {first}, {second} offset0:1 offset1:7", vectors, ())
    expected = contents()
    # The halves of a pair that meet other lanes' are written half by half.
    for half, n in enumerate((1, 7)):
        for lane in range(LANES):
            start = address[lane] + n * stride
            expected[start : start + size] = (
                data[lane, half * size // 4 : (half + 1) * size // 4].copy().view(np.uint8)
            )
    assert (memory == expected).all(), name


@pytest.mark.parametrize("name", ATOMICS)
def test_atomic(name: str) -> None:
    """Every lane its own address: old value returned, new value as AMD's pseudocode says."""
    kind = name.split("_")[-1]
    wide = "64" in kind
    source = {"b32": "u32", "b64": "u64", "i32": "u32"}.get(kind, kind)
    old, a, b = inputs((source,) * 3, 512)
    if name.startswith("ds_cmpst"):
        a = np.where(np.arange(len(a)) % 2 == 0, old, a)
    kind_of = U64 if wide else U32
    size = 8 if wide else 4
    returns = "_rtn" in name
    destination = "v[20:21]" if wide else "v20"
    data = ["v[4:5]", "v[6:7]"] if wide else ["v4", "v6"]
    uses = data if "cmpst" in name else data[:1]
    operands = ([destination] if returns else []) + ["v3"] + uses
    width = "b64" if wide else "b32"
    cell = "v[8:9]" if wide else "v8"
    text = (
        f"v_mul_u32_u24_e32 v3, {size}, v0\nds_write_{width} v3, {cell} offset:16\nv_mov_b32_e32 v20, 0\n"
        "v_mov_b32_e32 v21, 0\n"
        f"{name} {', '.join(operands)} offset:16\nds_read_{width} v[22:23], v3 offset:16"
    )
    if not wide:
        text = text.replace("v[22:23]", "v22")
    results = (destination, "v[22:23]" if wide else "v22")
    ((returned, after),) = run([Step(text, results)], {data[0]: a, data[1]: b, cell: old}, lds=1024)
    values = {
        "MEM": Value(old.astype(U64), "b", 64 if wide else 32), "DATA": Value(a.astype(U64), "b", 64),
        "DATA2": Value(b.astype(U64), "b", 64),
        "dst": Value(np.zeros(len(old), U64), "b", 32),
    }  # fmt: skip
    memory = evaluate(name, values, len(old))["MEM"].bits.astype(kind_of)
    compare = {"f16": "f16x2", "bf16": "bf16x2"}.get(kind, kind)
    assert_same(after, memory, compare, [old, a, b], name)
    assert (returned == (old if returns else 0)).all(), name


def test_atomics_on_one_address_happen_lane_by_lane() -> None:
    text = "v_mov_b32_e32 v3, 0\nds_write_b32 v3, v3\nds_add_rtn_u32 v20, v3, v2\nds_read_b32 v21, v3"
    ((before, after),) = run([Step(text, ("v20", "v21"))], {"v2": LANE + U32(1)}, lds=64)
    totals = np.cumsum(LANE + 1)
    assert (before == np.concatenate([[0], totals[:-1]])).all() and (after == totals[-1]).all()


def test_transposing_read() -> None:
    """In each 16 lanes: element e of lane l is half l % 4 of the 8 bytes that lane 4 e + l // 4 addresses."""
    address = addresses(8)
    low, high, _ = dump("ds_read_b64_tr_b16 v[20:21], v2 offset:128", {"v2": address}, ("v20", "v21"))
    halves = at(contents(), address + U32(128), 8).view(np.uint16).reshape(4, 16, 4)
    expected = np.empty((4, 16, 4), np.uint16)
    for lane in range(16):
        for element in range(4):
            expected[:, lane, element] = halves[:, 4 * element + lane // 4, lane % 4]
    got = np.stack([low, high], -1).view(np.uint16).reshape(4, 16, 4)
    assert (got == expected).all()


@pytest.mark.parametrize("exec_mask", (ALL, EXEC), ids=("all", "some"))
def test_permutations(exec_mask: U64) -> None:
    random = np.random.default_rng(2)
    address, data, old = random.integers(0, 2**32, (3, LANES), dtype=U32)
    enabled = ENABLED if exec_mask == EXEC else np.ones(LANES, bool)
    text = "ds_bpermute_b32 v20, v2, v4 offset:8\nds_permute_b32 v21, v2, v4 offset:8"
    pulled, pushed, _ = dump(
        text, {"v2": address, "v4": data, "v20": old, "v21": old}, ("v20", "v21"), exec_mask
    )
    other = ((address + U32(8)) // 4 % 64).astype(int)
    assert (pulled == np.where(enabled, np.where(enabled[other], data[other], 0), old)).all()
    target = np.zeros(LANES, U32)
    for lane in range(LANES):
        if enabled[lane]:
            target[other[lane]] = data[lane]
    assert (pushed == np.where(enabled, target, old)).all()


GROUP, WITHIN = np.arange(LANES) // 32 * 32, np.arange(LANES) % 32
SWIZZLES = {
    "swizzle(QUAD_PERM, 3, 0, 2, 1)": np.arange(LANES) // 4 * 4
    + np.array([3, 0, 2, 1])[np.arange(LANES) % 4],
    'swizzle(BITMASK_PERM, "01pip")': GROUP + ((WITHIN & 0b00111 | 0b01000) ^ 0b00010),
    "swizzle(SWAP, 16)": GROUP + (WITHIN ^ 16),
    "swizzle(REVERSE, 8)": GROUP + (WITHIN ^ 7),
    "swizzle(BROADCAST, 4, 2)": GROUP + (WITHIN // 4 * 4 + 2),
    "0x801f": np.arange(LANES) // 4 * 4 + np.array([3, 3, 1, 0])[np.arange(LANES) % 4],
    "0x041f": GROUP + (WITHIN ^ 1),
}


@pytest.mark.parametrize("pattern", SWIZZLES)
def test_swizzle(pattern: str) -> None:
    data = np.random.default_rng(2).integers(0, 2**32, LANES, dtype=U32)
    got, _ = dump(f"ds_swizzle_b32 v20, v2 offset:{pattern}", {"v2": data}, ("v20",))
    assert (got == data[SWIZZLES[pattern]]).all()


@pytest.mark.parametrize(
    "text, size",
    (
        ("ds_read_b32 v4, v2", 4),
        ("ds_read_b128 v[4:7], v2", 16),
        ("ds_write_b64 v2, v[4:5]", 8),
        ("ds_add_u32 v2, v4", 4),
        ("ds_read_u8 v4, v2", 1),
    ),
)
def test_access_past_the_end_is_a_fault(text: str, size: int) -> None:
    last = np.zeros(LANES, U32)
    last[37] = 256 - size
    registers = {"v2": last} | {f"v{i}": last for i in range(4, 8)}
    run([Step(text, ())], registers, lds=256)
    last[37] += 1
    with pytest.raises(Fault) as caught:
        run([Step(text, ())], registers, lds=256)
    assert (caught.value.kind, caught.value.lane, caught.value.bytes) == ("lds-out-of-bounds", 37, size)
