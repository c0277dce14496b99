"""A single fault to plant in a source file, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One fault in one source file.

    name    unique in its table
    old     text that occurs exactly once in the file, replaced by `new`
    killer  the check that must notice: a kind of named case, or a test as `file::name`; empty for an
            equivalent mutant, which changes no output and for which `reason` says why
    where   the file; for the kernel the variant whose listing shows the fault
    """

    name: str
    old: str
    new: str
    killer: str
    where: str
    reason: str = ""

    def apply(self, text: str) -> str:
        """The text with the fault in it. Raises ValueError unless `old` occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: expected `old` exactly once, found it {text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)
