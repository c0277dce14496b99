"""Fixtures: what is kept, that it stays as it is, and what is said of a file that did not."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tqkernel import fixtures, gate, runner
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cases import CASES, fixtures_directory
from tqkernel.cli import main
from tqkernel.fixture_cases import BOUNDARY_LENGTHS, FIXTURE_CASES
from tqkernel.fixtures import MAX_BYTES, Fixture, FixtureError, load_listed, read_manifest, task_of, verify
from tqref import DEFAULT_PROFILE, PROFILES, Case, MetadataField, Partials, Profile
from tqref.cache import read_tokens
from tqref.numerics import bf16_to_f32

FOLDER = fixtures_directory()
NAMES = sorted(name.removesuffix(".npz") for name in read_manifest(FOLDER))
SMALL = "nan_value_zero_qg8_bs16"
SIZES = [(group, block) for group in (8, 16) for block in (16, 32)]


@pytest.fixture(scope="module")
def stored() -> dict[str, Fixture]:
    return {name: Fixture.load(FOLDER / f"{name}.npz") for name in NAMES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two fixtures and their manifest."""
    for name in (SMALL, "inf_query_qg8_bs16"):
        shutil.copy(FOLDER / f"{name}.npz", tmp_path)
    listed = {path.name: fixtures.digest(path) for path in tmp_path.iterdir()}
    fixtures.write_manifest(tmp_path, listed)
    return tmp_path


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The last line of a command that must be refused."""
    with pytest.raises(SystemExit) as refused:
        main([str(argument) for argument in arguments])
    assert refused.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# --- the set ---------------------------------------------------------------------------------------------


def test_every_fixture_is_as_recorded_and_what_the_oracle_says() -> None:
    assert list(verify(FOLDER)) == []


def test_the_folder_is_small_and_the_manifest_lists_all_of_it() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert max(sizes.values()) <= MAX_BYTES
    assert sum(sizes.values()) <= 5_000_000
    assert set(sizes) == {*(f"{name}.npz" for name in NAMES), fixtures.MANIFEST, "minilm_layer3_kv.npz"}


def test_the_set_is_what_its_names_build(stored: dict[str, Fixture]) -> None:
    """But for roundings that depend on the machine's linear algebra."""
    assert sorted(FIXTURE_CASES) == NAMES
    for name, build in FIXTURE_CASES.items():
        case, built = stored[name].case, build()
        assert case.name == built.name == name
        for field in ("seq_lens", "block_tables", "block_ids", "live_bytes"):
            np.testing.assert_array_equal(getattr(case, field), getattr(built, field))
        for field in ("num_kv_heads", "num_partitions", "tile_groups_per_partition", "softmax_scale"):
            assert getattr(case, field) == getattr(built, field)
        np.testing.assert_array_equal(case.blocks[~case.live_bytes], built.blocks[~case.live_bytes])


def test_every_size_with_one_to_three_partitions(stored: dict[str, Fixture]) -> None:
    found = {
        (case.query_group_size, case.kv_block_size, case.num_partitions)
        for case in (fixture.case for fixture in stored.values())
        if case.seq_lens.max() > 256 * (case.num_partitions - 1)
    }
    assert {(*size, partitions) for size in SIZES for partitions in (1, 2, 3)} <= found


def test_boundary_lengths(stored: dict[str, Fixture]) -> None:
    for block in (16, 32):
        assert stored[f"lengths_qg8_bs{block}"].case.seq_lens.tolist() == list(BOUNDARY_LENGTHS)
    assert stored["tile_groups_qg8_bs16"].case.tile_groups_per_partition == 2


def test_keys_and_values_are_the_recorded_ones(stored: dict[str, Fixture]) -> None:
    with np.load(FOLDER / "minilm_layer3_kv.npz") as arrays:
        keys = bf16_to_f32(arrays["key_bf16"])[:135, 0]
    tokens = read_tokens(stored["partitions1_qg8_bs16"].case, np.array(0), np.array(0), np.arange(135))
    # With norm correction, the stored norm is the key's over that of its centroids, which is about 1.
    np.testing.assert_allclose(tokens.key_norm, np.linalg.norm(keys, axis=-1), rtol=0.1)


@pytest.mark.parametrize(
    "poison, first, second", [("ff", 0xFF, 0xFF), ("inf", 0, 0x7C), ("minus_inf", 0, 0xFC)]
)
def test_dead_bytes_are_poison(stored: dict[str, Fixture], poison: str, first: int, second: int) -> None:
    found = [fixture for name, fixture in stored.items() if name.startswith(f"dead_bytes_{poison}_")]
    assert len(found) == (4 if poison == "ff" else 2)
    for fixture in found:
        case = fixture.case
        expected = np.resize(np.array([first, second], np.uint8), case.blocks.shape)
        np.testing.assert_array_equal(case.blocks[~case.live_bytes], expected[~case.live_bytes])
        assert np.isfinite(fixture.output).all()
        scale = case.layout.metadata_offset(MetadataField.VALUE_SCALE, 15, 0)
        partly_dead = case.rows_of(case.block_tables[1, :1])
        assert not case.live_bytes[partly_dead, scale].any()


def test_far_blocks_table_ends_and_entries(stored: dict[str, Fixture]) -> None:
    for group, block in SIZES:
        case = stored[f"far_4gib_qg{group}_bs{block}"].case
        assert case.block_ids.min() * case.layout.block_bytes >= 1 << 32
        case = stored[f"table_end_qg{group}_bs{block}"].case
        assert np.all(case.seq_lens == case.max_blocks_per_sequence * block)
        assert case.num_partitions * 256 > case.seq_lens.max()
        case = stored[f"table_entries_qg{group}_bs{block}"].case
        assert np.all(case.block_tables[~case.live_table_entries] == 0x7FFF_FFFF)
        assert np.all(case.live_table_entries.sum(axis=1) < case.max_blocks_per_sequence)
    for size in ("qg8_bs16", "qg16_bs32"):
        case = stored[f"far_straddling_{size}"].case
        start = case.block_ids * case.layout.block_bytes
        assert ((start < 1 << 32) & (start + case.layout.block_bytes > 1 << 32)).any()


def test_nan_and_infinity_reach_the_expected_bits(stored: dict[str, Fixture]) -> None:
    for size in ("qg8_bs16", "qg16_bs32"):
        rows = stored[f"nan_query_{size}"].expected
        assert np.argwhere(np.isnan(rows.exp_sums[:, 0, 0])).tolist() == [[0, 3], [1, 7]]
        assert np.isnan(rows.max_logits[0, 0, 0, 3]) and np.isnan(bf16_to_f32(rows.out[1, 0, 0, 7])).all()
        for kind in ("nan_key_norm", "inf_key_norm", "nan_value_scale", "nan_value_zero"):
            assert np.isnan(stored[f"{kind}_{size}"].output).all()
        infinite = stored[f"inf_value_scale_{size}"].output
        assert np.isinf(infinite).any() and not np.isfinite(infinite).any()
        minus = stored[f"all_scores_minus_inf_{size}"].expected
        assert np.isneginf(minus.max_logits[0, 0, 0, 2]) and minus.exp_sums[0, 0, 0, 2] == 0


@pytest.mark.parametrize("transpose", ["swtr", "hwtr"])
@pytest.mark.parametrize("name", ["partitions2_qg16_bs32", "nan_query_qg8_bs16"])
def test_the_kernel_gives_the_stored_bits(stored: dict[str, Fixture], name: str, transpose: str) -> None:
    verdict = task_of(stored[name], transpose, FOLDER / f"{name}.npz").judge(EmulatorBackend())
    assert verdict.ok and verdict.name == f"{name}_{transpose}"


# --- the file --------------------------------------------------------------------------------------------


def test_saving_what_was_loaded_gives_the_same_bytes(stored: dict[str, Fixture], tmp_path: Path) -> None:
    for name in NAMES:
        stored[name].save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (FOLDER / f"{name}.npz").read_bytes()


def test_a_zip_and_a_json_reader_are_all_it_takes() -> None:
    with zipfile.ZipFile(FOLDER / f"{SMALL}.npz") as archive:
        header = json.loads(archive.read("header.json"))
        out = np.load(io.BytesIO(archive.read("expected_out.npy")), allow_pickle=False)
    assert (header["format"], header["format_version"]) == ("tqgate-fixture", 1)
    assert header["name"] == SMALL and header["profile"] == DEFAULT_PROFILE.key and header["origin"]
    assert out.dtype == np.uint16 and out.shape == (1, 1, 1, 8, 128)


def test_a_damaged_file_is_refused_by_name(folder: Path) -> None:
    path = folder / f"{SMALL}.npz"
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    for place in [*range(0, 400, 7), *range(400, len(whole), 499), *range(len(whole) - 400, len(whole), 7)]:
        flipped = bytearray(whole)
        flipped[place] ^= 0x11
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(FixtureError, match=path.name):
            load_listed(path)


def test_only_the_manifest_sees_a_well_formed_change(folder: Path) -> None:
    path = folder / f"{SMALL}.npz"
    fixture = Fixture.load(path)
    expected = replace(fixture.expected, out=fixture.expected.out ^ np.uint16(1))
    replace(fixture, expected=expected).save(path)
    Fixture.load(path)
    with pytest.raises(FixtureError, match="expected the bytes that manifest.json lists"):
        load_listed(path)


def rewritten(path: Path, change: Callable[[dict, dict], None]) -> Path:
    from tqref.archive import load_archive, save_archive

    header, arrays = load_archive(path)
    change(header, arrays)
    save_archive(path, header, arrays)
    return path


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda header, arrays: header.update(format_version=2), "expected tqgate-fixture version 1, got"),
        (
            lambda header, arrays: arrays.pop("expected_out"),
            r"expected the entries .* got none of \['expected_out'\] but \[\]",
        ),
        (
            lambda header, arrays: header.update(colour=1),
            r"expected the entries .* got none of \[\] but \['colour'\]",
        ),
        (lambda header, arrays: header.update(profile=3), "profile: expected a str, got int"),
        (lambda header, arrays: header.update(query_group_size=4), "query_group_size: expected one of"),
        (
            lambda header, arrays: arrays.update(expected_exp_sums=arrays["expected_exp_sums"][:, :, :, :3]),
            r"expected_exp_sums: expected float32\[1, 1, 1, 8\], got float32\[1, 1, 1, 3\]",
        ),
        (
            lambda header, arrays: arrays.update(expected_output=arrays["expected_output"] * np.float64(1)),
            "expected_output: expected float32.* got float64",
        ),
    ],
)
def test_a_foreign_file_is_refused_by_name(folder: Path, change: Callable, message: str) -> None:
    path = rewritten(folder / f"{SMALL}.npz", change)
    with pytest.raises(FixtureError, match=f"^{path}: {message}"):
        Fixture.load(path)


def test_a_saved_case_is_compared_with_the_oracle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "case.npz"
    CASES["far_qg8_bs16_hwtr"].build().save(path)
    assert main(["replay", str(path), "--transpose", "hwtr", "--profile", "fma-chain", "--json", "-"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert (case["name"], case["profile"]) == ("far_qg8_bs16_hwtr", PROFILES["fma-chain"].key)


def test_other_files_are_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.npz").write_text("nothing of the kind")
    recording = FOLDER / "minilm_layer3_kv.npz"
    for path in (folder / "text.npz", recording, folder / "absent.npz"):
        assert usage_error(capsys, "replay", path).startswith(f"tqgate: error: {path}: ")
    (folder / "manifest.json").write_text("[]")
    assert "manifest.json: expected SHA-256" in usage_error(capsys, "replay", "--folder", folder)


# --- replay ----------------------------------------------------------------------------------------------


class StoredBackend:
    """Writes the stored bits of the fixtures in a folder, and flips a bit of one of them."""

    name = "fake"

    def __init__(self, folder: Path, broken: str = "") -> None:
        loaded = (Fixture.load(path) for path in folder.glob("*.npz"))
        self.expected = {fixture.case.name: fixture.expected for fixture in loaded}
        self.broken = broken
        self.transposes: list[bool] = []

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        self.transposes.append(hw_v_transpose)
        expected = self.expected[case.name]
        flip = np.uint16(case.name == self.broken)
        return replace(expected, out=expected.out ^ flip)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[StoredBackend], StoredBackend]:
    def use(backend: StoredBackend) -> StoredBackend:
        monkeypatch.setitem(runner.BACKENDS, "emulator", lambda options, announce: backend)
        return backend

    return use


def test_replay_compares_with_the_stored_bits_and_asks_no_oracle(
    folder: Path, use_backend: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = use_backend(StoredBackend(folder))
    monkeypatch.setattr(gate, "decode", lambda *arguments: pytest.fail("asked the oracle"))
    assert main(["replay", "--folder", str(folder), "--strict"]) == 0
    assert backend.transposes == [False, True] * 2
    lines = capsys.readouterr().out.splitlines()
    names = [f"{name}_{way}" for name in ("inf_query_qg8_bs16", SMALL) for way in ("swtr", "hwtr")]
    assert [line.split()[0] for line in lines[1:-1]] == names
    assert lines[-1].startswith("ok: 4 cases, 0 of ")


def test_replay_names_a_difference(
    folder: Path, use_backend: Callable, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "inf_query_qg8_bs16"
    use_backend(StoredBackend(folder, broken=name))
    report, junit = tmp_path / "report.json", tmp_path / "report.xml"
    files = ["--json", str(report), "--junit", str(junit)]
    path = str(folder / f"{name}.npz")
    assert main(["replay", path, "--transpose", "hwtr", *files]) == 1
    assert "    first: out[sequence 0, head 0, partition 0, row 0, dim 0]: " in capsys.readouterr().out
    (case,) = json.loads(report.read_text())["cases"]
    # The row that holds NaNs is one where any NaN will do.
    assert case["name"] == f"{name}_hwtr" and case["bits_differing"] == 7 * 128
    assert f'name="{name}_hwtr"' in junit.read_text()


def test_replay_compares_nans_by_their_bits_when_strict(folder: Path, use_backend: Callable) -> None:
    """Every element of this fixture is a NaN, so a flipped bit leaves one."""
    use_backend(StoredBackend(folder, broken=SMALL))
    assert main(["replay", SMALL, "--folder", str(folder)]) == 0
    assert main(["replay", SMALL, "--folder", str(folder), "--strict"]) == 1


def test_replay_takes_names_globs_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folder / "own.npz"
    Fixture.load(folder / f"{SMALL}.npz").save(own)
    assert main(["replay", "--list", "--folder", str(folder), "*_qg8_*", SMALL, str(own)]) == 0
    assert capsys.readouterr().out.split() == ["inf_query_qg8_bs16", SMALL, "own"]
    assert main(["replay", "--list"]) == 0
    assert capsys.readouterr().out.split() == NAMES
    message = usage_error(capsys, "replay", "nothing_*", "--folder", folder)
    assert f"{folder}: no fixture is called 'nothing_*'" in message


def test_replay_refuses_a_profile_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewritten(folder / f"{SMALL}.npz", lambda header, arrays: header.update(profile="cdna3@99"))
    (folder / "manifest.json").unlink()
    assert f"{path}: expected a profile of cdna3@" in usage_error(capsys, "replay", path)


# --- record ----------------------------------------------------------------------------------------------


def test_record_takes_the_set_the_named_cases_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    own = tmp_path / "own.npz"
    replace(FIXTURE_CASES[SMALL](), name="mine", origin="here").save(own)
    assert main(["record", SMALL, "dead_bytes_qg8_bs16_hwtr", str(own), "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.count("recorded ") == 3
    names = {f"{SMALL}.npz", "dead_bytes_qg8_bs16_hwtr.npz", "mine.npz"}
    assert set(read_manifest(folder)) == names
    assert {path.name for path in folder.iterdir()} == {*names, "manifest.json"}
    assert list(verify(folder)) == []
    assert Fixture.load(folder / "mine.npz").case.origin == "here"


def test_record_keeps_what_is_there_unless_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / f"{SMALL}.npz").read_bytes()
    message = usage_error(capsys, "record", SMALL, "--folder", folder, "--profile", "fma-chain")
    assert f"{SMALL}.npz: expected no such fixture yet" in message
    assert (folder / f"{SMALL}.npz").read_bytes() == before
    assert main(["record", SMALL, "--folder", str(folder), "--profile", "fma-chain", "--accept"]) == 0
    assert Fixture.load(folder / f"{SMALL}.npz").profile.startswith("fma-chain@")
    assert list(verify(folder)) == []


def test_record_refuses_a_large_case_and_keeps_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(fixtures, "MAX_BYTES", 1000)
    other = ("--profile", "fma-chain")
    message = usage_error(capsys, "record", SMALL, "--accept", *other, "--folder", folder)
    assert "expected at most 1000 bytes, got " in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_record_refuses_what_is_no_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = ("--folder", tmp_path / "new")
    assert "no case and no file is called 'nothing'" in usage_error(capsys, "record", "nothing", *into)
    assert "expected the name of a case" in usage_error(capsys, "record", *into)
    own = tmp_path / "own.npz"
    replace(FIXTURE_CASES[SMALL](), name="../mine").save(own)
    assert "whose name can be a file's, got '../mine'" in usage_error(capsys, "record", own, *into)
    own.write_text("text")
    assert f"{own}: " in usage_error(capsys, "record", own, *into)


def test_record_lists_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(FIXTURE_CASES)


# --- verify ----------------------------------------------------------------------------------------------


def verify_lines(
    capsys: pytest.CaptureFixture[str], status: int, folder: Path, *arguments: str
) -> list[str]:
    assert main(["fixtures", "verify", "--folder", str(folder), *arguments]) == status
    return capsys.readouterr().out.splitlines()


def test_verify_prints_the_bits_an_oracle_changes_and_rewrites_only_what_is_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify_lines(capsys, 0, folder) == ["ok: 2 fixtures"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    oracle = gate.decode

    def other(case: Case, profile: Profile) -> Partials:
        partials = oracle(case, profile)
        if case.name == SMALL:
            partials.exp_sums.view(np.uint32)[0, 0, 0, 4] ^= 1
        return partials

    monkeypatch.setattr(gate, "decode", other)
    changes, last = verify_lines(capsys, 1, folder)
    place = "exp_sums[sequence 0, head 0, partition 0, row 4]"
    assert changes.startswith(f"{SMALL}.npz: 1 bits change, first: {place}: oracle now 0x")
    assert ", recorded 0x" in changes
    assert last == "FAILED: 1 of 2 fixtures; --accept records them as they are now"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert verify_lines(capsys, 0, folder, "--accept")[-1] == "accepted: 1 fixtures"
    assert verify_lines(capsys, 0, folder) == ["ok: 2 fixtures"]
    monkeypatch.undo()
    assert verify_lines(capsys, 1, folder)[0].startswith(f"{SMALL}.npz: 1 bits change, first: exp_sums")


def test_verify_sees_a_change_of_the_combination(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    combine = fixtures.combine
    monkeypatch.setattr(fixtures, "combine", lambda partials: np.abs(combine(partials)))
    lines = verify_lines(capsys, 1, folder)
    change = "bits of the combined output change, first: output[sequence 0, query head"
    assert any(change in line for line in lines)


def test_verify_sees_missing_unlisted_and_altered_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{SMALL}.npz").rename(folder / "renamed.npz")
    other = folder / "inf_query_qg8_bs16.npz"
    replace(Fixture.load(other), case=replace(Fixture.load(other).case, origin="elsewhere")).save(other)
    shutil.copy(FOLDER / "minilm_layer3_kv.npz", folder)
    lines = verify_lines(capsys, 1, folder)
    assert lines[0].startswith(f"{other.name}: SHA-256 is {fixtures.digest(other)}, manifest.json lists ")
    assert lines[1] == f"{SMALL}.npz: listed in manifest.json, but there is no such file"
    assert lines[2] == "renamed.npz: not listed in manifest.json"
    verify_lines(capsys, 0, folder, "--accept")
    assert set(read_manifest(folder)) == {other.name, "renamed.npz"}
    assert verify_lines(capsys, 0, folder) == ["ok: 2 fixtures"]


def test_verify_never_accepts_a_damaged_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"{SMALL}.npz"
    path.write_bytes(path.read_bytes()[:-100])
    listed = read_manifest(folder)
    lines = verify_lines(capsys, 1, folder, "--accept")
    assert f"{SMALL}.npz: expected an intact .npz archive, got a damaged one" in lines[1]
    assert lines[-1] == f"accepted: 0 fixtures; unreadable, left alone: {SMALL}.npz"
    assert read_manifest(folder) == listed


def test_verify_sees_a_new_version_of_a_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(folder / f"{SMALL}.npz", lambda header, arrays: header.update(profile="cdna3@0"))
    rewritten(folder / "inf_query_qg8_bs16.npz", lambda header, arrays: header.update(profile="rdna@1"))
    lines = verify_lines(capsys, 1, folder, "--accept")
    assert f"{SMALL}.npz: recorded under cdna3@0, which is {DEFAULT_PROFILE.key} now" in lines
    assert "inf_query_qg8_bs16.npz: there is no profile rdna@1" in lines
    assert Fixture.load(folder / f"{SMALL}.npz").profile == DEFAULT_PROFILE.key


@pytest.mark.parametrize("command", [["replay"], ["fixtures", "verify"]])
def test_a_folder_without_fixtures_is_not_all_well(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = usage_error(capsys, *command, "--folder", tmp_path / "none")
    assert f"--folder: expected a folder of fixtures, got none in {tmp_path / 'none'}" in refused
