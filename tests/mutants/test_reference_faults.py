"""Faults in codec, layout, cache reading and launch plan: each makes the test fail that is there for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .fault import REPOSITORY
from .reference_faults import REFERENCE_FAULTS

QUICK_STEP = 12
SOME_TESTS_FAILED = 1
# pytest rewrites the modules of an installed plugin's distribution, ours, and so would find the original.
ENVIRONMENT = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_names_are_unique() -> None:
    assert len({fault.name for fault in REFERENCE_FAULTS}) == len(REFERENCE_FAULTS)


@pytest.mark.parametrize("fault", REFERENCE_FAULTS, ids=lambda fault: fault.name)
def test_each_fault_can_be_planted(fault) -> None:
    text = (REPOSITORY / fault.where).read_text(encoding="utf-8")
    assert fault.apply(text) != text


def judge(fault, folder: Path, verdict) -> None:
    path = folder / "mutant.py"
    path.write_text(fault.apply((REPOSITORY / fault.where).read_text(encoding="utf-8")), encoding="utf-8")
    module = fault.where.removesuffix(".py").replace("/", ".")
    options = ["-q", "-x", "-m", "", "-p", "no:cacheprovider"]
    finished = subprocess.run(
        [sys.executable, Path(__file__).with_name("planted.py"), module, path, *options, fault.killer],
        cwd=REPOSITORY,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    killer = fault.killer.rpartition("/")[2] if finished.returncode == SOME_TESTS_FAILED else None
    problem = verdict(f"{fault.where}: {fault.name}", killer)
    assert problem is None, f"{problem}\n{finished.stdout}{finished.stderr}"


@pytest.mark.parametrize("fault", REFERENCE_FAULTS[::QUICK_STEP], ids=lambda fault: fault.name)
def test_fault_is_noticed(fault, tmp_path, verdict) -> None:
    judge(fault, tmp_path, verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [f for i, f in enumerate(REFERENCE_FAULTS) if i % QUICK_STEP], ids=lambda fault: fault.name
)
def test_every_fault_is_noticed(fault, tmp_path, verdict) -> None:
    judge(fault, tmp_path, verdict)
