"""The workflow files load, pin what they use, and run commands that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tqkernel.cli import command_line

ROOT = Path(__file__).parent.parent
WORKFLOWS = [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "docs/examples/gate.yml"]

yaml = pytest.importorskip("yaml")


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def by_name(name: str) -> dict[str, Any]:
    return load(ROOT / f".github/workflows/{name}.yml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_what_every_one_needs(path: Path) -> None:
    workflow = load(path)
    assert workflow["name"] and workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180 and job["runs-on"]
        assert job["steps"][0]["uses"].startswith("actions/checkout@")
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[\w/-]+@v\d+", step.get("uses", "actions/none@v0"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_tqgate_command_parses(path: Path) -> None:
    parser = command_line()
    for step in steps(load(path)):
        words = shlex.split(step.get("run", ""))
        if words and Path(words[0]).name == "tqgate":
            parser.parse_args(words[1:])


def test_the_versions_of_python_are_those_the_package_names() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"Python :: (3\.\d+)", text)
    assert by_name("tests")["jobs"]["tests"]["strategy"]["matrix"]["python-version"] == named


def test_nights_keep_the_examples_that_failed() -> None:
    exploring = by_name("nightly")["jobs"]["exploration"]["steps"]
    (restore,) = [step for step in exploring if step.get("uses", "").startswith("actions/cache/restore")]
    (save,) = [step for step in exploring if step.get("uses", "").startswith("actions/cache/save")]
    assert restore["with"]["path"] == save["with"]["path"] == ".hypothesis"
    assert save["if"] == "always()"
    (uploaded,) = [step for step in exploring if step.get("uses", "").startswith("actions/upload-artifact")]
    assert uploaded["if"] == "failure()" and "fixtures/found" in uploaded["with"]["path"].split()
    prefix = restore["with"]["restore-keys"]
    assert save["with"]["key"].startswith(prefix) and restore["with"]["key"] != prefix


def test_nights_search_elsewhere_and_as_long_as_the_profile_says() -> None:
    commands = [step.get("run", "") for step in by_name("nightly")["jobs"]["exploration"]["steps"]]
    (explore,) = [command for command in commands if command.startswith("tqgate explore")]
    assert "--seed" not in explore
    assert any("tests/properties --hypothesis-profile nightly" in command for command in commands)


def test_the_gpu_runs_no_strangers_code() -> None:
    workflow = by_name("silicon")
    assert "pull_request" not in workflow[True]
    assert set(workflow["jobs"]["gfx950"]["runs-on"]) == {"self-hosted", "linux", "gfx950"}
    assert any("--backend hip" in step.get("run", "") for step in steps(workflow))
