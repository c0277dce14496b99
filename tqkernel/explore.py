"""`tqgate explore`: property tests without an end, until the minutes are spent.

Each worker is a process with its own seed that draws a property and a problem, and runs the compiled kernel under the
sanitizer. Workers share Hypothesis's example database, so that what one found another starts with.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import queue
import re
import secrets
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tqkernel.backends import RunError
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.properties import PROPERTIES, Disagreement
from tqkernel.runner import UsageError
from tqkernel.strategies import HOSTILE, Problem, problems
from tqref.layout import GROUP_TOKENS, TILE_TOKENS

DATABASE = Path(".hypothesis/examples")
"""Where Hypothesis keeps what failed, as it does for tests."""

BATCH = 200
"""Examples between two looks at the clock; Hypothesis varies its search within one."""

REPORT_SECONDS = 1.0
LOG_SECONDS = 60.0
"""Between two lines where nobody watches."""

_NAMES = st.just(next(iter(PROPERTIES))) | st.sampled_from(list(PROPERTIES))
_PROBLEMS = problems(tile_waves=96) | problems()
_NUMBER = r"0x[0-9a-f]+|[-+]?\d[\d.e+-]*|\b(inf|nan)\b"


@dataclass(frozen=True)
class Failure:
    """A property that does not hold of a problem."""

    property_name: str
    problem: Problem
    reason: str

    @property
    def kind(self) -> tuple[str, str]:
        """Of two failures of the same kind the second is hardly news: property, and reason but for its numbers."""
        return self.property_name, re.sub(_NUMBER, "#", self.reason)[:60]

    def reproducer(self) -> str:
        """A few lines of Python that show it again."""
        return "\n".join(
            [
                "from tqkernel.backends.emulator import EmulatorBackend",
                f"from tqkernel.properties import {self.property_name}",
                "from tqkernel.strategies import Problem",
                "",
                f"problem = {self.problem!r}",
                f"{self.property_name}(problem, EmulatorBackend(sanitize=True))",
            ]
        )

    def save(self, folder: Path) -> Path:
        """Write the problem's case and the reproducer; returns the case's path."""
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem for path in folder.iterdir()}
        name = next(name for number in range(1, 10**6) if (name := f"found_{number:03}") not in taken)
        path = folder / f"{name}.npz"
        replace(self.problem.case(), name=name).save(path)
        comment = "\n".join(f"# {line}" for line in self.reason.splitlines())
        path.with_suffix(".py").write_text(f"{comment}\n{self.reproducer()}\n", encoding="utf-8")
        return path


@dataclass(frozen=True)
class Progress:
    """What a worker has to tell: examples run in all, and what is new since it last told."""

    worker: int
    examples: int
    coverage: frozenset[tuple[str, ...]] = frozenset()
    failures: tuple[Failure, ...] = ()


def boundaries(problem: Problem) -> Iterator[str]:
    """Names of the boundaries that its lengths lie at, or one token before or after."""
    sizes = {
        "tile": TILE_TOKENS,
        "block": problem.kv_block_size,
        "group": GROUP_TOKENS,
        "partition": problem.tile_groups * GROUP_TOKENS,
        "launch": problem.partitions * problem.tile_groups * GROUP_TOKENS,
    }
    for length in problem.lengths:
        yield {0: "no token", 1: "one token"}.get(length, "inside")
        for (name, size), by in product(sizes.items(), (-1, 0, 1)):
            if length > 1 and (length - by) % size == 0:
                yield f"{name} {by:+}"


def coverage(problem: Problem) -> frozenset[tuple[str, ...]]:
    """What a problem exercises: the variant, with each boundary, with each kind of number and arrangement."""
    numbers = {f"{name} {getattr(problem, name)}" for name in (*HOSTILE, "placement", "sharing", "profile")}
    return frozenset(product([problem.variant.name], set(boundaries(problem)), numbers))


def work(worker: int, seed: int, seconds: float, reports: Any) -> None:
    """Search until the time is up, but for one example at least; `reports` is a queue of Progress."""
    search = Search(worker, reports, time.monotonic() + seconds)
    batch_seed = seed + 1_000_003 * worker
    while not search.is_over():
        search.batch(batch_seed)
        batch_seed += 1
    search.tell()


@dataclass
class Search:
    """One worker's search."""

    worker: int
    reports: Any
    end: float
    backend: EmulatorBackend = field(default_factory=lambda: EmulatorBackend(threads=1, sanitize=True))
    examples: int = 0
    told: float = 0.0
    seen: set[tuple[str, ...]] = field(default_factory=set)
    untold: set[tuple[str, ...]] = field(default_factory=set)
    known: set[tuple[str, str]] = field(default_factory=set)
    last: Failure | None = None

    def is_over(self) -> bool:
        """Whether the time is up, and something was tried."""
        return self.examples > 0 and time.monotonic() > self.end

    def batch(self, seed: int) -> None:
        """Try some examples, up to the first failure, which is then shrunk and told."""

        def example(name: str, problem: Problem) -> None:
            self.try_one(name, problem)

        test = settings(
            max_examples=BATCH,
            deadline=None,
            database=DirectoryBasedExampleDatabase(DATABASE),
            derandomize=False,  # which Hypothesis would otherwise do where CI is set
            phases=set(Phase) - {Phase.explain},
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )(seeded(seed)(given(name=_NAMES, problem=_PROBLEMS)(example)))
        self.last = None
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                test()
            except Exception:
                if self.last is None:
                    raise
        if self.last is not None:
            self.known.add(self.last.kind)
            self.tell(self.last)

    def try_one(self, name: str, problem: Problem) -> None:
        """One example. Raises where it fails in a way not known yet; the last to fail is the smallest."""
        if self.is_over() and self.last is None:
            return
        self.examples += 1
        self.untold |= coverage(problem) - self.seen
        try:
            PROPERTIES[name](problem, self.backend)
        except (Disagreement, RunError) as error:
            failure = Failure(name, problem, str(error))
            if failure.kind in self.known:
                return
            self.last = failure
            raise
        finally:
            if time.monotonic() > self.told + REPORT_SECONDS:
                self.tell()

    def tell(self, *failures: Failure) -> None:
        """Report what is new."""
        self.reports.put(Progress(self.worker, self.examples, frozenset(self.untold), failures))
        self.seen |= self.untold
        self.untold, self.told = set(), time.monotonic()


# ---------------------------------------------------------------- the command


def add_command(commands: Any) -> None:
    """Register `tqgate explore` with an argparse subparsers object."""
    parser = commands.add_parser(
        "explore",
        help="draw problems without end and see that the kernel keeps to every property",
        description="Draw decode problems with Hypothesis, run the kernel on each under the sanitizer, and check a "
        "property of it: that every bit is the oracle's under every profile, or that what must not change a bit does "
        "not. A failure is shrunk, printed as Python, and saved. Exits 0 when none was found.",
    )
    parser.add_argument(
        "--minutes", metavar="N", type=float, default=5.0, help="how long to search (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="processes side by side (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="where the search starts (default: another place each time)"
    )
    parser.add_argument(
        "--found",
        metavar="DIR",
        type=Path,
        default=Path("fixtures/found"),
        help="where failures are saved (default: %(default)s)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    for name in ("minutes", "workers"):
        if not getattr(options, name) > 0:
            raise UsageError(f"--{name}: expected more than 0, got {getattr(options, name)}")
    _require_place(options.found)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    workers = [
        context.Process(target=work, args=(worker, seed, 60 * options.minutes, reports), daemon=True)
        for worker in range(options.workers)
    ]
    board = Board(seed, live=sys.stderr.isatty())
    for process in workers:
        process.start()
    try:
        while any(process.is_alive() for process in workers) or not reports.empty():
            with contextlib.suppress(queue.Empty):
                board.add(reports.get(timeout=0.5), options.found)
    except KeyboardInterrupt:
        for process in workers:
            process.terminate()
        for process in workers:
            process.join()
    board.finish()
    broken = sum((process.exitcode or 0) > 0 for process in workers)
    if broken:
        print(f"tqgate explore: error: {broken} of {len(workers)} workers broke down", file=sys.stderr)
    return 1 if board.failures or broken else 0


def _require_place(folder: Path) -> None:
    """Find out before the search that failures can be saved; the folder is made for the first of them."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"--found: {folder}: expected a folder that can be written, got {there}")


@dataclass
class Board:
    """Adds up what workers tell, and shows it: one line that is written over, or one line a minute."""

    seed: int
    live: bool
    start: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)
    examples: dict[int, int] = field(default_factory=dict)
    coverage: set[tuple[str, ...]] = field(default_factory=set)
    news: float = 0.0
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def add(self, report: Progress, folder: Path) -> None:
        """Count, print and save what a worker tells."""
        self.examples[report.worker] = report.examples
        if report.coverage - self.coverage:
            self.coverage |= report.coverage
            self.news = time.monotonic()
        for failure in report.failures:
            if failure.kind not in self.failures:
                self.failures[failure.kind] = failure
                self._clear()
                path = failure.save(folder)
                print(
                    f"{failure.reason}\n\n{failure.reproducer()}\n\nsaved as {os.fspath(path)}\n", flush=True
                )
        self._show()

    def line(self) -> str:
        """Such as `1234 examples, 9.8 a second, coverage 803 (new 2 s ago), 0 failures`."""
        now = time.monotonic()
        examples = sum(self.examples.values())
        rate = examples / max(now - self.start, 1e-9)
        new = f" (new {now - self.news:.0f} s ago)" if self.coverage else ""
        return (
            f"{examples} examples, {rate:.1f} a second, coverage {len(self.coverage)}{new}, {self._count()}"
        )

    def finish(self) -> None:
        """Print the totals."""
        self._clear()
        seconds = time.monotonic() - self.start
        examples = sum(self.examples.values())
        print(
            f"{examples} examples from seed {self.seed} in {seconds:.0f} s, coverage {len(self.coverage)}, "
            f"{self._count()}"
        )

    def _count(self) -> str:
        return f"{len(self.failures)} failure{'' if len(self.failures) == 1 else 's'}"

    def _show(self) -> None:
        if self.live:
            print(f"\r\033[K{self.line()}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() > self.shown + LOG_SECONDS:
            self.shown = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
