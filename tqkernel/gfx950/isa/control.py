"""Program control (AMD's SOPP and the program-counter part of SOP1): branches, barriers, waits, end."""

from __future__ import annotations

from . import parse_table

# The meaning is the branch condition over scc, vcc and exec; without one the instruction is a case of its
# own in wave.py or changes nothing that a wave can see.
INSTRUCTIONS = parse_table(
    "control",
    """
    s_endpgm
    s_barrier
    s_waitcnt               = imm
    s_branch                = label : True
    s_cbranch_scc0          = label : scc == 0
    s_cbranch_scc1          = label : scc != 0
    s_cbranch_vccz          = label : vcc == 0
    s_cbranch_vccnz         = label : vcc != 0
    s_cbranch_execz         = label : exec == 0
    s_cbranch_execnz        = label : exec != 0
    s_nop                   = imm
    s_sleep                 = imm
    s_setprio               = imm
    s_sethalt               = imm
    s_trap                  = imm
    s_code_end
    s_icache_inv
    s_dcache_wb
    s_dcache_inv
    s_ttracedata
    s_incperflevel          = imm
    s_decperflevel          = imm
    s_sendmsg               = imm
    s_set_gpr_idx_off
    buffer_wbl2
    buffer_inv
    """,
)
