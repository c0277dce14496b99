"""The plugin, as a kernel's own repository sees it: every test runs pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tqkernel.decode
from tqkernel.cases import CASES

ROOT = Path(__file__).parents[2]
GATE = "def test_kernel(tq_case, tq_gate):\n    tq_gate(tq_case)\n"
BACKEND = """
import dataclasses
import pytest
from tqkernel.gate import oracle

class Oracle:
    name = "fake"

    def run(self, case, hw_v_transpose, profile):
        partials = oracle(case, profile)
        if case.name == "far_qg8_bs16_hwtr":
            out = partials.out.copy()
            out[0, 0, 0, 0, 5] ^= 1
            partials = dataclasses.replace(partials, out=out)
        return partials

@pytest.fixture(scope="session")
def tq_backend():
    return Oracle()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write files into a fresh folder and run pytest there, with this plugin and no other."""

    def run(*arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
        for stem, text in files.items():
            suffix = ".toml" if stem == "pyproject" else ".py"
            (tmp_path / (stem + suffix)).write_text(text)
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "150"}
        # Where these are set, pytest repeats whole messages in its summary.
        inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
        plugins = ["-p", "tqkernel.pytest_plugin", "-p", "no:cacheprovider"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *arguments],
            cwd=tmp_path,
            env=inherited | alone,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_one_test_for_each_case(run: Run) -> None:
    collected = run("--collect-only", "-q", test_gate=GATE)
    assert collected.returncode == 0, collected.stdout
    assert "test_gate.py::test_kernel[ragged_qg16_bs32_hwtr]" in collected.stdout
    assert f"{len(CASES)} tests collected" in collected.stdout


def test_a_wrong_bit_fails_with_its_place_and_no_traceback(run: Run) -> None:
    done = run("--tq-cases", "far_qg8_*", test_gate=GATE, conftest=BACKEND)
    assert done.returncode == 1
    assert "1 failed, 3 passed" in done.stdout
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "far_qg8_bs16_hwtr: 1 of 101376 bits differ" in lines
    (first,) = [line for line in lines if line.startswith("first: ")]
    assert first.startswith("first: out[sequence 0, head 0, partition 0, row 0, dim 5]: kernel 0x")
    assert "worst: 1 ulp apart" in lines
    assert "Traceback" not in done.stdout and "def gate" not in done.stdout


def test_the_mark_beats_the_option_beats_the_configuration(run: Run) -> None:
    marked = '@__import__("pytest").mark.tq_cases("far_qg8_bs32_*", "nan_query_qg8_bs16_hwtr")\n' + GATE
    pyproject = '[tool.pytest.ini_options]\ntq_cases = ["ragged_qg8_bs16_*"]\naddopts = "--strict-markers"\n'

    def collected(*arguments: str, **files: str) -> list[str]:
        done = run("--collect-only", "-q", *arguments, pyproject=pyproject, **files)
        return re.findall(r"\[(.*)\]", done.stdout)

    far = ["far_qg8_bs32_swtr", "far_qg8_bs32_hwtr"]
    assert collected("--tq-cases", "*", test_gate=marked) == [*far, "nan_query_qg8_bs16_hwtr"]
    optional = collected("--tq-cases", "minilm_tg1_qg8_bs16_hwtr", test_gate=GATE)
    assert optional == ["minilm_tg1_qg8_bs16_hwtr"]
    assert collected(test_gate=GATE) == ["ragged_qg8_bs16_swtr", "ragged_qg8_bs16_hwtr"]


def test_an_unknown_case_is_a_usage_error(run: Run) -> None:
    done = run("--tq-cases", "nothing_*", test_gate=GATE)
    assert done.returncode != 0
    assert "no tqgate case is called 'nothing_*'" in done.stdout + done.stderr


def test_a_case_of_ones_own_and_its_verdict(run: Run) -> None:
    own = """
import pytest
from tqkernel.cases import CASES
from tqref import PROFILES

def test_own(tq_gate):
    case = CASES["ragged_qg8_bs16_hwtr"].build()
    verdict = tq_gate(case, hw_v_transpose=True, profile=PROFILES["fma-chain"])
    assert verdict.ok and verdict.profile.startswith("fma-chain@")
    with pytest.raises(TypeError, match="hw_v_transpose"):
        tq_gate(case)
"""
    done = run(test_own=own, conftest=BACKEND)
    assert done.returncode == 0, done.stdout


def test_the_decode_kernel_on_the_emulator(run: Run) -> None:
    done = run("--tq-backend", "emulator", "--tq-cases", "far_qg8_bs16_hwtr", test_gate=GATE)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_failure_says_where_in_the_kernel_it_comes_from(run: Run) -> None:
    source = Path(tqkernel.decode.__file__).read_text()
    planted = source.replace("LOG2E = 1.4426950408889634", "LOG2E = 1.4426952")
    assert planted != source
    build = ["--tq-kernel", "planted:build_tq_decode_module", "--tq-cases", "far_qg8_bs16_hwtr"]
    done = run(*build, test_gate=GATE, planted=planted)
    assert done.returncode == 1
    assert re.search(r"parts: probability, tile at token \d+, token \d+, row \d: kernel 0x", done.stdout)
    assert "(planted.py:" in done.stdout and "saved as" not in done.stdout


def test_a_kernel_named_in_the_configuration_is_what_runs(run: Run) -> None:
    builder = "def build(**parameters):\n    raise ZeroDivisionError(sorted(parameters))\n"
    pyproject = '[tool.pytest.ini_options]\ntq_kernel = "mine:build"\ntq_cases = ["far_qg8_bs16_hwtr"]\n'
    done = run(test_gate=GATE, mine=builder, pyproject=pyproject)
    assert done.returncode == 1
    assert "tqgate: kernel: cannot be built for far_qg8_bs16_hwtr: ZeroDivisionError: " in done.stdout
    assert "use_hw_v_transpose" in done.stdout and "Traceback" not in done.stdout
    missing = run("--tq-kernel", "absent:build")
    assert "--kernel: module absent cannot be imported" in missing.stdout


def test_no_gpu_is_said_in_one_line(run: Run) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.hip is not None and torch.cuda.is_available():
        pytest.skip("there may be a gfx950 here")
    done = run("--tq-backend", "hip", "--tq-cases", "far_qg8_bs16_hwtr", test_gate=GATE)
    assert done.returncode == 1
    assert "tqgate: backend hip: expected " in done.stdout
    assert "Traceback" not in done.stdout


def test_loading_the_plugin_imports_nothing_heavy(run: Run) -> None:
    light = """
import sys

def test_light():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"numpy", "numba", "torch", "flydsl", "tqref"}
"""
    assert run(test_light=light).returncode == 0
