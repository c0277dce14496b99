"""The same kernel on a real gfx950, through FlyDSL and ROCm torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import (
    RunError,
    UnavailableError,
    build_parameters,
    input_arrays,
    poisoned_outputs,
)
from tqkernel.plan import KERNEL_ARGUMENTS
from tqref import Case, Partials, Profile

ARCHITECTURE = "gfx950"


class HipBackend:
    """Runs the kernel on the first GPU, whose arithmetic is its own whatever the profile says.

    builder: what builds the kernel, by default the decode kernel's `build_tq_decode_module`.
    Raises UnavailableError when there is no gfx950 with ROCm torch.
    """

    name = "hip"

    def __init__(self, builder: Callable[..., Any] | None = None) -> None:
        import torch

        from tqkernel.decode import build_tq_decode_module

        self._builder = builder or build_tq_decode_module
        if torch.version.hip is None:
            raise UnavailableError(
                f"backend hip: expected a ROCm build of torch, got torch {torch.__version__}"
            )
        if not torch.cuda.is_available():
            raise UnavailableError(f"backend hip: expected an AMD {ARCHITECTURE} GPU, got none")
        found = torch.cuda.get_device_properties(0).gcnArchName
        if found.split(":")[0] != ARCHITECTURE:
            raise UnavailableError(f"backend hip: expected an AMD {ARCHITECTURE} GPU, got {found}")

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        """See `Backend.run`. The whole cache is allocated, its absent blocks poisoned with 0xFF."""
        import torch

        decode = self._builder(**build_parameters(case, hw_v_transpose))
        outputs = {name: _on_device(array) for name, array in poisoned_outputs(case).items()}
        inputs = {name: _on_device(array) for name, array in input_arrays(case).items()}
        kv_cache = torch.full(
            (case.num_blocks, case.layout.block_bytes), 0xFF, dtype=torch.uint8, device="cuda"
        )
        kv_cache[_on_device(case.block_ids)] = _on_device(case.blocks)
        try:
            _launch(decode, outputs | inputs | {"kv_cache": kv_cache}, torch.cuda.current_stream())
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise RunError(str(error)) from error
        return Partials(**{name: _from_device(tensor) for name, tensor in outputs.items()})


def _launch(decode: Any, arrays: dict[str, Any], stream: Any) -> None:
    """Call what a builder returned: a `@flyc.jit` launcher takes the eight arrays by position."""
    if hasattr(decode, "launcher"):
        decode(**arrays, stream=stream)
        return
    names = [argument.name for argument in KERNEL_ARGUMENTS if argument.kind == "pointer"]
    decode(*(arrays[name] for name in names), stream=stream)


def _on_device(array: NDArray[Any]) -> Any:
    """A copy on the GPU; uint16 becomes bfloat16 with the same bits."""
    import torch

    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).cuda().view(torch.bfloat16)
    return torch.from_numpy(array.copy()).cuda()


def _from_device(tensor: Any) -> NDArray[Any]:
    """Undo `_on_device`."""
    import torch

    if tensor.dtype == torch.bfloat16:
        bits: NDArray[Any] = tensor.view(torch.int16).cpu().numpy().view(np.uint16)
        return bits
    values: NDArray[Any] = tensor.cpu().numpy()
    return values
