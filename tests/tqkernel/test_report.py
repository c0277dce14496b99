"""What other programs read of a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tqkernel import runner
from tqkernel.cli import main
from tqkernel.report import as_junit, describe, summary
from tqkernel.verdict import Difference, Verdict


def verdict(**changes: Any) -> Verdict:
    values: dict[str, Any] = dict(
        name="ragged", tokens=3, partitions=2, bits_compared=640, bits_differing=0, first=None, worst_ulps=0,
        max_error=0.01, seconds=0.25, backend="emulator", profile="cdna3@1",
    )  # fmt: skip
    return Verdict(**(values | changes))


WRONG = verdict(
    name="wrong <&>",
    bits_differing=5,
    first=Difference("out", 1, 2, 0, 3, 64, 0x3F80, 0x3F83, 3),
    worst_ulps=7,
)
STOPPED = verdict(name="stopped", bits_differing=640, error="fault at \x00 v[0]\x1b")


def test_junit_counts_and_explains() -> None:
    root = ElementTree.fromstring(as_junit([verdict(), WRONG, STOPPED]))
    (suite,) = root
    assert root.tag == "testsuites" and suite.tag == "testsuite"
    assert suite.attrib == {
        "name": "tqgate", "tests": "3", "failures": "1", "errors": "1", "time": "0.750",
    }  # fmt: skip
    good, wrong, stopped = suite
    assert [case.attrib["name"] for case in suite] == ["ragged", "wrong <&>", "stopped"]
    assert good.attrib == {"classname": "tqgate.emulator.cdna3@1", "name": "ragged", "time": "0.250"}
    assert len(good) == 0
    (failure,) = wrong
    assert failure.tag == "failure" and failure.attrib == {"message": "wrong <&>: 5 of 640 bits differ"}
    assert failure.text is not None
    first, worst = failure.text.splitlines()
    assert first.startswith("first: out[sequence 1, head 2, partition 0, row 3, dim 64]: kernel 0x3f83")
    assert worst == "worst: 7 ulp apart"
    (error,) = stopped
    assert error.tag == "error" and error.text == "kernel stopped: fault at \ufffd v[0]\ufffd"


def test_junit_declares_the_encoding_it_is_written_in() -> None:
    assert as_junit([]).startswith('<?xml version="1.0" encoding="utf-8"?>\n')


def test_summary_and_description() -> None:
    assert summary(STOPPED) == "stopped: kernel stopped: fault at \x00 v[0]\x1b"
    assert describe(STOPPED) == summary(STOPPED)
    assert describe(WRONG).splitlines()[0] == "wrong <&>: 5 of 640 bits differ"
    assert describe(WRONG).splitlines()[2] == "    worst: 7 ulp apart"


def test_check_writes_junit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "fake"

        def run(self, *arguments: object) -> None:
            from tqkernel.backends import RunError

            raise RunError("no luck")

    monkeypatch.setitem(runner.BACKENDS, "emulator", lambda options, announce: Broken())
    path = tmp_path / "report.xml"
    assert main(["check", "far_qg8_*", "--junit", str(path)]) == 1
    (suite,) = ElementTree.parse(path).getroot()
    assert (suite.attrib["tests"], suite.attrib["errors"]) == ("4", "4")
    assert suite[0].attrib["name"] == "far_qg8_bs16_swtr"
