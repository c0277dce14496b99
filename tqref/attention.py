"""Textbook attention in float64 on the dequantised cache: what the decode approximates, not its bits."""

from __future__ import annotations

import numpy as np

from tqref.cache import read_tokens
from tqref.case import Case
from tqref.layout import HEAD_SIZE
from tqref.numerics import Float64, bf16_to_f32


def attention(case: Case) -> Float64:
    """softmax(scale * K q) V per query head, as float64[N, Hk * QG, 128]; zeros for an empty sequence.

    Keys and values are dequantised in float64, without the kernel's rounding to bfloat16.
    """
    rows = case.query_group_size
    out = np.zeros((case.num_sequences, case.num_kv_heads, rows, HEAD_SIZE))
    query = bf16_to_f32(case.query).astype(np.float64).reshape(out.shape)
    for sequence, length in enumerate(case.seq_lens.tolist()):
        for head in range(case.num_kv_heads if length else 0):
            keys, values = dequantized_tokens(case, sequence, head)
            scores = query[sequence, head] @ keys.T * case.softmax_scale
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[sequence, head] = weights @ values / weights.sum(axis=-1, keepdims=True)
    return out.reshape(case.num_sequences, case.num_query_heads, HEAD_SIZE)


def dequantized_tokens(case: Case, sequence: int, head: int) -> tuple[Float64, Float64]:
    """Rotated keys and values of one sequence and KV head, float64[length, 128] each, unrounded."""
    token = np.arange(case.seq_lens[sequence], dtype=np.int64)
    stored = read_tokens(case, np.array(sequence), np.array(head), token)
    metadata = (stored.key_norm, stored.value_scale, stored.value_zero)
    norm, scale, zero = (entries.astype(np.float64)[:, None] for entries in metadata)
    return case.centroids.astype(np.float64)[stored.key_index] * norm, stored.value_step * scale + zero
