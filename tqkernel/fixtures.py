"""Regression fixtures: a case and the bits that its decode must have, in a file that any language can read.

A fixture is a .npz (a zip of .npy arrays) with a `header.json`; equal fixtures have equal bytes. It knows no
transpose path: both of the kernel's must give its bits. A folder of fixtures has a manifest, which gives the
SHA-256 of each file, so that neither an input nor an expected bit changes unnoticed.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqkernel import runner
from tqkernel.cases import CASES, fixtures_directory
from tqkernel.fixture_cases import FIXTURE_CASES
from tqkernel.gate import compare, oracle
from tqkernel.runner import UsageError
from tqref import DEFAULT_PROFILE, PROFILES, Case, Partials, Profile, combine
from tqref.archive import load_archive, save_archive

FORMAT = "tqgate-fixture"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_BYTES = 700_000
"""Of one fixture: a repository is no place for large ones."""
SUFFIX = ".npz"

_CASE_FIELDS = tuple(field.name for field in fields(Case) if field.init)
_OUTPUTS = ("out", "exp_sums", "max_logits")
_EXPECTED = "expected_"
_COMBINED = "expected_output"


class FixtureError(UsageError):
    """A file is no fixture, a damaged one, or not the one its manifest lists. Names the file."""


@dataclass(frozen=True, eq=False)
class Fixture:
    """A case and the bits of its decode under one profile.

    expected: what the kernel writes. output: float32[N, Hk * QG, 128], its partitions combined.
    profile: name@version of the numerics profile under which these bits are right.
    """

    case: Case
    expected: Partials
    output: NDArray[np.float32]
    profile: str

    @classmethod
    def derive(cls, case: Case, profile: Profile = DEFAULT_PROFILE) -> Fixture:
        """The fixture of a case, its bits from the oracle."""
        expected = oracle(case, profile)
        return cls(case, expected, combine(expected), profile.key)

    def save(self, path: str | Path) -> None:
        """Write to a .npz at `path`. Equal fixtures give equal bytes."""
        values = {name: getattr(self.case, name) for name in _CASE_FIELDS}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        header = {name: value for name, value in values.items() if name not in arrays}
        header |= {"format": FORMAT, "format_version": FORMAT_VERSION, "profile": self.profile}
        outputs = {_EXPECTED + name: getattr(self.expected, name) for name in _OUTPUTS}
        save_archive(path, header, arrays | outputs | {_COMBINED: self.output})

    @classmethod
    def load(cls, path: str | Path) -> Fixture:
        """Read what `save` wrote.

        Raises FixtureError naming the file and what is wrong with it.
        """
        try:
            header, arrays = load_archive(path)
            marker = header.pop("format", None), header.pop("format_version", None)
            if marker != (FORMAT, FORMAT_VERSION):
                raise ValueError(
                    f"{path}: expected {FORMAT} version {FORMAT_VERSION}, got {marker[0]} {marker[1]}"
                )
        except OSError as error:
            raise FixtureError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise FixtureError(str(error)) from error
        try:
            return cls._from_entries(header | arrays)
        except (TypeError, ValueError) as error:
            raise FixtureError(f"{path}: {error}") from error

    @classmethod
    def _from_entries(cls, entries: Mapping[str, Any]) -> Fixture:
        expected_names = [_EXPECTED + name for name in _OUTPUTS]
        wanted = {*_CASE_FIELDS, *expected_names, _COMBINED, "profile"}
        if wanted != set(entries):
            missing, unknown = sorted(wanted - set(entries)), sorted(set(entries) - wanted)
            raise ValueError(f"expected the entries of a {FORMAT}, got none of {missing} but {unknown}")
        case = Case(**{name: entries[name] for name in _CASE_FIELDS})
        rows = (case.num_sequences, case.num_kv_heads, case.num_partitions, case.query_group_size)
        head_size = case.query.shape[-1]
        _check_array(entries, "expected_out", np.uint16, (*rows, head_size))
        _check_array(entries, "expected_exp_sums", np.float32, rows)
        _check_array(entries, "expected_max_logits", np.float32, rows)
        _check_array(entries, _COMBINED, np.float32, case.query.shape)
        if not isinstance(entries["profile"], str):
            raise TypeError(f"profile: expected a str, got {type(entries['profile']).__name__}")
        expected = Partials(**{name: entries[_EXPECTED + name] for name in _OUTPUTS})
        return cls(case, expected, entries[_COMBINED], entries["profile"])


def _check_array(
    entries: Mapping[str, Any], name: str, dtype: type[np.generic], shape: tuple[int, ...]
) -> None:
    array = entries[name]
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name}: expected {np.dtype(dtype)}{list(shape)}, got {got}")


def profile_of(key: str) -> Profile:
    """The profile called name@version. Raises KeyError when there is none of that name and version."""
    return {profile.key: profile for profile in PROFILES.values()}[key]


# --- the manifest ----------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest(folder: Path) -> dict[str, str]:
    """SHA-256 of each listed file by name; nothing when the folder has no manifest.

    Raises FixtureError when the manifest cannot be read as one.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = manifest["files"]
        if not all(isinstance(sha, str) for sha in files.values()):
            raise TypeError("not all of them strings")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FixtureError(f"{path}: expected SHA-256 by name in files, got something else ({error})") from error
    return dict(files)


def write_manifest(folder: Path, files: Mapping[str, str]) -> None:
    """Write the manifest, sorted by name."""
    text = json.dumps({"format": FORMAT, "files": dict(sorted(files.items()))}, indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def load_listed(path: Path) -> Fixture:
    """Load a fixture; when a manifest beside it lists it, its bytes must be the listed ones.

    Raises FixtureError.
    """
    listed = read_manifest(path.parent).get(path.name)
    fixture = Fixture.load(path)
    if listed is not None and digest(path) != listed:
        raise FixtureError(
            f"{path}: expected the bytes that {MANIFEST} lists, got others; "
            "tqgate fixtures verify says what changed"
        )
    return fixture


# --- replay ----------------------------------------------------------------------------------------------

_TRANSPOSES = {"swtr": False, "hwtr": True}


def _replay(options: argparse.Namespace) -> int:
    paths = _select(options.files or ["*"], options.folder)
    if options.list:
        print(*(path.stem for path in paths), sep="\n")
        return 0
    loaded = [(path, _load(path, PROFILES[options.profile])) for path in paths]
    for path, fixture in loaded:
        try:
            profile_of(fixture.profile)
        except KeyError:
            known = ", ".join(profile.key for profile in PROFILES.values())
            raise FixtureError(f"{path}: expected a profile of {known}, got {fixture.profile}") from None
    chosen = _TRANSPOSES if options.transpose == "both" else [options.transpose]
    tasks = [task_of(fixture, transpose, path) for path, fixture in loaded for transpose in chosen]
    return runner.run(tasks, options)


def _load(path: Path, profile: Profile) -> Fixture:
    """A fixture, or a saved case with its bits from the oracle under `profile`. Raises FixtureError."""
    if not path.is_file() or _is_fixture(path):
        return load_listed(path)
    try:
        return Fixture.derive(Case.load(path), profile)
    except ValueError as error:
        raise FixtureError(str(error)) from error


def task_of(fixture: Fixture, transpose: str, path: Path) -> runner.Task:
    """To run the case of a fixture, kept at `path`, and compare with its bits. transpose: `hwtr` or `swtr`."""
    name = fixture.case.name.removesuffix(f"_{transpose}")
    return runner.Task(
        f"{name}_{transpose}",
        lambda: fixture.case,
        _TRANSPOSES[transpose],
        profile_of(fixture.profile),
        ["replay", os.path.relpath(path), "--transpose", transpose],
        fixture.expected,
    )


def _select(names: Sequence[str], folder: Path) -> list[Path]:
    """The fixtures that are called so: listed in the folder, by name or glob, or files.

    Raises UsageError for a name that means nothing.
    """
    _require_fixtures(folder)
    listed = [folder / name for name in sorted(read_manifest(folder))]
    paths: list[Path] = []
    for name in names:
        found = [path for path in listed if fnmatch.fnmatchcase(path.stem, name)]
        if not found and not name.endswith(SUFFIX):
            raise UsageError(f"{folder}: no fixture is called {name!r}; tqgate replay --list names them all")
        paths += found or [Path(name)]
    return list(dict.fromkeys(paths))


# --- record ----------------------------------------------------------------------------------------------


def _record(options: argparse.Namespace) -> int:
    if options.list:
        print(*FIXTURE_CASES, sep="\n")
        return 0
    names = list(FIXTURE_CASES) if options.all else options.names
    if not names:
        raise UsageError("record: expected the name of a case, a case file or --all, got none")
    folder: Path = options.folder
    manifest = read_manifest(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        case = _case_called(name)
        path = folder / (case.name + SUFFIX)
        if path.exists() and not options.accept:
            raise UsageError(f"{path}: expected no such fixture yet, got one; --accept replaces it")
        _save_small(Fixture.derive(case, PROFILES[options.profile]), path)
        manifest[path.name] = digest(path)
        write_manifest(folder, manifest)
        print(f"recorded {path} ({path.stat().st_size} bytes)")
    return 0


def _save_small(fixture: Fixture, path: Path) -> None:
    """Write the fixture unless its file would be too large; then whatever was there stays."""
    temporary = path.with_suffix(".tmp")
    fixture.save(temporary)
    size = temporary.stat().st_size
    if size > MAX_BYTES:
        temporary.unlink()
        raise UsageError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}; record a smaller case")
    temporary.replace(path)


def _case_called(name: str) -> Case:
    """The case that `name` names: one of the fixtures' cases, one of `tqgate check`'s, or a saved case."""
    if name in FIXTURE_CASES:
        return FIXTURE_CASES[name]()
    if name in CASES:
        return CASES[name].build()
    try:
        case = Case.load(name)
    except FileNotFoundError:
        raise UsageError(
            f"no case and no file is called {name!r}; "
            "tqgate record --list and tqgate check --list name the cases"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    if not case.name or Path(case.name).name != case.name:
        raise UsageError(f"{name}: expected a case whose name can be a file's, got {case.name!r}")
    return case


# --- verify ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """Something about one file that is not as it was recorded.

    repaired: what to record instead, if that is accepted. fatal: nothing can be.
    """

    file: str
    text: str
    repaired: Fixture | None = None
    fatal: bool = False


def verify(folder: Path) -> Iterator[Finding]:
    """Check every fixture of a folder: its entry in the manifest, and each bit against the oracle."""
    listed = read_manifest(folder)
    unlisted = {path.name for path in folder.glob("*" + SUFFIX) if _is_fixture(path)} - set(listed)
    for name in sorted(listed.keys() | unlisted):
        path = folder / name
        if not path.exists():
            yield Finding(name, f"listed in {MANIFEST}, but there is no such file")
            continue
        if name in unlisted:
            yield Finding(name, f"not listed in {MANIFEST}")
        elif digest(path) != listed[name]:
            yield Finding(name, f"SHA-256 is {digest(path)}, {MANIFEST} lists {listed[name]}")
        try:
            fixture = Fixture.load(path)
        except FixtureError as error:
            yield Finding(name, str(error).removeprefix(f"{path}: "), fatal=True)
            continue
        yield from _changes(name, fixture)


def _is_fixture(path: Path) -> bool:
    """Whether a file that no manifest lists calls itself a fixture; the folder also holds recorded text."""
    try:
        header, _ = load_archive(path)
    except (OSError, ValueError):
        return False
    return header.get("format") == FORMAT


def _changes(name: str, fixture: Fixture) -> Iterator[Finding]:
    """What the oracle says otherwise than the fixture."""
    profile_name = fixture.profile.partition("@")[0]
    if profile_name not in PROFILES:
        yield Finding(name, f"there is no profile {fixture.profile}", fatal=True)
        return
    derived = Fixture.derive(fixture.case, PROFILES[profile_name])
    if derived.profile != fixture.profile:
        yield Finding(name, f"recorded under {fixture.profile}, which is {derived.profile} now", derived)
    found = compare(fixture.expected, derived.expected, strict=True)
    if found.bits_differing:
        first = str(found.first).replace("kernel", "oracle now", 1).replace(", oracle 0x", ", recorded 0x")
        yield Finding(name, f"{found.bits_differing} bits change, first: {first}", derived)
    changed = fixture.output.view(np.uint32) ^ derived.output.view(np.uint32)
    if changed.any():
        sequence, head, dim = np.argwhere(changed)[0].tolist()
        bits = int(np.bitwise_count(changed).sum())
        before, after = (side.output.view(np.uint32)[sequence, head, dim] for side in (fixture, derived))
        yield Finding(
            name,
            f"{bits} bits of the combined output change, first: output[sequence {sequence}, query head "
            f"{head}, dim {dim}]: oracle now 0x{after:08x}, recorded 0x{before:08x}",
            derived,
        )


def _require_fixtures(folder: Path) -> None:
    """Raise UsageError for a folder without any: to find nothing wrong there would mean nothing."""
    if not read_manifest(folder) and not any(folder.glob("*" + SUFFIX)):
        raise UsageError(f"--folder: expected a folder of fixtures, got none in {folder}; tqgate record makes one")


def _verify(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    _require_fixtures(folder)
    findings = list(verify(folder))
    for finding in findings:
        print(f"{finding.file}: {finding.text}")
    affected = {finding.file for finding in findings}
    count = len(read_manifest(folder).keys() | affected)
    if not findings:
        print(f"ok: {count} fixtures")
        return 0
    if not options.accept:
        print(f"FAILED: {len(affected)} of {count} fixtures; --accept records them as they are now")
        return 1
    unreadable = {finding.file for finding in findings if finding.fatal}
    _accept(folder, findings, unreadable)
    print(f"accepted: {len(affected - unreadable)} fixtures", end="")
    print(f"; unreadable, left alone: {', '.join(sorted(unreadable))}" if unreadable else "")
    return 1 if unreadable else 0


def _accept(folder: Path, findings: Sequence[Finding], unreadable: set[str]) -> None:
    """Write the repaired fixtures, and a manifest of what is there."""
    manifest = read_manifest(folder)
    for finding in findings:
        path = folder / finding.file
        if finding.file in unreadable:
            continue
        if finding.repaired is not None:
            finding.repaired.save(path)
        if path.exists():
            manifest[finding.file] = digest(path)
        else:
            manifest.pop(finding.file, None)
    write_manifest(folder, manifest)


# --- the commands ----------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Register `tqgate replay`, `record` and `fixtures` with an argparse subparsers object."""
    _add_replay(commands)
    _add_record(commands)
    parser = commands.add_parser(
        "fixtures",
        help="check the fixtures themselves",
        description="Check the fixtures themselves. No kernel is run.",
    )
    verbs = parser.add_subparsers(required=True, title="commands", metavar="COMMAND")
    parser = verbs.add_parser(
        "verify",
        help="check the manifest, and every expected bit against the oracle",
        description="Check the manifest of the fixtures, and derive every expected bit anew from the oracle. "
        "Prints what changed, and exits 1 if anything did.",
    )
    _add_folder(parser)
    parser.add_argument("--accept", action="store_true", help="take what changed for right, and write it")
    parser.set_defaults(run=_verify)


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="run the kernel on fixtures and compare every bit with those stored",
        description="Run the kernel on fixtures and compare every bit of its output with the stored ones, on "
        "both transpose paths. A saved case has no stored bits: it is compared with the oracle. "
        "Exits 0 when no bit differs and 1 otherwise.",
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="NAME",
        help="fixtures of the folder, by name or glob such as 'far_*', or .npz files of fixtures or saved cases; "
        "default: the whole folder",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the fixtures and stop")
    _add_folder(parser)
    parser.add_argument(
        "--transpose",
        choices=(*_TRANSPOSES, "both"),
        default="both",
        help="how values are transposed: through a copy in LDS, by hardware, or one after the other "
        "(default: %(default)s)",
    )
    runner.add_profile(parser, ", for saved cases; fixtures name theirs")
    runner.add_options(parser)
    parser.set_defaults(run=_replay)


def _add_record(commands: Any) -> None:
    parser = commands.add_parser(
        "record",
        help="add a fixture",
        description="Add a fixture: a case, and the bits that the oracle says its decode must have.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a case of record --list or check --list, or a file that holds a saved case",
    )
    parser.add_argument("--all", action="store_true", help="every case of record --list")
    parser.add_argument("--list", action="store_true", help="print the names of the fixtures' cases and stop")
    runner.add_profile(parser)
    parser.add_argument("--accept", action="store_true", help="replace fixtures of the same name")
    _add_folder(parser)
    parser.set_defaults(run=_record)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=fixtures_directory(),
        metavar="DIR",
        help="the fixtures' folder (default: tqgate's own)",
    )
