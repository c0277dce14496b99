"""The `tqgate` command.

Exit status: 0 when all is well, 1 when a bit differs or a kernel does not finish, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Any

from tqkernel import bench, explore, fixtures, runner
from tqkernel.backends import Backend, KernelError, UnavailableError
from tqkernel.cases import CASES, NamedCase
from tqkernel.compile import compile_listing
from tqkernel.gate import Verdict, run_case
from tqkernel.plan import Variant
from tqkernel.runner import UsageError
from tqref import DEFAULT_PROFILE, PROFILES
from tqref.layout import SUPPORTED_KV_BLOCK_SIZES, SUPPORTED_QUERY_GROUP_SIZES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default the process's own) and return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (UsageError, KernelError, UnavailableError) as error:
        parser.error(str(error))
    except BrokenPipeError:
        # Whoever was reading has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tqgate",
        description="A bit-exact gate for TurboQuant 4-bit decode kernels on gfx950, with no GPU.",
    )
    parser.add_argument("--version", action="version", version=f"tqgate {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_check, _add_isa, explore.add_command, bench.add_command, fixtures.add_commands):
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
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=DEFAULT_PROFILE.name,
        help="the chip's arithmetic (default: %(default)s)",
    )
    runner.add_options(parser)
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    selected = _select(options.names)
    if options.list:
        print(*(case.name for case in selected), sep="\n")
        return 0
    if options.listing and not options.names:
        raise UsageError("--listing: name the cases of the variant it is, such as '*_qg8_bs16_hwtr'")
    tasks = [runner.Task(case.name, functools.partial(_judge, case, options)) for case in selected]
    return runner.run(tasks, options)


def _judge(case: NamedCase, options: argparse.Namespace, backend: Backend) -> Verdict:
    return run_case(
        case.build(), case.variant.hw_v_transpose, backend, PROFILES[options.profile], strict=options.strict
    )


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
        help="print the kernel's gfx950 assembly",
        description="Compile one variant of the kernel for gfx950 and print its assembly listing.",
    )
    parser.add_argument(
        "--query-group-size",
        type=int,
        choices=SUPPORTED_QUERY_GROUP_SIZES,
        default=8,
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--kv-block-size",
        type=int,
        choices=SUPPORTED_KV_BLOCK_SIZES,
        default=16,
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--hw-v-transpose", action="store_true", help="transpose values with ds_read_b64_tr_b16"
    )
    parser.set_defaults(run=_isa)


def _isa(options: argparse.Namespace) -> int:
    sys.stdout.write(
        compile_listing(Variant(options.query_group_size, options.kv_block_size, options.hw_v_transpose))
    )
    return 0
