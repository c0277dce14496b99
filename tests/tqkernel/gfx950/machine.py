"""Run a few instructions on the emulated machine, with registers loaded from and stored to NumPy arrays."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tqkernel.gfx950 import Memory, Program, launch, parse_listing
from tqref import PROFILES

LANES = 64
Array = np.ndarray

_HEADER = """\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
\t.text
kernel:
"""
_FOOTER = """
\ts_endpgm
.Lfunc_end0:
\t.amdhsa_kernel kernel
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {private}
\t\t.amdhsa_kernarg_size {kernarg}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_system_sgpr_workgroup_id_y 0
\t\t.amdhsa_system_sgpr_workgroup_id_z 0
\t.end_amdhsa_kernel
"""
FIRST_LINE = _HEADER.count("\n") + 1
"""Line number of the first line of the body."""


def listing(body: str, lds: int = 0, private: int = 0, kernarg: int = 0) -> str:
    """A listing of one kernel, s[0:1] its arguments and s2 the workgroup, whose instructions are `body`."""
    return _HEADER + body + _FOOTER.format(lds=lds, private=private, kernarg=kernarg)


def program(body: str, **sizes: int) -> Program:
    return parse_listing(listing(body, **sizes))


@dataclass(frozen=True)
class Step:
    """Instructions, and the registers to look at after them: `v3`, `s[8:9]`, `vcc`, `scc`, `exec`."""

    text: str
    results: tuple[str, ...]


def _range(register: str) -> tuple[str, int, int]:
    """(file, first, count) of a register operand."""
    if register in ("vcc", "exec"):
        return register, 0, 2
    match = re.fullmatch(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])", register)
    assert match, register
    first = int(match[2] or match[3])
    return match[1], first, int(match[4]) - first + 1 if match[4] else 1


def planes(array: Array) -> list[Array]:
    """32-bit words of an array of 32- or 64-bit items (the low words first), or of float arrays' bits."""
    words = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])]


_STORE = "global_store_dword v254, v{0}, s[98:99]\ns_add_u32 s98, s98, {1}\ns_addc_u32 s99, s99, 0\n"


def _store(result: str, stride: int) -> list[str]:
    """Store a register's words; scc and exec survive."""
    if result == "scc":
        return ["v_mov_b32_e32 v255, s96\n" + _STORE.format(255, stride)]
    file, first, count = _range(result)
    lines = []
    for i in range(count):
        source = {"exec": f"s{92 + i}", "vcc": f"vcc_{'lo' if i == 0 else 'hi'}"}.get(
            file, f"{file}{first + i}"
        )
        register = str(first + i)
        if file == "a":
            lines.append(f"v_accvgpr_read_b32 v255, {source}\n")
            register = "255"
        elif file != "v":
            lines.append(f"v_mov_b32_e32 v255, {source}\n")
            register = "255"
        lines.append(_STORE.format(register, stride))
    return lines


def run(
    steps: Sequence[Step],
    vectors: Mapping[str, Array] | None = None,
    scalars: Mapping[str, Array] | None = None,
    *,
    lds: int = 0,
    private: int = 0,
    buffers: Mapping[str, Array] | None = None,
    profile: str = "cdna3",
    waves: int = 1,
) -> list[tuple[Array, ...]]:
    """Execute steps and return what they left in their results.

    Parameters
    ----------
    vectors
        Register (`v2` ... `v199`, pairs `v[4:5]`) -> its items, uint32 or uint64 [n], n a multiple of 64; v0
        is the lane.
    scalars
        Register (`s8` ... `s79`, `vcc`) -> uint32 or uint64 [n / 64], one value for each wave.
    lds, private
        Bytes of LDS for a workgroup and of scratch for a lane.
    buffers
        Scalar pair that gets the address -> array of bytes; overwritten with what the kernel leaves there.
    waves
        Waves in a workgroup.

    Returns
    -------
    For each step its results: uint32 or uint64 [n] (vectors) or [n / 64] (scalars, scc).
    """
    vectors, scalars, buffers = dict(vectors or {}), dict(scalars or {}), dict(buffers or {})
    count = len(next(iter(vectors.values()))) if vectors else LANES * len(next(iter(scalars.values()), [0]))
    assert count % (LANES * waves) == 0
    stride = 4 * count
    memory = Memory()
    columns: list[Array] = []
    lines = [
        "s_load_dwordx4 s[96:99], s[0:1], 0x0", "s_mul_i32 s90, s2, " + str(LANES * waves),
        "v_add_u32_e32 v254, s90, v0", "v_lshlrev_b32_e32 v254, 2, v254", "v_and_b32_e32 v0, 63, v0",
    ]  # fmt: skip
    for register, array in vectors.items():
        _, first, _ = _range(register)
        for i, plane in enumerate(planes(array)):
            lines += [
                f"global_load_dword v{first + i}, v254, s[96:97]",
                f"s_add_u32 s96, s96, {stride}",
                "s_addc_u32 s97, s97, 0",
            ]
            columns.append(plane)
    late = []
    for register, array in scalars.items():
        file, first, _ = _range(register)
        for i, plane in enumerate(planes(array)):
            target = f"s{first + i}" if file == "s" else f"{file}_{'lo' if i == 0 else 'hi'}"
            lines += [
                "global_load_dword v255, v254, s[96:97]",
                f"v_readfirstlane_b32 {'s' + str(94 + i) if file != 's' else target}, v255",
                f"s_add_u32 s96, s96, {stride}", "s_addc_u32 s97, s97, 0",
            ]  # fmt: skip
            if file != "s":
                late.append(f"s_mov_b32 {target}, s{94 + i}")
            columns.append(np.repeat(plane, LANES))
    pointers = []
    for i, (register, array) in enumerate(buffers.items()):
        lines.append(f"s_load_dwordx2 {register}, s[0:1], {16 + 8 * i:#x}")
        pointers.append(memory.map(f"buffer {register}", array))
    lines += late
    for step in steps:
        lines += [step.text, "s_mov_b64 s[92:93], exec", "s_mov_b64 exec, -1", "s_cselect_b32 s96, 1, 0"]
        for result in step.results:
            lines += _store(result, stride)
        lines.append("s_cmp_lg_u32 s96, 0")
    words = sum(1 if r == "scc" else _range(r)[2] for step in steps for r in step.results)
    source = memory.map("in", np.concatenate(columns) if columns else np.zeros(1, np.uint32))
    target = memory.map("out", np.zeros(max(words, 1) * count, np.uint32))
    kernarg = struct.pack(f"<{2 + len(pointers)}Q", source, target, *pointers)
    kernel = program("\n".join(lines), lds=lds, private=private, kernarg=len(kernarg))
    launch(
        kernel,
        (count // (LANES * waves), 1, 1),
        (LANES * waves, 1, 1),
        kernarg,
        memory,
        PROFILES[profile],
        threads=1,
    )
    for register, array in buffers.items():
        array[...] = memory.read(f"buffer {register}").view(array.dtype).reshape(array.shape)
    out = memory.read("out").view(np.uint32).reshape(-1, count)
    results, at = [], 0
    for step in steps:
        row = []
        for result in step.results:
            file, _, size = ("scc", 0, 1) if result == "scc" else _range(result)
            value = out[at] if size == 1 else out[at : at + size].T.copy()
            if size == 2:
                value = value.view(np.uint64).reshape(-1)
            row.append(value if file in ("v", "a") else value[::LANES])
            at += size
        results.append(tuple(row))
    return results
