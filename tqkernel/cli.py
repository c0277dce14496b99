"""The `tqgate` command.

Exit status: 0 when all is well, 1 when a bit differs or a kernel does not finish, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tqkernel import bench, explore, fixtures, runner
from tqkernel.backends import KernelError, UnavailableError
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.bench import random_case
from tqkernel.cases import CASES, NamedCase
from tqkernel.compile import compile_listing
from tqkernel.gfx950.audit import audit
from tqkernel.gfx950.statistics import bytes_moved, instruction_counts, resources
from tqkernel.plan import Variant
from tqkernel.runner import UsageError
from tqref import DEFAULT_PROFILE, PROFILES
from tqref.layout import (
    GROUP_TOKENS,
    SUPPORTED_KV_BLOCK_SIZES,
    SUPPORTED_QUERY_GROUP_SIZES,
    TILE_TOKENS,
    TILES_PER_GROUP,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default the process's own) and return its exit status."""
    parser = command_line()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (UsageError, KernelError, UnavailableError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except BrokenPipeError:  # an OSError, too
        # Whoever was reading has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        parser.exit(2, f"{parser.prog}: error: {runner.reason(error)}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"\n{parser.prog}: interrupted\n")
    return status


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, and where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; {self.prog} --help says more\n")


def command_line() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="tqgate",
        description="A bit-exact gate for TurboQuant 4-bit paged attention decode kernels: the compiled gfx950 kernel "
        "is executed on the CPU, and every bit that it writes compared with an oracle's.",
        epilog="Exits 0 when all is well, 1 when a bit differs or a kernel does not finish, 2 for bad usage. "
        "tqgate COMMAND --help says more.",
    )
    parser.add_argument("--version", action="version", version=f"tqgate {_version()}")
    commands = parser.add_subparsers(required=True, title="commands", metavar="COMMAND")
    for add in (_add_check, fixtures.add_commands, explore.add_command, _add_isa, bench.add_command):
        add(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("tqgate")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


# --- check ---------------------------------------------------------------------------------------------


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="run the kernel on named cases and compare every bit with the oracle",
        description="Run the kernel on named cases and compare every bit of its output with the oracle's. "
        "Exits 0 when no bit differs and 1 otherwise.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="case names or globs such as 'ragged_*'; default: all"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    runner.add_profile(parser)
    runner.add_options(parser)
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    selected = _select(options.names)
    if options.list:
        print(*(case.name for case in selected), sep="\n")
        return 0
    if options.listing and not options.names:
        raise UsageError("--listing: name the cases of the variant it is, such as '*_qg8_bs16_hwtr'")
    profile = PROFILES[options.profile]
    named = runner.profile_arguments(profile)
    tasks = [
        runner.Task(
            case.name, case.build, case.variant.hw_v_transpose, profile, ["check", case.name, *named]
        )
        for case in selected
    ]
    return runner.run(tasks, options)


def _select(patterns: Sequence[str]) -> list[NamedCase]:
    """The cases that any of the patterns names; all of them when there is no pattern.

    Raises UsageError for a pattern that names nothing.
    """
    for pattern in patterns:
        if not fnmatch.filter(CASES, pattern):
            raise UsageError(f"no case is called {pattern!r}; tqgate check --list names them all")
    wanted = patterns or ["*"]
    return [case for name, case in CASES.items() if any(fnmatch.fnmatchcase(name, glob) for glob in wanted)]


# --- isa -----------------------------------------------------------------------------------------------


def _add_isa(commands: Any) -> None:
    parser = commands.add_parser(
        "isa",
        help="print the kernel's gfx950 assembly, what a tile costs, or what of a listing is emulated",
        description="Compile one variant of the kernel for gfx950 and print its assembly listing; or, instead, what a "
        "tile costs, or what of a listing is emulated.",
    )
    parser.add_argument(
        "--query-group-size",
        type=int,
        choices=SUPPORTED_QUERY_GROUP_SIZES,
        default=8,
        help="query heads for each KV head (default: %(default)s)",
    )
    parser.add_argument(
        "--kv-block-size",
        type=int,
        choices=SUPPORTED_KV_BLOCK_SIZES,
        default=16,
        help="tokens of a block of the cache (default: %(default)s)",
    )
    parser.add_argument(
        "--hw-v-transpose",
        action="store_true",
        help="transpose values with ds_read_b64_tr_b16, not through a copy in LDS",
    )
    parser.add_argument(
        "--locations",
        action="store_true",
        help="keep the kernel's source lines, as in the listings whose lines verdicts name",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--stats", action="store_true", help="print what a tile costs, counted from an execution"
    )
    instead.add_argument(
        "--audit",
        metavar="LISTING",
        help="print which instructions of this file are emulated exactly, by a model, or not at all; "
        "exits 1 if there are any of the last",
    )
    parser.set_defaults(run=_isa)


def _isa(options: argparse.Namespace) -> int:
    if options.audit is not None:
        return _audit(Path(options.audit))
    variant = Variant(options.query_group_size, options.kv_block_size, options.hw_v_transpose)
    if options.stats:
        return _statistics(variant)
    sys.stdout.write(compile_listing(variant, debug_locations=options.locations))
    return 0


def _audit(path: Path) -> int:
    try:
        rows = audit(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--audit: {runner.reason(error, path)}") from error
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.name:<{width}}  {row.accuracy:<11}  {row.count:>5}  line {row.line}  {row.reason}".rstrip())
    totals = Counter(row.accuracy for row in rows)
    print(", ".join(f"{totals[kind]} {kind}" for kind in ("exact", "modelled", "unsupported")))
    return 1 if totals["unsupported"] else 0


def _statistics(variant: Variant) -> int:
    """What a tile costs: the difference of two executions, one a tile group longer, so that set-up does not count."""
    backend = EmulatorBackend()
    shorter, longer = (
        backend.execute(
            random_case(groups * GROUP_TOKENS, 1, 1, 2, variant), variant.hw_v_transpose, DEFAULT_PROFILE
        )
        for groups in (1, 2)
    )
    print(f"{variant.name}, per tile of {TILE_TOKENS} tokens and wave, from an execution:")
    before, after = instruction_counts(shorter), instruction_counts(longer)
    figures = {name: (after[name] - before[name]) / TILES_PER_GROUP for name in after}
    figures["instructions"] = sum(figures.values())
    moved = bytes_moved(shorter), bytes_moved(longer)
    figures |= {f"{name} bytes": (moved[1][name] - moved[0][name]) / TILES_PER_GROUP for name in moved[0]}
    lost = [int(run.conflicts.sum()) for run in (shorter, longer) if run.conflicts is not None]
    figures["LDS bank conflict cycles"] = (lost[1] - lost[0]) / TILES_PER_GROUP
    for name, value in figures.items():
        print(f"{name:<24} {value:9.1f}")
    print("the whole kernel:")
    for name, count in resources(longer.program).items():
        print(f"{name:<24} {count:>7}")
    return 0
