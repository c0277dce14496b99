"""An emulated gfx950: reads compiled kernels as LLVM lists them and executes them instruction by instruction."""

from __future__ import annotations

from .launch import Fault, Run, launch
from .listing import ListingError, Program, UnsupportedInstruction, parse_listing
from .memory import Memory
from .sanitize import Finding

__all__ = [
    "Fault",
    "Finding",
    "ListingError",
    "Memory",
    "Program",
    "Run",
    "UnsupportedInstruction",
    "launch",
    "parse_listing",
]
