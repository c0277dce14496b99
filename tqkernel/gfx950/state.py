"""What the interpreter's functions hand each other: arrays under a name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class GlobalMemory(NamedTuple):
    """Regions sorted by address: int64 starts, ends and offsets into the arena, one uint8 array (and as uint32)."""

    starts: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    arena: np.ndarray
    words: np.ndarray


class LocalMemory(NamedTuple):
    """LDS of a workgroup, or private memory of a wave: uint8, as uint32 too, and its size (per lane if private)."""

    data: np.ndarray
    words: np.ndarray
    size: int


class Numerics(NamedTuple):
    """A profile as arrays (see `matrix.dot_parameters` and `scalar.exp2`), and room for the matrix core to work in."""

    dot: np.ndarray
    exp2_inputs: np.ndarray
    exp2_outputs: np.ndarray
    work: np.ndarray
    outputs: np.ndarray


class Trace(NamedTuple):
    """Vector results of one wave in the order of execution: row int32 [n], register int32 [n], value uint32 [n, 64].

    `recorded` int64 [1] is how many; recording stops when the arrays are full. With none, nothing is recorded.
    """

    rows: np.ndarray
    registers: np.ndarray
    values: np.ndarray
    recorded: np.ndarray
