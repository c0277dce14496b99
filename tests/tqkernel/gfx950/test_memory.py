"""Global, flat, buffer and scratch memory, scalar loads, their bounds and their faults."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tqkernel.gfx950 import Fault, Memory, launch
from tqkernel.gfx950.isa import instruction_set
from tqref import DEFAULT_PROFILE

from .machine import LANES, Step, program, run
from .pseudocode import Value, evaluate
from .values import assert_same, inputs

Array = np.ndarray
U32, U64 = np.uint32, np.uint64
ALL = U64(2**64 - 1)
SIZE = 4096
LANE = np.arange(LANES, dtype=U32)
EXEC = U64(0x0FF0_1234_8421_FFFE)
BYTES = {
    "ubyte": 1,
    "sbyte": 1,
    "byte": 1,
    "ushort": 2,
    "sshort": 2,
    "short": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}
SPACES = ("global", "flat", "buffer", "scratch")
COUNTS = (1, 2, 4, 8, 16)


def names(space: str, what: str) -> list[str]:
    return sorted(name for name in instruction_set() if name.startswith(f"{space}_{what}_"))


COVERED = {name for space in SPACES for what in ("load", "store") for name in names(space, what)}
COVERED |= {name for space in SPACES[:3] for name in names(space, "atomic")}
COVERED |= {f"s_{kind}_dword{f'x{n}' if n > 1 else ''}" for kind in ("load", "buffer_load") for n in COUNTS}


def contents() -> Array:
    return np.random.default_rng(4).integers(0, 256, SIZE, dtype=np.uint8)


def size_of(name: str) -> int:
    return BYTES[re.match(r"\w+?_(?:load|store)_([a-z0-9]+)", name)[1]]  # type: ignore[index]


def registers(first: int, size: int) -> str:
    count = max(size // 4, 1)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


DESCRIPTOR = "s_mov_b32 s82, {records:#x}\ns_mov_b32 s83, 0x27000"
# How a space is addressed from byte offsets in v2: (lines before, operands of address, modifiers)
FLAT_ADDRESS = (
    "v_mov_b32_e32 v191, s81\nv_add_co_u32_e32 v190, vcc, s80, v2\nv_addc_co_u32_e32 v191, vcc, 0, v191, vcc"
)


def access(name: str, data: str, offset: int, returns: bool = False, records: int = SIZE) -> str:
    """Assembly of one access to the buffer at s[80:81], at the byte offsets in v2 plus an immediate."""
    space, what = name.split("_")[:2]
    extra = f" offset:{offset}" if offset else ""
    first = [data] if what == "load" or returns and space != "buffer" else []
    last = [data.split("/")[-1]] if what != "load" else []
    if returns and space != "buffer":
        first = [data.split("/")[0]]
    if space == "global":
        return f"{name} {', '.join([*first, 'v2', *last, 's[80:81]'])}{extra}" + (" sc0" if returns else "")
    if space == "flat":
        return f"{FLAT_ADDRESS}\n{name} {', '.join([*first, 'v[190:191]', *last])}{extra}" + (
            " sc0" if returns else ""
        )
    if space == "buffer":
        return (
            f"{DESCRIPTOR.format(records=records)}\n"
            f"{name} {data.split('/')[-1]}, v2, s[80:83], 0 offen{extra}" + (" sc0" if returns else "")
        )
    return f"{name} {', '.join([*first, 'v2', *last, 'off'])}{extra}"


def mapped(
    text: str, vectors: dict[str, Array], results: tuple[str, ...], exec_mask: U64 = ALL
) -> tuple[Array, ...]:
    """Results of instructions with `contents()` at s[80:81], then those bytes afterwards."""
    memory = contents()
    steps = [Step(f"s_mov_b64 exec, s[8:9]\n{text}", results)]
    row = run(steps, vectors, {"s[8:9]": np.array([exec_mask], U64)}, buffers={"s[80:81]": memory})[0]
    return *row, memory


def loaded(name: str, data: Array, old: Array) -> Array:
    """Registers [lanes, n] after a load of bytes [lanes, size] over `old` [lanes]."""
    size = data.shape[1]
    if size >= 4:
        return data.view(U32)
    kind = {1: np.int8, 2: np.int16} if "_sbyte" in name or "_sshort" in name else {1: np.uint8, 2: np.uint16}
    value = np.ascontiguousarray(data).view(kind[size])[:, 0].astype(np.int64).astype(U32)
    if name.endswith("_d16_hi"):
        value = (old & U32(0xFFFF)) | value << U32(16)
    elif name.endswith("_d16"):
        value = (old & U32(0xFFFF0000)) | value & U32(0xFFFF)
    return value[:, None]


@pytest.mark.parametrize("name", [name for space in SPACES[:3] for name in names(space, "load")])
def test_load(name: str) -> None:
    size = size_of(name)
    address = np.random.default_rng(3).permutation(SIZE // 32)[:LANES].astype(U32) * U32(16) + U32(
        2 if size < 4 else 4
    )
    old = inputs(("u32",), 64)[0]
    count = max(size // 4, 1)
    for exec_mask in (ALL, EXEC):
        results = tuple(f"v{20 + i}" for i in range(count))
        *got, _ = mapped(
            access(name, registers(20, size), 24),
            {"v2": address} | dict.fromkeys(results, old),
            results,
            exec_mask,
        )
        expected = loaded(name, contents()[address.astype(int)[:, None] + 24 + np.arange(size)], old)
        enabled = np.unpackbits(np.array([exec_mask]).view(np.uint8), bitorder="little").astype(bool)
        for i in range(count):
            assert (got[i] == np.where(enabled, expected[:, i], old)).all(), name


@pytest.mark.parametrize("name", [name for space in SPACES[:3] for name in names(space, "store")])
def test_store(name: str) -> None:
    size = size_of(name)
    address = np.random.default_rng(3).permutation(SIZE // 32)[:LANES].astype(U32) * U32(16) + U32(
        2 if size < 4 else 4
    )
    data = np.random.default_rng(6).integers(0, 2**32, (LANES, max(size // 4, 1)), dtype=U32)
    vectors = {"v2": address} | {f"v{4 + i}": np.ascontiguousarray(data[:, i]) for i in range(data.shape[1])}
    for exec_mask in (ALL, EXEC):
        (memory,) = mapped(access(name, registers(4, size), 24), vectors, (), exec_mask)
        expected = contents()
        for lane in range(LANES):
            if int(exec_mask) >> lane & 1:
                start = int(address[lane]) + 24
                source = data[lane].tobytes()[2 if name.endswith("hi") else 0 :][:size]
                expected[start : start + size] = np.frombuffer(source, np.uint8)
        assert (memory == expected).all(), name


@pytest.mark.parametrize("store", names("scratch", "store"))
def test_scratch_store(store: str) -> None:
    """Each lane has bytes of its own; every way to address them reads what was stored."""
    size = size_of(store)
    data = np.random.default_rng(6).integers(0, 2**32, (LANES, max(size // 4, 1)), dtype=U32)
    vectors = {"v2": (LANE % 8 * 4).astype(U32)} | {
        f"v{4 + i}": np.ascontiguousarray(data[:, i]) for i in range(data.shape[1])
    }
    clear = "v_mov_b32_e32 v60, 0\n" + "\n".join(
        f"scratch_store_dword off, v60, off offset:{4 * i}" for i in range(24)
    )
    words = tuple(f"v{20 + i}" for i in range(24))
    reads = "\n".join(f"scratch_load_dword v{20 + i}, off, off offset:{4 * i}" for i in range(24))
    text = f"{clear}\n{store} v2, {registers(4, size)}, off offset:8\n{reads}"
    got = np.stack(run([Step(text, words)], vectors, private=96)[0], -1)
    expected = np.zeros((LANES, 96), np.uint8)
    for lane in range(LANES):
        start = lane % 8 * 4 + 8
        expected[lane, start : start + size] = np.frombuffer(
            data[lane].tobytes()[2 if store.endswith("hi") else 0 :][:size], np.uint8
        )
    assert (got == expected.view(U32)).all()


@pytest.mark.parametrize("name", names("scratch", "load"))
def test_scratch_load(name: str) -> None:
    size = size_of(name)
    data = np.random.default_rng(6).integers(0, 2**32, (LANES, 8), dtype=U32)
    old = inputs(("u32",), 64)[0]
    count = max(size // 4, 1)
    results = tuple(f"v{20 + i}" for i in range(count))
    vectors = (
        {"v2": (LANE % 4 * 4).astype(U32)}
        | {f"v{4 + i}": np.ascontiguousarray(data[:, i]) for i in range(8)}
        | dict.fromkeys(results, old)
    )
    fill = "\n".join(f"scratch_store_dword off, v{4 + i}, off offset:{4 * i}" for i in range(8))
    moves = "\n".join(f"v_mov_b32_e32 v{40 + i}, v{20 + i}" for i in range(count))
    text = (
        f"{fill}\n{name} {registers(20, size)}, v2, off offset:1\n{moves}\ns_mov_b32 s30, 4\n"
        f"{name} {registers(20, size)}, off, s30 offset:8"
    )
    got = run([Step(text, tuple(f"v{40 + i}" for i in range(count)) + results)], vectors, private=64)[0]
    rows = data.view(np.uint8).reshape(LANES, 32)
    by_lane = np.stack([rows[lane, lane % 4 * 4 + 1 :][:size] for lane in range(LANES)])
    first = loaded(name, by_lane, old)
    second = loaded(name, np.ascontiguousarray(rows[:, 12 : 12 + size]), first[:, 0])
    for i in range(count):
        assert (got[i] == first[:, i]).all() and (got[count + i] == second[:, i]).all(), name


def _atomics(space: str) -> list[str]:
    return names(space, "atomic")


@pytest.mark.parametrize("name", [name for space in SPACES[:3] for name in _atomics(space)])
def test_atomic(name: str) -> None:
    """Every lane its own address: old value returned where asked for, new value as AMD's pseudocode says."""
    operation = name.split("_atomic_")[1]
    wide = operation.endswith(("_x2", "f64"))
    kind = (
        operation.rsplit("_", 1)[1]
        if operation.endswith(("f32", "f64", "f16"))
        else ("u64" if wide else "u32")
    )
    kind = "bf16" if kind == "bf16" else kind
    old, a, b = (column[:LANES] for column in inputs((kind,) * 3, 256))
    compares = "cmpswap" in operation
    if compares:
        b = np.where(np.arange(LANES) % 2 == 0, old, b)
    size = 8 if wide else 4
    address = (LANE * U32(size)).astype(U32)
    count = size // 4 * (1 + compares)
    cell, after = ("v[30:31]", "v[32:33]") if wide else ("v30", "v32")
    second = ("v[6:7]" if wide else "v5", b)
    vectors = {"v2": address, "v[4:5]" if wide else "v4": a, cell: old} | (
        {second[0]: second[1]} if compares else {}
    )
    width = "dwordx2" if wide else "dword"
    for returns in (False, True):
        data = registers(4, 4 * count)
        target = "v[20:21]" if wide else "v20"
        if returns and not name.startswith("buffer"):
            data = f"{target}/{data}"
        text = (
            f"global_store_{width} v2, {cell}, s[80:81]\ns_waitcnt vmcnt(0)\n"
            f"{access(name, data, 0, returns)}\n"
            f"s_waitcnt vmcnt(0)\nglobal_load_{width} {after}, v2, s[80:81]"
        )
        result = ("v[4:5]" if wide else "v4") if name.startswith("buffer") else target
        got, memory, _ = mapped(text, vectors, (result, after))
        both = a.astype(U64) | (b.astype(U64) << U64(32) if compares and not wide else U64(0))
        if compares and wide:
            expected = np.where(old == b, a, old)
        else:
            values = {
                "MEM": Value(old.astype(U64), "b", 8 * size),
                "DATA": Value(both, "b", 64),
                "dst": Value(np.zeros(LANES, U64), "b", 32),
            }
            expected = evaluate(name, values, LANES)["MEM"].bits.astype(old.dtype)
        assert_same(memory, expected, {"f16": "f16x2", "bf16": "bf16x2"}.get(kind, kind), [old, a], name)
        if returns:
            assert (got == old).all(), name


# ---------------------------------------------------------------- addressing


def test_global_address_is_a_pair_or_a_scalar_pair_and_an_offset() -> None:
    offset = (LANE * U32(4)).astype(U32)
    text = (
        f"{FLAT_ADDRESS}\nglobal_load_dword v20, v[190:191], off offset:-8\n"
        "global_load_dword v21, v2, s[80:81] offset:-8"
    )
    pair, scalar, memory = mapped(text, {"v2": offset + U32(64)}, ("v20", "v21"))
    assert (pair == memory.view(U32)[14 : 14 + LANES]).all() and (scalar == pair).all()


def test_a_load_may_overwrite_its_own_address() -> None:
    offset = (LANE * U32(16)).astype(U32)
    *got, memory = mapped(
        "global_load_dwordx4 v[2:5], v2, s[80:81]", {"v2": offset}, ("v2", "v3", "v4", "v5")
    )
    assert (np.stack(got, -1) == memory.view(U32)[: 4 * LANES].reshape(LANES, 4)).all()


@pytest.mark.parametrize("width", (4, 8, 12, 16))
@pytest.mark.parametrize("records", (0, 2, 100, 101, 252, 1024))
def test_raw_buffer_ends_at_its_records(records: int, width: int) -> None:
    """A word that does not fit below num_records reads zero and is not written (stride 0: bytes)."""
    offset = (LANE * U32(4)).astype(U32)
    name = {4: "dword", 8: "dwordx2", 12: "dwordx3", 16: "dwordx4"}[width]
    count = width // 4
    vectors = (
        {"v2": offset}
        | {f"v{20 + i}": LANE + U32(7) for i in range(count)}
        | {f"v{40 + i}": LANE + U32(100 * i + 1) for i in range(count)}
    )
    text = (
        f"{DESCRIPTOR.format(records=records)}\ns_mov_b32 s84, 16\n"
        f"buffer_load_{name} {registers(20, width)}, v2, s[80:83], s84 offen offset:8\n"
        f"buffer_store_{name} {registers(40, width)}, v2, s[80:83], s84 offen offset:8"
    )
    loads = "\n".join(f"v_mov_b32_e32 v{60 + i}, v{20 + i}" for i in range(count))
    # Lanes overlap; store from one lane in five.
    text = text.replace(
        "\nbuffer_store", f"\n{loads}\ns_mov_b64 exec, 0x1\ns_lshl_b64 exec, exec, 19\nbuffer_store"
    )
    *got, memory = mapped(text, vectors, tuple(f"v{60 + i}" for i in range(count)))
    before = contents()
    for i in range(count):
        at = 4 * np.arange(LANES) + 24 + 4 * i
        inside = at + 4 <= records
        words = before[at[:, None] + np.arange(4)].view(U32)[:, 0]
        assert (got[i] == np.where(inside, words, 0)).all(), f"word {i}"
    for i in range(count):
        at = 4 * 19 + 24 + 4 * i
        if at + 4 <= records:
            before[at : at + 4] = np.array([19 + 100 * i + 1], U32).view(np.uint8)
    assert (memory == before).all()


def test_structured_buffer_counts_records() -> None:
    """With a stride, num_records counts elements and the index decides."""
    text = (
        "s_mov_b32 s82, 40\ns_mov_b32 s83, 0x27000\ns_or_b32 s81, s81, 0xc0000\n"  # stride 12
        "buffer_load_dword v20, v2, s[80:83], 0 idxen offset:4\n"
        "buffer_load_dword v21, v[2:3], s[80:83], 0 idxen offen"
    )
    got, both, memory = mapped(text, {"v2": LANE, "v3": LANE % U32(3) * U32(4)}, ("v20", "v21"))
    words = memory.view(U32)
    assert (got == np.where(LANE < 40, words[3 * LANE + 1], 0)).all()
    assert (both == np.where(LANE < 40, words[3 * LANE + LANE % 3], 0)).all()


def test_buffer_load_into_lds() -> None:
    text = (
        f"{DESCRIPTOR.format(records=1024)}\ns_mov_b32 m0, 64\n"
        "buffer_load_dword v2, s[80:83], 0 offen offset:8 lds\n"
        "s_waitcnt vmcnt(0)\nv_lshlrev_b32_e32 v3, 2, v0\nds_read_b32 v20, v3 offset:72"
    )
    memory = contents()
    ((got,),) = run(
        [Step(text, ("v20",))],
        {"v2": (LANE[::-1] * U32(4)).astype(U32)},
        lds=1024,
        buffers={"s[80:81]": memory},
    )
    assert (got == memory.view(U32)[2 + LANE[::-1].astype(int)]).all()


@pytest.mark.parametrize("count", COUNTS)
def test_scalar_load(count: int) -> None:
    suffix = "" if count == 1 else f"x{count}"
    last = f"s[20:{19 + count}]" if count > 1 else "s20"
    results = tuple(f"s{20 + i}" for i in range(count))
    for operand, first in (("0x10", 4), ("s30", 6), ("s30 offset:0x8", 8)):
        text = f"s_mov_b32 s30, 24\ns_load_dword{suffix} {last}, s[80:81], {operand}".replace("s30", "s50")
        *got, memory = mapped(text, {"v2": LANE}, results)
        assert [int(value[0]) for value in got] == memory.view(U32)[first : first + count].tolist()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("records", (0, 40, 64, 1024))
def test_scalar_buffer_load_ends_at_its_records(count: int, records: int) -> None:
    suffix = "" if count == 1 else f"x{count}"
    last = f"s[20:{19 + count}]" if count > 1 else "s20"
    text = f"{DESCRIPTOR.format(records=records)}\ns_buffer_load_dword{suffix} {last}, s[80:83], 0x20"
    *got, memory = mapped(text, {"v2": LANE}, tuple(f"s{20 + i}" for i in range(count)))
    words = memory.view(U32)[8 : 8 + count]
    inside = 4 * np.arange(8, 8 + count) + 4 <= records
    assert [int(value[0]) for value in got] == np.where(inside, words, 0).tolist()


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "text, write",
    (
        ("global_load_dword v4, v2, s[80:81]", False), ("global_store_dword v2, v4, s[80:81]", True),
        ("global_load_dwordx4 v[4:7], v2, s[80:81] offset:-12", False),
        ("global_atomic_add v2, v4, s[80:81]", True),
        (DESCRIPTOR.format(records=0xFFFFFFFF) + "\nbuffer_load_dword v4, v2, s[80:83], 0 offen", False),
    ),
)  # fmt: skip
def test_access_outside_every_allocation_is_a_fault(text: str, write: bool) -> None:
    offset = np.full(LANES, SIZE - 4, U32)
    vectors = {"v2": offset} | {f"v{i}": offset for i in range(4, 8)}
    mapped(text, vectors, ())
    offset[21] += 4
    with pytest.raises(Fault, match="memory-fault") as caught:
        mapped(text, vectors, ())
    assert (caught.value.kind, caught.value.lane, caught.value.is_write) == ("memory-fault", 21, write)
    assert "of buffer s[80:81]" in str(caught.value)


def test_scalar_load_outside_every_allocation_is_a_fault() -> None:
    with pytest.raises(Fault, match="memory-fault"):
        mapped(f"s_load_dword s20, s[80:81], {SIZE:#x}", {"v2": LANE}, ())


def test_scratch_past_its_end_is_a_fault() -> None:
    with pytest.raises(Fault, match="memory-fault"):
        run([Step("scratch_load_dword v4, off, off offset:13", ())], {"v2": LANE}, private=16)


@pytest.mark.parametrize(
    "address, words",
    [
        (0x10000, "byte 0 of low"),
        (0x100FF, "byte 255 of low"),
        (0x10100, "0 bytes past the end of low"),
        (0x10200, "256 bytes past the end of low"),
        (0x7FFFF, "1 bytes before high"),
        (0x80010, "0 bytes past the end of high"),
        (0, "65536 bytes before low"),
    ],
)
def test_an_address_is_described_by_the_nearest_allocation(address: int, words: str) -> None:
    memory = Memory()
    assert memory.describe(address) == "there is no allocation"
    memory.map("low", np.zeros(256, np.uint8), 0x10000)
    memory.map("high", np.zeros(16, np.uint8), 0x80000)
    assert memory.describe(address) == words


def test_a_fault_names_the_line_of_source() -> None:
    text = '\t.file\t1 "kernel.py"\n\t.loc\t1 42 7\n\ts_load_dword s4, s[2:3], 0x0\n'
    kernel = program("\ts_mov_b64 s[2:3], 0\n" + text)
    with pytest.raises(Fault, match=r"^memory-fault at line 7 \(s_load_dword .*; kernel.py:42\), workgroup"):
        launch(kernel, (1, 1, 1), (64, 1, 1), b"", Memory(), DEFAULT_PROFILE)


def test_every_space_is_covered() -> None:
    for space in SPACES:
        assert len(names(space, "load")) == 14 and len(names(space, "store")) == 8
