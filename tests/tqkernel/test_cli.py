"""The command: what it prints where, what it writes, and how it exits."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tqkernel.cli
from tqkernel import explain, runner
from tqkernel.backends import RunError
from tqkernel.cases import CASES
from tqkernel.cli import main
from tqkernel.compile import compile_listing
from tqkernel.plan import Variant
from tqref import DEFAULT_PROFILE, Case, Partials, Profile, decode

SMALL = "far_qg8_bs16_hwtr"
OTHER = "far_qg8_bs16_swtr"


class OracleBackend:
    """Stands in for a kernel: the oracle, with one bit of `out` flipped in the case called `broken`."""

    name = "fake"

    def __init__(
        self,
        broken: str | None = None,
        faulty: str | None = None,
        place: tuple[int, ...] = (0, 2, 1, 5, 64),
    ) -> None:
        self.broken, self.faulty, self.place = broken, faulty, place
        self.profiles: list[str] = []
        self.transposes: list[bool] = []

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        self.profiles.append(profile.name)
        self.transposes.append(hw_v_transpose)
        if case.name == self.faulty:
            raise RunError("memory fault at line 12")
        partials = decode(case, profile)
        out = partials.out.copy()
        out[self.place] ^= np.uint16(case.name == self.broken)
        return replace(partials, out=out)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[OracleBackend], OracleBackend]:
    def use(backend: OracleBackend) -> OracleBackend:
        monkeypatch.setitem(runner.BACKENDS, "emulator", lambda options, announce: backend)
        return backend

    return use


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command line that must be refused: exit status 2, nothing on standard output."""
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_agreement_exits_0_and_prints_an_aligned_table(
    use_backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend())
    assert main(["check", SMALL, OTHER]) == 0
    captured = capsys.readouterr()
    header, *rows, last = captured.out.splitlines()
    assert header.split("  ")[0] == "case"
    for title in ("tokens", "partitions", "bits compared", "bits differing", "max error", "seconds"):
        assert title in header
    assert [row.split()[:5] for row in rows] == [[name, "300", "2", "101376", "0"] for name in (OTHER, SMALL)]
    assert {len(line) for line in (header, *rows)} == {len(header)}
    assert last.startswith("ok: 2 cases, 0 of 202752 bits differ")
    assert captured.err == ""


def test_a_difference_exits_1_and_is_named(
    use_backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend(broken=SMALL))
    assert main(["check", SMALL, OTHER]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = next(index for index, line in enumerate(lines) if line.startswith(SMALL))
    assert lines[row].split()[4] == "1"
    assert lines[row + 1].startswith(
        "    first: out[sequence 0, head 2, partition 1, row 5, dim 64]: kernel 0x"
    )
    assert lines[row + 1].endswith(", 1 ulp apart")
    assert lines[row + 2] == "    worst: 1 ulp apart"
    assert lines[-1].startswith("FAILED: 1 of 2 cases, 1 of 202752 bits differ")


def test_a_fault_exits_1_and_the_other_cases_still_run(
    use_backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend(faulty=OTHER))
    assert main(["check", SMALL, OTHER]) == 1
    out = capsys.readouterr().out
    assert "    kernel stopped: memory fault at line 12" in out.splitlines()
    assert any(line.startswith(SMALL) and line.split()[4] == "0" for line in out.splitlines())


@pytest.mark.parametrize("broken", [None, SMALL])
def test_json_file(
    broken: str | None, use_backend: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend(broken))
    path = tmp_path / "report.json"
    assert main(["check", SMALL, OTHER, "--json", str(path)]) == (broken is not None)
    record = json.loads(path.read_text())
    assert record["ok"] is (broken is None)
    other, small = record["cases"]
    assert (other["name"], small["name"]) == (OTHER, SMALL)
    assert small["bits_compared"] == 101376
    assert small["bits_differing"] == (broken is not None)
    assert other["bits_differing"] == 0 and other["first"] is None
    assert 0 < other["max_error"] < 0.1
    if broken:
        first = small["first"]
        assert [first[axis] for axis in ("output", "sequence", "head", "partition", "row", "dim")] == [
            "out", 0, 2, 1, 5, 64,
        ]  # fmt: skip
        assert int(first["expected"], 16) ^ int(first["actual"], 16) == 1
        assert len(first["expected"]) == len("0x0000")
    assert capsys.readouterr().out.startswith("case")


def test_json_to_standard_output_is_alone_there(
    use_backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend(faulty=SMALL))
    assert main(["check", SMALL, "--json", "-"]) == 1
    captured = capsys.readouterr()
    (case,) = json.loads(captured.out)["cases"]
    assert case["error"] == "memory fault at line 12"
    assert case["max_error"] is None
    assert captured.err.startswith("case")


def test_globs_select_in_the_order_of_the_list(
    use_backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--list", "far_*_bs16_hwtr", SMALL, "nan_query_qg16_bs32_*"]) == 0
    assert capsys.readouterr().out.split() == [
        "far_qg8_bs16_hwtr", "far_qg16_bs16_hwtr", "nan_query_qg16_bs32_swtr", "nan_query_qg16_bs32_hwtr",
    ]  # fmt: skip


def test_list_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(CASES)


def test_profile_and_transpose_path_reach_the_backend(use_backend: Callable[..., Any]) -> None:
    backend = use_backend(OracleBackend())
    assert main(["check", SMALL, OTHER, "--profile", "fma-chain"]) == 0
    assert backend.profiles == ["fma-chain", "fma-chain"]
    assert backend.transposes == [False, True]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["check", "no_such_case"], "no case is called 'no_such_case'"),
        (["check", SMALL, "nothing_*"], "no case is called 'nothing_*'"),
        (["check", "--profile", "rdna"], "--profile"),
        (["check", "--backend", "cuda"], "--backend"),
        (["check", SMALL, "--json", "/nowhere/report.json"], "--json: "),
        (["isa", "--query-group-size", "4"], "--query-group-size"),
        (["isa", "--kv-block-size", "64"], "--kv-block-size"),
    ],
)
def test_bad_usage_exits_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in usage_error(capsys, *arguments)


def test_a_machine_without_the_gpu_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.hip is not None and torch.cuda.is_available():
        pytest.skip("there may be a gfx950 here")
    message = usage_error(capsys, "check", SMALL, "--backend", "hip").splitlines()[-1]
    assert message.startswith("tqgate: error: backend hip: expected ")


def test_isa_prints_the_variants_listing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(variant: Variant, debug_locations: bool) -> str:
        return f"; {variant.name}{' with locations' if debug_locations else ''}\n"

    monkeypatch.setattr(tqkernel.cli, "compile_listing", compiled)
    assert main(["isa", "--query-group-size", "16", "--kv-block-size", "32", "--hw-v-transpose"]) == 0
    assert capsys.readouterr().out == "; qg16_bs32_hwtr\n"
    assert main(["isa"]) == 0
    assert capsys.readouterr().out == "; qg8_bs16_swtr\n"
    assert main(["isa", "--locations"]) == 0
    assert capsys.readouterr().out == "; qg8_bs16_swtr with locations\n"


@pytest.mark.parametrize(
    "arguments", [[], ["frobnicate"], ["check", "--backend", "cuda"], ["check", "no_such_case"]]
)
def test_an_error_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = usage_error(capsys, *arguments).splitlines()
    assert line.startswith("tqgate ") or line.startswith("tqgate: error: ")
    assert "--help" in line or "--list" in line


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "command", ["", "check", "replay", "record", "fixtures", "fixtures verify", "explore", "isa", "bench"]
)
def test_help_fits_the_terminal(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= columns
    # A sentence or more before the options.
    assert ".\n" in printed.partition("options:")[0].partition("positional")[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["record", SMALL, "--folder", "/dev/null/there"],
        ["bench", "start", "--json", "/dev/null/there"],
        ["explore", "--found", "/dev/null/there"],
        ["isa", "--audit", "/dev/null/there"],
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = usage_error(capsys, *arguments).splitlines()
    assert line.startswith("tqgate: error: ") and "/dev/null/there" in line and "Errno" not in line


def test_what_is_no_text_is_no_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "expected a text in UTF-8" in usage_error(capsys, "isa", "--audit", str(tmp_path / "binary"))


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_case", interrupt)
    with pytest.raises(SystemExit) as stopped:
        main(["check", SMALL])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "\ntqgate: interrupted\n"


def test_colours_are_for_terminals_that_want_them(
    use_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend(broken=SMALL))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["check", SMALL, OTHER])
    good, bad, *_, last = capsys.readouterr().out.splitlines()[1:]
    assert good.startswith(OTHER) and bad.startswith(f"\x1b[31m{SMALL}") and bad.endswith("\x1b[0m")
    assert last.startswith("\x1b[31mFAILED: 1 of 2 cases\x1b[0m, ")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            main(["check", SMALL])
            assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    main(["check", SMALL])
    assert "\x1b" not in capsys.readouterr().out


def test_progress_is_drawn_on_a_terminal_only(
    use_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_backend(OracleBackend())
    main(["check", SMALL])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main(["check", SMALL])
    captured = capsys.readouterr()
    assert f"1/1 {SMALL}" in captured.err
    assert captured.err.endswith("\r\x1b[K")
    assert "\r" not in captured.out


def test_strict_compares_the_bits_of_nans(use_backend: Callable[..., Any]) -> None:
    name = "nan_query_qg8_bs16_hwtr"
    use_backend(OracleBackend(broken=name, place=(0, 0, 0, 3, 9)))
    assert main(["check", name]) == 0
    assert main(["check", name, "--strict"]) == 1


def test_slow_work_is_announced_and_fast_work_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = runner.Progress(1, sys.stderr)
    monkeypatch.setattr(runner, "_SLOW_SECONDS", 0.2)
    with runner.announce_if_slow(progress, "compiling") as timer:
        pass
    timer.join()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(runner, "_SLOW_SECONDS", 0.0)
    with runner.announce_if_slow(progress, "compiling") as timer:
        timer.join()
    assert capsys.readouterr().err == "tqgate: compiling\n"


def test_module_and_version() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tqkernel", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert run.stdout.startswith("tqgate ")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m tqkernel check --list | head -n 1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert run.stderr == ""
    assert run.stdout == next(iter(CASES)) + "\n"


def test_sanitize_fails_a_kernel_whose_bits_are_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    listing = compile_listing(CASES["ragged_qg8_bs16_hwtr"].variant)
    hasty = tmp_path / "hasty.s"
    waits = [line for line in listing.splitlines() if "s_waitcnt vmcnt(" in line]
    hasty.write_text(listing.replace(waits[-1] + "\n", "", 1))
    arguments = ["check", "ragged_qg8_bs16_hwtr", "--listing", str(hasty)]
    assert main(arguments) == 0
    capsys.readouterr()
    results = tmp_path / "results.json"
    assert main([*arguments, "--sanitize", "--save", str(tmp_path / "saved"), "--json", str(results)]) == 1
    printed = capsys.readouterr().out
    assert "    sanitizer: wait: line " in printed and "kernel stopped" not in printed
    assert "FAILED: 1 of 1 cases, 0 of 912384 bits differ" in printed
    replay = next(line for line in printed.splitlines() if "replay it: tqgate " in line)
    assert main(shlex.split(replay)[3:]) == 1
    assert "    sanitizer: wait: line " in capsys.readouterr().out
    (case,) = json.loads(results.read_text())["cases"]
    assert case["bits_differing"] == 0 and case["error"] is None
    assert case["findings"] and all(finding.startswith("wait: ") for finding in case["findings"])


def test_sanitize_finds_nothing_in_the_decode_kernel() -> None:
    assert main(["check", "ragged_qg8_bs16_*", "--sanitize"]) == 0


def test_sanitize_is_for_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--backend", "hip", "--sanitize"])
    assert "--sanitize: expected --backend emulator, got hip" in capsys.readouterr().err


def test_a_difference_says_where_the_two_part_and_saves_a_smaller_case(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    named = CASES["ragged_qg8_bs16_hwtr"]
    wrong = tmp_path / "wrong.s"
    wrong.write_text(compile_listing(named.variant).replace("0x3fb8aa3b", "0x3fb8aa3c"))
    saved = tmp_path / "saved"
    arguments = ["check", named.name, "far_qg8_bs16_hwtr", "--listing", str(wrong), "--save", str(saved)]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.count("parts: probability, tile at token 0, token 0, row 0: kernel 0x") == 1
    assert f"saved as {saved / named.name}.npz" in printed
    small = Case.load(saved / f"{named.name}.npz")
    assert (small.num_sequences, small.num_kv_heads, len(small.block_ids)) == (1, 1, 1)
    replay = next(line for line in printed.splitlines() if "replay it: tqgate " in line)
    assert main(shlex.split(replay)[3:]) == 1
    printed = capsys.readouterr().out
    assert f"\n{named.name} " in printed and "parts: probability" in printed
    assert "saved as" not in printed, "it cannot get smaller"


@pytest.mark.parametrize(
    "name, kind",
    [
        ("ragged_qg8_bs16_hwtr", "ragged"),
        ("minilm_tg2_qg16_bs32_swtr", "minilm_tg2"),
        ("dead_bytes_ff_qg8_bs16", "dead_bytes_ff"),
        ("found_001", "found_001"),
    ],
)
def test_the_kind_of_a_case(name: str, kind: str) -> None:
    assert runner.Task(name, CASES["ragged_qg8_bs16_hwtr"].build, True, DEFAULT_PROFILE, ()).kind == kind


def test_a_report_explains_one_case_of_each_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.s"
    wrong.write_text(compile_listing(CASES["ragged_qg8_bs16_hwtr"].variant).replace("0x3fb8aa3b", "0x3fb8aa3c"))
    names = ["far_qg8_bs16_hwtr", "ragged_qg8_bs16_hwtr", "ragged_qg8_bs16_swtr"]
    options = ["--listing", str(wrong), "--no-save", "--report", str(tmp_path / "report")]
    assert main(["check", *names, *options]) == 1
    printed = capsys.readouterr().out
    assert printed.count("first: ") == 3 and printed.count("parts: ") == 2


def test_a_kernel_that_stops_has_a_smaller_case_that_stops_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Entries of the block table are looked for a megabyte apart."""
    named = CASES["ragged_qg8_bs16_hwtr"]
    listing, saved = tmp_path / "lost.s", tmp_path / "saved"
    text = compile_listing(named.variant)
    assert text.count("s_lshl_b64 s[0:1], s[0:1], 2\n") == 1
    listing.write_text(text.replace("s_lshl_b64 s[0:1], s[0:1], 2\n", "s_lshl_b64 s[0:1], s[0:1], 20\n"))
    arguments = ["check", named.name, "far_qg8_bs16_hwtr", "--listing", str(listing), "--save", str(saved)]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.count("kernel stopped: memory-fault") == 2 and printed.count("saved as") == 1
    small = Case.load(saved / f"{named.name}.npz")
    assert (small.num_sequences, small.num_kv_heads, small.seq_lens.tolist()) == (1, 1, [17])
    replay = next(line for line in printed.splitlines() if "replay it: tqgate " in line)
    assert main(shlex.split(replay)[3:]) == 1
    assert "kernel stopped: memory-fault" in capsys.readouterr().out


def test_a_fault_in_explaining_costs_no_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(explain, "Wave", broken)
    wrong = tmp_path / "wrong.s"
    named = CASES["far_qg8_bs16_hwtr"]
    wrong.write_text(compile_listing(named.variant).replace("0x3fb8aa3b", "0x3fb8aa3c"))
    results = tmp_path / "results.json"
    assert main(["check", named.name, "--listing", str(wrong), "--json", str(results)]) == 1
    printed = capsys.readouterr().out
    assert "could not be looked into: ZeroDivisionError: nothing to divide by" in printed
    assert "FAILED: 1 of 1 cases" in printed
    assert json.loads(results.read_text())["cases"][0]["bits_differing"] > 0


def test_a_run_that_breaks_leaves_no_empty_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(runner, "_judge", broken)
    kept, absent = tmp_path / "kept.json", tmp_path / "absent.xml"
    kept.write_text("of the last run")
    with pytest.raises(ZeroDivisionError):
        main(["check", "far_qg8_bs16_hwtr", "--json", str(kept), "--junit", str(absent)])
    assert kept.read_text() == "of the last run" and not absent.exists()


def test_json_has_the_parting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = CASES["ragged_qg8_bs16_hwtr"]
    wrong = tmp_path / "wrong.s"
    listing = compile_listing(named.variant, debug_locations=True)
    wrong.write_text(listing.replace("0x3fb8aa3b", "0x3fb8aa3c"))
    arguments = ["check", named.name, "far_qg8_bs16_hwtr", "--listing", str(wrong), "--json", "-"]
    assert main([*arguments, "--no-save"]) == 1
    case, other = json.loads(capsys.readouterr().out)["cases"]
    parting = case["parting"]
    assert (parting["stage"], parting["tile"], parting["token"], parting["row"]) == ("probability", 0, 0, 0)
    assert int(parting["expected"], 16) - int(parting["actual"], 16) == parting["ulps"]
    assert parting["text"].startswith("v_exp_f32") and parting["source"]["file"] == "decode.py"
    assert listing.splitlines()[parting["line"] - 1].strip() == parting["text"]
    assert other["bits_differing"] > 0 and other["parting"] is None
    assert not (tmp_path / runner.FAILURES).exists()
    assert main(arguments) == 1
    assert (tmp_path / runner.FAILURES / f"{named.name}.npz").is_file()


def test_a_difference_in_the_bits_of_nans_alone_is_no_parting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "nan_query_qg8_bs16_hwtr"
    assert main(["check", name, "--strict"]) == 1
    assert "only bits of NaNs differ" in capsys.readouterr().out


def test_statistics_count_an_execution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["isa", "--stats", "--hw-v-transpose"]) == 0
    figures = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines() if ":" not in line)
    # Four matrix instructions of 32 dims for the scores, eight of 16 dims for the output.
    assert float(figures["MFMA"]) == 12
    # Keys and values once: 16 tokens of 128 bytes, in 16-byte loads by every lane; and metadata by every lane.
    assert float(figures["global bytes"]) >= 16 * 128
    classes = ("VALU", "LDS", "VMEM", "SMEM", "MFMA", "SALU", "waits", "nops")
    assert sum(float(figures[name]) for name in classes) == float(figures["instructions"])
    assert float(figures["LDS bank conflict cycles"]) >= 0


def test_audit_names_what_is_not_exact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    listing = tmp_path / "some.s"
    listing.write_text("\tv_add_f32_e32 v1, v2, v3\n\tv_exp_f32_e32 v1, v2\n\tv_sin_f16_e32 v1, v2\n")
    assert main(["isa", "--audit", str(listing)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed[:-1]] == [
        ["v_add_f32", "exact"],
        ["v_exp_f32", "modelled"],
        ["v_sin_f16", "unsupported"],
    ]
    assert printed[-1] == "1 exact, 1 modelled, 1 unsupported"
    listing.write_text("\tv_add_f32_e32 v1, v2, v3\n")
    assert main(["isa", "--audit", str(listing)]) == 0
    with pytest.raises(SystemExit) as stopped:
        main(["isa", "--audit", str(tmp_path / "none.s")])
    assert stopped.value.code == 2
