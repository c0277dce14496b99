"""Kernels that are not ours: whatever a builder returns, or a listing with its argument order."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tqkernel import decode as our_kernel
from tqkernel.backends import KernelError
from tqkernel.backends.builder import BuilderBackend, _meanings
from tqkernel.backends.emulator import ARGUMENT_NAMES, EmulatorBackend
from tqkernel.backends.hip import _launch
from tqkernel.backends.host import HostFunction
from tqkernel.cases import CASES
from tqkernel.cli import main
from tqkernel.compile import compile_listing
from tqkernel.fixture_cases import FIXTURE_CASES
from tqkernel.gate import run_case
from tqref import DEFAULT_PROFILE, Case

from . import user_kernels

NAMED = CASES["far_qg8_bs16_hwtr"]
KINDS = ("kernel_of_tensors", "launcher_of_tensors", "launcher_of_pointers")


@pytest.fixture(scope="module")
def case() -> Case:
    """Sizes that are all different: 2 sequences, 3 heads, 4 partitions."""
    return FIXTURE_CASES["sizes_qg8_bs16"]()


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_reach_each_kind_of_kernel(kind: str, case: Case) -> None:
    builder = getattr(user_kernels, f"build_{kind}")
    written = BuilderBackend(builder).run(case, True, DEFAULT_PROFILE)
    expected = np.broadcast_to(
        case.seq_lens[:, None, None, None] + np.arange(8, dtype=np.float32), written.exp_sums.shape
    )
    np.testing.assert_array_equal(written.exp_sums, expected)
    assert np.all(written.max_logits == case.layout.block_bytes)
    assert np.all(written.out == 0xA5A5)


@pytest.mark.parametrize(
    "names, meanings",
    [
        (["seq_lens_ptr", "out", "query_tensor", "num_seqs"], ["seq_lens", "out", "query", "num_seqs"]),
        (list("abcdefgh"), list(ARGUMENT_NAMES[:8])),
        ([*"abcdefgh", "num_seqs"], [*ARGUMENT_NAMES[:8], "num_seqs"]),
        (["a"], ["out"]),
        (["segm_out", "exp_sums", *"cdefgh"], list(ARGUMENT_NAMES[:8])),
        (["exp_sums", "segm_out", *"cdefgh"], ["exp_sums", "segm_out", *"cdefgh"]),
        (["out", "temperature"], ["out", "temperature"]),
    ],
)
def test_parameters_go_by_name_or_else_by_place(names: list[str], meanings: list[str]) -> None:
    assert _meanings(names) == meanings


def test_a_builder_is_given_what_the_case_is(case: Case) -> None:
    given = {}

    def build(**parameters: object) -> None:
        given.update(parameters)

    with pytest.raises(KernelError, match="builder to return a @flyc.jit launcher.*, got NoneType"):
        BuilderBackend(build).run(case, True, DEFAULT_PROFILE)
    assert given == {
        "num_seqs": 2, "num_kv_heads": 3, "num_partitions": 4, "max_blocks_per_seq": 37,
        "softmax_scale": case.softmax_scale, "query_group_size": 8, "kv_block_size": 16,
        "use_hw_v_transpose": True, "tile_groups_per_partition": 1,
    }  # fmt: skip


def test_our_own_builder_is_ok_and_compiled_once_for_two_shapes() -> None:
    compiled = []
    backend = BuilderBackend(our_kernel.build_tq_decode_module, announce=lambda line: _Note(compiled, line))
    for name in ("far_qg8_bs16_hwtr", "nan_query_qg8_bs16_hwtr"):
        assert run_case(CASES[name].build(), True, backend).ok
    assert compiled == ["compiling the kernel for far_qg8_bs16_hwtr"]


class _Note:
    def __init__(self, notes: list[str], line: str) -> None:
        notes.append(line)

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


@pytest.mark.parametrize(
    "kind, message",
    [
        ("kernel_of_two", "expected a @flyc.kernel function of 8 arrays, got one of 2"),
        ("with_unknown_parameter", "expected parameters from out, .*, got temperature"),
        ("nothing", "got NoneType"),
    ],
)
def test_what_cannot_be_launched_is_refused(kind: str, message: str, case: Case) -> None:
    with pytest.raises(KernelError, match=f"^kernel: .*{message}"):
        BuilderBackend(getattr(user_kernels, f"build_{kind}")).run(case, False, DEFAULT_PROFILE)


def test_arguments_override_the_launchers(case: Case) -> None:
    swapped = ("seq_lens", "max_logits", "exp_sums", "num_kv_heads")
    backend = BuilderBackend(user_kernels.build_launcher_of_pointers, swapped)
    written = backend.run(case, True, DEFAULT_PROFILE)
    assert np.all(written.exp_sums == case.layout.block_bytes)
    with pytest.raises(KernelError, match="listing: expected kernel arguments out, got global_buffer of 8"):
        BuilderBackend(user_kernels.build_launcher_of_pointers, ("out",)).run(case, True, DEFAULT_PROFILE)


def launched(builder, case: Case):
    return BuilderBackend(builder)._kernel(case, True)


def test_the_launchers_grid_and_order_of_arguments_are_what_runs(case: Case) -> None:
    kernel = launched(user_kernels.build_launcher_of_sizes, case)
    assert (kernel.grid, kernel.block) == ((2, 3, 4), (64, 1, 1))
    assert kernel.arguments == ["seq_lens", "out"]
    kernel = launched(user_kernels.build_launcher_of_pointers, case)
    assert kernel.arguments == ["seq_lens", "exp_sums", "max_logits", "num_kv_heads"]


def test_a_wrong_grid_and_workgroup_show(case: Case) -> None:
    written = BuilderBackend(user_kernels.build_launcher_of_two_waves).run(case, True, DEFAULT_PROFILE)
    assert (written.exp_sums[:, :, :3, :2] == 1).all()
    assert not (written.exp_sums[:, :, 3] == 1).any() and not (written.exp_sums[..., 2:] == 1).any()
    verdict = run_case(case, True, BuilderBackend(user_kernels.build_launcher_of_two_waves))
    assert not verdict.ok


@pytest.mark.parametrize("kind", ["the_same_kernel_again", "launcher_of_a_constant"])
def test_what_a_builder_returns_again_runs_on_each_cases_sizes(kind: str, case: Case) -> None:
    backend = BuilderBackend(getattr(user_kernels, f"build_{kind}"))
    for other in (case, case.only(0, 0), replace(case, num_partitions=7)):
        written = backend.run(other, True, DEFAULT_PROFILE)
        assert written.exp_sums.shape[:3] == (other.num_sequences, other.num_kv_heads, other.num_partitions)
        expected = other.num_kv_heads if "constant" in kind else other.seq_lens[:, None, None]
        assert (written.exp_sums[..., 0] == expected).all()


def test_an_argument_that_the_launcher_computes_has_to_be_named(case: Case) -> None:
    with pytest.raises(KernelError, match="got a computed value as argument 2; --arguments names them all"):
        launched(user_kernels.build_launcher_that_computes, case)
    assert BuilderBackend(user_kernels.build_launcher_that_computes, ["out", "num_kv_heads"])._kernel(case, True)


def test_a_launcher_that_launches_nothing_is_refused(case: Case) -> None:
    with pytest.raises(KernelError, match="expected a launcher of one kernel, got 0 launches"):
        launched(user_kernels.build_launcher_of_nothing, case)


HOST = """
  llvm.func @launch(%arg0: i32, %arg1: !llvm.struct<packed (struct<packed (i32, i32)>)>) attributes {{x}} {{
    %0 = llvm.mlir.constant(-7 : i32) : i32
    %1 = llvm.mlir.constant(true) : i1
    %2 = llvm.extractvalue %arg1[0, 1] : !llvm.struct<packed (struct<packed (i32, i32)>)>
    %3 = {}
    gpu.launch_func <%arg5 : !llvm.ptr> @k::@k blocks in (%3, %2, %arg0) threads in (%2, %2, %2) : i64 args(%arg0 : i32)
  }}
"""


@pytest.mark.parametrize(
    "operation, value",
    [
        ("llvm.sdiv %0, %arg0 : i32", -2),
        ("llvm.srem %0, %arg0 : i32", -1),
        ("llvm.mul %0, %arg0 overflow<nsw, nuw> : i32", -21),
        ("llvm.sub %arg0, %0 : i32", 10),
        ("llvm.select %1, %arg0, %0 : i1, i32", 3),
        ('llvm.icmp "slt" %0, %arg0 : i32', 1),
        ("llvm.intr.smax(%0, %arg0) : (i32, i32) -> i32", 3),
        ("llvm.sext %0 : i32 to i64", -7),
        ("llvm.shl %arg0, %1 : i32", 6),
    ],
)
def test_host_arithmetic(operation: str, value: int) -> None:
    host = HostFunction.parse(HOST.format(operation))
    assert host.launch_sizes([3, ((8, 9), ())]) == ((value, 9, 3), (9, 9, 9))
    assert host.arguments == ("%arg0",)


def test_host_code_of_another_kind_is_refused() -> None:
    with pytest.raises(KernelError, match="expected a grid computed by integer arithmetic, got one by llvm.load"):
        HostFunction.parse(HOST.format("llvm.load %arg0 : i32")).launch_sizes([3, ((8, 9), ())])
    with pytest.raises(KernelError, match="expected a grid computed from sizes, got one from 'out'"):
        HostFunction.parse(HOST.format("llvm.sext %arg0 : i32")).launch_sizes(["out", ((8, 9), ())])
    twice = HOST.format("llvm.sext %0 : i32") + HOST.format("llvm.sext %0 : i32")
    with pytest.raises(KernelError, match="expected a launcher of one kernel, got 2 launches"):
        HostFunction.parse(twice)


# --- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_check_judges_the_kernel_it_is_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(our_kernel.__file__).read_text()
    planted = source.replace("LOG2E = 1.4426950408889634", "LOG2E = 1.4426952")
    assert planted != source
    (folder / "planted_kernel.py").write_text(planted)
    assert main(["check", NAMED.name, "--kernel", "planted_kernel:build_tq_decode_module"]) == 1
    assert "    first: exp_sums[" in capsys.readouterr().out


def test_check_and_replay_judge_a_listing_with_other_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's own listing, its first two arguments given the other's name."""
    (folder / "kernel.s").write_text(compile_listing(NAMED.variant))
    swapped = ["exp_sums", "out", *ARGUMENT_NAMES[2:]]
    assert main(["check", NAMED.name, "--listing", "kernel.s"]) == 0
    assert main(["check", NAMED.name, "--listing", "kernel.s", "--arguments", ", ".join(ARGUMENT_NAMES)]) == 0
    replay = ["replay", str(our_fixture("nan_query_qg8_bs16")), "--listing", "kernel.s"]
    assert main([*replay, "--transpose", "hwtr"]) == 0
    capsys.readouterr()
    assert main(["check", NAMED.name, "--listing", "kernel.s", "--arguments", ",".join(swapped)]) == 1
    assert re.search("kernel stopped: |first: ", capsys.readouterr().out)


def our_fixture(name: str) -> Path:
    from tqkernel.cases import fixtures_directory

    return fixtures_directory() / f"{name}.npz"


def test_a_listing_of_tensors_alone_gets_their_shapes(case: Case) -> None:
    """FlyDSL's records of shapes and strides follow the pointers; those of another rank are left zero."""
    from tqkernel.backends.emulator import _pack_arguments, array_shapes
    from tqkernel.gfx950.listing import KernelArgument

    shapes = array_shapes(case)
    segment = [
        KernelArgument(0, 8, "global_buffer"), KernelArgument(8, 28, "by_value"),
        KernelArgument(40, 8, "global_buffer"), KernelArgument(48, 40, "by_value"),
        KernelArgument(88, 8, "global_buffer"), KernelArgument(96, 12, "by_value"),
    ]  # fmt: skip
    packed = _pack_arguments(
        segment, ["query", "kv_cache", "seq_lens"], {"query": 1, "kv_cache": 2, "seq_lens": 3}, shapes
    )
    assert [int.from_bytes(packed[at : at + 8], "little") for at in (0, 40, 88)] == [1, 2, 3]
    assert np.frombuffer(packed, np.int32, 3, 8).tolist() == [2, 24, 128]
    assert np.frombuffer(packed[20:36], np.int64).tolist() == [24 * 128, 128]
    assert np.frombuffer(packed, np.int32, 4, 48).tolist() == [case.num_blocks, 16, 3, 134]
    assert np.frombuffer(packed[64:88], np.int64).tolist() == [16 * 3 * 134, 3 * 134, 134]
    assert not any(packed[96:])


def test_a_listing_of_the_eight_arrays_needs_no_names(case: Case) -> None:
    kernel = launched(user_kernels.build_launcher_of_tensors, case)
    listing = "\n".join(kernel.program.text)
    written = EmulatorBackend(lambda variant: listing).run(case, True, DEFAULT_PROFILE)
    assert np.all(written.max_logits == case.layout.block_bytes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--kernel", "decode"], "--kernel: expected module:function, got 'decode'"),
        (["--kernel", "absent:build"], "--kernel: module absent cannot be imported: No module named 'absent'"),
        (["--kernel", "tqkernel.decode:absent"], "--kernel: expected a function absent in module"),
        (["--kernel", "tqkernel.decode:LOG2E"], "--kernel: expected a function LOG2E in module"),
        (["--listing", "absent.s"], "error: --listing: absent.s: No such file or directory"),
        (["--listing", "absent.s", "--kernel", "a:b"], "not allowed with argument"),
        (["--arguments", "out"], "--arguments: expected with --kernel or --listing, got neither"),
        (["--arguments", "out,in", "--listing", "absent.s"], "--arguments: expected names from out, exp_sums, "),
        (["--listing", "absent.s", "--backend", "hip"], "--listing: expected --backend emulator, got hip"),
        (["--junit", "/nowhere/report.xml"], "error: --junit: /nowhere/report.xml: No such file or directory"),
    ],
)
def test_bad_usage(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(capsys, "check", NAMED.name, *arguments)


NOT_IMPORTED = "--kernel: module broken cannot be imported:"
NOT_BUILT = f"kernel: cannot be built for {NAMED.name}:"


@pytest.mark.parametrize(
    "source, message",
    [
        ("def build(", f"{NOT_IMPORTED} SyntaxError: '(' was never closed (broken.py, line 1)"),
        ("\nraise OSError('no')", f"{NOT_IMPORTED} OSError: no (broken.py, line 2)"),
        ("def build(**sizes):\n    return sizes['x']", f"{NOT_BUILT} KeyError: 'x' (broken.py, line 2)"),
        ("from os import getcwd as build", f"{NOT_BUILT} TypeError: "),
    ],
)
def test_a_builder_that_fails_is_one_line_with_the_place(
    source: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (folder / "broken.py").write_text(source)
    refused = usage_error(capsys, "check", NAMED.name, "--kernel", "broken:build")
    assert refused.startswith(f"tqgate: error: {message}")
    if "broken.py" in message:
        assert refused == f"tqgate: error: {message}"


def test_a_kernel_that_does_not_compile_is_one_line_with_the_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(our_kernel.__file__).read_text().replace("part * rescale", "part * absent")
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "part * absent" in text)
    (folder / "uncompiled.py").write_text(source)
    refused = usage_error(capsys, "check", NAMED.name, "--kernel", "uncompiled:build_tq_decode_module")
    where = f"(uncompiled.py, line {line})"
    assert refused == f"tqgate: error: {NOT_BUILT} NameError: name 'absent' is not defined {where}"


def test_a_listing_needs_names_and_has_to_be_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.s").write_text("nothing of the kind")
    assert "name the cases of the variant" in usage_error(capsys, "check", "--listing", "text.s")
    assert "tqgate: error: listing: " in usage_error(capsys, "check", NAMED.name, "--listing", "text.s")
    (folder / "kernel.s").write_text(compile_listing(NAMED.variant))
    refused = usage_error(capsys, "check", NAMED.name, "--listing", "kernel.s", "--arguments", "out,query")
    assert "listing: expected kernel arguments out, query, got global_buffer of 8 bytes" in refused


def test_on_a_gpu_a_launcher_takes_the_arrays_in_order_and_a_module_by_name() -> None:
    calls: list[tuple[tuple, dict]] = []

    def launcher(*arguments: object, **named: object) -> None:
        calls.append((arguments, named))

    pointers = ARGUMENT_NAMES[:8]
    arrays = {name: name.upper() for name in reversed(pointers)}
    _launch(launcher, arrays, "stream")

    class Module:
        launcher = None

        def __call__(self, **named: object) -> None:
            calls.append(((), named))

    _launch(Module(), arrays, "stream")
    assert calls[0] == (tuple(name.upper() for name in pointers), {"stream": "stream"})
    assert calls[1] == ((), arrays | {"stream": "stream"})
