"""The open-ended search: does it find a planted fault, shrink it, say how to see it again, and save it?"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tqkernel import explore
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cache import cache_directory
from tqkernel.compile import compile_listing
from tqkernel.explore import Board, Failure, Progress, Search
from tqkernel.plan import VARIANTS
from tqkernel.strategies import Problem
from tqref import Case

LOG2E, WRONG_LOG2E = "0x3fb8aa3b", "0x3fb8aa3c"
FAILURE = Failure("kernel_is_the_oracle", Problem(lengths=(3,), norms="rising"), "because\nit is 17")


def faulty() -> EmulatorBackend:
    """A backend whose kernel has log2(e) wrong in its last bit."""
    return EmulatorBackend(
        listing_of=lambda variant: compile_listing(variant).replace(LOG2E, WRONG_LOG2E), sanitize=True
    )


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Search]:
    monkeypatch.setattr(explore, "DATABASE", tmp_path)
    monkeypatch.setattr(explore, "BATCH", 30)
    return lambda backend: Search(0, queue.Queue(), float("inf"), backend)


def told(search: Search) -> list[Progress]:
    return list(search.reports.queue)


def failures(search: Search) -> list[Failure]:
    return [failure for report in told(search) for failure in report.failures]


def test_a_failure_is_shrunk(search) -> None:
    wrong = search(faulty())
    wrong.batch(1)
    (failure,) = failures(wrong)
    assert sum(failure.problem.lengths) <= 40 and failure.problem.heads == 1
    check = explore.PROPERTIES[failure.property_name]
    with pytest.raises(AssertionError):
        check(failure.problem, faulty())
    check(failure.problem, EmulatorBackend(sanitize=True))


def test_a_known_failure_is_told_once_and_the_search_goes_on(search) -> None:
    wrong = search(faulty())
    wrong.batch(1)
    (first,) = failures(wrong)
    for seed in (2, 3):
        wrong.batch(seed)
    assert first.kind not in [failure.kind for failure in failures(wrong)[1:]]
    again = wrong.examples
    wrong.try_one(first.property_name, first.problem)
    assert wrong.examples == again + 1


def test_what_failed_is_tried_first_next_time(search, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, try_one = [], Search.try_one

    def noted(self: Search, name: str, problem: Problem) -> None:
        tried.append(problem)
        try_one(self, name, problem)

    first = search(faulty())
    first.batch(1)
    monkeypatch.setattr(Search, "try_one", noted)
    search(EmulatorBackend()).batch(2)
    assert tried[0] == failures(first)[0].problem


def test_a_right_kernel_has_no_failures_and_covers_ever_more(search) -> None:
    right = search(EmulatorBackend(sanitize=True))
    right.batch(1)
    once = len(right.seen | right.untold)
    right.batch(2)
    right.tell()
    assert failures(right) == []
    assert told(right)[-1].examples == right.examples == 60
    assert len(right.seen) > once > 100


def test_a_fault_of_the_harness_is_no_failure_of_the_kernel(search, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Problem, backend: EmulatorBackend) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(explore.PROPERTIES, "kernel_is_the_oracle", broken)
    with pytest.raises(ZeroDivisionError):
        search(EmulatorBackend()).batch(1)


@pytest.mark.parametrize(
    "lengths, expected",
    [
        ((0,), {"no token"}),
        ((1,), {"one token"}),
        ((37,), {"inside"}),
        ((31, 33), {"inside", "tile -1", "block -1", "tile +1", "block +1"}),
        ((512,), {"inside", "tile +0", "block +0", "group +0", "partition +0"}),
        ((1024,), {"inside", "tile +0", "block +0", "group +0", "partition +0", "launch +0"}),
    ],
)
def test_boundaries(lengths: tuple[int, ...], expected: set[str]) -> None:
    problem = Problem(lengths=lengths, kv_block_size=32, tile_groups=2, partitions=2)
    assert set(explore.boundaries(problem)) == expected


@pytest.mark.parametrize(
    "reason, other, same",
    [
        ("out[row 0]: 0x3f8c (1.09)", "out[row 12]: 0xffff (nan)", True),
        ("out[row 0]: 0x3f8c (1.09)", "exp_sums[row 0]: 0x3f8c (1.09)", False),
    ],
)
def test_failures_of_a_kind(reason: str, other: str, same: bool) -> None:
    kinds = {Failure("kernel_is_the_oracle", Problem(), text).kind for text in (reason, other)}
    assert (len(kinds) == 1) is same
    assert Failure("both_transposes_agree", Problem(), reason).kind not in kinds


def test_a_failure_is_saved_with_lines_that_show_it_again(tmp_path: Path) -> None:
    path = FAILURE.save(tmp_path / "found")
    assert Case.load(path).seq_lens.tolist() == [3]
    script = path.with_suffix(".py")
    assert script.read_text().startswith("# because\n# it is 17\nfrom ")
    # The kernel is right, so the lines run and say nothing.
    environment = os.environ | {"PYTHONPATH": str(Path(explore.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert FAILURE.save(tmp_path / "found") != path


def test_the_board_adds_up_workers_and_prints_a_failure_once(tmp_path: Path, capsys) -> None:
    board = Board(7, live=True)
    board.add(Progress(0, 10, frozenset({("a",), ("b",)})), tmp_path)
    board.add(Progress(1, 5, frozenset({("b",), ("c",)}), (FAILURE,)), tmp_path)
    board.add(Progress(0, 20, frozenset(), (FAILURE,)), tmp_path)
    board.finish()
    out, err = capsys.readouterr()
    assert "25 examples, " in err and "coverage 3 (new 0 s ago), 1 failure" in err
    assert out.count("because") == 1 and "problem = Problem(lengths=(3,), norms='rising')" in out
    assert f"saved as {tmp_path / 'found_001.npz'}" in out
    assert out.splitlines()[-1] == "25 examples from seed 7 in 0 s, coverage 3, 1 failure"


def test_the_board_is_quiet_where_nobody_watches(tmp_path: Path, capsys) -> None:
    Board(7, live=False).add(Progress(0, 10), tmp_path)
    assert capsys.readouterr() == ("", "")


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tqkernel", "explore", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path(explore.__file__).parents[1])},
        # Where the tests run in the background of a shell, interrupts are ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_the_command_counts_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")  # where Hypothesis has another default
    done = command("--minutes", "0.05", "--workers", "2", "--seed", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 2
    assert " from seed 0 in " in done.stdout and done.stdout.rstrip().endswith("0 failures")
    assert not (tmp_path / "fixtures").exists()


def test_each_search_starts_elsewhere_unless_told(tmp_path: Path) -> None:
    seeds = [command("--minutes", "0.001", cwd=tmp_path).stdout.split("seed ")[1].split()[0] for _ in "ab"]
    assert seeds[0] != seeds[1]


def test_the_command_finds_prints_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is interrupted. Workers are new processes, so the fault is planted in the listings that they find in
    the cache."""
    for variant in VARIANTS:
        compile_listing(variant, debug_locations=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    for entry in cache_directory().iterdir():
        if entry.suffix == ".s":
            (cache / entry.name).write_text(entry.read_text().replace(LOG2E, WRONG_LOG2E))
        else:
            (cache / entry.name).symlink_to(entry)
    monkeypatch.setenv("TQGATE_CACHE_DIR", str(cache))
    process = start("--minutes", "5", "--seed", "0", "--found", "found", cwd=tmp_path)
    assert process.stdout is not None
    printed = ""
    while "saved as " not in printed:
        printed += (line := process.stdout.readline())
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    printed += process.communicate()[0]
    assert process.returncode == 1
    saved = re.findall(r"^saved as (.*)$", printed, re.MULTILINE)
    assert printed.rstrip().endswith(f"{len(saved)} failure{'s' * (len(saved) > 1)}")
    for name in saved:
        script = (tmp_path / name).with_suffix(".py").read_text()
        assert script.partition("from ")[2].strip() in printed
        assert Case.load(tmp_path / name).name == Path(name).stem


@pytest.mark.parametrize("arguments", [("--minutes", "0"), ("--workers", "0")])
def test_nothing_to_do_is_bad_usage(arguments: tuple[str, str], tmp_path: Path) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and "expected more than 0" in done.stderr
