"""From a FlyDSL kernel to a gfx950 assembly listing, with no GPU, ROCm or linker.

FlyDSL's compile backends are plug-ins. The one registered here lowers exactly as FlyDSL's own ROCm backend
does, but ends with the assembly text instead of a linked code object, so the listing is what a GPU would be
given.

Listings of the decode kernel are kept on disk; see `tqkernel.cache`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tqkernel.plan
import tqref.layout
from tqkernel.cache import cache_directory
from tqkernel.plan import Variant

ARCHITECTURE = "gfx950"
BACKEND_NAME = "tqgate-listing"

_ENVIRONMENT_LOCK = threading.Lock()
_KERNEL_SOURCES = (
    Path(__file__),
    Path(__file__).with_name("decode.py"),
    Path(tqkernel.plan.__file__),
    Path(tqref.layout.__file__),
)
"""Everything of ours that a listing is made from."""

_NEEDS_DEVICE_LIBRARY = (
    "launcher: expected a kernel that needs no ROCm device library, got one that calls a function of it, "
    'such as exp2 at full accuracy; pass fastmath="fast" to that function, or set ROCM_PATH to a ROCm with '
    "amdgcn/bitcode"
)


def compile_listing(variant: Variant, *, debug_locations: bool = False) -> str:
    """Assembly listing of the decode kernel built for `variant`.

    Args:
        variant: what the kernel is specialised on; every other size is a kernel argument.
        debug_locations: keep `.loc` lines, which map instructions to lines of the kernel's source.

    Returns:
        The text LLVM prints for gfx950: directives, instructions and the kernel's metadata. Read from the
        cache when an earlier call compiled the same kernel source with the same FlyDSL.
    """
    path = cache_directory() / f"{variant.name}-{_cache_key(variant, debug_locations)}.s"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    listing = _compile_variant(variant, debug_locations)
    _write_atomically(path, listing)
    return listing


def compile_builder(
    builder: Callable[..., Any],
    *arguments: Any,
    debug_locations: bool = False,
    architecture: str = ARCHITECTURE,
    **parameters: Any,
) -> str:
    """Assembly listing of the launcher that `builder(**parameters)` returns.

    Args:
        builder: callable returning a `@flyc.jit` launcher.
        arguments: the launcher's arguments, as for a launch, but with CPU tensors or `pointer(...)`
            placeholders.
        debug_locations: keep `.loc` lines.
        architecture: the GPU to compile for, as LLVM names it: gfx950, gfx942.
        parameters: passed on to `builder`.

    Returns:
        The listing of the one GPU module that the launcher launches.
    """
    launcher = builder(**parameters)
    return compile_launcher(launcher, *arguments, debug_locations=debug_locations, architecture=architecture)


def compile_launcher(
    launcher: Any, *arguments: Any, debug_locations: bool = False, architecture: str = ARCHITECTURE
) -> str:
    """Assembly listing of a `@flyc.jit` launcher's one kernel. Arguments and errors are those of `compile_module`.

    Raises ValueError where there is no kernel, or more than one.
    """
    module = compile_module(launcher, *arguments, debug_locations=debug_locations, architecture=architecture)
    return listing_in_module(module)


def compile_module(
    launcher: Any, *arguments: Any, debug_locations: bool = False, architecture: str = ARCHITECTURE
) -> str:
    """A `@flyc.jit` launcher specialised on `arguments`, never launched and never cached: MLIR's text of it.

    Args:
        launcher: a `@flyc.jit` function.
        arguments: CPU tensors, `pointer(...)` placeholders, Python scalars and compile-time constants.
        debug_locations: keep `.loc` lines.
        architecture: the GPU to compile for, as LLVM names it: gfx950, gfx942.

    Raises:
        TypeError: `launcher` is something else.
        RuntimeError: the kernel calls a function of ROCm's device library, which is not here.
    """
    with _listing_environment(debug_locations, architecture):
        from flydsl.compiler.jit_function import JitFunction

        if not isinstance(launcher, JitFunction):
            raise TypeError(f"launcher: expected a @flyc.jit function, got {type(launcher).__name__}")
        _register_backend()
        try:
            launcher._compile_only(*arguments)
        except Exception as error:
            if "amdgcn bitcode" not in str(error):
                raise
            raise RuntimeError(_NEEDS_DEVICE_LIBRARY) from error
        _, artifact = launcher._last_compiled
    return str(artifact.ir)


def pointer(element_type: Any) -> Any:
    """Placeholder for a device pointer argument to elements of a FlyDSL type, e.g. `pointer(fx.Float32)`."""
    import flydsl.compiler as flyc

    return flyc.from_c_void_p(element_type, None)


def _compile_variant(variant: Variant, debug_locations: bool) -> str:
    from tqkernel.decode import build_decode_launcher, placeholder_arguments

    launcher = build_decode_launcher(variant)
    return compile_launcher(launcher, *placeholder_arguments(), debug_locations=debug_locations)


def _cache_key(variant: Variant, debug_locations: bool) -> str:
    """Digest of everything the listing depends on."""
    parts = [importlib.metadata.version("flydsl"), repr(variant), str(debug_locations)]
    parts += [source.read_text(encoding="utf-8") for source in _KERNEL_SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _write_atomically(path: Path, text: str) -> None:
    """Write through a temporary file in the same directory, so that no reader ever sees half a listing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _listing_environment(debug_locations: bool, architecture: str = ARCHITECTURE) -> Iterator[None]:
    """The environment variables FlyDSL reads while it compiles, put back as they were afterwards.

    FlyDSL reads each of them anew on every compile, so a later compile for a real GPU in this process is
    unaffected.
    """
    wanted = {
        "FLYDSL_COMPILE_BACKEND": BACKEND_NAME,
        "FLYDSL_COMPILE_LLVM_DIR": "",
        "ARCH": architecture,
        "FLYDSL_GPU_ARCH": architecture,
        "COMPILE_ONLY": "1",
        "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
        "FLYDSL_RUNTIME_RUN_ONLY": "0",
        "FLYDSL_DEBUG_ENABLE_DEBUG_INFO": str(int(debug_locations)),
    }
    with _ENVIRONMENT_LOCK:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@functools.cache
def _register_backend() -> None:
    """Make the listing backend known to FlyDSL, once per process."""
    from flydsl.compiler.backends import register_backend
    from flydsl.compiler.backends.rocm import RocmBackend
    from flydsl.runtime.device_runtime import register_compile_runtime_mapping

    class ListingBackend(RocmBackend):  # type: ignore[misc]
        """FlyDSL's ROCm backend, stopped at the assembly text."""

        def _pipeline_parts(self, *, compile_hints: dict[str, Any]) -> tuple[list[str], str]:
            lowering, _ = super()._pipeline_parts(compile_hints=compile_hints)
            return lowering, "gpu-module-to-binary{format=isa}"

        def toolkit_fingerprint(self) -> str:
            """No toolkit takes part: the assembly is printed by FlyDSL's own LLVM."""
            return BACKEND_NAME

    register_backend(BACKEND_NAME, ListingBackend, force=True)
    register_compile_runtime_mapping(BACKEND_NAME, "rocm")


def listing_in_module(module: str) -> str:
    """The assembly listing in a compiled module's text. Raises ValueError where there is none, or more than one."""
    found = re.findall(r'\bassembly = "((?:[^"\\]|\\.)*)"', module)
    if len(found) != 1:
        raise ValueError(f"compiled module: expected one assembly listing, found {len(found)}")
    return _unescape(found[0])


def _unescape(text: str) -> str:
    r"""Undo MLIR's string escapes: `\\`, `\n`, `\t`, `\"` and `\XX`, two hexadecimal digits of a byte."""
    raw = re.sub(
        rb'\\(\\|n|t|"|[0-9A-Fa-f]{2})',
        lambda match: _ESCAPES.get(match[1]) or bytes([int(match[1], 16)]),
        text.encode(),
    )
    return raw.decode()


_ESCAPES = {b"\\": b"\\", b"n": b"\n", b"t": b"\t", b'"': b'"'}
