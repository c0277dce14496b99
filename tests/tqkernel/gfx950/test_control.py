"""Branches, loops, barriers, waits, clocks and the end of a program."""

from __future__ import annotations

import numpy as np
import pytest

from tqkernel.gfx950 import Fault, Memory, launch, parse_listing
from tqkernel.gfx950.isa import instruction_set
from tqref import PROFILES

from .machine import LANES, Step, listing, run

U32, U64 = np.uint32, np.uint64
COVERED = frozenset(
    name
    for name, instruction in instruction_set().items()
    if instruction.unit == "control" or instruction.meaning == "clock"
)
LANE = np.arange(LANES, dtype=U32)

BRANCHES = {
    "s_branch": lambda scc, vcc, exec_: True,
    "s_cbranch_scc0": lambda scc, vcc, exec_: not scc,
    "s_cbranch_scc1": lambda scc, vcc, exec_: bool(scc),
    "s_cbranch_vccz": lambda scc, vcc, exec_: vcc == 0,
    "s_cbranch_vccnz": lambda scc, vcc, exec_: vcc != 0,
    "s_cbranch_execz": lambda scc, vcc, exec_: exec_ == 0,
    "s_cbranch_execnz": lambda scc, vcc, exec_: exec_ != 0,
}
# Instructions that change nothing that a wave computes.
IDLE = {
    "s_waitcnt": "vmcnt(0) lgkmcnt(0)", "s_nop": "7", "s_sleep": "1", "s_setprio": "3", "s_sethalt": "0",
    "s_icache_inv": "",
    "s_dcache_wb": "", "s_dcache_inv": "", "s_ttracedata": "", "s_incperflevel": "1", "s_decperflevel": "1",
    "s_sendmsg": "sendmsg(MSG_INTERRUPT)", "s_set_gpr_idx_off": "", "s_code_end": "", "buffer_wbl2": "sc1",
    "buffer_inv": "sc1",
    "s_trap": "2", "s_barrier": "",
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_branch_is_taken_when_its_condition_holds(name: str) -> None:
    for scc in (0, 1):
        for vcc in (0, 1, 1 << 63):
            for exec_mask in (0, 1 << 40):
                text = f"s_mov_b32 vcc_lo, {vcc & 0xFFFFFFFF:#x}\ns_mov_b32 vcc_hi, {vcc >> 32:#x}\n"
                text += f"s_mov_b32 exec_lo, {exec_mask & 0xFFFFFFFF}\ns_mov_b32 exec_hi, {exec_mask >> 32}\n"
                text += f"s_mov_b32 s20, 0\ns_cmp_lg_u32 s8, 0\n{name} .Ltaken\ns_mov_b32 s20, 1\n.Ltaken:"
                ((passed,),) = run([Step(text, ("s20",))], {}, {"s8": np.array([scc], U32)})
                assert passed[0] == (0 if BRANCHES[name](scc, vcc, exec_mask) else 1), (scc, vcc, exec_mask)


def test_loop_runs_backwards_until_every_lane_is_done() -> None:
    text = """v_mov_b32_e32 v20, 0
v_mov_b32_e32 v4, v2
s_mov_b64 s[10:11], exec
.Lloop:
v_add_u32_e32 v20, v20, v4
v_add_u32_e32 v4, -1, v4
v_cmp_lt_i32_e32 vcc, 0, v4
s_and_b64 exec, exec, vcc
s_cbranch_execnz .Lloop
s_mov_b64 exec, s[10:11]"""
    ((total,),) = run([Step(text, ("v20",))], {"v2": LANE + U32(1)})
    n = LANE.astype(int) + 1
    assert (total == n * (n + 1) // 2).all()


def test_divergent_branch_by_saved_exec() -> None:
    text = """v_cmp_gt_u32_e32 vcc, 20, v2
s_and_saveexec_b64 s[10:11], vcc
v_mov_b32_e32 v20, 1
s_xor_b64 exec, exec, s[10:11]
v_mov_b32_e32 v20, 2
s_or_b64 exec, exec, s[10:11]"""
    ((got,),) = run([Step(text, ("v20",))], {"v2": LANE})
    assert (got == np.where(LANE < 20, 1, 2)).all()


@pytest.mark.parametrize("name", sorted(set(IDLE) - {"s_code_end", "s_barrier"}))
def test_instruction_without_effect(name: str) -> None:
    text = f"v_mov_b32_e32 v20, v2\ns_mov_b32 s20, 5\n{name} {IDLE[name]}"
    ((vector, scalar, exec_mask),) = run([Step(text, ("v20", "s20", "exec"))], {"v2": LANE})
    assert (vector == LANE).all() and scalar[0] == 5 and exec_mask[0] == U64(2**64 - 1)


def test_nothing_runs_after_the_end() -> None:
    text = "global_store_dword v3, v2, s[80:81]\ns_endpgm\ns_code_end\nglobal_store_dword v3, v3, s[80:81]"
    memory = np.zeros(256, np.uint8)
    run([Step(text, ())], {"v2": LANE + U32(1), "v3": LANE * U32(4)}, buffers={"s[80:81]": memory})
    assert (memory.view(U32) == LANE + 1).all()


@pytest.mark.parametrize("waves", (2, 4, 16))
def test_barrier_orders_lds_between_waves(waves: int) -> None:
    """Every wave reads what the next one wrote, three times over."""
    text = "v_mov_b32_e32 v4, v2\nv_lshlrev_b32_e32 v6, 2, v3\nv_lshlrev_b32_e32 v7, 2, v5"
    for _ in range(3):
        text += (
            "\nds_write_b32 v6, v4\ns_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v4, v7\n"
            "s_waitcnt lgkmcnt(0)\ns_barrier"
        )
    count = waves * LANES
    item = np.arange(count, dtype=U32)
    ((got,),) = run(
        [Step(text, ("v4",))],
        {"v2": item + U32(7), "v3": item, "v5": (item + U32(LANES)) % U32(count)},
        lds=4 * count,
        waves=waves,
    )
    assert (got == (item + 3 * LANES) % count + 7).all()


@pytest.mark.parametrize("name", ("s_memtime", "s_memrealtime"))
def test_clock_does_not_run_backwards(name: str) -> None:
    text = (
        f"s_mov_b32 s30, 0\n.Lagain:\ns_mov_b64 s[22:23], s[20:21]\n{name} s[20:21]\ns_add_i32 s30, s30, 1\n"
        "s_cmp_lt_i32 s30, 5\ns_cbranch_scc1 .Lagain"
    )
    ((before, after),) = run([Step(text, ("s[22:23]", "s[20:21]"))], {"v2": LANE})
    assert before[0] < after[0] < U64(2**48)


def test_endless_loop_is_a_fault() -> None:
    kernel = parse_listing(listing(".Lforever:\ns_branch .Lforever"))
    with pytest.raises(Fault, match="runaway"):
        launch(kernel, (1, 1, 1), (LANES, 1, 1), b"", Memory(), PROFILES["cdna3"], row_limit=1000)


def test_running_off_the_end_is_a_fault() -> None:
    kernel = parse_listing(listing("s_branch .Lfar\n").replace("\ts_endpgm", ".Lfar:"))
    with pytest.raises(Fault, match="bad-branch"):
        launch(kernel, (1, 1, 1), (LANES, 1, 1), b"", Memory(), PROFILES["cdna3"])


def test_every_control_instruction_has_a_test() -> None:
    assert set(BRANCHES) | set(IDLE) | {"s_endpgm", "s_memtime", "s_memrealtime"} == COVERED
