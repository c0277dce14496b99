"""A pytest plugin, with which a kernel's own repository gates it.

    def test_kernel(tq_case, tq_gate):
        tq_gate(tq_case)

is one test for each named case. Nothing is imported before a test asks for it.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tqkernel.backends import Backend
    from tqkernel.cases import NamedCase
    from tqkernel.verdict import Verdict
    from tqref import Case, Profile


def pytest_addoption(parser: pytest.Parser) -> None:
    """Command line options, and their defaults in the configuration file."""
    group = parser.getgroup("tqgate")
    group.addoption(
        "--tq-backend",
        choices=("emulator", "hip"),
        default="emulator",
        help="where tq_gate runs the kernel (default: emulator)",
    )
    group.addoption(
        "--tq-kernel",
        metavar="MODULE:FUNCTION",
        help="builder of the kernel to judge, as in tqgate check --kernel",
    )
    group.addoption(
        "--tq-cases",
        metavar="NAME",
        action="append",
        help="case names or globs, as in tqgate check, for tests that have no mark of their own; repeatable",
    )
    parser.addini("tq_kernel", "builder of the kernel to judge, module:function")
    parser.addini("tq_cases", "names or globs of the cases that tq_case stands for", type="args")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", "tq_cases(*names): the cases, by name or glob, that tq_case stands for in this test"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case: those of the mark, of the command line, of the configuration file, or all."""
    if "tq_case" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("tq_cases")
    config = metafunc.config
    patterns = list(mark.args) if mark else config.getoption("tq_cases") or config.getini("tq_cases") or ["*"]
    cases = _select(patterns)
    metafunc.parametrize("tq_case", cases, ids=[case.name for case in cases])


def _select(patterns: list[str]) -> list[NamedCase]:
    from tqkernel.cases import CASES

    for pattern in patterns:
        if not fnmatch.filter(CASES, pattern):
            raise pytest.UsageError(
                f"no tqgate case is called {pattern!r}; tqgate check --list names them all"
            )
    return [case for name, case in CASES.items() if any(fnmatch.fnmatchcase(name, glob) for glob in patterns)]


@pytest.fixture(scope="session")
def tq_backend(pytestconfig: pytest.Config) -> Backend:
    """Where `tq_gate` runs the kernel. Override it with any other `tqkernel.backends.Backend`."""
    from tqkernel import runner
    from tqkernel.backends import UnavailableError

    parser = argparse.ArgumentParser()
    runner.add_options(parser)
    kernel = pytestconfig.getoption("tq_kernel") or pytestconfig.getini("tq_kernel")
    named = ["--kernel", kernel] if kernel else []
    options = parser.parse_args(["--backend", pytestconfig.getoption("tq_backend"), *named])
    if str(pytestconfig.rootpath) not in sys.path:
        sys.path.insert(0, str(pytestconfig.rootpath))
    try:
        return runner.make_backend(options, runner.announce)
    except (runner.UsageError, UnavailableError) as error:
        pytest.fail(f"tqgate: {error}", pytrace=False)


@pytest.fixture
def tq_gate(tq_backend: Backend) -> Callable[..., Verdict]:
    """A function that judges the kernel on a case, and fails the test unless every bit agrees.

    It takes a named case, or a `tqref.Case` and `hw_v_transpose`, which of the kernel's two ways to transpose
    values to run; `profile` (a `tqref.Profile`) and `strict` as `tqkernel.gate.run_case` does. It returns the
    verdict. On the emulator a failure says where inside the kernel it comes from.
    """

    def gate(
        case: NamedCase | Case,
        hw_v_transpose: bool | None = None,
        profile: Profile | None = None,
        strict: bool = False,
    ) -> Verdict:
        from tqkernel.backends import KernelError
        from tqkernel.explain import explain
        from tqkernel.gate import run_case
        from tqkernel.report import describe
        from tqref import DEFAULT_PROFILE, Case

        profile = profile or DEFAULT_PROFILE

        if not isinstance(case, Case):
            hw_v_transpose = case.variant.hw_v_transpose
            case = case.build()
        elif hw_v_transpose is None:
            raise TypeError("hw_v_transpose: expected a bool with a Case, got none")
        try:
            verdict = run_case(case, hw_v_transpose, tq_backend, profile, strict=strict)
        except KernelError as error:
            pytest.fail(f"tqgate: {error}", pytrace=False)
        if not verdict.ok:
            explained = explain(verdict, case, hw_v_transpose, tq_backend, profile, strict=strict).verdict
            pytest.fail(describe(explained), pytrace=False)
        return verdict

    return gate
