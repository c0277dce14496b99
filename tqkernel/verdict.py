"""What the gate has to say of a case: how many bits differ, the first place where, and what lies behind it."""

from __future__ import annotations

from dataclasses import dataclass

from tqkernel.bits import describe_bits


@dataclass(frozen=True)
class Difference:
    """One element that differs. `dim` is None for the outputs that have one value per row.

    expected and actual: bit patterns, 16 bits wide for `out` (bfloat16) and 32 for the others (float32).
    ulps: how many representable numbers apart they are; None when one of them is a NaN.
    """

    output: str
    sequence: int
    head: int
    partition: int
    row: int
    dim: int | None
    expected: int
    actual: int
    ulps: int | None

    def __str__(self) -> str:
        """E.g. `out[sequence 0, head 1, partition 0, row 3, dim 17]: kernel 0x3f81 (1.0078125), ...`."""
        where = _where(self, "sequence", "head", "partition", "row", "dim")
        return f"{self.output}[{where}]: {_values(self)}"

    @property
    def width(self) -> int:
        """Of the bit patterns, in bits."""
        return 16 if self.output == "out" else 32


@dataclass(frozen=True)
class Parting:
    """The first place where kernel and oracle differ inside a wave.

    stage       what is computed there, in words
    tile        token at which the tile starts
    token, row, dim   of the first wrong element, where the stage has such
    expected, actual  bit patterns; `actual` is None where no instruction computed anything like it
    width       of these, in bits: 16 for bfloat16, 32 for float32
    ulps        distance of the two, None for NaN or no `actual`
    line, text  of the listing, 0 and empty where unknown; source is the kernel's (file, line) behind it
    """

    stage: str
    tile: int
    token: int | None
    row: int | None
    dim: int | None
    expected: int
    actual: int | None
    width: int
    ulps: int | None
    line: int = 0
    text: str = ""
    source: tuple[str, int] | None = None

    def __str__(self) -> str:
        return "; ".join(self.lines())

    def lines(self) -> list[str]:
        """What differs where, then the instruction behind it, if known: a line each."""
        where = _where(self, "token", "row", "dim")
        what = f"{self.stage}, tile at token {self.tile}, {where}: {_values(self)}"
        behind = f" ({self.source[0]}:{self.source[1]})" if self.source else ""
        return [what, f"line {self.line}: {self.text}{behind}"] if self.line else [what]


@dataclass(frozen=True)
class Verdict:
    """What the gate found for one case.

    tokens          summed over the sequences
    bits_compared   all bits of the three outputs
    bits_differing  of these; all of them when the kernel did not finish, and then `error` says why
    worst_ulps      the largest distance between two numbers
    max_error       largest absolute difference between the kernel's combined output and float64 attention;
                    infinite where only one of the two is a NaN, NaN when the kernel did not finish
    seconds         wall time of oracle, kernel and comparison
    findings        what the sanitizer found, a line each
    parting         where, inside the wave of `first`, kernel and oracle part, if that was looked for and found
    notes           what more is known, a line each
    """

    name: str
    tokens: int
    partitions: int
    bits_compared: int
    bits_differing: int
    first: Difference | None
    worst_ulps: int
    max_error: float
    seconds: float
    backend: str
    profile: str
    error: str | None = None
    findings: tuple[str, ...] = ()
    parting: Parting | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether not one bit differs, and the sanitizer, if it watched, found nothing."""
        return self.bits_differing == 0 and self.error is None and not self.findings


def _where(place: Difference | Parting, *axes: str) -> str:
    """Such as `row 3, dim 17`, of the axes that the place has."""
    indices = {name: getattr(place, name) for name in axes}
    return ", ".join(f"{name} {index}" for name, index in indices.items() if index is not None)


def _values(two: Difference | Parting) -> str:
    """What the kernel has and what the oracle, and how far they are apart."""
    kernel = "computes it nowhere" if two.actual is None else describe_bits(two.actual, two.width)
    apart = "" if two.ulps is None else f", {two.ulps} ulp apart"
    return f"kernel {kernel}, oracle {describe_bits(two.expected, two.width)}{apart}"
