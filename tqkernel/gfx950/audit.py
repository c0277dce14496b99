"""Which instructions of a listing the emulated machine executes exactly, by a model, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from .isa import Instruction, instruction_set
from .isa.vector16 import PACKED, packed_instruction
from .listing import UnsupportedInstruction, base_name, decode_line

UNSUPPORTED = "unsupported"

_COMMENT = re.compile(r"\s*(;|//).*$")
_INSTRUCTION = re.compile(r"^(s|v|ds|buffer|global|flat|scratch|tbuffer|image|exp)_?\w*(\s|$)")


@dataclass(frozen=True)
class Audited:
    """One distinct instruction form of a listing."""

    name: str
    """The mnemonic without its encoding suffix."""
    accuracy: str
    """``exact``, ``modelled`` (a profile, or a choice within its error, stands in) or ``unsupported``."""
    count: int
    """How many lines use it."""
    line: int
    """The first line that does, 1-based."""
    reason: str = ""
    """Why it is unsupported."""


def supported() -> dict[str, Instruction]:
    """Every instruction the machine executes, packed forms included."""
    forms = instruction_set()
    return forms | {name: packed_instruction(name, forms) for name in PACKED}


def audit(listing_text: str) -> list[Audited]:
    """Judge every instruction of a listing, all kernels and functions in it, in the order of their names.

    Lines are judged one by one: a modifier that is not modelled makes its line unsupported.
    """
    known = supported()
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], int] = {}
    for number, raw in enumerate(listing_text.splitlines(), 1):
        text = _COMMENT.sub("", raw).strip()
        if not _INSTRUCTION.match(text):
            continue
        name = base_name(text.split()[0])
        accuracy, reason = UNSUPPORTED, "not in the instruction set"
        if name in known:
            accuracy, reason = known[name].accuracy, ""
            try:
                decode_line(number, text)
            except UnsupportedInstruction as error:
                accuracy, reason = UNSUPPORTED, str(error).split(": ", 2)[-1]
        key = (name, accuracy, reason)
        counts[key] += 1
        first.setdefault(key, number)
    return [
        Audited(name, accuracy, count, first[name, accuracy, reason], reason)
        for (name, accuracy, reason), count in sorted(counts.items())
    ]
