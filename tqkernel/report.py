"""Verdicts as people and programs read them: a table row by row, and JSON."""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tqkernel.verdict import Difference, Parting, Verdict

_COLUMNS = (
    ("tokens", 6, "{0.tokens}"),
    ("partitions", 10, "{0.partitions}"),
    ("bits compared", 13, "{0.bits_compared}"),
    ("bits differing", 14, "{0.bits_differing}"),
    ("max error", 9, "{0.max_error:.1e}"),
    ("seconds", 7, "{0.seconds:.2f}"),
)
"""Header, width and value of each column after the case's name."""


_RED, _GREEN = "31", "32"


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour of ECMA-48, where `stream` is a terminal and NO_COLOR (no-color.org) is not set."""
    if not colour or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


class Table:
    """Prints verdicts to `stream` as they come, aligned, for the cases called `names`."""

    def __init__(self, names: Iterable[str], stream: TextIO) -> None:
        self._stream = stream
        self._name_width = max(map(len, ("case", *names)))
        self._print_row("case", [header for header, _, _ in _COLUMNS])

    def add(self, verdict: Verdict) -> None:
        """One row, and when something is wrong what it is, below it."""
        self._print_row(
            verdict.name, [value.format(verdict) for _, _, value in _COLUMNS], "" if verdict.ok else _RED
        )
        for line in _explanation(verdict):
            self._print(f"    {line}")

    def finish(self, verdicts: Sequence[Verdict]) -> None:
        """The last line: how many cases and bits, and whether all is well."""
        failed = sum(not verdict.ok for verdict in verdicts)
        compared = sum(verdict.bits_compared for verdict in verdicts)
        differing = sum(verdict.bits_differing for verdict in verdicts)
        seconds = sum(verdict.seconds for verdict in verdicts)
        outcome = f"FAILED: {failed} of {len(verdicts)} cases" if failed else f"ok: {len(verdicts)} cases"
        outcome = coloured(outcome, _RED if failed else _GREEN, self._stream)
        self._print(f"{outcome}, {differing} of {compared} bits differ, {seconds:.1f} s")

    def _print_row(self, name: str, values: Sequence[str], colour: str = "") -> None:
        widths = [width for _, width, _ in _COLUMNS]
        cells = [value.rjust(width) for value, width in zip(values, widths, strict=True)]
        line = "  ".join([name.ljust(self._name_width), *cells])
        self._print(coloured(line, colour, self._stream))

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _explanation(verdict: Verdict) -> list[str]:
    if verdict.error is not None:
        return [f"kernel stopped: {verdict.error}", *verdict.notes]
    lines = [] if verdict.first is None else [f"first: {verdict.first}"]
    if verdict.parting is not None:
        what, *instruction = verdict.parting.lines()
        lines += [f"parts: {what}", *(f"       {line}" for line in instruction)]
    worst = [f"worst: {verdict.worst_ulps} ulp apart"] if verdict.worst_ulps else []
    findings = [f"sanitizer: {finding}" for finding in verdict.findings]
    return [*lines, *worst, *findings, *verdict.notes]


@dataclass
class Progress:
    """A bar on standard error, when that is a terminal. Call `hide` before printing anything else."""

    total: int
    stream: TextIO

    def show(self, done: int, name: str) -> None:
        """Draw the bar: `done` of `total` cases, the one called `name` next."""
        if self.stream.isatty():
            filled = 24 * done // self.total
            bar = "#" * filled + "." * (24 - filled)
            print(f"\r\x1b[K[{bar}] {done}/{self.total} {name}", end="", file=self.stream, flush=True)

    def hide(self) -> None:
        """Take the bar away, so that a line can be printed in its place."""
        if self.stream.isatty():
            print("\r\x1b[K", end="", file=self.stream, flush=True)


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts as JSON-serialisable data: `ok` for all, then one record per case.

    Numbers that are not finite become null, bit patterns hexadecimal strings.
    """
    return {"ok": all(verdict.ok for verdict in verdicts), "cases": [_case_record(v) for v in verdicts]}


def _case_record(verdict: Verdict) -> dict[str, Any]:
    names = (
        "name",
        "backend",
        "profile",
        "tokens",
        "partitions",
        "bits_compared",
        "bits_differing",
        "worst_ulps",
    )
    record = {name: getattr(verdict, name) for name in names}
    return record | {
        "max_error": verdict.max_error if math.isfinite(verdict.max_error) else None,
        "seconds": round(verdict.seconds, 4),
        "first": None if verdict.first is None else _difference_record(verdict.first),
        "error": verdict.error,
        "findings": list(verdict.findings),
        "parting": None if verdict.parting is None else _parting_record(verdict.parting),
        "notes": list(verdict.notes),
    }


def _difference_record(difference: Difference) -> dict[str, Any]:
    return vars(difference) | _bits(difference)


def _parting_record(parting: Parting) -> dict[str, Any]:
    source = None if parting.source is None else {"file": parting.source[0], "line": parting.source[1]}
    return vars(parting) | _bits(parting) | {"source": source, "line": parting.line or None}


def _bits(two: Difference | Parting) -> dict[str, str | None]:
    """Bit patterns as hexadecimal strings."""
    patterns = {"expected": two.expected, "actual": two.actual}
    return {
        name: None if bits is None else f"0x{bits:0{two.width // 4}x}" for name, bits in patterns.items()
    }


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as JUnit XML, a test case each: differing bits fail, a kernel that stopped is an error."""
    stopped = sum(verdict.error is not None for verdict in verdicts)
    suite = ElementTree.Element(
        "testsuite",
        name="tqgate",
        tests=str(len(verdicts)),
        failures=str(sum(not verdict.ok for verdict in verdicts) - stopped),
        errors=str(stopped),
        time=f"{sum(verdict.seconds for verdict in verdicts):.3f}",
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"tqgate.{verdict.backend}.{verdict.profile}",
            name=verdict.name,
            time=f"{verdict.seconds:.3f}",
        )
        if not verdict.ok:
            problem = ElementTree.SubElement(
                case, "failure" if verdict.error is None else "error", message=summary(verdict)
            )
            problem.text = "\n".join(_explanation(verdict))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root, " ")
    text = '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 has no way to write; an error message may quote any."""


def summary(verdict: Verdict) -> str:
    """One line: the case, and how much differs, why the kernel stopped or what the sanitizer found first."""
    if verdict.error is not None:
        return f"{verdict.name}: kernel stopped: {verdict.error}"
    if verdict.findings and not verdict.bits_differing:
        return f"{verdict.name}: sanitizer: {verdict.findings[0]}"
    return f"{verdict.name}: {verdict.bits_differing} of {verdict.bits_compared} bits differ"


def describe(verdict: Verdict) -> str:
    """`summary`, then what the table says below a row."""
    lines = verdict.notes if verdict.error is not None else _explanation(verdict)
    return "\n    ".join([summary(verdict), *lines])
