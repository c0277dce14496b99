"""The README's commands, the version and the packaged files agree with one another."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_two_commands_are_the_whole_set_up(readme: str) -> None:
    first, second = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)[:2]
    assert first == "pip install -c constraints.txt . && tqgate check\n"
    assert second == "pip install -c constraints.txt '.[test]' && pytest\n"


def test_ci_runs_the_readmes_test_command(readme: str) -> None:
    """`.ci/run` takes it from there with grep, so exactly one line may match."""
    pattern = re.search(r"test_command=\$\(grep -x '(.*)' README.md\)", (ROOT / ".ci/run").read_text())
    assert pattern is not None
    found = [line for line in readme.splitlines() if re.fullmatch(pattern[1], line)]
    assert found == ["pip install -c constraints.txt '.[test]' && pytest"]


def test_ci_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=True)


def test_the_version_stands_in_one_place() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sources = [*ROOT.glob("tq*/**/*.py"), ROOT / "README.md"]
    assert [path for path in sources if f'"{version}"' in path.read_text()] == []


def test_the_pinned_torch_is_one_the_project_accepts() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    accepted = next(r for r in map(Requirement, project["dependencies"]) if r.name == "torch").specifier
    (pin,) = [
        Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert pin.name == "torch"
    assert next(iter(pin.specifier)).version in accepted
