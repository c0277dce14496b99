"""Vector instructions that move values between lanes or swap registers; each is a case of its own in wave.py."""

from __future__ import annotations

from . import parse_table

INSTRUCTIONS = parse_table(
    "lane",
    """
    v_nop
    v_readfirstlane_b32      u32 = u32
    v_readlane_b32           u32 = u32 u32
    v_writelane_b32          u32 = u32 u32 +u32
    v_swap_b32               u32 u32 = +u32 u32
    v_permlane16_swap_b32    u32 u32 = +u32 u32
    v_permlane32_swap_b32    u32 u32 = +u32 u32
    """,
)
