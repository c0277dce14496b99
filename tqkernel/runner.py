"""What the commands that judge kernels share: their options, where the kernel runs, what is printed."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from tqkernel.backends import Backend, blamed
from tqkernel.explain import Failure, explain, with_commands
from tqkernel.gate import run_case
from tqkernel.plan import KERNEL_ARGUMENTS
from tqkernel.report import Progress, Table, as_json, as_junit
from tqkernel.verdict import Verdict
from tqref import DEFAULT_PROFILE, PROFILES, Case, Partials, Profile

STANDARD_OUTPUT = "-"
FAILURES = "tqgate-failures"
"""The folder for smaller cases, unless another is named."""
REPORTED = 6
"""Cases that a report explains, each of another kind; without a report it is the first case that fails."""
_SLOW_SECONDS = 0.5


class UsageError(ValueError):
    """The command line asks for something that is not there."""


@dataclass(frozen=True)
class Task:
    """A case for a kernel to be judged by.

    build: gives the case. expected: its bits, where they are known already. command: the arguments of `tqgate`
    that name it alone.
    """

    name: str
    build: Callable[[], Case]
    hw_v_transpose: bool
    profile: Profile
    command: Sequence[str]
    expected: Partials | None = None

    @property
    def kind(self) -> str:
        """The name without the kernel's variant: cases of one kind mostly fail alike."""
        return re.sub(r"_qg\d+_bs\d+(_[sh]wtr)?$", "", self.name)

    def judge(self, backend: Backend, *, strict: bool = False) -> Verdict:
        """Run the kernel on the case and compare every bit."""
        verdict = run_case(
            self.build(), self.hw_v_transpose, backend, self.profile, strict=strict, expected=self.expected
        )
        return replace(verdict, name=self.name)


def reason(error: OSError | UnicodeDecodeError, path: str | Path = "") -> str:
    """Which file, and why not. path: of the file, where the error may not know it."""
    if isinstance(error, UnicodeDecodeError):
        return f"{path}: expected a text in UTF-8, got other bytes"
    return f"{error.filename or path}: {error.strerror or error}"


def add_profile(parser: argparse.ArgumentParser, use: str = "") -> None:
    """The option that names a profile; `use` says what for, if not for all."""
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=DEFAULT_PROFILE.name,
        help=f"the chip's numerics profile{use} (default: %(default)s)",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that judges a kernel; `run` reads them."""
    _add_kernel(parser.add_argument_group("the kernel"))
    judged = parser.add_argument_group("how it is judged")
    judged.add_argument("--strict", action="store_true", help="take NaNs of other bits for a difference")
    judged.add_argument(
        "--sanitize",
        action="store_true",
        help="also watch for races, missing waits, uninitialised values, missing or double writes and the like",
    )
    written = parser.add_argument_group("what is written")
    written.add_argument("--json", metavar="FILE", help="the results as JSON; - for standard output")
    written.add_argument("--junit", metavar="FILE", help="the results as JUnit XML")
    written.add_argument(
        "--report",
        metavar="DIR",
        type=Path,
        help="a page for the browser, with pictures of the first case of each kind that differs, up to "
        f"{REPORTED}; needs matplotlib",
    )
    saving = written.add_mutually_exclusive_group()
    saving.add_argument(
        "--save",
        metavar="DIR",
        type=Path,
        default=Path(FAILURES),
        help="of the first case that differs a smaller one, for `tqgate replay` (default: %(default)s)",
    )
    saving.add_argument(
        "--no-save", dest="save", action="store_const", const=None, help="do not look for a smaller case"
    )


def _add_kernel(group: Any) -> None:
    """What says which kernel is judged."""
    kernel = group.add_mutually_exclusive_group()
    kernel.add_argument(
        "--kernel",
        metavar="MODULE:FUNCTION",
        help="its builder, called as tqkernel.decode.build_tq_decode_module is (default: that function)",
    )
    kernel.add_argument(
        "--listing", metavar="FILE", help="gfx950 assembly as LLVM prints it: a kernel compiled already"
    )
    group.add_argument(
        "--arguments",
        metavar="NAME,...",
        help="its own arguments in order, unless they are "
        + ", ".join(argument.name for argument in KERNEL_ARGUMENTS)
        + " or, for a kernel of FlyDSL tensors, the arrays among these",
    )
    group.add_argument(
        "--backend", choices=BACKENDS, default="emulator", help="where it runs (default: %(default)s)"
    )


def run(tasks: Sequence[Task], options: argparse.Namespace) -> int:
    """Judge one task after the other, print the table, write the files asked for; returns the exit status."""
    for option in ("json", "junit"):
        target = getattr(options, option)
        if target not in (None, STANDARD_OUTPUT):
            require_writable(option, Path(target))
    if options.report is not None:
        _require_folder(options.report)
    progress = Progress(len(tasks), sys.stderr)
    backend = make_backend(options, functools.partial(announce_if_slow, progress))
    # Where JSON goes to standard output, nothing else does.
    stream = sys.stderr if options.json == STANDARD_OUTPUT else sys.stdout
    verdicts, failures = _judge(tasks, backend, options, progress, stream)
    if options.report is not None:
        from tqkernel.page import write_page  # matplotlib is slow to import, and optional

        print(f"report: {write_page(options.report, verdicts, failures)}", file=stream)
    if options.json is not None:
        _write(options.json, json.dumps(as_json(verdicts), indent=1, allow_nan=False) + "\n")
    if options.junit is not None:
        _write(options.junit, as_junit(verdicts))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _judge(
    tasks: Sequence[Task],
    backend: Backend,
    options: argparse.Namespace,
    progress: Progress,
    stream: TextIO,
) -> tuple[list[Verdict], list[Failure]]:
    table = Table([task.name for task in tasks], stream)
    verdicts: list[Verdict] = []
    failures: list[Failure] = []
    most = 1 if options.report is None else REPORTED
    explained: set[str] = set()
    for done, task in enumerate(tasks):
        progress.show(done, task.name)
        verdict = task.judge(backend, strict=options.strict)
        if not verdict.ok and len(failures) < most and task.kind not in explained:
            explained.add(task.kind)
            failures.append(_explained(task, verdict, backend, options))
            verdict = failures[-1].verdict
        verdicts.append(verdict)
        progress.hide()
        table.add(verdict)
        progress.show(done + 1, task.name)
    progress.hide()
    table.finish(verdicts)
    return verdicts, failures


def _explained(task: Task, verdict: Verdict, backend: Backend, options: argparse.Namespace) -> Failure:
    """What is known of a failure, with the commands that show it again."""
    failure = explain(
        verdict,
        task.build(),
        task.hw_v_transpose,
        backend,
        task.profile,
        save=options.save,
        expected=task.expected,
        strict=options.strict,
    )
    kernel = _kernel_arguments(options)
    transpose = "hwtr" if task.hw_v_transpose else "swtr"
    replay = ["replay", str(failure.saved), "--transpose", transpose, *profile_arguments(task.profile)]
    return with_commands(
        failure,
        again=shlex.join(["tqgate", *task.command, *kernel]),
        replay=shlex.join(["tqgate", *replay, *kernel]),
    )


def profile_arguments(profile: Profile) -> list[str]:
    """What of a command line says which profile it is."""
    return [] if profile == DEFAULT_PROFILE else ["--profile", profile.name]


def _kernel_arguments(options: argparse.Namespace) -> list[str]:
    """What of a command line says which kernel is judged, and how."""
    named = [(name, getattr(options, name)) for name in ("kernel", "listing", "arguments")]
    arguments = [part for name, value in named if value is not None for part in (f"--{name}", value)]
    backend = [] if options.backend == "emulator" else ["--backend", options.backend]
    flags = [f"--{name}" for name in ("strict", "sanitize") if getattr(options, name)]
    return [*backend, *arguments, *flags]


def require_writable(option: str, path: Path) -> None:
    """Find out before the work, not after it."""
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"--{option}: {reason(error)}") from error
    if is_new:
        path.unlink()


def _require_folder(path: Path) -> None:
    """Find out before the work that a report can be drawn, and written there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--report: expected matplotlib, got no such package: pip install 'tqgate[report]'")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report: {reason(error)}") from error


def _write(target: str, text: str) -> None:
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


# --- where the kernel runs -------------------------------------------------------------------------------

Announce = Callable[[str], Any]
"""A context manager entered, with a line that says what is being done, around what may take long."""


def make_backend(options: argparse.Namespace, announce: Announce) -> Backend:
    """The backend that the options name, with the kernel that they name.

    Raises UsageError when there is no such kernel, UnavailableError when there is no such machine.
    """
    return BACKENDS[options.backend](options, announce)


def _emulator(options: argparse.Namespace, announce: Announce) -> Backend:
    from tqkernel.backends.emulator import EmulatorBackend

    arguments = _argument_names(options.arguments)
    if arguments is not None and options.kernel is None and options.listing is None:
        raise UsageError("--arguments: expected with --kernel or --listing, got neither")
    if options.kernel is not None:
        from tqkernel.backends.builder import BuilderBackend

        return BuilderBackend(load_builder(options.kernel), arguments, announce, sanitize=options.sanitize)
    if options.listing is not None:
        listing = _read(options.listing)
        return EmulatorBackend(lambda variant: listing, arguments=arguments, sanitize=options.sanitize)
    return EmulatorBackend(announce=announce, sanitize=options.sanitize)


def _hip(options: argparse.Namespace, announce: Announce) -> Backend:
    from tqkernel.backends.hip import HipBackend

    if options.listing is not None:
        raise UsageError("--listing: expected --backend emulator, got hip, which takes a --kernel")
    if options.sanitize:
        raise UsageError("--sanitize: expected --backend emulator, got hip, where nothing can be watched")
    return HipBackend() if options.kernel is None else HipBackend(load_builder(options.kernel))


BACKENDS: dict[str, Callable[[argparse.Namespace, Announce], Backend]] = {"emulator": _emulator, "hip": _hip}


def load_builder(reference: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules in the working directory are found, too.

    Raises UsageError naming what cannot be found or imported.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise UsageError(f"--kernel: expected module:function, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"--kernel: module {module_name} cannot be imported: {error}") from error
    except Exception as error:
        spec = importlib.util.find_spec(module_name)
        why = blamed(error, (spec and spec.origin) or "")
        raise UsageError(f"--kernel: module {module_name} cannot be imported: {why}") from error
    builder: Any = getattr(module, name, None)
    if not callable(builder):
        raise UsageError(f"--kernel: expected a function {name} in module {module_name}, got {builder!r}")
    return builder


def _argument_names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    known = [argument.name for argument in KERNEL_ARGUMENTS]
    for name in names:
        if name not in known:
            raise UsageError(f"--arguments: expected names from {', '.join(known)}, got {name!r}")
    return names


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--listing: {reason(error, path)}") from error


def announce(line: str) -> Any:
    """`announce_if_slow` where no progress is shown."""
    return announce_if_slow(Progress(1, io.StringIO()), line)


@contextmanager
def announce_if_slow(progress: Progress, line: str) -> Iterator[threading.Timer]:
    """Say on standard error what is being done, once it has taken longer than reading a file would."""

    def speak() -> None:
        progress.hide()
        print(f"tqgate: {line}", file=sys.stderr, flush=True)

    timer = threading.Timer(_SLOW_SECONDS, speak)
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
