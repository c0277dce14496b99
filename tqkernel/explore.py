"""`tqgate explore`: property tests without an end, until the minutes are spent.

Each worker is a process with its own seed that draws problems, runs the compiled kernel under the sanitizer and
compares every bit with the oracle under every profile. Workers share Hypothesis's example database, so that what one
found another starts with.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import queue
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqkernel.backends import RunError
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.gate import compare, oracle
from tqkernel.strategies import Problem, problems
from tqref import PROFILES

DATABASE = Path(".hypothesis/examples")
"""Where Hypothesis keeps what failed, as it does for tests."""

BATCH = 200
"""Examples between two looks at the clock; Hypothesis varies its search within one."""


class Disagreement(AssertionError):
    """Kernel and oracle differ on an example, or the sanitizer objects."""


def check(problem: Problem, backend: EmulatorBackend) -> None:
    """Raise Disagreement if the kernel is not the oracle on a problem, under any profile."""
    case = problem.case()
    for profile in PROFILES.values():
        try:
            actual = backend.run(case, problem.hw_v_transpose, profile)
        except RunError as error:
            raise Disagreement(f"{profile.key}: {error}") from error
        first = compare(oracle(case, profile), actual).first
        if first is not None:
            raise Disagreement(f"{profile.key}: {first}")


def coverage(problem: Problem) -> tuple[object, ...]:
    """What kind of problem it is: two problems with the same answer exercise much the same."""
    return (
        problem.variant.name, problem.placement, problem.norms, problem.scales, problem.zeros, problem.centroids,
        problem.query, problem.softmax_scale,
    )  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """What a worker reports: examples run so far, kinds of problem seen, and a failure's problem and reason."""

    worker: int
    examples: int
    kinds: int
    failure: tuple[Problem, str] | None = None


def work(worker: int, seed: int, seconds: float, reports: Any) -> None:
    """Search until the time is up or an example fails; `reports` is a queue of Progress."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis.database import DirectoryBasedExampleDatabase

    backend = EmulatorBackend(threads=1, sanitize=True)
    database = DirectoryBasedExampleDatabase(DATABASE)
    end = time.monotonic() + seconds
    examples, kinds, last = 0, set(), None

    def example(problem: Problem) -> None:
        nonlocal examples, last
        if time.monotonic() > end and last is None:
            return
        examples += 1
        kinds.add(coverage(problem))
        if examples % 10 == 0:
            reports.put(Progress(worker, examples, len(kinds)))
        try:
            check(problem, backend)
        except Disagreement as error:
            last = problem, str(error)  # the last failure is the smallest: Hypothesis replays it
            raise

    batch = 0
    while time.monotonic() < end:
        test = settings(
            max_examples=BATCH, deadline=None, database=database, phases=set(Phase) - {Phase.explain},
            suppress_health_check=list(HealthCheck), print_blob=False,
        )(seeded(seed + 1000 * worker + batch)(given(problems())(example)))  # fmt: skip
        batch += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                test()
        except BaseException:
            if last is None:
                reports.put(Progress(worker, examples, len(kinds), (Problem(), traceback.format_exc())))
                return
        if last is not None:
            reports.put(Progress(worker, examples, len(kinds), last))
            return
    reports.put(Progress(worker, examples, len(kinds)))


def reproducer(problem: Problem) -> str:
    """A few lines of Python that show a failure again."""
    return "\n".join(
        [
            "from tqkernel.backends.emulator import EmulatorBackend",
            "from tqkernel.explore import check",
            "from tqkernel.strategies import Problem",
            "",
            f"check({problem!r}, EmulatorBackend(sanitize=True))",
        ]
    )


def save(problem: Problem, reason: str, folder: Path) -> Path:
    """Write the failing case and its reproducer; returns the case's path."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + len(list(folder.glob("found_*.npz")))
    path = folder / f"found_{number:03}.npz"
    replace(problem.case(), name=path.stem).save(path)
    comment = "\n".join(f"# {line}" for line in reason.splitlines())
    path.with_suffix(".py").write_text(f"{comment}\n{reproducer(problem)}\n", encoding="utf-8")
    return path


# ---------------------------------------------------------------- the command


def add_command(commands: Any) -> None:
    """Register `tqgate explore` with an argparse subparsers object."""
    parser = commands.add_parser(
        "explore",
        help="draw problems without end and compare the kernel with the oracle on each",
        description="Draw decode problems with Hypothesis, run the kernel on each under the sanitizer, and compare "
        "every bit with the oracle under every profile. A failure is shrunk, printed as Python, and saved. "
        "Exits 0 when none was found.",
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="where the search starts (default: %(default)s)")
    parser.add_argument(
        "--found", metavar="DIR", default="fixtures/found", help="where failures go (default: %(default)s)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.minutes <= 0 or options.workers < 1:
        print("tqgate explore: error: --minutes and --workers: expected more than 0", file=sys.stderr)
        return 2
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    workers = [
        context.Process(target=work, args=(worker, options.seed, 60 * options.minutes, reports))
        for worker in range(options.workers)
    ]
    start = time.monotonic()
    for process in workers:
        process.start()
    latest: dict[int, Progress] = {}
    failures: list[tuple[Problem, str]] = []
    while any(process.is_alive() for process in workers) or not reports.empty():
        try:
            report = reports.get(timeout=0.5)
        except queue.Empty:
            continue
        latest[report.worker] = report
        if report.failure is not None:
            failures.append(report.failure)
        _show(latest, failures, time.monotonic() - start, sys.stderr.isatty())
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for problem, reason in failures:
        path = save(problem, reason, Path(options.found))
        print(f"\n{reason}\n\n{reproducer(problem)}\n\nsaved as {os.fspath(path)}")
    examples = sum(report.examples for report in latest.values())
    seconds = time.monotonic() - start
    print(f"{examples} examples in {seconds:.0f} s, {len(failures)} failures")
    return 1 if failures else 0


def _show(latest: dict[int, Progress], failures: list[Any], seconds: float, live: bool) -> None:
    """One line that is written over; nothing where nobody watches."""
    if not live:
        return
    examples = sum(report.examples for report in latest.values())
    kinds = sum(report.kinds for report in latest.values())
    line = f"{examples} examples, {examples / seconds:.1f} a second, {kinds} kinds, {len(failures)} failures"
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
