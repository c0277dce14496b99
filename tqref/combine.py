"""Joining a decode's partitions into the attention output."""

from __future__ import annotations

import numpy as np

from tqref.decode import Partials
from tqref.layout import HEAD_SIZE
from tqref.numerics import Float32, bf16_to_f32


def combine(partials: Partials) -> Float32:
    """Join partitions by their maxima and sums: float32[N, Hk * QG, 128], 0 where no partition has a token.

    Partitions whose maximum is -inf are left out; the others count with exp_sums * exp(max_logits - maximum),
    added in float32 in ascending order. exp is taken in float64 and rounded to float32. NaN in, NaN out.
    """
    present = ~np.isneginf(partials.max_logits)
    with np.errstate(all="ignore"):
        maximum = partials.max_logits.max(axis=2, keepdims=True)
        ratio = np.exp((partials.max_logits - maximum).astype(np.float64)).astype(np.float32)
        weight = np.where(present, partials.exp_sums * ratio, np.float32(0))[..., None]
        values = np.where(present[..., None], bf16_to_f32(partials.out), np.float32(0))
        shape = (*values.shape[:2], *values.shape[3:])
        total, joined = np.zeros((*shape[:-1], 1), np.float32), np.zeros(shape, np.float32)
        for partition in range(values.shape[2]):
            total = total + weight[:, :, partition]
            joined = joined + values[:, :, partition] * weight[:, :, partition]
        out = np.where(total == 0, np.float32(0), joined / total)
    return out.reshape(shape[0], -1, HEAD_SIZE)
