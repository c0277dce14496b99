"""The same kernel on a real gfx950, through FlyDSL and ROCm torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends import RunError, UnavailableError, input_arrays, poisoned_outputs
from tqref import Case, Partials, Profile

ARCHITECTURE = "gfx950"


class HipBackend:
    """Runs the kernel on the first GPU, whose arithmetic is its own whatever the profile says.

    Raises UnavailableError when there is no gfx950 with ROCm torch.
    """

    name = "hip"

    def __init__(self) -> None:
        import torch

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

        from tqkernel.decode import build_tq_decode_module

        decode = build_tq_decode_module(
            num_seqs=case.num_sequences,
            num_kv_heads=case.num_kv_heads,
            num_partitions=case.num_partitions,
            max_blocks_per_seq=case.max_blocks_per_sequence,
            softmax_scale=case.softmax_scale,
            query_group_size=case.query_group_size,
            kv_block_size=case.kv_block_size,
            use_hw_v_transpose=hw_v_transpose,
            tile_groups_per_partition=case.tile_groups_per_partition,
        )
        outputs = {name: _on_device(array) for name, array in poisoned_outputs(case).items()}
        inputs = {name: _on_device(array) for name, array in input_arrays(case).items()}
        kv_cache = torch.full(
            (case.num_blocks, case.layout.block_bytes), 0xFF, dtype=torch.uint8, device="cuda"
        )
        kv_cache[_on_device(case.block_ids)] = _on_device(case.blocks)
        try:
            decode(**outputs, **inputs, kv_cache=kv_cache, stream=torch.cuda.current_stream())
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise RunError(str(error)) from error
        return Partials(**{name: _from_device(tensor) for name, tensor in outputs.items()})


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
