"""A FlyDSL kernel of somebody else's: whatever a builder returns, compiled and run on the emulator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import KernelError, RunError, blamed, build_parameters, input_arrays, poisoned_outputs
from tqkernel.backends.emulator import ARGUMENT_NAMES, EmulatorBackend, Kernel, matches, read_listing
from tqkernel.compile import compile_launcher
from tqkernel.plan import KERNEL_ARGUMENTS, WAVE_LANES
from tqref import Case

_POINTERS = tuple(argument.name for argument in KERNEL_ARGUMENTS if argument.kind == "pointer")
_SEQUENCES = ("num_seqs", "num_sequences")
"""What a launcher may call the grid's first extent."""


class BuilderBackend(EmulatorBackend):
    """Runs what a builder of the decode kernel builds for each case.

    Args:
        builder: takes what `tqkernel.decode.build_tq_decode_module` takes, by keyword, and returns a
            `@flyc.jit` launcher, a `@flyc.kernel` function of the eight arrays, or an object whose `launcher`
            is a launcher. A launcher's parameters may be the arrays (as tensors, or as pointers to bytes), the
            scalars of `KERNEL_ARGUMENTS`, what the builder takes, and a stream.
        arguments: names of the compiled kernel's arguments in order; by default those of its launcher.
        announce: entered, with a line of text that says so, while a kernel is compiled.
        threads: cores to use, all of them by default.
        sanitize: as for `EmulatorBackend`.

    `run` raises KernelError when the builder fails or what it returned cannot be compiled or launched.
    """

    def __init__(
        self,
        builder: Callable[..., Any],
        arguments: Sequence[str] | None = None,
        announce: Callable[[str], AbstractContextManager[object]] = nullcontext,
        threads: int | None = None,
        sanitize: bool = False,
    ) -> None:
        super().__init__(announce=announce, threads=threads, sanitize=sanitize)
        self._builder = builder
        self._named = arguments
        self._kernels: dict[Any, Kernel] = {}

    def _kernel(self, case: Case, hw_v_transpose: bool) -> Kernel:
        parameters = build_parameters(case, hw_v_transpose)
        key = tuple(parameters.values())
        if key not in self._kernels:
            try:
                self._kernels[key] = self._built(parameters, case)
            except (KernelError, RunError):
                raise
            except Exception as error:
                code = getattr(inspect.unwrap(self._builder), "__code__", None)
                why = blamed(error, code.co_filename if code else "")
                raise KernelError(f"kernel: cannot be built: {why}") from error
        return self._kernels[key]

    def _built(self, parameters: Mapping[str, Any], case: Case) -> Kernel:
        built = self._builder(**parameters)
        launcher = getattr(built, "launcher", built)
        # A builder that returns the same launcher for other sizes is compiled once.
        if launcher not in self._kernels:
            with self._announce(f"compiling the kernel for {case.name}"):
                self._kernels[launcher] = self._compile(launcher, case)
        return self._kernels[launcher]

    def _compile(self, built: Any, case: Case) -> Kernel:
        launch = _launch_of(built, case)
        program = read_listing(compile_launcher(launch.launcher, *launch.arguments, debug_locations=True))
        names = [name for name in launch.names if name in ARGUMENT_NAMES]
        # A launcher may need sizes for its grid that it does not pass on to the kernel.
        candidates = [self._named] if self._named else [names, [name for name in names if name in _POINTERS]]
        for candidate in candidates:
            if matches(program.arguments, candidate):
                return Kernel(program, candidate)
        return Kernel(program, candidates[0])


class _Launch(NamedTuple):
    """A launcher, what to compile it with, and what each of its parameters stands for."""

    launcher: Any
    arguments: list[Any]
    names: list[str]


def _launch_of(built: Any, case: Case) -> _Launch:
    from flydsl.compiler.jit_function import JitFunction
    from flydsl.compiler.kernel_function import KernelFunction

    if isinstance(built, JitFunction):
        built._ensure_sig()
        return _Launch(built, *_arguments(built._sig, case))
    if isinstance(built, KernelFunction):
        arguments, names = _arguments(built._sig, case)
        if len(arguments) != len(_POINTERS):
            raise KernelError(
                f"kernel: expected a @flyc.kernel function of {len(_POINTERS)} arrays, got one of "
                f"{len(arguments)} arguments; return the @flyc.jit launcher instead"
            )
        return _Launch(_launcher_of(built, case), arguments, names)
    raise KernelError(
        "kernel: expected the builder to return a @flyc.jit launcher, a @flyc.kernel function, or an object "
        f"whose launcher is one, got {type(built).__name__}"
    )


def _launcher_of(kernel: Any, case: Case) -> Any:
    """A launcher of a bare kernel: one wave for each (sequence, KV head, partition)."""
    import flydsl.compiler as flyc

    grid = (case.num_sequences, case.num_kv_heads, case.num_partitions)

    @flyc.jit
    def launch(out, exp_sums, max_logits, query, kv_cache, centroids, block_tables, seq_lens):
        kernel(out, exp_sums, max_logits, query, kv_cache, centroids, block_tables, seq_lens).launch(
            grid=grid, block=(WAVE_LANES, 1, 1)
        )

    return launch


def _arguments(signature: inspect.Signature, case: Case) -> tuple[list[Any], list[str]]:
    """Stand-ins for a launch's arguments, with no memory behind them, and what each is."""
    parameters = [parameter for parameter in signature.parameters.values() if not _is_stream(parameter)]
    names = _meanings([parameter.name for parameter in parameters])
    stand_ins = _stand_ins(case)
    arguments = []
    for name, parameter in zip(names, parameters, strict=True):
        if name not in stand_ins:
            raise KernelError(
                f"kernel: expected parameters from {', '.join(stand_ins)}, got {parameter.name}"
            )
        arguments.append(_pointer() if _is_pointer(parameter) else stand_ins[name])
    return arguments, names


def _meanings(names: Sequence[str]) -> list[str]:
    """What parameters stand for, by name, `_ptr` and the like left off; eight unknown ones by position."""
    plain = [name.removesuffix("_ptr").removesuffix("_tensor").strip("_") for name in names]
    known = any(name in _POINTERS for name in plain)
    return plain if known else [*_POINTERS, *plain[len(_POINTERS) :]][: len(plain)]


def _is_stream(parameter: inspect.Parameter) -> bool:
    return bool(getattr(parameter.annotation, "_is_stream_param", False)) or parameter.name == "stream"


def _is_pointer(parameter: inspect.Parameter) -> bool:
    import flydsl.expr as fx

    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, fx.Pointer)


def _pointer() -> Any:
    import flydsl.expr as fx

    from tqkernel.compile import pointer

    return pointer(fx.Uint8)


def _stand_ins(case: Case) -> Mapping[str, Any]:
    """Tensors with each array's dtype and rank, and the scalars. FlyDSL specialises on no tensor's sizes."""
    import torch

    def stand_in(array: NDArray[Any]) -> Any:
        dtype = torch.bfloat16 if array.dtype == np.uint16 else getattr(torch, array.dtype.name)
        return torch.empty(array.shape, dtype=dtype)

    arrays = poisoned_outputs(case) | input_arrays(case)
    tensors = {name: stand_in(array) for name, array in arrays.items()}
    scalars = build_parameters(case, False) | dict.fromkeys(_SEQUENCES, case.num_sequences)
    kv_cache = torch.empty((1, case.layout.block_bytes), dtype=torch.uint8)
    return tensors | {"kv_cache": kv_cache} | scalars
