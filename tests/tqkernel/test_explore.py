"""The open-ended search: does it find a planted fault, shrink it, say how to see it again, and save it?"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from tqkernel import explore
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.compile import compile_listing
from tqkernel.strategies import Problem
from tqref import Case


def faulty(**options: object) -> EmulatorBackend:
    """A backend whose kernel has log2(e) wrong in its last bit."""
    return EmulatorBackend(
        listing_of=lambda variant: compile_listing(variant).replace("0x3fb8aa3b", "0x3fb8aa3c"), **options
    )


def test_a_right_kernel_passes() -> None:
    explore.check(Problem(lengths=(40,)), EmulatorBackend(sanitize=True))


def test_a_wrong_kernel_is_a_disagreement() -> None:
    with pytest.raises(explore.Disagreement, match=r"^cdna3@\d+: .*kernel 0x"):
        explore.check(Problem(lengths=(40,)), faulty())


def test_a_worker_reports_a_shrunk_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(explore, "EmulatorBackend", faulty)
    monkeypatch.setattr(explore, "DATABASE", tmp_path)
    reports: queue.Queue[explore.Progress] = queue.Queue()
    explore.work(0, 1, 60, reports)
    last = list(reports.queue)[-1]
    assert last.failure is not None
    problem, reason = last.failure
    assert sum(problem.lengths) <= 40 and problem.heads == 1
    assert "kernel 0x" in reason


def test_a_failure_is_saved_with_lines_that_show_it_again(tmp_path: Path) -> None:
    problem = Problem(lengths=(3,), norms="rising")
    path = explore.save(problem, "because", tmp_path)
    assert Case.load(path).seq_lens.tolist() == [3]
    script = path.with_suffix(".py")
    assert script.read_text().startswith("# because\nfrom ")
    # The kernel is right, so the lines run and say nothing.
    environment = os.environ | {"PYTHONPATH": str(Path(explore.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert explore.save(problem, "again", tmp_path) != path


def test_the_command_counts_examples(tmp_path: Path) -> None:
    arguments = ["explore", "--minutes", "0.2", "--workers", "1", "--found", str(tmp_path / "found")]
    done = subprocess.run([sys.executable, "-m", "tqkernel", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 0
    assert done.stdout.rstrip().endswith("0 failures")
    assert not (tmp_path / "found").exists()
