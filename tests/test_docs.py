"""Every command in the docs runs, and prints what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pytest

from tqkernel.cases import CASES, fixtures_directory
from tqkernel.cli import command_line
from tqkernel.fixture_cases import FIXTURE_CASES
from tqref import DEFAULT_PROFILE, PROFILES, GroupedDot

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


class Command(NamedTuple):
    line: str
    output: str | None
    status: int


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


def commands(language: str, content: str) -> Iterator[Command]:
    """Of a console block with their output, of a sh block without."""
    if language == "sh":
        for line in content.splitlines():
            yield Command(line, None, int("# exits 1" in line))
    if language == "console":
        for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            status = 2 if "error: " in output else int(bool(re.search("FAILED|failed", output)))
            yield Command(line, output, status)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which `tqgate`, `python` and `pytest` are this checkout's and this interpreter's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("tqgate", "tqkernel"), ("pytest", "pytest -p tqkernel.pytest_plugin")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    alone = {"PYTHONPATH": str(ROOT), "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120"}
    return os.environ | alone


def plain(text: str) -> str:
    """Output without what differs between two runs: times, and the padding that follows from them."""
    text = re.sub(r"\b\d+\.\d+(?=$| s$)|\b\d+\.\d+s", "TIME", text, flags=re.MULTILINE)
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())


def pattern(text: str) -> re.Pattern[str]:
    """What output the docs show: `...` alone stands for any lines, none included, within a line for anything."""
    lines = (
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
        for line in plain(text).splitlines()
    )
    return re.compile("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_commands_do_what_the_docs_say(path: Path, environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    for language, content in blocks(path.read_text()):
        named = re.match(r"# (\w+\.py)\n", content)
        if language == "python" and named:
            (folder / named[1]).write_text(content)
    for language, content in blocks(path.read_text()):
        if language == "sh" and path.parent == ROOT:
            continue  # in the README they install things, need a GPU or name any file: see the test after this one
        for command in commands(language, content):
            done = subprocess.run(
                ["bash", "-c", command.line], cwd=folder, env=environment, capture_output=True, text=True
            )
            said = f"{command.line}\n{done.stdout}{done.stderr}"
            assert done.returncode == command.status, said
            assert "Traceback" not in done.stderr, said
            if command.output is not None:
                got = done.stdout if command.status < 2 else done.stderr.splitlines()[-1]
                assert pattern(command.output).fullmatch(plain(got)), said


def test_the_readmes_other_commands_are_understood() -> None:
    lines = [line for language, content in blocks((ROOT / "README.md").read_text()) if language == "sh"
             for line in content.splitlines() if line.startswith("tqgate ")]  # fmt: skip
    assert len(lines) > 10
    for line in lines:
        command_line().parse_args(shlex.split(line, comments=True)[1:])


def test_the_profiles_are_those_documented() -> None:
    text = (DOCS / "numerics.md").read_text()
    assert re.findall(r"^\| `([\w-]+@\d+)`", text, re.MULTILINE) == [profile.key for profile in PROFILES.values()]
    assert f"| `{DEFAULT_PROFILE.key}`, the default |" in text
    assert isinstance(DEFAULT_PROFILE.dot, GroupedDot)
    written = {name: int(number) for name, number in re.findall(r"`(\w+_fraction)` =\s(\d+)", text)}
    written["group"] = int(re.findall(r"`group`, (\d+)", text)[0])
    assert written == asdict(DEFAULT_PROFILE.dot)


def test_the_table_of_cases_is_complete() -> None:
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| kind |") : text.index("## Fixtures")]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall("`(.*?)`", row)]
    assert sorted(named) == sorted({case.name.removesuffix(f"_{case.variant.name}") for case in CASES.values()})


def test_the_table_of_fixtures_is_complete() -> None:
    text = (DOCS / "fixtures.md").read_text()
    table = text[text.index("| fixtures |") : text.index("## The file")]
    sizes = {"every": 4, "two": 2, "one": 1}
    listed = {}
    for names, size in re.findall(r"^\| (`.*?`) \| (\w+) \|", table, re.MULTILINE):
        listed |= dict.fromkeys(re.findall("`(.*?)`", names), sizes[size])
    kinds = [name.rsplit("_", 2)[0] for name in FIXTURE_CASES]
    assert listed == {kind: kinds.count(kind) for kind in kinds}


def test_the_description_of_the_file_is_complete() -> None:
    from tqref.archive import load_archive

    header, arrays = load_archive(fixtures_directory() / "sizes_qg8_bs16.npz")
    text = (DOCS / "fixtures.md").read_text()
    described = set(re.findall("`(.*?)`", text[text.index("## The file") :]))
    assert {"header.json", *header, *arrays} <= described


def test_the_readme_names_every_document() -> None:
    linked = re.findall(r"^\| \[.*?\]\(docs/(.*?)\)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in DOCS.glob("*.md"))


def test_links_lead_somewhere() -> None:
    for document in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
