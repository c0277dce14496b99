"""A FlyDSL kernel of somebody else's: whatever a builder returns, compiled and run on the emulator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import KernelError, RunError, blamed, build_parameters, input_arrays, poisoned_outputs
from tqkernel.backends.emulator import (
    ARGUMENT_NAMES,
    POINTERS,
    EmulatorBackend,
    Kernel,
    array_shapes,
    inner_strides,
    read_listing,
)
from tqkernel.backends.host import HostFunction
from tqkernel.compile import compile_module, listing_in_module
from tqkernel.gfx950 import Program
from tqkernel.plan import WAVE_LANES
from tqref import Case

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
        self._compiled: dict[Any, _Compiled] = {}

    def _kernel(self, case: Case, hw_v_transpose: bool) -> Kernel:
        parameters = build_parameters(case, hw_v_transpose)
        key = tuple(parameters.values())
        if key not in self._compiled:
            try:
                self._compiled[key] = self._built(parameters, case)
            except (KernelError, RunError):
                raise
            except Exception as error:
                code = getattr(inspect.unwrap(self._builder), "__code__", None)
                why = blamed(error, code.co_filename if code else "")
                raise KernelError(f"kernel: cannot be built for {case.name}: {why}") from error
        return self._compiled[key].kernel(case, self._named)

    def _built(self, parameters: Mapping[str, Any], case: Case) -> _Compiled:
        built = self._builder(**parameters)
        launch = _launch_of(getattr(built, "launcher", built), case)
        # A builder that returns the same launcher for other sizes is compiled once.
        if launch.key not in self._compiled:
            with self._announce(f"compiling the kernel for {case.name}"):
                self._compiled[launch.key] = _compile(launch)
        return self._compiled[launch.key]


class _Launch(NamedTuple):
    """What to compile.

    key         what the builder returned, which it may return again, and the compile-time constants
    launcher, arguments   a `@flyc.jit` function, and stand-ins for what it is given
    slots       what each parameter of the compiled host code stands for, "" for a stream. A tensor is two: its pointer,
                and then a record of its shape and strides, here `record of` its name
    """

    key: tuple[Any, ...]
    launcher: Any
    arguments: list[Any]
    slots: list[str]


class _Compiled(NamedTuple):
    """A launcher's kernel, and the host code that launches it."""

    program: Program
    host: HostFunction
    slots: list[str]

    def kernel(self, case: Case, named: Sequence[str] | None) -> Kernel:
        """As launched for a case; `named` are the kernel's arguments where the host code does not tell."""
        shapes = array_shapes(case).items()
        records = {f"{_RECORD}{name}": (shape, inner_strides(shape)) for name, (shape, *_) in shapes}
        given = _sizes(case) | records
        grid, block = self.host.launch_sizes([given.get(slot, slot) for slot in self.slots])
        return Kernel(self.program, named or self._arguments(), grid, block)

    def _arguments(self) -> list[str]:
        meanings = dict(zip(self.host.parameters, self.slots, strict=True))
        names = [meanings.get(value, "") for value in self.host.arguments]
        for place, name in enumerate(names):
            if not name.startswith(_RECORD) and name not in ARGUMENT_NAMES:
                raise KernelError(
                    f"kernel: expected arguments from {', '.join(ARGUMENT_NAMES)}, got {name or 'a computed value'} as "
                    f"argument {place}; --arguments names them all"
                )
        return [name for name in names if not name.startswith(_RECORD)]


_RECORD = "record of "


def _compile(launch: _Launch) -> _Compiled:
    module = compile_module(launch.launcher, *launch.arguments, debug_locations=True)
    host = HostFunction.parse(module)
    if len(host.parameters) != len(launch.slots):
        raise KernelError(
            f"kernel: expected host code of {len(launch.slots)} parameters, got {len(host.parameters)}"
        )
    return _Compiled(read_listing(listing_in_module(module)), host, launch.slots)


def _launch_of(built: Any, case: Case) -> _Launch:
    from flydsl.compiler.jit_function import JitFunction
    from flydsl.compiler.kernel_function import KernelFunction

    if isinstance(built, JitFunction):
        built._ensure_sig()
        return _launch(built, built, built._sig, case)
    if isinstance(built, KernelFunction):
        if len(built._sig.parameters) != len(POINTERS):
            raise KernelError(
                f"kernel: expected a @flyc.kernel function of {len(POINTERS)} arrays, got one of "
                f"{len(built._sig.parameters)} arguments; return the @flyc.jit launcher instead"
            )
        launcher = _launcher_of(built)
        launcher._ensure_sig()
        return _launch(built, launcher, launcher._sig, case)
    raise KernelError(
        "kernel: expected the builder to return a @flyc.jit launcher, a @flyc.kernel function, or an object "
        f"whose launcher is one, got {type(built).__name__}"
    )


def _launcher_of(kernel: Any) -> Any:
    """A launcher of a bare kernel: one wave for each (sequence, KV head, partition)."""
    import flydsl.compiler as flyc

    allocators = _allocators(kernel)

    @flyc.jit
    def launch(
        out,
        exp_sums,
        max_logits,
        query,
        kv_cache,
        centroids,
        block_tables,
        seq_lens,
        num_seqs,
        num_kv_heads,
        num_partitions,
    ):
        _finalize(allocators)
        kernel(out, exp_sums, max_logits, query, kv_cache, centroids, block_tables, seq_lens).launch(
            grid=(num_seqs, num_kv_heads, num_partitions), block=(WAVE_LANES, 1, 1)
        )

    return launch


def _allocators(kernel: Any) -> list[Any]:
    """The `SmemAllocator`s that a kernel function can see: FlyDSL's older way to LDS, which launchers finalise."""
    from flydsl.utils.smem_allocator import SmemAllocator

    function = kernel._func
    seen = [*function.__globals__.values(), *(cell.cell_contents for cell in function.__closure__ or ())]
    return [value for value in seen if isinstance(value, SmemAllocator)]


def _finalize(allocators: Sequence[Any]) -> None:
    """Declare their memory in the module that is being compiled."""
    from flydsl._mlir import ir
    from flydsl.compiler.kernel_function import CompilationContext, get_gpu_module_body

    for allocator in allocators:
        allocator.finalized = False  # in another module it may be
        with ir.InsertionPoint(get_gpu_module_body(CompilationContext.get_current().gpu_module_op)):
            allocator.finalize()


def _launch(built: Any, launcher: Any, signature: inspect.Signature, case: Case) -> _Launch:
    """With stand-ins for the arguments that have no memory behind them."""
    parameters = [parameter for parameter in signature.parameters.values() if not _is_stream(parameter)]
    names = dict(zip(parameters, _meanings([parameter.name for parameter in parameters]), strict=True))
    stand_ins = _stand_ins(case)
    launch = _Launch((built,), launcher, [], [])
    for parameter in signature.parameters.values():
        if _is_stream(parameter):
            launch.slots.append("")
            continue
        name = names[parameter]
        if name not in stand_ins:
            raise KernelError(
                f"kernel: expected parameters from {', '.join(stand_ins)}, got {parameter.name}"
            )
        launch.arguments.append(_pointer() if _is_pointer(parameter) else stand_ins[name])
        if _is_constant(parameter):
            launch = launch._replace(key=(*launch.key, stand_ins[name]))
        elif name in POINTERS and not _is_pointer(parameter):
            launch.slots.extend([name, _RECORD + name])
        else:
            launch.slots.append(name)
    if "" not in launch.slots:
        launch.slots.append("")  # FlyDSL gives every launcher a stream
    return launch


def _meanings(names: Sequence[str]) -> list[str]:
    """What parameters stand for: by name, `_ptr` and the like left off.

    Unknown names among the first eight go by their places, if all known ones there are in theirs.
    """
    plain = [name.removesuffix("_ptr").removesuffix("_tensor").strip("_") for name in names]
    known = [name in ARGUMENT_NAMES for name in plain]
    in_place = all(
        name == own for name, own, is_known in zip(plain, POINTERS, known, strict=False) if is_known
    )
    if in_place and (len(plain) >= len(POINTERS) or not any(known)):
        return [*POINTERS[: len(plain)], *plain[len(POINTERS) :]]
    return plain


def _is_stream(parameter: inspect.Parameter) -> bool:
    return bool(getattr(parameter.annotation, "_is_stream_param", False)) or parameter.name == "stream"


def _is_constant(parameter: inspect.Parameter) -> bool:
    from flydsl.expr.typing import Constexpr

    return bool(Constexpr.is_constexpr_annotation(parameter.annotation))


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
    kv_cache = torch.empty((1, case.layout.block_bytes), dtype=torch.uint8)
    return tensors | {"kv_cache": kv_cache} | _sizes(case)


def _sizes(case: Case) -> dict[str, Any]:
    """The scalars that a launcher may be given, by each name they may have."""
    return build_parameters(case, False) | dict.fromkeys(_SEQUENCES, case.num_sequences)
