"""What the sanitizer reports: for each kind of finding listings with just that, and others without.

A listing says what it expects in its comments: ``; wait`` on the line of a finding of that kind, with
``wave=``, ``lane=`` and ``address=`` where those are checked too. ``; race?`` marks lines of which at least
one is reported, when the order of the waves decides which; other kinds with a ``?`` may be there or not.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np
import pytest

from tqkernel import cases
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.gfx950 import Fault, Memory, launch
from tqkernel.gfx950.encoding import ACCUMULATION, EXEC, M0, SCALAR, SCC, VCC
from tqkernel.gfx950.footprint import row_footprint
from tqkernel.plan import VARIANTS
from tqref import DEFAULT_PROFILE

from .machine import FIRST_LINE, program

# After this, s[4:5] points at input (defined), s[6:7] at output, v1 is the work-item's byte in a dword array
# over the grid, v2 in one over the workgroup, s8 the wave's number and s2 the workgroup's.
PROLOGUE = """s_load_dwordx4 s[4:7], s[0:1], 0x0
s_mul_i32 s9, s2, {items}
v_add_u32_e32 v1, s9, v0
v_lshlrev_b32_e32 v1, 2, v1
v_lshlrev_b32_e32 v2, 2, v0
v_readfirstlane_b32 s8, v0
s_lshr_b32 s8, s8, 6
s_waitcnt lgkmcnt(0)
"""
INPUT, OUTPUT = 1 << 32, 1 << 33
"""Addresses of the input and the output."""
PAST = INPUT + 256

STORE = "global_store_dword v1, v3, s[6:7]"
BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier"
DESCRIPTOR = "s_mov_b32 s12, s4\ns_mov_b32 s13, s5\ns_mov_b32 s14, 0x100\ns_mov_b32 s15, 0x20000"
"""Of the first 256 bytes of input, in s[12:15]."""


@dataclass(frozen=True)
class Listing:
    body: str
    waves: int = 1
    groups: int = 1
    lds: int = 1024
    output: int = 64
    """Dwords of output that the kernel must write exactly once; 0 for none."""
    unwritten: int | None = None
    """First byte of output that is left alone."""
    private: int = 0

    def execute(self, seed: int = 0, sanitize: bool = True):
        """The findings, and the bytes of input and output after the run.

        Wait states (hazards) are left out: they are a property of the text, and have tests of their own.
        """
        memory = Memory()
        memory.map("input", np.arange(1024, dtype=np.uint32), INPUT)
        if self.output:
            memory.map("output", np.full(self.output, 0xDEADBEEF, np.uint32), OUTPUT, is_output=True)
        kernarg = struct.pack("<QQ", INPUT, OUTPUT)
        text = PROLOGUE.format(items=64 * self.waves) + self.body
        kernel = program(text, lds=self.lds, private=self.private, kernarg=len(kernarg))
        grid, block = (self.groups, 1, 1), (64 * self.waves, 1, 1)
        run = launch(
            kernel, grid, block, kernarg, memory, DEFAULT_PROFILE, seed=seed, threads=1, sanitize=sanitize
        )
        names = ("input", "output") if self.output else ("input",)
        findings = [finding for finding in run.findings if finding.kind != "hazard"]
        return findings, [memory.read(name).tobytes() for name in names]

    def expected(self) -> tuple[set, set]:
        """(findings, possible findings) as its comments say: (kind, line, other fields)."""
        certain, possible = set(), set()
        first = FIRST_LINE + PROLOGUE.count("\n")
        for number, line in enumerate(self.body.split("\n"), first):
            for comment in line.split(";")[1:]:
                kind, *fields = comment.split()
                values = tuple((key, int(value, 0)) for key, value in (field.split("=") for field in fields))
                (possible if kind.endswith("?") else certain).add((kind.rstrip("?"), number, values))
        if self.unwritten is not None:
            certain.add(("unwritten", 0, (("address", OUTPUT + self.unwritten),)))
        return certain, possible


def assert_found(listing: Listing, found) -> None:
    """The findings are all of those expected, at least one of those possible, and no others."""
    certain, possible = listing.expected()
    fields = {entry[:2]: entry[2] for entry in certain | possible}
    places = {(finding.kind, finding.line) for finding in found}
    assert len(places) == len(found)
    must = {entry[:2] for entry in certain}
    may = {entry[:2] for entry in possible}
    assert must <= places <= must | may, [str(finding) for finding in found]
    assert not may or {place for place in places & may if place[0] == "race"}
    for finding in found:
        for name, value in fields[finding.kind, finding.line]:
            assert getattr(finding, name) == value, (name, str(finding))


def pair(name: str, faulty: str, clean: str, **options):
    """A faulty listing and its correct neighbour. `unwritten` is a fault, so only of the first."""
    without = {key: value for key, value in options.items() if key != "unwritten"}
    return [
        pytest.param(Listing(faulty, **options), id=name),
        pytest.param(Listing(clean, **without), id=f"{name} - not"),
    ]


def check(listing: Listing) -> None:
    found, _ = listing.execute()
    assert_found(listing, found)


# ---------------------------------------------------------------- bounds and alignment


def wave_bound(body: str) -> str:
    return f"{DESCRIPTOR}\n{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n{STORE}"


BOUNDS = [
    *pair(
        "load past num_records",
        wave_bound(
            f"buffer_load_dword v3, v2, s[12:15], 0 offen offset:4 ; out-of-bounds lane=63 address={PAST}"
        ),
        wave_bound("buffer_load_dword v3, v2, s[12:15], 0 offen"),
    ),
    *pair(
        "second half of a load past num_records",
        wave_bound(
            "v_lshlrev_b32_e32 v4, 1, v2\n"
            "buffer_load_dwordx2 v[3:4], v4, s[12:15], 0 offen ; out-of-bounds lane=32"
        ),
        wave_bound(
            "v_lshlrev_b32_e32 v4, 1, v2\ns_mov_b64 exec, 0xffffffff\n"
            "buffer_load_dwordx2 v[3:4], v4, s[12:15], 0 offen\n"
            "s_mov_b64 exec, -1\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v3, 0"
        ),
    ),
    *pair(
        "store past num_records",
        f"{DESCRIPTOR}\nbuffer_store_dword v0, v2, s[12:15], 0 offen offset:8 ; out-of-bounds lane=62",
        f"{DESCRIPTOR}\nbuffer_store_dword v0, v2, s[12:15], 0 offen",
        output=0,
    ),
    *pair(
        "index past num_records",
        wave_bound(
            "s_mov_b32 s14, 64\ns_or_b32 s13, s13, 0x40000\nv_add_u32_e32 v4, 1, v0\n"
            "buffer_load_dword v3, v4, s[12:15], 0 idxen ; out-of-bounds lane=63"
        ),
        wave_bound(
            "s_mov_b32 s14, 64\ns_or_b32 s13, s13, 0x40000\nbuffer_load_dword v3, v0, s[12:15], 0 idxen"
        ),
    ),
    *pair(
        "scalar load past num_records",
        wave_bound("v_mov_b32_e32 v3, 0\ns_buffer_load_dwordx2 s[20:21], s[12:15], 0xfc ; out-of-bounds"),
        wave_bound("v_mov_b32_e32 v3, 0\ns_buffer_load_dwordx2 s[20:21], s[12:15], 0xf8"),
    ),
    *pair(
        "misaligned load",
        f"global_load_dword v3, v2, s[4:5] offset:2 ; misaligned lane=0 address={INPUT + 2}\n"
        f"s_waitcnt vmcnt(0)\n{STORE}",
        f"global_load_ushort v3, v2, s[4:5] offset:2\ns_waitcnt vmcnt(0)\n{STORE}",
    ),
    *pair(
        "misaligned half",
        f"global_load_ushort v3, v2, s[4:5] offset:1 ; misaligned\ns_waitcnt vmcnt(0)\n{STORE}",
        f"global_load_ubyte v3, v2, s[4:5] offset:1\ns_waitcnt vmcnt(0)\n{STORE}",
    ),
    *pair(
        "one misaligned lane",
        "v_mov_b32_e32 v4, v2\nv_writelane_b32 v4, s8, 5\ns_movk_i32 s9, 0x82\n"
        "v_writelane_b32 v4, s9, 7\n"
        f"global_load_dwordx4 v[10:13], v4, s[4:5] ; misaligned lane=7 address={INPUT + 0x82}\n"
        f"v_mov_b32_e32 v3, 0\n{STORE}",
        "v_mov_b32_e32 v4, v2\ns_movk_i32 s9, 0x84\nv_writelane_b32 v4, s9, 7\n"
        f"global_load_dwordx4 v[10:13], v4, s[4:5]\nv_mov_b32_e32 v3, 0\n{STORE}",
    ),
    *pair(
        "misaligned LDS pair",
        "v_mov_b32_e32 v3, 0\nv_mov_b32_e32 v4, 0\nv_lshlrev_b32_e32 v5, 1, v2\n"
        f"ds_write_b64 v5, v[3:4] offset:4 ; misaligned address=4\n{STORE}",
        "v_mov_b32_e32 v3, 0\nv_mov_b32_e32 v4, 0\nv_lshlrev_b32_e32 v5, 1, v2\n"
        f"ds_write2_b32 v5, v3, v4 offset0:1 offset1:2\n{STORE}",
    ),
    *pair(
        "misaligned LDS quad",
        "v_lshlrev_b32_e32 v5, 2, v2\n"
        "ds_read_b128 v[8:11], v5 offset:8 ; misaligned address=8\n"
        f"v_mov_b32_e32 v3, 0\n{STORE}",
        "v_lshlrev_b32_e32 v5, 2, v2\n"
        "ds_read2_b64 v[8:11], v5 offset0:1 offset1:2\n"
        f"ds_read_b96 v[12:14], v5 offset:4\nv_mov_b32_e32 v3, 0\n{STORE}",
        lds=2048,
    ),
    *pair(
        "misaligned scalar load",
        f"s_load_dword s20, s[4:5], 0x2 ; misaligned address={INPUT + 2}\nv_mov_b32_e32 v3, 0\n{STORE}",
        f"s_load_dword s20, s[4:5], 0x4\nv_mov_b32_e32 v3, 0\n{STORE}",
    ),
]


@pytest.mark.parametrize("listing", BOUNDS)
def test_bounds_and_alignment(listing):
    check(listing)


def test_outside_every_allocation_is_a_fault():
    """The run stops there: a fault, which carries the place, and no finding."""
    body = (
        "v_mov_b32_e32 v3, 0\n{}global_load_dword v4, v2, s[4:5] offset:3844\n"
        "global_store_dword v1, v3, s[6:7]"
    )
    last = "s_mov_b64 exec, 1\n"
    with pytest.raises(Fault) as caught:
        Listing(body.format("")).execute()
    fault = caught.value
    assert (fault.kind, fault.line) == ("memory-fault", FIRST_LINE + PROLOGUE.count("\n") + 1)
    assert (fault.wave, fault.lane, fault.address, fault.is_write) == (0, 63, INPUT + 4096, False)
    check(Listing(body.format(last), output=1))


# ---------------------------------------------------------------- uninitialised values


def stored(body: str, expected: str = "") -> str:
    comment = f" ; {expected}" if expected else ""
    return f"{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n{STORE}{comment}"


JUNK_IN_COLUMNS = (  # lanes whose number within a row of 16 is 8 and more hold junk
    "v_and_b32_e32 v12, 15, v0\nv_cmp_gt_u32_e32 vcc, 8, v12\n"
    "s_mov_b64 s[20:21], vcc\n"
    "v_mov_b32_e32 v4, 1.0\nv_mov_b32_e32 v5, 1.0\n"
    "s_mov_b64 exec, s[20:21]\nv_mov_b32_e32 v6, 1.0\nv_mov_b32_e32 v7, 1.0\n"
    "s_mov_b64 exec, -1\n"
    "v_mov_b32_e32 v13, 0\nv_mov_b32_e32 v14, 0\nv_mov_b32_e32 v15, 0\n"
    "v_mov_b32_e32 v16, 0\n"
)
MFMA = "v_mfma_f32_16x16x16_bf16 v[8:11], {}, v[13:16]\ns_nop 7\ns_nop 7\nv_mov_b32_e32 v3, {}\n"
MFMA_OF_JUNK = MFMA.format("v[4:5], v[6:7]", "v8").replace("v[13:16]", "v[17:20]")
COLUMNS, ROWS = "v[4:5], v[6:7]", "v[6:7], v[4:5]"


UNINITIALISED = [
    *pair(
        "LDS",
        stored("ds_read_b32 v3, v2", "uninitialised lane=0"),
        stored("ds_write_b32 v2, v0\nds_read_b32 v3, v2"),
    ),
    *pair(
        "LDS of one lane",
        stored(
            "s_mov_b64 exec, 0xfffffff7\nds_write_b32 v2, v0\ns_mov_b64 exec, -1\nds_read_b32 v3, v2",
            "uninitialised lane=3",
        ),
        stored(
            "s_mov_b64 exec, 0xfffffff7\nds_write_b32 v2, v0\ns_mov_b64 exec, -1\n"
            "ds_write_b32 v2, v0 offset:256\n"
            "v_cmp_gt_u32_e32 vcc, 32, v0\nv_cndmask_b32_e64 v4, 0x100, 0, vcc\n"
            "v_add_u32_e32 v4, v2, v4\n"
            "v_cmp_eq_u32_e32 vcc, 3, v0\nv_mov_b32_e32 v5, 0x10c\n"
            "v_cndmask_b32_e32 v4, v4, v5, vcc\nds_read_b32 v3, v4"
        ),
    ),
    *pair(
        "upper half of LDS",
        stored("ds_write_b16 v2, v0\nds_read_b32 v3, v2", "uninitialised"),
        stored("ds_write_b16 v2, v0\nds_read_u16 v3, v2"),
    ),
    *pair(
        "second word of a paired LDS read",
        stored(
            "ds_write_b32 v2, v0\nds_read2_b32 v[4:5], v2 offset1:64\n"
            "s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, v5",
            "uninitialised",
        ),
        stored(
            "ds_write_b32 v2, v0\nds_read2_b32 v[4:5], v2 offset1:64\n"
            "s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, v4"
        ),
    ),
    *pair(
        "junk stored to LDS",
        stored("ds_write_b32 v2, v9\nds_read_b32 v3, v2", "uninitialised"),
        stored("ds_write_b32 v2, v9\nds_write_b32 v2, v0\nds_read_b32 v3, v2"),
    ),
    *pair(
        "LDS atomic on junk",
        stored("ds_add_rtn_u32 v3, v2, v0", "uninitialised"),
        stored("ds_write_b32 v2, v0\nds_add_rtn_u32 v3, v2, v0"),
    ),
    *pair(
        "what an LDS atomic leaves of junk",
        stored("ds_add_u32 v2, v0\nds_read_b32 v3, v2", "uninitialised"),
        stored("ds_write_b32 v2, v0\nds_add_u32 v2, v0\nds_read_b32 v3, v2"),
    ),
    *pair(
        "LDS compare and swap with junk",
        stored("ds_write_b32 v2, v0\nds_cmpst_b32 v2, v0, v9\nds_read_b32 v3, v2", "uninitialised"),
        stored("ds_write_b32 v2, v0\nds_cmpst_b32 v2, v0, v1\nds_read_b32 v3, v2"),
    ),
    # Lane 0 of a row takes half a word from each of lanes 0, 4, 8 and 12, where their addresses point.
    *pair(
        "transposing read",
        stored(
            "v_lshlrev_b32_e32 v4, 1, v2\ns_mov_b64 exec, 0xffffffffffffffef\n"
            "ds_write_b32 v4, v0\nds_write_b32 v4, v0 offset:4\n"
            "s_mov_b64 exec, -1\nds_read_b64_tr_b16 v[6:7], v4\n"
            "s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, v6",
            "uninitialised lane=0",
        ),
        stored(
            "v_lshlrev_b32_e32 v4, 1, v2\ns_mov_b64 exec, 0xffffffffffffffef\n"
            "ds_write_b32 v4, v0\nds_write_b32 v4, v0 offset:4\n"
            "s_mov_b64 exec, -1\nds_read_b64_tr_b16 v[6:7], v4\n"
            "s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, v7"
        ),
    ),
    *pair("VGPR", stored("v_add_u32_e32 v3, v9, v0", "uninitialised"), stored("v_add_u32_e32 v3, v2, v0")),
    *pair(
        "AGPR",
        stored("v_accvgpr_read_b32 v3, a0", "uninitialised"),
        stored("v_accvgpr_write_b32 a0, v0\nv_accvgpr_read_b32 v3, a0"),
    ),
    *pair("SGPR", stored("v_mov_b32_e32 v3, s20", "uninitialised"), stored("v_mov_b32_e32 v3, s8")),
    *pair(
        "SCC",
        stored("s_cmp_eq_u32 s30, 0\ns_cselect_b32 s20, 1, 0\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_cmp_eq_u32 s8, 0\ns_cselect_b32 s20, 1, 0\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "wide scalar",
        stored("s_mov_b32 s20, 0\ns_lshl_b64 s[20:21], s[20:21], 1\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_mov_b64 s[20:21], 0\ns_lshl_b64 s[20:21], s[20:21], 1\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "global memory",
        stored("global_load_dword v3, v1, s[6:7]", "uninitialised"),
        stored("global_load_dword v3, v1, s[4:5]"),
    ),
    *pair(
        "global memory, scalar",
        stored("s_load_dword s20, s[6:7], 0x0\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_load_dword s20, s[4:5], 0x0\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "global memory that the kernel wrote in part",
        stored(
            "global_store_dword v1, v0, s[6:7] offset:256\ns_waitcnt vmcnt(0)\n"
            "global_load_dword v3, v1, s[6:7] offset:252",
            "uninitialised lane=0",
        ),
        stored(
            "global_store_dword v1, v0, s[6:7] offset:256\ns_waitcnt vmcnt(0)\n"
            "global_load_dword v3, v1, s[6:7] offset:256"
        ),
        output=128,
    ),
    *pair(
        "global atomic on junk",
        stored("global_atomic_add v3, v1, v0, s[6:7] offset:256 sc0", "uninitialised"),
        stored(
            "global_atomic_add v3, v1, v0, s[4:5] offset:256 sc0\n"
            "global_store_dword v1, v0, s[6:7] offset:256"
        ),
        output=128,
        unwritten=256,
    ),
    *pair(
        "scratch",
        stored("scratch_store_dword off, v0, off\nscratch_load_dword v3, off, off offset:4", "uninitialised"),
        stored("scratch_store_dword off, v0, off offset:4\nscratch_load_dword v3, off, off offset:4"),
        private=16,
    ),
    *pair(
        "junk spilt to scratch",
        stored("scratch_store_dword off, v9, off\nscratch_load_dword v3, off, off", "uninitialised"),
        stored(
            "scratch_store_dword off, v9, off\nscratch_store_dword off, v0, off\n"
            "scratch_load_dword v3, off, off"
        ),
        private=16,
    ),
    # Where it counts: addresses, branches, EXEC.
    *pair(
        "global address",
        stored("v_and_b32_e32 v4, 4, v9\nglobal_load_dword v3, v4, s[4:5] ; uninitialised lane=0"),
        stored("v_and_b32_e32 v4, 4, v2\nglobal_load_dword v3, v4, s[4:5]"),
    ),
    *pair(
        "scalar part of an address",
        stored(
            f"{DESCRIPTOR}\ns_and_b32 s20, s20, 4\ns_mov_b32 s14, 0x200\n"
            "buffer_load_dword v3, v2, s[12:15], s20 offen ; uninitialised"
        ),
        stored(
            f"{DESCRIPTOR}\ns_and_b32 s20, s8, 4\ns_mov_b32 s14, 0x200\n"
            "buffer_load_dword v3, v2, s[12:15], s20 offen"
        ),
    ),
    *pair(
        "scalar address",
        stored("s_and_b32 s20, s20, 4\ns_load_dword s21, s[4:5], s20 ; uninitialised\nv_mov_b32_e32 v3, 0"),
        stored("s_and_b32 s20, s8, 4\ns_load_dword s21, s[4:5], s20\nv_mov_b32_e32 v3, 0"),
    ),
    *pair(
        "LDS address",
        stored("v_and_b32_e32 v4, 4, v9\nds_write_b32 v4, v0 ; uninitialised\nv_mov_b32_e32 v3, 0"),
        stored("v_and_b32_e32 v4, 4, v0\nds_write_b32 v4, v0\nv_mov_b32_e32 v3, 0"),
    ),
    *pair(
        "m0 as an LDS address",
        stored(
            f"{DESCRIPTOR}\ns_and_b32 m0, m0, 4\n"
            "buffer_load_dword v2, s[12:15], 0 offen lds ; uninitialised\n"
            "v_mov_b32_e32 v3, 0"
        ),
        stored(
            f"{DESCRIPTOR}\ns_mov_b32 m0, 4\nbuffer_load_dword v2, s[12:15], 0 offen lds\nv_mov_b32_e32 v3, 0"
        ),
    ),
    *pair(
        "branch on scc",
        stored("s_cmp_eq_u32 s20, 0\ns_cbranch_scc1 .Lend ; uninitialised\n.Lend:\nv_mov_b32_e32 v3, 0"),
        stored("s_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Lend\n.Lend:\nv_mov_b32_e32 v3, 0"),
    ),
    *pair(
        "branch on vcc",
        stored(
            "v_cmp_eq_u32_e32 vcc, v9, v0\ns_cbranch_vccnz .Lend ; uninitialised\n.Lend:\nv_mov_b32_e32 v3, 0"
        ),
        stored(
            "s_mov_b64 exec, 1\nv_mov_b32_e32 v9, 0\ns_mov_b64 exec, -1\n"
            "v_cmp_eq_u32_e32 vcc, v9, v0\ns_cbranch_vccnz .Lend\n.Lend:\n"
            "v_mov_b32_e32 v3, 0"
        ),
    ),
    *pair(
        "exec",
        stored(
            "v_cmp_eq_u32_e32 vcc, v9, v0\n"
            "s_and_saveexec_b64 s[20:21], vcc ; uninitialised lane=0\n"
            "s_mov_b64 exec, s[20:21]\nv_mov_b32_e32 v3, 0"
        ),
        stored(
            "s_mov_b64 exec, 0xff\nv_mov_b32_e32 v9, 0\ns_mov_b64 exec, -1\n"
            "v_cmp_eq_u32_e32 vcc, v9, v0\n"
            "s_mov_b64 exec, 0xff\ns_and_saveexec_b64 s[20:21], vcc\n"
            "s_mov_b64 exec, -1\nv_mov_b32_e32 v3, 0"
        ),
    ),
    *pair(
        "exec by v_cmpx",
        stored(
            "v_cmpx_eq_u32_e32 vcc, v9, v0 ; uninitialised lane=0\ns_mov_b64 exec, -1\nv_mov_b32_e32 v3, 0"
        ),
        stored("v_cmpx_eq_u32_e32 vcc, v1, v0\ns_mov_b64 exec, -1\nv_mov_b32_e32 v3, 0"),
    ),
    # Junk that is masked away.
    *pair(
        "v_cndmask",
        stored("v_cmp_ne_u32_e32 vcc, 5, v0\nv_cndmask_b32_e32 v3, v9, v2, vcc", "uninitialised lane=5"),
        stored("v_cmp_ne_u32_e32 vcc, 64, v0\nv_cndmask_b32_e32 v3, v9, v2, vcc"),
    ),
    *pair(
        "v_cndmask by a junk mask",
        stored("v_cndmask_b32_e64 v3, v0, v2, s[20:21]", "uninitialised"),
        stored("s_mov_b64 s[20:21], 0\nv_cndmask_b32_e64 v3, v0, v9, s[20:21]"),
    ),
    *pair(
        "lanes that EXEC masks",
        "s_mov_b64 exec, 0xffffffff\nv_mov_b32_e32 v3, 0\n"
        "s_mov_b64 exec, 0x1ffffffff\n" + STORE + " ; uninitialised lane=32",
        "s_mov_b64 exec, 0xffffffff\nv_mov_b32_e32 v3, 0\n"
        + STORE
        + "\nglobal_store_dword v1, v0, s[6:7] offset:128",
        output=64,
        unwritten=132,
    ),
    *pair(
        "unused columns of an MFMA",
        f"{JUNK_IN_COLUMNS}{MFMA.format(COLUMNS, 'v11')}{STORE} ; uninitialised lane=8",
        f"{JUNK_IN_COLUMNS}{MFMA.format(COLUMNS, 'v11')}v_cndmask_b32_e64 v3, 0, v3, s[20:21]\n{STORE}",
    ),
    *pair(  # row 4 (lane / 16) + r is junk from row 8
        "unused rows of an MFMA",
        f"{JUNK_IN_COLUMNS}{MFMA.format(ROWS, 'v8')}{STORE} ; uninitialised lane=32",
        f"{JUNK_IN_COLUMNS}{MFMA.format(ROWS, 'v11')}s_mov_b64 exec, 0xffffffff\n"
        f"{STORE}\n"
        "global_store_dword v1, v0, s[6:7] offset:128",
    ),
    *pair(
        "accumulator of an MFMA",
        f"{JUNK_IN_COLUMNS}{MFMA_OF_JUNK}{STORE} ; uninitialised lane=0",
        f"{JUNK_IN_COLUMNS}{MFMA.format('v[4:5], v[4:5]', 'v8')}{STORE}",
    ),
    *pair(
        "scalar select",
        stored("s_cmp_eq_u32 s8, 0\ns_cselect_b32 s20, s21, s8\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_cmp_eq_u32 s8, 0\ns_cselect_b32 s20, s8, s21\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "scalar or",
        stored("s_or_b32 s20, s21, 0x7fffffff\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_or_b32 s20, s21, -1\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "scalar and-not",
        stored(
            "s_andn2_b64 s[20:21], s[20:21], 1\ns_cmp_eq_u64 s[20:21], 0\n"
            "s_cbranch_scc1 .Lend ; uninitialised\n"
            ".Lend:\nv_mov_b32_e32 v3, 0"
        ),
        stored(
            "s_andn2_b64 s[20:21], s[20:21], -1\ns_cmp_eq_u64 s[20:21], 0\n"
            "s_cbranch_scc1 .Lend\n.Lend:\nv_mov_b32_e32 v3, 0"
        ),
    ),
    *pair(
        "conditional move",
        stored("s_cmp_eq_u32 s8, 1\ns_cmov_b32 s20, 1\nv_mov_b32_e32 v3, s20", "uninitialised"),
        stored("s_cmp_eq_u32 s8, 0\ns_cmov_b32 s20, 1\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "lane of a register",
        stored(
            "v_writelane_b32 v9, s8, 7\nv_readlane_b32 s20, v9, 8\nv_mov_b32_e32 v3, s20", "uninitialised"
        ),
        stored("v_writelane_b32 v9, s8, 7\nv_readlane_b32 s20, v9, 7\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "first lane of a register",
        stored(
            "v_writelane_b32 v9, s8, 7\nv_readfirstlane_b32 s20, v9\nv_mov_b32_e32 v3, s20", "uninitialised"
        ),
        stored(
            "v_writelane_b32 v9, s8, 7\ns_mov_b64 exec, 0xf80\n"
            "v_readfirstlane_b32 s20, v9\ns_mov_b64 exec, -1\nv_mov_b32_e32 v3, s20"
        ),
    ),
    *pair(
        "old value under DPP",
        stored("v_mov_b32_dpp v3, v2 row_shr:1 row_mask:0xf bank_mask:0xf", "uninitialised lane=0"),
        stored("v_mov_b32_dpp v3, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0"),
    ),
    *pair(
        "lane moved by DPP",
        stored(
            "v_mov_b32_e32 v4, v2\nv_mov_b32_e32 v3, 0\ns_mov_b64 exec, 8\n"
            "v_mov_b32_e32 v4, v9\ns_mov_b64 exec, -1\n"
            "v_mov_b32_dpp v3, v4 row_shr:1 row_mask:0xf bank_mask:0xf",
            "uninitialised lane=4",
        ),
        stored(
            "v_mov_b32_e32 v4, v2\nv_mov_b32_e32 v3, 0\ns_mov_b64 exec, 0x8000\n"
            "v_mov_b32_e32 v4, v9\ns_mov_b64 exec, -1\n"
            "v_mov_b32_dpp v3, v4 row_shr:1 row_mask:0xf bank_mask:0xf"
        ),
    ),
    *pair(
        "lane moved by bpermute",
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 8\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "v_xor_b32_e32 v5, 4, v2\nds_bpermute_b32 v3, v5, v4",
            "uninitialised lane=2",
        ),
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 8\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "v_and_b32_e32 v5, 0xf0, v2\nds_bpermute_b32 v3, v5, v4"
        ),
    ),
    *pair(
        "lane moved by permute",
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 8\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "v_xor_b32_e32 v5, 4, v2\nds_permute_b32 v3, v5, v4",
            "uninitialised lane=2",
        ),
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 4\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "v_and_b32_e32 v5, 0xf0, v2\nds_permute_b32 v3, v5, v4"
        ),
    ),
    *pair(
        "lane moved by swizzle",
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 8\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "ds_swizzle_b32 v3, v4 offset:swizzle(SWAP,1)",
            "uninitialised lane=2",
        ),
        stored(
            "v_mov_b32_e32 v4, v2\ns_mov_b64 exec, 8\nv_mov_b32_e32 v4, v9\n"
            "s_mov_b64 exec, -1\n"
            "ds_swizzle_b32 v3, v4 offset:swizzle(BROADCAST,32,1)"
        ),
    ),
    *pair(
        "half moved by a permlane swap",
        stored("v_mov_b32_e32 v3, v2\nv_permlane32_swap_b32_e32 v3, v9", "uninitialised lane=32"),
        "v_mov_b32_e32 v3, v2\nv_permlane32_swap_b32_e32 v3, v9\n"
        "s_mov_b64 exec, 0xffffffff\n" + STORE + "\nglobal_store_dword v1, v0, s[6:7] offset:128",
    ),
    *pair(
        "row moved by a permlane swap",
        stored("v_mov_b32_e32 v3, v2\nv_permlane16_swap_b32_e32 v3, v9", "uninitialised lane=16"),
        stored("v_mov_b32_e32 v4, v2\nv_mov_b32_e32 v3, v2\nv_permlane16_swap_b32_e32 v3, v4"),
    ),
    *pair(
        "kept half",
        stored("global_load_short_d16 v3, v2, s[4:5]", "uninitialised"),
        stored("v_mov_b32_e32 v3, 0\nglobal_load_short_d16 v3, v2, s[4:5]"),
    ),
]


# Compilers leave a half of a packed value undefined, and drop it again. v9 holds junk; v4 becomes half junk.
JUNK_HIGH = "v_cvt_pk_bf16_f32 v4, v0, v9\n"
JUNK_LOW = "v_cvt_pk_bf16_f32 v4, v9, v0\n"
LOWS, HIGHS = "0x5040100", "0x7060302"
"""What v_perm_b32 puts together: the low halves of its two sources, or the high ones."""
MASKED = "s_mov_b32 s20, {}\n"
HALF_WRITTEN = (
    "global_store_short v1, v0, s[6:7] offset:256\ns_waitcnt vmcnt(0)\n{}\n"
    "s_waitcnt vmcnt(0) lgkmcnt(0)\n{}\nglobal_store_short_d16_hi v1, v0, s[6:7] offset:258"
)

HALVES = [
    *pair(
        "half dropped by v_perm",
        stored(f"{MASKED.format(HIGHS)}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20", "uninitialised lane=0"),
        stored(f"{MASKED.format(LOWS)}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20"),
    ),
    *pair(
        "half dropped of one source of v_perm",
        stored(f"{MASKED.format(LOWS)}{JUNK_LOW}v_perm_b32 v3, v4, v0, s20", "uninitialised"),
        stored(f"{MASKED.format('0x7060100')}{JUNK_LOW}v_perm_b32 v3, v4, v0, s20"),
    ),
    *pair(
        "byte kept by v_perm",
        stored(f"{MASKED.format('0x0c0c0200')}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20", "uninitialised"),
        stored(f"{MASKED.format('0x0c0c0100')}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20"),
    ),
    *pair(
        "sign kept by v_perm",
        stored(f"{MASKED.format('0x0b010c00')}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20", "uninitialised"),
        stored(f"{MASKED.format('0x0a080d0c')}{JUNK_HIGH}v_perm_b32 v3, v4, v4, s20"),
    ),
    *pair(
        "v_perm by a junk selector",
        stored(f"{JUNK_HIGH}s_or_b32 s20, s21, {LOWS}\nv_perm_b32 v3, v0, v0, s20", "uninitialised"),
        stored(f"{JUNK_HIGH}s_or_b32 s20, 0, {LOWS}\nv_perm_b32 v3, v0, v0, s20"),
    ),
    *pair(
        "half dropped by a shift",
        stored(f"{JUNK_HIGH}v_lshrrev_b32_e32 v3, 16, v4", "uninitialised"),
        stored(f"{JUNK_HIGH}v_lshlrev_b32_e32 v3, 16, v4"),
    ),
    *pair(
        "low half dropped by a shift",
        stored(f"{JUNK_LOW}v_lshrrev_b32_e32 v3, 15, v4", "uninitialised"),
        stored(f"{JUNK_LOW}v_lshrrev_b32_e32 v3, 16, v4"),
    ),
    *pair(
        "shift by what lanes say",
        stored(f"v_mov_b32_e32 v5, 16\n{JUNK_LOW}v_lshrrev_b32_e32 v3, v5, v4", "uninitialised"),
        stored(f"s_mov_b32 s20, 16\n{JUNK_LOW}v_lshrrev_b32_e32 v3, s20, v4"),
    ),
    *pair(
        "half dropped by a mask",
        stored(f"{JUNK_HIGH}v_and_b32_e32 v3, 0x1ffff, v4", "uninitialised"),
        stored(f"{JUNK_HIGH}v_and_b32_e32 v3, 0xffff, v4"),
    ),
    *pair(
        "half dropped by a junk mask",
        stored(f"s_and_b32 s20, s20, 0xffff\n{JUNK_HIGH}v_and_b32_e32 v3, s20, v4", "uninitialised"),
        stored(f"s_and_b32 s20, s8, 0xffff\n{JUNK_HIGH}v_and_b32_e32 v3, s20, v4"),
    ),
    *pair(
        "halves put together by shift and or",
        stored(f"{JUNK_HIGH}v_and_b32_e32 v5, 0xffff, v4\nv_lshl_or_b32 v3, v4, 8, v5", "uninitialised"),
        stored(f"{JUNK_HIGH}v_and_b32_e32 v5, 0xffff, v4\nv_lshl_or_b32 v3, v4, 16, v5"),
    ),
    *pair(
        "half of a scalar",
        stored("s_and_b32 s20, s20, 0xffff0000\nv_cvt_f32_f16_sdwa v3, s20 dst_sel:DWORD dst_unused:UNUSED_PAD "
               "src0_sel:WORD_1", "uninitialised"),
        stored("s_and_b32 s20, s20, 0xffff0000\nv_cvt_f32_f16_e32 v3, s20"),
    ),
    *pair(
        "half of a first lane",
        stored(f"{JUNK_LOW}v_readfirstlane_b32 s20, v4\ns_and_b32 s20, s20, 0xffff\nv_mov_b32_e32 v3, s20",
               "uninitialised"),
        stored(f"{JUNK_LOW}v_readfirstlane_b32 s20, v4\n"
               "s_and_b32 s20, s20, 0xffff0000\nv_mov_b32_e32 v3, s20"),
    ),
    *pair(
        "half that is stored",
        f"{JUNK_LOW}global_store_short v1, v4, s[6:7] ; uninitialised lane=0\n"
        "global_store_short_d16_hi v1, v4, s[6:7] offset:2",
        f"{JUNK_LOW}global_store_short v1, v0, s[6:7]\nglobal_store_short_d16_hi v1, v4, s[6:7] offset:2",
    ),
    *pair(
        "half that goes through LDS",
        stored(f"{JUNK_HIGH}ds_write_b32 v2, v4\nds_read_u16 v3, v2 offset:2", "uninitialised"),
        stored(f"{JUNK_HIGH}ds_write_b32 v2, v4\nds_read_u16 v3, v2"),
    ),
    *pair(
        "half that is written to LDS",
        stored(f"{JUNK_HIGH}ds_write_b16_d16_hi v2, v4\nds_read_u16 v3, v2", "uninitialised"),
        stored(f"{JUNK_HIGH}ds_write_b16 v2, v4\nds_read_u16 v3, v2"),
    ),
    *pair(
        "sign of a half",
        stored("global_load_sshort v3, v1, s[6:7]\ns_waitcnt vmcnt(0)\nv_and_b32_e32 v3, 0xffff0000, v3",
               "uninitialised"),
        stored("global_load_ushort v3, v1, s[6:7]\ns_waitcnt vmcnt(0)\nv_and_b32_e32 v3, 0xffff0000, v3"),
    ),
    *pair(
        "half that a load replaces",
        stored(f"{JUNK_LOW}ds_write_b32 v2, v0\nds_read_u16_d16_hi v4, v2\ns_waitcnt lgkmcnt(0)\n"
               "v_mov_b32_e32 v3, v4", "uninitialised"),
        stored(f"{JUNK_LOW}ds_write_b32 v2, v0\nds_read_u16_d16 v4, v2\ns_waitcnt lgkmcnt(0)\n"
               "v_mov_b32_e32 v3, v4"),
    ),
    *pair(
        "half of global memory",
        stored(HALF_WRITTEN.format("global_load_dword v3, v1, s[6:7] offset:256", "v_and_b32_e32 v3, 0x1ffff, v3"),
               "uninitialised"),
        stored(HALF_WRITTEN.format("global_load_dword v3, v1, s[6:7] offset:256", "v_and_b32_e32 v3, 0xffff, v3")),
        output=128,
    ),
    *pair(
        "half of global memory, scalar",
        stored(HALF_WRITTEN.format("s_load_dword s20, s[6:7], 0x100", "s_and_b32 s20, s20, 0x1ffff\n"
                                   "v_mov_b32_e32 v3, s20"), "uninitialised"),
        stored(HALF_WRITTEN.format("s_load_dword s20, s[6:7], 0x100", "s_and_b32 s20, s20, 0xffff\n"
                                   "v_mov_b32_e32 v3, s20")),
        output=128,
    ),
    *pair(
        "half of an address",
        stored(f"{JUNK_LOW}v_and_b32_e32 v4, 4, v4\nglobal_load_dword v3, v4, s[4:5] ; uninitialised lane=0"),
        stored(f"{JUNK_HIGH}v_and_b32_e32 v4, 4, v4\nglobal_load_dword v3, v4, s[4:5]"),
    ),
    *pair(
        "half of a comparison",
        stored(f"{JUNK_LOW}v_cmp_eq_u16_e32 vcc, v4, v0\ns_cbranch_vccnz .Lend ; uninitialised\n"
               ".Lend:\nv_mov_b32_e32 v3, 0"),
        stored(f"{JUNK_HIGH}v_cmp_eq_u16_e32 vcc, v4, v0\ns_cbranch_vccnz .Lend\n.Lend:\nv_mov_b32_e32 v3, 0"),
    ),
    *pair(
        "half of a matrix operand",
        f"{JUNK_IN_COLUMNS}v_cvt_pk_bf16_f32 v5, v5, v17\n{MFMA.format('v[4:5], v[4:5]', 'v8')}{STORE}"
        " ; uninitialised lane=0",
        f"{JUNK_IN_COLUMNS}v_cvt_pk_bf16_f32 v5, v5, v17\nv_and_b32_e32 v5, 0xffff, v5\n"
        f"{MFMA.format('v[4:5], v[4:5]', 'v8')}{STORE}",
    ),
]  # fmt: skip


@pytest.mark.parametrize("listing", [*UNINITIALISED, *HALVES])
def test_uninitialised(listing):
    check(listing)


# ---------------------------------------------------------------- waits


def loads(*lines: str, use: str = STORE, end: str = "s_waitcnt vmcnt(0) lgkmcnt(0)") -> str:
    return "\n".join(["ds_write_b32 v2, v0", "s_waitcnt lgkmcnt(0)", *lines, use, end])


V3, V4, S20 = (
    "global_load_dword v3, v1, s[4:5]",
    "global_load_dword v4, v1, s[4:5]",
    "s_load_dword s20, s[4:5], 0x0",
)
L3, L4 = "ds_read_b32 v3, v2", "ds_read_b32 v4, v2"
FLAT = "v_mov_b32_e32 v6, s4\nv_mov_b32_e32 v7, s5\nflat_load_dword v3, v[6:7]"
USE_S20 = "v_mov_b32_e32 v3, s20"
LATE = "; wait wave=0 address={}"
READ_LATE = f"{STORE} {LATE.format(3)}"
MANY = "\n".join(["ds_read_b32 v4, v2"] * 16)
DMA = f"{DESCRIPTOR}\ns_mov_b32 m0, 4\nbuffer_load_dword v2, s[12:15], 0 offen lds"

WAITS = [
    *pair("global load", loads(V3, use=READ_LATE), loads(V3, "s_waitcnt vmcnt(0)")),
    *pair(
        "the other counter",
        loads(V3, "s_waitcnt lgkmcnt(0)", use=READ_LATE),
        loads(V3, "s_waitcnt vmcnt(0) lgkmcnt(1)"),
    ),
    *pair(
        "overwritten",
        loads(V3, f"v_mov_b32_e32 v3, 0 {LATE.format(3)}", "s_waitcnt vmcnt(0)"),
        loads(V3, "s_waitcnt vmcnt(0)", "v_mov_b32_e32 v3, 0"),
    ),
    *pair(
        "second of a pair",
        loads(
            "global_load_dwordx2 v[3:4], v2, s[4:5]",
            f"v_mov_b32_e32 v5, v4 {LATE.format(4)}",
            "s_waitcnt vmcnt(0)",
        ),
        loads("global_load_dwordx2 v[3:4], v2, s[4:5]", "v_mov_b32_e32 v5, v2", "s_waitcnt vmcnt(0)"),
    ),
    *pair("counted", loads(V4, V3, "s_waitcnt vmcnt(1)", use=READ_LATE), loads(V3, V4, "s_waitcnt vmcnt(1)")),
    *pair(
        "stores count",
        loads("global_store_dword v1, v0, s[4:5] offset:256", V3, "s_waitcnt vmcnt(1)", use=READ_LATE),
        loads(V3, "global_store_dword v1, v0, s[4:5] offset:256", "s_waitcnt vmcnt(1)"),
    ),
    *pair(
        "loads do not overtake",
        loads(V3, V4, "s_waitcnt vmcnt(2)", use=READ_LATE),
        loads(V3, V3, "s_waitcnt vmcnt(0)"),
    ),
    *pair(
        "other kind of load into it",
        loads(V3, f"{L3} {LATE.format(3)}", "s_waitcnt vmcnt(0) lgkmcnt(0)"),
        loads(L3, L3, "s_waitcnt lgkmcnt(0)"),
    ),
    *pair(
        "address of a load",
        loads(
            f"global_load_dword v3, v2, s[4:5]\nglobal_load_ubyte v4, v3, s[4:5] {LATE.format(3)}",
            "s_waitcnt vmcnt(0)",
        ),
        loads("global_load_dword v3, v2, s[4:5]\ns_waitcnt vmcnt(0)\nglobal_load_ubyte v4, v3, s[4:5]"),
    ),
    *pair("LDS", loads(L3, use=READ_LATE), loads(L3, "s_waitcnt lgkmcnt(0)")),
    *pair(
        "LDS counted",
        loads(L4, L3, "s_waitcnt lgkmcnt(1)", use=READ_LATE),
        loads(L3, L4, "s_waitcnt lgkmcnt(1)"),
    ),
    *pair(
        "LDS writes count",
        loads("ds_write_b32 v2, v0", L3, "s_waitcnt lgkmcnt(1)", use=READ_LATE),
        loads(L3, "ds_write_b32 v2, v0", "s_waitcnt lgkmcnt(1)"),
    ),
    *pair(
        "the largest count is no wait",
        loads(L3, MANY, "s_waitcnt vmcnt(0)", use=READ_LATE),
        loads(L3, MANY, "s_waitcnt lgkmcnt(14)"),
    ),
    *pair(
        "bpermute",
        loads("ds_bpermute_b32 v3, v2, v0", use=READ_LATE),
        loads("ds_bpermute_b32 v3, v2, v0", "s_waitcnt lgkmcnt(0)"),
    ),
    *pair(
        "scalar load",
        loads(S20, f"{USE_S20} {LATE.format(SCALAR + 20)}"),
        loads(S20, "s_waitcnt lgkmcnt(0)", USE_S20),
    ),
    *pair(
        "scalar loads in any order",
        loads(
            S20,
            "s_load_dword s21, s[4:5], 0x4",
            "s_waitcnt lgkmcnt(1)",
            f"{USE_S20} {LATE.format(SCALAR + 20)}",
        ),
        loads(S20, "s_load_dword s21, s[4:5], 0x4", "s_waitcnt lgkmcnt(0)", USE_S20),
    ),
    *pair(
        "scalar load into one in flight",
        loads(S20, f"{S20} {LATE.format(SCALAR + 20)}", "s_waitcnt lgkmcnt(0)", USE_S20),
        loads(S20, "s_load_dword s21, s[4:5], 0x0", "s_waitcnt lgkmcnt(0)", USE_S20),
    ),
    *pair(
        "scalar load after LDS",
        loads(L3, S20, "s_waitcnt lgkmcnt(1)", use=READ_LATE),
        loads(L3, L4, S20, "s_waitcnt lgkmcnt(1)"),
    ),
    *pair(
        "branch on vcc",
        loads(
            "v_mov_b32_e32 v3, 0",
            "s_load_dwordx2 vcc, s[4:5], 0x0",
            f"s_cbranch_vccz .Lend {LATE.format(SCALAR + VCC)}\n.Lend:",
        ),
        loads(
            "v_mov_b32_e32 v3, 0",
            "s_load_dwordx2 vcc, s[4:5], 0x0",
            "s_waitcnt lgkmcnt(0)\ns_cbranch_vccz .Lend\n.Lend:",
        ),
    ),
    *pair(
        "flat counts twice",
        loads(FLAT, "s_waitcnt vmcnt(0)", use=READ_LATE),
        loads(FLAT, "s_waitcnt vmcnt(0) lgkmcnt(0)"),
    ),
    *pair(
        "flat in any order",
        loads(FLAT, V4, "s_waitcnt vmcnt(1) lgkmcnt(0)", use=READ_LATE),
        loads(V4, FLAT, "s_waitcnt vmcnt(0) lgkmcnt(0)"),
    ),
    *pair(
        "flat before a load",
        loads(V3, FLAT.replace("v3", "v5"), "s_waitcnt vmcnt(1)", use=READ_LATE),
        loads(V3, V4, "s_waitcnt vmcnt(1)", FLAT.replace("v3", "v5")),
    ),
    *pair(
        "returning atomic",
        loads("global_atomic_add v3, v1, v0, s[4:5] sc0", use=READ_LATE),
        loads("global_atomic_add v5, v1, v0, s[4:5] sc0", V3, "s_waitcnt vmcnt(0)"),
    ),
    *pair(
        "load that writes LDS",
        loads(DMA, "v_mov_b32_e32 v3, 0", "ds_read_b32 v5, v2 ; wait lane=1 address=4"),
        loads(DMA, "v_mov_b32_e32 v3, 0", "s_waitcnt vmcnt(0)", "ds_read_b32 v5, v2"),
    ),
]


@pytest.mark.parametrize("listing", WAITS)
def test_waits(listing):
    check(listing)


# ---------------------------------------------------------------- races

NEIGHBOUR = "v_xor_b32_e32 v4, 0x100, v2"  # the same place in the other wave's half
SAVE = "s_waitcnt lgkmcnt(0)\n" + STORE
ONE_WAVE = "s_cmp_lg_u32 s8, {}\ns_cbranch_scc1 .L{}"


def only(wave: int, lines: str, label: str) -> str:
    """Lines that one wave executes."""
    return f"{ONE_WAVE.format(wave, label)}\n{lines}\n.L{label}:"


def grouped(group: int, lines: str, label: str) -> str:
    """Lines that one workgroup executes."""
    return f"s_cmp_lg_u32 s2, {group}\ns_cbranch_scc1 .L{label}\n{lines}\n.L{label}:"


LOCAL_RACES = [
    *pair(
        "no barrier",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0 ; race?\nds_read_b32 v3, v4 ; race?\n{SAVE} ; uninitialised?",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0\n{BARRIER}\nds_read_b32 v3, v4\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(
        "barrier without a wait",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0\ns_barrier\nds_read_b32 v3, v4 ; race lane=0\n{SAVE}",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v3, v4\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(
        "a later barrier makes up for it",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0\ns_barrier\ns_waitcnt vmcnt(0)\n"
        f"s_barrier\nds_read_b32 v3, v4 ; race lane=0\n{SAVE}",
        f"{NEIGHBOUR}\nds_write_b32 v2, v0\ns_barrier\ns_waitcnt lgkmcnt(0)\n"
        f"s_barrier\nds_read_b32 v3, v4\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(
        "overwritten while read",
        f"ds_write_b32 v2, v0\n{BARRIER}\n{NEIGHBOUR}\n"
        f"ds_read_b32 v3, v4 ; race?\n{SAVE}\nds_write_b32 v2, v1 ; race?",
        f"ds_write_b32 v2, v0\n{BARRIER}\n{NEIGHBOUR}\nds_read_b32 v3, v4\n"
        f"{SAVE}\n{BARRIER}\nds_write_b32 v2, v1",
        waves=2,
        output=128,
    ),
    *pair(
        "overwritten while a read is in flight",
        f"ds_write_b32 v2, v0\n{BARRIER}\n{NEIGHBOUR}\nds_read_b32 v3, v4\n"
        f"s_barrier\nds_write_b32 v2, v1 ; race\n{SAVE}",
        f"ds_write_b32 v2, v0\n{BARRIER}\n{NEIGHBOUR}\nds_read_b32 v3, v4\n"
        f"{BARRIER}\nds_write_b32 v2, v1\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(  # whichever of the readers comes last
        "overwritten while one read of several is in flight",
        f"v_and_b32_e32 v4, 0xff, v2\nds_write_b32 v2, v0\n{BARRIER}\n"
        "ds_read_b32 v3, v4\n"
        f"{only(1, 's_waitcnt lgkmcnt(0)', 'a')}\n"
        f"{only(2, 's_waitcnt lgkmcnt(0)', 'b')}\n"
        f"{only(3, 's_waitcnt lgkmcnt(0)', 'c')}\n"
        f"s_barrier\n{only(3, 'ds_write_b32 v4, v1 ; race wave=3', 'd')}\n{SAVE}",
        f"v_and_b32_e32 v4, 0xff, v2\nds_write_b32 v2, v0\n{BARRIER}\n"
        "ds_read_b32 v3, v4\n"
        f"{BARRIER}\n{only(3, 'ds_write_b32 v4, v1', 'd')}\n{SAVE}",
        waves=4,
        output=256,
    ),
    *pair(
        "two writers",
        "v_and_b32_e32 v4, 0xff, v2\nds_write_b32 v4, v0 ; race?",
        f"v_and_b32_e32 v4, 0xff, v2\n{only(0, 'ds_write_b32 v4, v0', 'a')}\n"
        f"{BARRIER}\n{only(1, 'ds_write_b32 v4, v0', 'b')}",
        waves=2,
        output=0,
    ),
    *pair(  # lane i of wave w: byte 2 i + w
        "adjacent bytes",
        "v_and_b32_e32 v4, 63, v0\nv_lshlrev_b32_e32 v4, 1, v4\nds_write_b8 v4, v0 ; race?",
        "v_and_b32_e32 v4, 63, v0\nv_lshlrev_b32_e32 v4, 1, v4\nv_add_u32_e32 v4, s8, v4\nds_write_b8 v4, v0",
        waves=2,
        output=0,
    ),
    *pair(
        "two readers",
        f"ds_write_b32 v2, v0\n{BARRIER}\nv_and_b32_e32 v4, 0xff, v2\n"
        "ds_read_b32 v3, v4 ; race?\n"
        f"ds_write_b32 v4, v2 offset:256 ; race?\n{SAVE}",
        f"ds_write_b32 v2, v0\n{BARRIER}\nv_and_b32_e32 v4, 0xff, v2\n"
        f"ds_read_b32 v3, v4\nds_write_b32 v2, v2 offset:512\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(
        "atomics",
        f"v_and_b32_e32 v4, 0xff, v2\n{only(0, 'ds_write_b32 v4, v0', 'a')}\n"
        f"{BARRIER}\n"
        f"ds_add_u32 v4, v0 ; race?\nds_read_b32 v3, v4 ; race?\n{SAVE}",
        f"v_and_b32_e32 v4, 0xff, v2\n{only(0, 'ds_write_b32 v4, v0', 'a')}\n"
        f"{BARRIER}\n"
        f"ds_add_u32 v4, v0\n{BARRIER}\nds_read_b32 v3, v4\n{SAVE}",
        waves=2,
        output=128,
    ),
    *pair(
        "load that writes LDS",
        f"{DESCRIPTOR}\nv_mov_b32_e32 v4, 0\ns_lshl_b32 m0, s8, 8\n"
        "v_and_b32_e32 v5, 0xff, v2\n"
        f"buffer_load_dword v5, s[12:15], 0 offen lds\n{BARRIER}\n{NEIGHBOUR}\n"
        "ds_read_b32 v3, v4 ; race lane=0\n"
        f"{SAVE}",
        f"{DESCRIPTOR}\nv_mov_b32_e32 v4, 0\ns_lshl_b32 m0, s8, 8\n"
        "v_and_b32_e32 v5, 0xff, v2\n"
        "buffer_load_dword v5, s[12:15], 0 offen lds\ns_waitcnt vmcnt(0)\n"
        f"{BARRIER}\n{NEIGHBOUR}\nds_read_b32 v3, v4\n{SAVE}",
        waves=2,
        output=128,
    ),
    # As LLVM writes an atomic that the hardware lacks.
    *pair(
        "compare-and-swap",
        f"v_mov_b32_e32 v4, 0\n{only(0, 'ds_write_b32 v4, v0', 'a')}\n{BARRIER}\nds_read_b32 v3, v4 ; race?\n"
        "s_waitcnt lgkmcnt(0)\nds_cmpst_rtn_b32 v5, v4, v3, v0 ; race?\nds_write_b32 v4, v0 ; race?",
        f"v_mov_b32_e32 v4, 0\n{only(0, 'ds_write_b32 v4, v0', 'a')}\n{BARRIER}\nds_read_b32 v3, v4\n"
        "s_waitcnt lgkmcnt(0)\nds_cmpst_rtn_b32 v5, v4, v3, v0",
        waves=2,
        output=0,
    ),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("listing", LOCAL_RACES)
def test_local_races(listing, seed):
    """Found whatever the interleaving."""
    found, _ = listing.execute(seed)
    assert_found(listing, found)


GLOBAL_RACES = [
    *pair(
        "two writers",
        f"global_store_dword v2, v0, s[4:5] ; race wave=0 lane=0 address={INPUT}",
        "global_store_dword v1, v0, s[4:5]",
        groups=2,
        output=0,
    ),
    *pair(
        "adjacent bytes",
        "v_lshlrev_b32_e32 v4, 1, v0\nglobal_store_byte v4, v0, s[4:5] ; race",
        "v_lshlrev_b32_e32 v4, 1, v0\nv_add_u32_e32 v4, s2, v4\nglobal_store_byte v4, v0, s[4:5]",
        groups=2,
        output=0,
    ),
    *pair(
        "read after another's write",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\n"
        f"{grouped(1, f'global_load_dword v3, v2, s[4:5] ; race address={INPUT}', 'b')}",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\n"
        f"{grouped(1, 'global_load_dword v3, v2, s[4:5] offset:256', 'b')}",
        groups=2,
        output=0,
    ),
    *pair(
        "scalar read after another's write",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\n"
        f"s_load_dword s20, s[4:5], 0xfc ; race address={INPUT + 252}",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\ns_load_dword s20, s[4:5], 0x100",
        groups=2,
        output=0,
    ),
    *pair(
        "write after another's read",
        f"{grouped(0, 'global_load_dword v3, v2, s[4:5]', 'a')}\n"
        f"{grouped(1, 'global_store_short v2, v0, s[4:5] offset:2 ; race lane=0', 'b')}",
        f"{grouped(0, 'global_load_ushort v3, v2, s[4:5]', 'a')}\n"
        f"{grouped(1, 'global_store_short v2, v0, s[4:5] offset:2', 'b')}",
        groups=2,
        output=0,
    ),
    *pair(  # the last reader is the writer itself, the first was not
        "write after several reads",
        f"global_load_dword v3, v2, s[4:5]\n{grouped(1, 'global_store_dword v2, v0, s[4:5] ; race', 'a')}",
        f"global_load_dword v3, v1, s[4:5]\n{grouped(1, 'global_store_dword v1, v0, s[4:5]', 'a')}",
        groups=2,
        output=0,
    ),
    *pair(
        "atomics",
        f"global_atomic_add v2, v0, s[4:5]\n{grouped(1, 'global_load_dword v3, v2, s[4:5] ; race', 'a')}",
        f"global_atomic_add v2, v0, s[4:5]\n{grouped(1, 'global_load_dword v3, v2, s[4:5] offset:256', 'a')}",
        groups=2,
        output=0,
    ),
    *pair(
        "atomics after another's write",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\nglobal_atomic_add v2, v0, s[4:5] ; race",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5] offset:256', 'a')}\n"
        "global_atomic_add v2, v0, s[4:5]",
        groups=2,
        output=0,
    ),
    *pair(
        "compare-and-swap",
        f"{grouped(0, 'global_store_dword v2, v0, s[4:5]', 'a')}\nv_mov_b32_e32 v10, v0\n"
        "v_mov_b32_e32 v11, v0\nglobal_atomic_cmpswap v2, v[10:11], s[4:5] ; race",
        "global_load_dword v10, v2, s[4:5]\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v11, v0\n"
        "global_atomic_cmpswap v2, v[10:11], s[4:5]",
        groups=2,
        output=0,
    ),
]


@pytest.mark.parametrize("listing", GLOBAL_RACES)
def test_global_races(listing):
    check(listing)


# ---------------------------------------------------------------- outputs, barriers

V0 = "v_mov_b32_e32 v3, v0\n"
TWO = f"{only(0, '{}', 'a')}\n{only(1, '{}', 'b')}"
OUTPUTS = [
    *pair("unwritten", f"{V0}s_mov_b64 exec, 0x7fffffffffffffff\n{STORE}", V0 + STORE, unwritten=252),
    *pair(
        "unwritten byte",
        "v_lshlrev_b32_e32 v4, 1, v0\nglobal_store_byte v4, v0, s[6:7]",
        "v_lshlrev_b32_e32 v4, 1, v0\nglobal_store_short v4, v0, s[6:7]",
        output=32,
        unwritten=1,
    ),
    *pair(
        "only atomics",
        "global_atomic_add v1, v0, s[6:7]",
        f"{V0}{STORE}\nglobal_atomic_add v1, v0, s[6:7]",
        unwritten=0,
    ),
    *pair(
        "double-write",
        f"{V0}{STORE}\n{STORE} ; double-write lane=0 address={OUTPUT}",
        f"{V0}global_store_short v1, v3, s[6:7]\nglobal_store_short v1, v3, s[6:7] offset:2",
    ),
    *pair(
        "double-write of a byte",
        f"{V0}{STORE}\nglobal_store_byte v1, v0, s[6:7] offset:3 ; double-write address={OUTPUT + 3}",
        f"{V0}global_store_byte v1, v0, s[6:7]\n"
        "global_store_byte v1, v0, s[6:7] offset:1\n"
        "global_store_short v1, v0, s[6:7] offset:2",
    ),
    *pair(
        "double-write by two lanes",
        f"v_and_b32_e32 v4, 31, v0\nv_lshlrev_b32_e32 v4, 2, v4\n"
        f"global_store_dword v4, v0, s[6:7] ; double-write lane=32 address={OUTPUT}",
        "v_and_b32_e32 v4, 31, v0\nv_lshlrev_b32_e32 v4, 2, v4\n"
        "s_mov_b64 exec, 0xffffffff\nglobal_store_dword v4, v0, s[6:7]",
        output=32,
    ),
    *pair(
        "double-write by two waves",
        "v_and_b32_e32 v4, 0xff, v2\nglobal_store_dword v4, v0, s[6:7] ; double-write lane=0",
        "v_and_b32_e32 v4, 0xff, v2\n" + only(1, "global_store_dword v4, v0, s[6:7]", "a"),
        waves=2,
    ),
]

BARRIERS = [
    *pair(
        "two barriers",
        TWO.format("s_barrier", "s_barrier ; divergent-barrier wave=1"),
        TWO.format("s_nop 0", "s_nop 1") + "\ns_barrier",
        waves=2,
        output=0,
    ),
    *pair(
        "a wave that ended",
        only(0, "s_endpgm", "a") + "\ns_barrier ; divergent-barrier wave=0",
        only(0, "s_nop 0", "a") + "\ns_barrier",
        waves=2,
        output=0,
    ),
    *pair(
        "once too often",
        f"s_barrier\n{only(1, 's_barrier ; divergent-barrier wave=0', 'a')}",
        f"s_barrier\n{only(1, 's_nop 0', 'a')}\ns_barrier",
        waves=2,
        output=0,
    ),
]


@pytest.mark.parametrize("listing", OUTPUTS)
def test_outputs(listing):
    check(listing)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("listing", BARRIERS)
def test_divergent_barriers(listing, seed):
    found, _ = listing.execute(seed)
    assert_found(listing, found)


# ---------------------------------------------------------------- interleavings


def test_a_missing_barrier_shows_in_the_bits():
    exchange = f"{NEIGHBOUR}\nds_write_b32 v2, v0\n{{}}\nds_read_b32 v3, v4\n{SAVE}"
    bits = {
        barrier: {
            Listing(exchange.format(barrier), waves=4, output=256).execute(seed)[1][1] for seed in range(8)
        }
        for barrier in ("s_nop 0", BARRIER)
    }
    assert len(bits[BARRIER]) == 1
    assert len(bits["s_nop 0"]) > 1


@pytest.mark.parametrize("listing", [*LOCAL_RACES[::2], *GLOBAL_RACES[::2], *BARRIERS[::2]])
def test_findings_depend_on_nothing_but_the_seed(listing):
    first, second = (listing.execute(seed=3) for _ in range(2))
    assert first[0] and first == second


@pytest.mark.parametrize("listing", [*UNINITIALISED, *HALVES, *LOCAL_RACES, *OUTPUTS])
def test_watching_changes_no_bit(listing):
    _, watched = listing.execute(seed=5)
    found, plain = listing.execute(seed=5, sanitize=False)
    assert watched == plain
    assert found == []


@pytest.mark.parametrize(
    "listing, ending",
    [
        (BOUNDS[0], "lane 63: past the end of the buffer descriptor, at byte 256 of input"),
        (BOUNDS[16], "lane 0: LDS byte 4 is not aligned to the access"),
        (UNINITIALISED[0], "lane 0: a value that nothing wrote reaches an address, a branch, exec or memory"),
        (WAITS[0], "lane 0: v3 is used while a load into it is in flight"),
        (WAITS[-2], "lane 1: LDS byte 4 is used while a load into it is in flight"),
        (LOCAL_RACES[2], "is accessed by another wave or workgroup with nothing to order the two"),
        (
            GLOBAL_RACES[0],
            "byte 0 of input is accessed by another wave or workgroup with nothing to order the two",
        ),
        (OUTPUTS[0], "wave 0, lane 0: 4 of 256 bytes of output, the first at byte 252"),
        (OUTPUTS[6], "lane 0: byte 0 of output is written twice"),
        (BARRIERS[2], "a wave ended, or waits at another barrier, while others of its workgroup wait"),
    ],
)
def test_a_finding_says_where_and_what(listing, ending):
    ((found,), _) = listing.values[0].execute()
    assert str(found).startswith(
        f"{found.kind}: line {found.line} ({found.text}), workgroup (" if found.line else "unwritten: w"
    )
    assert str(found).endswith(ending)


# ---------------------------------------------------------------- shipped kernels


@pytest.mark.parametrize("family", ["ragged", "hostile"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_shipped_kernels_are_clean(variant, family):
    """A finding would be a RunError; and the bits are those of a run that nothing watches."""
    pytest.importorskip("flydsl")
    case = cases.CASES[f"{family}_{variant.name}"].build()
    plain, watched = (
        EmulatorBackend(sanitize=sanitize).run(case, variant.hw_v_transpose, DEFAULT_PROFILE)
        for sanitize in (False, True)
    )
    for name in ("out", "exp_sums", "max_logits"):
        assert getattr(watched, name).tobytes() == getattr(plain, name).tobytes()


# ---------------------------------------------------------------- registers read and written

NAMED = {"vcc": (VCC, 2), "exec": (EXEC, 2), "m0": (M0, 1), "scc": (SCC, 1)}


def ranges(text: str) -> list[tuple[int, int]]:
    """Register codes and counts of `v1 a[2:3] s4 vcc`."""
    result = []
    for name in text.split():
        if name in NAMED:
            result.append((SCALAR + NAMED[name][0], NAMED[name][1]))
            continue
        match = re.fullmatch(r"([vas])\[?(\d+):?(\d*)\]?", name)
        first = int(match[2]) + {"v": 0, "a": ACCUMULATION, "s": SCALAR}[match[1]]
        result.append((first, int(match[3] or match[2]) - int(match[2]) + 1))
    return sorted(result)


FOOTPRINTS = """
v_mov_b32_e32 v1, v2                                    | v2 exec                  | v1
v_add_f64 v[2:3], v[4:5], v[6:7]                        | v[4:5] v[6:7] exec       | v[2:3]
v_fma_f32 v1, v2, -v3, |v4|                             | v2 v3 v4 exec            | v1
v_fmac_f32_e32 v1, v2, v3                               | v2 v3 v1 exec            | v1
v_add_u32_e32 v1, s4, v2                                | s4 v2 exec               | v1
v_add_u32_e32 v1, 7, v2                                 | v2 exec                  | v1
v_cndmask_b32_e32 v1, v2, v3, vcc                       | v2 v3 vcc exec           | v1
v_cndmask_b32_e64 v1, v2, v3, s[4:5]                    | v2 v3 s[4:5] exec        | v1
v_cmp_gt_u32_e32 vcc, v1, v2                            | v1 v2 exec               | vcc
v_cmp_gt_u32_e64 s[4:5], v1, v2                         | v1 v2 exec               | s[4:5]
v_cmpx_gt_u32_e32 vcc, v1, v2                           | v1 v2 exec               | vcc exec
v_add_co_u32_e32 v1, vcc, v2, v3                        | v2 v3 exec               | v1 vcc
v_addc_co_u32_e32 v1, vcc, v2, v3, vcc                  | v2 v3 vcc exec           | v1 vcc
v_mad_u64_u32 v[2:3], s[4:5], v6, v7, v[8:9]            | v6 v7 v[8:9] exec        | v[2:3] s[4:5]
v_mul_f16_sdwa v1, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE | v2 v3 v1 exec  | v1
v_mov_b32_dpp v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf | v2 exec                | v1
v_readfirstlane_b32 s4, v1                              | v1 exec                  | s4
v_readlane_b32 s4, v1, s5                               | v1 s5                    | s4
v_writelane_b32 v1, s4, s5                              | s4 s5 v1                 | v1
v_swap_b32 v1, v2                                       | v1 v2 exec               | v1 v2
v_permlane32_swap_b32_e32 v1, v2                        | v1 v2 exec               | v1 v2
v_accvgpr_write_b32 a1, v2                              | v2 exec                  | a1
v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], a[0:3] | v[4:7] v[8:11] a[0:3]   | v[0:3]
v_mfma_f32_32x32x16_bf16 a[0:15], v[4:7], v[8:11], 0    | v[4:7] v[8:11]           | a[0:15]
v_mfma_f32_32x32x1_2b_f32 v[0:31], v32, v33, v[0:31]    | v32 v33 v[0:31]          | v[0:31]
s_mov_b64 s[4:5], exec                                  | exec                     | s[4:5]
s_add_u32 s4, s5, s6                                    | s5 s6                    | s4 scc
s_addc_u32 s4, s5, s6                                   | s5 s6 scc                | s4 scc
s_cselect_b64 s[4:5], s[6:7], s[8:9]                    | s[6:7] s[8:9] scc        | s[4:5]
s_lshl_b64 s[4:5], s[6:7], s8                           | s[6:7] s8                | s[4:5] scc
s_cmp_eq_u64 s[4:5], s[6:7]                             | s[4:5] s[6:7]            | scc
s_and_saveexec_b64 s[4:5], vcc                          | vcc exec                 | s[4:5] exec scc
s_andn2_wrexec_b64 s[4:5], s[6:7]                       | s[6:7] exec              | s[4:5] exec scc
s_addk_i32 s4, 0x10                                     | s4                       | s4 scc
s_load_dwordx16 s[16:31], s[4:5], s6                    | s[4:5] s6                | s[16:31]
s_buffer_load_dwordx2 s[16:17], s[4:7], 0x0             | s[4:7]                   | s[16:17]
s_memtime s[4:5]                                        |                          | s[4:5]
ds_read_b128 v[4:7], v1                                 | v1 exec                  | v[4:7]
ds_read_u16_d16_hi v4, v1                               | v1 v4 exec               | v4
ds_read2_b64 v[4:7], v1 offset1:1                       | v1 exec                  | v[4:7]
ds_write2_b64 v1, v[2:3], v[4:5] offset1:1              | v1 v[2:3] v[4:5] exec    |
ds_read_b64_tr_b16 v[4:5], v1                           | v1 exec                  | v[4:5]
ds_bpermute_b32 v3, v1, v2                              | v1 v2 exec               | v3
ds_cmpst_rtn_b64 v[2:3], v1, v[4:5], v[6:7]             | v1 v[4:5] v[6:7] exec    | v[2:3]
global_load_dwordx3 v[4:6], v1, s[4:5]                  | v1 s[4:5] exec           | v[4:6]
global_load_dword v4, v[2:3], off                       | v[2:3] exec              | v4
global_load_short_d16 v4, v1, s[4:5]                    | v1 s[4:5] v4 exec        | v4
global_store_dwordx4 v1, v[4:7], s[4:5]                 | v1 v[4:7] s[4:5] exec    |
global_atomic_add_x2 v1, v[4:5], s[4:5]                 | v1 v[4:5] s[4:5] exec    |
global_atomic_cmpswap v3, v1, v[4:5], s[4:5] sc0        | v1 v[4:5] s[4:5] exec    | v3
flat_load_dwordx2 v[4:5], v[2:3]                        | v[2:3] exec              | v[4:5]
buffer_load_dwordx2 v[4:5], v[2:3], s[4:7], s8 idxen offen | v[2:3] s[4:7] s8 exec | v[4:5]
buffer_store_short v4, off, s[4:7], 0                   | v4 s[4:7] exec           |
buffer_load_dword v1, s[4:7], 0 offen lds               | v1 s[4:7] m0 exec        |
scratch_store_dword off, v1, s4                         | v1 s4 exec               |
s_cbranch_scc1 .Lend                                    | scc                      |
s_cbranch_vccz .Lend                                    | vcc                      |
s_cbranch_execnz .Lend                                  | exec                     |
s_branch .Lend                                          |                          |
s_barrier                                               |                          |
s_waitcnt vmcnt(0)                                      |                          |
"""


@pytest.mark.parametrize("line", FOOTPRINTS.strip().split("\n"), ids=lambda line: line.split("|")[0].strip())
def test_footprint(line):
    bars = [match.start() for match in re.finditer(r"\|", line)]
    text, read, written = line[: bars[-2]], line[bars[-2] + 1 : bars[-1]], line[bars[-1] + 1 :]
    reads, writes = row_footprint(program(f"{text}\n.Lend:"), 0)
    assert sorted(set(reads)) == ranges(read)
    assert sorted(set(writes)) == ranges(written)


def test_footprint_of_a_packed_instruction():
    """Two rows; the first goes through a hidden register when the second still needs what it overwrites."""
    kernel = program("v_pk_add_f32 v[2:3], v[4:5], v[6:7]\nv_pk_add_f16 v1, v2, v3")
    found = [tuple(sorted(set(side)) for side in row_footprint(kernel, row)) for row in range(4)]
    assert found == [
        (ranges("v4 v6 exec"), ranges("v2")),
        (ranges("v5 v7 exec"), ranges("v3")),
        (ranges("v2 v3 exec"), ranges("v1")),
        (ranges("v1 v2 v3 exec"), ranges("v1")),
    ]


@pytest.mark.parametrize(
    ("shift", "mnemonic", "lost"),
    [
        (2, "ds_read_b32 v2, v1", 0),  # consecutive words
        (3, "ds_read_b32 v2, v1", 1),  # every other word: half of the banks, twice
        (8, "ds_read_b32 v2, v1", 31),  # 32 distinct words of one bank (addresses wrap at 8 KiB)
        (3, "ds_read_b64 v[2:3], v1", 0),
        (4, "ds_read_b128 v[2:5], v1", 0),
    ],
)
def test_bank_conflicts_are_counted(shift: int, mnemonic: str, lost: int) -> None:
    body = f"v_lshlrev_b32_e32 v1, {shift}, v0\n\tv_and_b32_e32 v1, 0x1fff, v1\n\t{mnemonic}"
    run = launch(
        program(body, lds=8192), (1, 1, 1), (64, 1, 1), bytes(64), Memory(), DEFAULT_PROFILE, sanitize=True,
        count_conflicts=True,
    )  # fmt: skip
    assert run.conflicts is not None
    assert run.conflicts.sum() == lost
