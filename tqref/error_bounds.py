"""How far rounding may take a decode from exact attention: proven bounds, none of them measured.

Notation: u = 2**-8 and v = 2**-24 are the largest relative errors of rounding to bfloat16 and to float32. A sum of
products "within x" is off by at most x times the sum of the products' magnitudes.

What every profile keeps to, and the bounds rest on:

- exp2 is within 1 ulp, 2v relative, and flushes results below 2**-126.
- dot is within 11v for each 8 products that it adds. A grouped dot truncates each of them below 1v of the largest
  (8v), floors the accumulator below 1v and the sum below v/256 of the larger, floors the total below v/128 and
  rounds it (1v): 10.02v, and partial sums exceed exact ones by less than what is left. A chain of eight fused
  multiply-adds is within 8v. A subnormal operand takes part in the alignment as if it were 2**-126.

Numbers are taken to be finite, and not to overflow; where they do the bounds are infinite.
"""

from __future__ import annotations

import itertools

import numpy as np

from tqref.attention import dequantized_tokens
from tqref.case import Case
from tqref.decode import Partials, tiles
from tqref.layout import HEAD_SIZE, TILES_PER_GROUP
from tqref.numerics import Float64, Profile, bf16_to_f32

BF16 = 2.0**-8
"""u"""
F32 = 2.0**-24
"""v"""
_VACUOUS = 300.0
"""A score off by more leaves its weight undetermined."""


def score_error(case: Case, sequence: int, head: int) -> Float64:
    """How far each scaled score may be from softmax_scale * (q . k): float64[QG, length].

    k is the dequantised key, A the sum of |q_d k_d|, c the softmax scale.
    K is k rounded to float32 and then to bfloat16: within (1 + u/(1+u))(1 + v) - 1 < u. Its product with q is 128
    terms in 16 groups of 8: within 16 * 11v < 2**-16. c is rounded to float32, and so is the product with it: 2v.
    Together (1 + u)(1 + 2**-16)(1 + 2v) - 1 < 2**-8 + 2**-15 of |c| A. Below the normal range errors are absolute:
    2**-134 in an element of K; 2**-126 times the other operand and v in an alignment, 128 times; 2**-149 in each
    of 16 sums; 2**-150 in c and in the product. 2**-120 times operands, and 2**-140, are more.
    """
    keys, _ = dequantized_tokens(case, sequence, head)
    rows = slice(head * case.query_group_size, (head + 1) * case.query_group_size)
    query = np.abs(bf16_to_f32(case.query[sequence, rows]).astype(np.float64))
    keys, scale = np.abs(keys), abs(case.softmax_scale)
    with np.errstate(all="ignore"):
        magnitude = query @ keys.T
        operands = 1 + query.sum(axis=-1, keepdims=True) + keys.sum(axis=-1)
        error = magnitude * (scale * (2.0**-8 + 2.0**-15) + 2.0**-150)
        error += scale * 2.0**-120 * operands + 2.0**-140
        within_range = (magnitude * max(1, scale) < 2.0**126) & (keys.max(axis=-1, initial=0) < 2.0**127)
    return np.where(within_range, error, np.inf)


def softmax_error(case: Case) -> float:
    """How far the combined output may be from the mean of V weighted by softmax(s), in units of that of |V|.

    s are the scores and V the values as the decode holds them, float32 and bfloat16. J tiles to a partition, P
    partitions. The weight of a token is its probability times the rescaling factors of later tiles and, at last, of
    its partition, all of which are exponentials whose exponents add to D = maximum - s. A weight below 2**-126 may
    come out as 0; see `negligible`. For others D < 88.1.
    - Each exponent is a rounded difference times a rounded log2(e), rounded: within 3v. With the difference of
      maxima in the combination, which is rounded, all of D is within 4v: 353v in a weight.
    - The sum of weights: exponential 2v, 5 additions in a tile; per tile exponential, product and addition, 4v;
      in the combination exponential, product and P additions: (4J + P + 10)v.
    - The sum of weighted values: exponential 2v; per tile exponential, product and two groups of 8, 25v; inverse
      and product with it; in the combination the same and a product: (25J + P + 8)v. And twice u: probabilities
      are rounded to bfloat16, and so are partial outputs.
    The two sums' quotient, rounded, is within (1 + u)**2 (1 + g) - 1 with g = 706v + (29J + 2P + 19)v and the
    products of these errors, for which the bound takes 2**-13 = 2048v and (32J + 4P + 32)v.
    """
    tiles = case.tile_groups_per_partition * TILES_PER_GROUP
    arithmetic = (32 * tiles + 4 * case.num_partitions + 32) * F32 + 2.0**-13
    return (1 + BF16) ** 2 * (1 + arithmetic) - 1


def negligible(length: int, largest_value: float) -> float:
    """What is lost below the normal range, absolutely, in an output that averages `length` values.

    A token's weight that should be below 2**-125 may be off by that much, in both sums, where the largest weight
    is 1 and exact; and an output below 2**-126 by 2**-133.
    """
    return 2.0**-120 * (1 + length * largest_value)


def rounded_tokens(case: Case, sequence: int, head: int, profile: Profile) -> tuple[Float64, Float64]:
    """Scores float64[QG, length] and values float64[length, 128] as the decode holds them, rounded."""
    waves = (tiles(case, sequence, head, partition, profile) for partition in range(case.num_partitions))
    steps = list(itertools.chain.from_iterable(waves))
    scores = [step.scores[:, step.live] for step in steps]
    values = [bf16_to_f32(step.values[step.live]) for step in steps]
    nothing = np.zeros((case.query_group_size, 0)), np.zeros((0, HEAD_SIZE))
    return np.concatenate([nothing[0], *scores], axis=1), np.concatenate([nothing[1], *values])


def rounded_magnitude(case: Case, profile: Profile) -> tuple[Float64, Float64]:
    """What `softmax_error` is relative to, and what is `negligible` besides: float64[N, Hk * QG, 128] each."""
    shape = (case.num_sequences, case.num_kv_heads, case.query_group_size, HEAD_SIZE)
    magnitude, lost = np.zeros(shape), np.zeros(shape)
    for sequence, length in enumerate(case.seq_lens.tolist()):
        for head in range(case.num_kv_heads if length else 0):
            scores, values = rounded_tokens(case, sequence, head, profile)
            magnitude[sequence, head] = _softmax(scores) @ np.abs(values)
            lost[sequence, head] = negligible(length, float(np.abs(values).max()))
    joined = (case.num_sequences, case.num_query_heads, HEAD_SIZE)
    return magnitude.reshape(joined), lost.reshape(joined)


def attention_error(case: Case) -> Float64:
    """How far the combined output may be from `attention`: float64[N, Hk * QG, 128].

    With w the exact weights and e_t a token's `score_error`, the weights of the decode's scores are
    w_t exp(d_t) / sum(w exp(d)), |d| <= e: off by at most x_t = max(exp(e_t) / sum(w exp(-e)) - 1,
    1 - exp(-e_t) / sum(w exp(e))) times w_t. V is the exact value rounded to float32 (one rounding, as the product
    is exact) and to bfloat16: within (1 + u)(1 + v) - 1 < 2**-8 + 2**-15. With b the `softmax_error` the output is
    off by at most the sum of w_t |v_t| (x_t + (1 + x_t)((1 + 2**-8 + 2**-15)(1 + b) - 1)). float64 adds less than
    2**-30: exponents are below 2**17, and 2**13 terms are summed.
    """
    rows = case.query_group_size
    bound = np.zeros((case.num_sequences, case.num_kv_heads, rows, case.query.shape[-1]))
    query = bf16_to_f32(case.query).astype(np.float64).reshape(bound.shape)
    rounding = (1 + 2.0**-8 + 2.0**-15) * (1 + softmax_error(case)) - 1 + 2.0**-30
    for sequence, length in enumerate(case.seq_lens.tolist()):
        for head in range(case.num_kv_heads if length else 0):
            error = score_error(case, sequence, head)
            keys, values = dequantized_tokens(case, sequence, head)
            with np.errstate(all="ignore"):
                weight = _softmax(query[sequence, head] @ keys.T * case.softmax_scale)
                largest = np.exp(error) / (weight * np.exp(-error)).sum(axis=-1, keepdims=True) - 1
                smallest = 1 - np.exp(-error) / (weight * np.exp(error)).sum(axis=-1, keepdims=True)
                change = np.maximum(largest, smallest)
                off = (weight * (change + (1 + change) * rounding)) @ np.abs(values)
            off += negligible(length, np.abs(values).max())
            vague = error.max(axis=-1, keepdims=True) > _VACUOUS
            bound[sequence, head] = np.where(vague | ~np.isfinite(off), np.inf, off)
    return bound.reshape(case.num_sequences, case.num_query_heads, -1)


def combination_error(partials: Partials) -> Float64:
    """How far `combine` may be from exact arithmetic on the same partials: float64[N, Hk * QG, 128].

    A weight is a sum times an exponential of D = maximum - own maximum: D is rounded (D v), and so are the exponential
    and the product, 2v. P additions in both sums, a product in one, and the quotient: (2D + 2P + 8)v of the weighted
    mean of magnitudes, with products of errors. Below the normal range an exponential is off by 2**-150, and so are
    its product with a sum, which is at least 1, and each product with an output.
    """
    present = ~np.isneginf(partials.max_logits)
    maximum = partials.max_logits.max(axis=2, keepdims=True).astype(np.float64)
    below = np.where(present, maximum - np.where(present, partials.max_logits, maximum), 0)
    weight = np.where(present, partials.exp_sums * np.exp(-below), 0)
    total = weight.sum(axis=2, keepdims=True)
    share = np.divide(weight, total, where=total > 0, out=np.zeros_like(weight))
    magnitude = np.where(present[..., None], np.abs(bf16_to_f32(partials.out).astype(np.float64)), 0)
    partitions = partials.max_logits.shape[2]
    distance = (share * below).sum(axis=2)[..., None]
    mean = (share[..., None] * magnitude).sum(axis=2)
    far = ((share * below)[..., None] * magnitude).sum(axis=2)
    sums = np.where(present, partials.exp_sums, 0).astype(np.float64)
    lost = 2.0**-149 * np.divide(sums, total, where=total > 0, out=np.zeros_like(sums))
    bound = 1.01 * F32 * (far + mean * distance + mean * (2 * partitions + 8))
    bound += 2 * (lost[..., None] * (magnitude + mean[:, :, None])).sum(axis=2) + partitions * 2.0**-149
    joined: Float64 = bound.reshape(bound.shape[0], -1, bound.shape[-1])
    return joined


def _softmax(scores: Float64) -> Float64:
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: Float64 = weight / weight.sum(axis=-1, keepdims=True)
    return normalised
