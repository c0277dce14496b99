"""Faults in a compiled listing: drawn at random, by a fixed seed, from every one that these operators can make.

A draw ranks the candidates by a hash of their text and takes the first, so that a kernel that changes in one
place keeps most of its draw.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tqkernel.gfx950 import Program
from tqkernel.gfx950.footprint import row_footprint

SEED = 20
_LABEL = re.compile(r"[\w.$]+:")
_INSTRUCTION = re.compile(r"\t[a-z]")
_MEMORY = ("ds_", "global_", "s_load", "buffer_")
_CONTROL = ("s_waitcnt", "s_nop", "s_cbranch", "s_branch", "s_barrier", "s_endpgm")

Change = tuple[str, dict[int, str | None]]
"""What a mutant does, in words, and the lines (0-based) it replaces, None for one that it deletes."""


@dataclass(frozen=True)
class Mutant:
    """A listing with one fault. `name` tells kind and change, and does not depend on line numbers."""

    name: str
    kind: str
    lines: dict[int, str | None]

    def apply(self, listing: str) -> str:
        old = listing.splitlines()
        new = [self.lines.get(number, line) for number, line in enumerate(old)]
        return "\n".join(line for line in new if line is not None)


def instructions(listing: str) -> dict[int, str]:
    """Line number (0-based) -> text of each instruction."""
    found, inside = {}, False
    for number, line in enumerate(listing.splitlines()):
        if line.startswith(".Lfunc_end"):
            break
        inside = inside or (_LABEL.match(line) is not None)
        if inside and _INSTRUCTION.match(line):
            found[number] = line.partition(";")[0].strip()
    return found


def draw(listing: str, program: Program, kind: str, count: int) -> list[Mutant]:
    """The first `count` mutants of a kind, in the order of the seed."""
    named: dict[str, Mutant] = {}
    seen: Counter[str] = Counter()
    for words, lines in KINDS[kind](listing, program):
        seen[words] += 1
        name = f"{kind}: {words}" + (f" #{seen[words]}" if seen[words] > 1 else "")
        named[name] = Mutant(name, kind, lines)
    ranked = sorted(named, key=lambda name: hashlib.sha256(f"{SEED} {name}".encode()).digest())
    return [named[name] for name in ranked[:count]]


# ---------------------------------------------------------------- operators on one line


def _edits(
    pattern: str, replace: Callable[[re.Match[str]], list[str]], applies: str = ""
) -> Callable[..., Iterator]:
    """An operator that replaces, one at a time, each match in instructions that `applies` matches."""

    def operator(listing: str, program: Program) -> Iterator[Change]:
        for number, text in instructions(listing).items():
            if not re.match(applies, text):
                continue
            for match in re.finditer(pattern, text):
                for new in replace(match):
                    changed = text[: match.start()] + new + text[match.end() :]
                    yield f"{text} -> {changed.partition(' ')[2] or changed}", {number: f"\t{changed}"}

    return operator


def _weaker(match: re.Match[str]) -> list[str]:
    return [f"{match[1]}({int(match[2]) + 1})"]


def _register(match: re.Match[str]) -> list[str]:
    """A neighbouring register, or pair or quad of them."""
    if match[2]:
        return [f"{match[1]}{int(match[2]) + 1}"]
    first, last = int(match[3]), int(match[4])
    return [f"{match[1]}[{first + 2}:{last + 2}]"]


def _constant(match: re.Match[str]) -> list[str]:
    text = match[0]
    if "." in text:
        return [f"-{text}"]
    value = int(text, 0)
    return [f"{value + 1:#x}" if text.startswith("0x") else str(value + 1)]


def _offset(match: re.Match[str]) -> list[str]:
    return ["", f" offset:{int(match[1]) + 16}"]


def _flipped(match: re.Match[str]) -> list[str]:
    """Each bit of a list of them flipped."""
    bits = match[2].split(",")
    return [
        f"{match[1]}:[{','.join(str(1 - int(b)) if i == k else b for k, b in enumerate(bits))}]"
        for i in range(len(bits))
    ]


def _selected(match: re.Match[str]) -> list[str]:
    return [f"src1_sel:BYTE_{(int(match[1]) + 1) % 4}"]


def _removed(applies: str) -> Callable[..., Iterator]:
    def operator(listing: str, program: Program) -> Iterator[Change]:
        for number, text in instructions(listing).items():
            if re.match(applies, text):
                yield text, {number: None}

    return operator


# ---------------------------------------------------------------- two neighbouring lines


def _neighbours(listing: str) -> Iterator[tuple[int, str, str]]:
    found = instructions(listing)
    lines = listing.splitlines()
    for number, first in found.items():
        second = found.get(number + 1)
        if second is not None and first != second and not _LABEL.match(lines[number + 1]):
            yield number, first, second


def _exchanged(number: int, first: str, second: str) -> Change:
    return f"{first} <-> {second}", {number: f"\t{second}", number + 1: f"\t{first}"}


def _codes(ranges) -> set[int]:
    return {code for first, count in ranges for code in range(first, first + count)}


def _commute(program: Program, number: int, first: str, second: str) -> bool:
    """Whether neither line writes what the other reads or writes, and not both access memory."""
    if first.startswith(_CONTROL) or second.startswith(_CONTROL):
        return False
    if first.startswith(_MEMORY) and second.startswith(_MEMORY):
        return False
    effects = []
    for line in (number + 1, number + 2):
        reads, writes = set(), set()
        for row in (program.lines == line).nonzero()[0]:
            row_reads, row_writes = row_footprint(program, int(row))
            reads |= _codes(row_reads)
            writes |= _codes(row_writes)
        effects.append((reads, writes))
    (reads0, writes0), (reads1, writes1) = effects
    return not (writes0 & (reads1 | writes1) or writes1 & reads0)


def _independent(listing: str, program: Program) -> Iterator[Change]:
    for number, first, second in _neighbours(listing):
        if _commute(program, number, first, second):
            yield _exchanged(number, first, second)


def _dependent(listing: str, program: Program) -> Iterator[Change]:
    for number, first, second in _neighbours(listing):
        both_memory = first.startswith(_MEMORY) and second.startswith(_MEMORY)
        branches = any(text.startswith(("s_cbranch", "s_branch", "s_endpgm")) for text in (first, second))
        if not branches and not both_memory and not _commute(program, number, first, second):
            yield _exchanged(number, first, second)


KINDS: dict[str, Callable[[str, Program], Iterator[Change]]] = {
    "wait removed": _removed("s_waitcnt"),
    "wait weakened": _edits(r"\b(vmcnt|lgkmcnt)\((\d+)\)", _weaker),
    "nop removed": _removed("s_nop"),
    "nop shortened": _edits(r"(?<=s_nop )([1-9]\d*)", lambda match: [str(int(match[0]) - 1)]),
    "barrier removed": _removed("s_barrier"),
    "instruction deleted": _removed("(?!s_waitcnt|s_nop|s_endpgm|s_barrier)"),
    "offset": _edits(r" offset:(\d+)", _offset),
    "operand selection": _edits(r"(op_sel_hi|op_sel|neg_lo|neg_hi):\[([01,]+)\]", _flipped),
    "byte selection": _edits(r"src1_sel:BYTE_(\d)", _selected),
    "register": _edits(r"\b([vs])(?:(\d+)|\[(\d+):(\d+)\])(?![\w])", _register, "(?!s_load|s_endpgm)"),
    "constant": _edits(
        r"(?<![\w.\[:(])(0x[0-9a-f]+|\d+\.\d+|\d+)(?![\w.\]:)])(?!.*\b\1:)", _constant,
        "(?!s_nop|s_waitcnt|s_branch|s_cbranch)",
    ),
    "independent lines swapped": _independent,
    "dependent lines swapped": _dependent,
}  # fmt: skip
"""Every kind of fault: from a listing, and the program it is, to all mutants."""

COUNTS = {
    "wait removed": 5,
    "wait weakened": 3,
    "nop removed": 2,
    "nop shortened": 2,
    "instruction deleted": 8,
    "offset": 4,
    "operand selection": 4,
    "byte selection": 2,
    "register": 6,
    "constant": 4,
    "independent lines swapped": 3,
    "dependent lines swapped": 4,
}
"""How many of each kind are drawn from each variant's listing. One wave a workgroup, so no barrier is there."""
