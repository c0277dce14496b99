"""Where a kernel can run. A backend takes a case and gives back what the kernel wrote, to the bit."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tqref import Case, Partials, Profile
from tqref.layout import HEAD_SIZE

POISON_BYTE = 0xA5
"""Fills the outputs before a run, so that an element the kernel leaves alone shows as a difference.
As bf16 and as f32 it is a tiny negative number: not what a decode writes, nor a NaN, which could hide."""


class RunError(RuntimeError):
    """The kernel did not run to its end: a memory fault, or an instruction nobody knows."""


class FindingsError(RunError):
    """The kernel ran to its end, but the sanitizer found what no correct kernel does.

    findings: a line each. partials: what the kernel wrote.
    """

    def __init__(self, findings: Sequence[str], partials: Partials) -> None:
        super().__init__("\n".join(findings))
        self.findings = tuple(findings)
        self.partials = partials


class KernelError(ValueError):
    """What was given as a kernel cannot be run as one: unreadable, or with arguments that nobody can name."""


class UnavailableError(RuntimeError):
    """The backend cannot be used on this machine."""


def blamed(error: Exception, module: str) -> str:
    """An exception in one line, with the last line of the module's file that it came by, or its own last line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.lineno is not None]
    last = next((frame for frame in reversed(frames) if frame.filename == module), frames[-1])
    message = " ".join(str(error).split())
    # A SyntaxError's message has its place already.
    place = "" if isinstance(error, SyntaxError) else f" ({os.path.relpath(last.filename)}, line {last.lineno})"
    return f"{type(error).__name__}: {message}{place}"


class Backend(Protocol):
    """Runs the decode kernel."""

    name: str

    def run(self, case: Case, hw_v_transpose: bool, profile: Profile) -> Partials:
        """Run the kernel variant that `case` and `hw_v_transpose` name, and return what it wrote.

        `profile` is the arithmetic of the chip where the backend has to imitate it; silicon has its own.
        Raises RunError when the kernel does not finish, FindingsError when it does and is found wrong all the same.
        """
        ...


def output_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of the kernel's outputs. out: [N, Hk, P, QG, 128]; exp_sums and max_logits: [N, Hk, P, QG]."""
    rows = (case.num_sequences, case.num_kv_heads, case.num_partitions, case.query_group_size)
    return {"out": (*rows, HEAD_SIZE), "exp_sums": rows, "max_logits": rows}


def poisoned_outputs(case: Case, poison: int = POISON_BYTE) -> dict[str, NDArray[Any]]:
    """The kernel's output arrays by argument name, every byte `poison`.

    Of `output_shapes`; out is uint16, bfloat16 bits, exp_sums and max_logits are float32.
    """
    outputs: dict[str, NDArray[Any]] = {
        name: np.empty(shape, np.uint16 if name == "out" else np.float32)
        for name, shape in output_shapes(case).items()
    }
    for output in outputs.values():
        output.view(np.uint8).fill(poison)
    return outputs


def input_arrays(case: Case) -> dict[str, NDArray[Any]]:
    """The kernel's input arrays by argument name, all but the cache, whose blocks are sparse."""
    return {name: getattr(case, name) for name in ("query", "centroids", "block_tables", "seq_lens")}


def build_parameters(case: Case, hw_v_transpose: bool) -> dict[str, Any]:
    """What a builder of the decode kernel is called with, by keyword; see `build_tq_decode_module`."""
    return {
        "num_seqs": case.num_sequences,
        "num_kv_heads": case.num_kv_heads,
        "num_partitions": case.num_partitions,
        "max_blocks_per_seq": case.max_blocks_per_sequence,
        "softmax_scale": case.softmax_scale,
        "query_group_size": case.query_group_size,
        "kv_block_size": case.kv_block_size,
        "use_hw_v_transpose": hw_v_transpose,
        "tile_groups_per_partition": case.tile_groups_per_partition,
    }
