"""Properties of the oracle and its parts: codec, layout, combination, and how near it all is to exact attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tqkernel.strategies import Problem, problems
from tqref import CacheLayout, MetadataField, Partials, attention, combine, decode
from tqref.attention import dequantized_tokens
from tqref.codec import (
    dequantize_key,
    dequantize_value,
    lloyd_max_centroids,
    pack_nibbles,
    quantize_key,
    quantize_value,
    rotate,
    rotation,
    unpack_nibbles,
)
from tqref.error_bounds import (
    attention_error,
    combination_error,
    negligible,
    rounded_magnitude,
    rounded_tokens,
    score_error,
    softmax_error,
)
from tqref.numerics import bf16_to_f32, f32_to_bf16

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

U, V = 2.0**-8, 2.0**-24
"""Largest relative errors of rounding to bfloat16 and to float32."""
FP16 = 2.0**-11
FP16_SUBNORMAL = 2.0**-25
"""Half the distance of two fp16 subnormals."""
MAX_FP16 = 65504.0


# ---------------------------------------------------------------- codec and layout


@given(nibbles=hnp.arrays(np.uint8, (3, 128), elements=st.integers(0, 15)))
def test_pack_and_unpack_are_inverse(nibbles: np.ndarray) -> None:
    assert np.array_equal(unpack_nibbles(pack_nibbles(nibbles)), nibbles)


def test_every_byte_is_packed_and_unpacked() -> None:
    every = np.arange(256, dtype=np.uint8)
    assert np.array_equal(pack_nibbles(unpack_nibbles(every)), every)
    assert unpack_nibbles(np.array([0xA3], np.uint8)).tolist() == [0x3, 0xA]


@given(kv_block_size=st.sampled_from([16, 32]), heads=st.integers(1, 8))
def test_every_byte_of_a_block_is_owned_once(kv_block_size: int, heads: int) -> None:
    layout = CacheLayout(kv_block_size, heads)
    owned = np.zeros(layout.block_bytes, int)
    for slot in range(kv_block_size):
        for head in range(heads):
            owned[layout.key_offset(slot, head) :][:64] += 1
            owned[layout.value_offset(slot, head) :][:64] += 1
            for which in MetadataField:
                owned[layout.metadata_offset(which, slot, head) :][:2] += 1
    assert (owned == 1).all()


def vectors(largest: float) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, (2, 128), elements=st.floats(-largest, largest, width=32))


def fp16_error(value: np.ndarray) -> np.ndarray:
    return np.maximum(abs(value) * FP16, FP16_SUBNORMAL)


@given(values=vectors(MAX_FP16))
def test_a_value_comes_back_within_half_a_step(values: np.ndarray) -> None:
    """Half a step, and what fp16 rounds off the scale (15 times) and off the zero.

    The step itself is chosen in float32: difference, quotient and sum are each rounded, of numbers below 16 steps
    or the extremes' magnitudes, so the choice may be wrong by 2**-20 of those.
    """
    step, scale, zero = quantize_value(values)
    back = step * scale.astype(np.float64)[:, None] + zero.astype(np.float64)[:, None]
    low, high = (f(axis=-1).astype(np.float64) for f in (values.min, values.max))
    exact_scale = np.maximum((high - low) / 15, 1e-8)
    allowed = exact_scale / 2 + 15 * fp16_error(exact_scale) + fp16_error(low)
    allowed += (16 * exact_scale + abs(low) + abs(high)) * 2.0**-20
    assert (abs(back - values.astype(np.float64)) <= allowed[:, None]).all()


@given(values=vectors(MAX_FP16))
def test_a_dequantised_value_is_rounded_once_to_float32_and_once_to_bfloat16(values: np.ndarray) -> None:
    step, scale, zero = quantize_value(values)
    exact = step * scale.astype(np.float64)[:, None] + zero.astype(np.float64)[:, None]
    back = bf16_to_f32(dequantize_value(step, scale, zero)).astype(np.float64)
    assert (abs(back - exact) <= abs(exact) * (U + V)).all()


@given(values=vectors(3.0000000054977558e38))
@example(values=np.full((2, 128), 65520, np.float32))
@example(values=np.linspace(-65520, 65520, 256, dtype=np.float32).reshape(2, 128))
def test_a_value_saturates(values: np.ndarray) -> None:
    """Never an infinity: what fp16 reaches comes back, and no order is turned round."""
    step, scale, zero = quantize_value(values)
    assert np.isfinite(scale).all() and np.isfinite(zero).all()
    order = np.argsort(values, axis=-1)
    assert (np.diff(np.take_along_axis(step, order, axis=-1).astype(int), axis=-1) >= 0).all()
    reached = np.clip(values.min(axis=-1), -MAX_FP16, MAX_FP16)
    assert (abs(zero.astype(np.float64) - reached) <= fp16_error(reached)).all()


# Norms are stored as fp16; below 2**-14 those are subnormal, and a vector of norm 1e-8 has no direction left.
KEYS = hnp.arrays(np.float32, (2, 128), elements=st.floats(-5000, 5000, width=32)).map(
    lambda keys: np.where((abs(keys) < 0.001) & (np.arange(128) == 0), np.float32(1), keys)
)


@given(keys=KEYS, norm_correction=st.booleans())
def test_a_key_gets_the_nearest_centroid(keys: np.ndarray, norm_correction: bool) -> None:
    """Nearest to the rotated unit vector, of which float32 leaves 2**-20 open."""
    centroids = lloyd_max_centroids()
    index, _ = quantize_key(keys, rotation(), centroids, norm_correction=norm_correction)
    norm = np.linalg.norm(keys.astype(np.float64), axis=-1, keepdims=True)
    unit = rotate(keys, rotation()).astype(np.float64) / norm
    distance = abs(unit[..., None] - centroids.astype(np.float64))
    chosen = np.take_along_axis(distance, index[..., None].astype(np.int64), axis=-1)[..., 0]
    assert (chosen <= distance.min(axis=-1) + 2.0**-20).all()


@given(keys=KEYS)
def test_norm_correction_gives_a_key_its_norm_back(keys: np.ndarray) -> None:
    """But for the norm's rounding to fp16, and each element's to bfloat16."""
    centroids = lloyd_max_centroids()
    index, stored = quantize_key(keys, rotation(), centroids, norm_correction=True)
    back = bf16_to_f32(dequantize_key(index, stored, centroids)).astype(np.float64)
    norm = np.linalg.norm(keys.astype(np.float64), axis=-1)
    allowed = norm * (1 + U) * (1 + FP16) * (1 + 2.0**-20) - norm
    unsaturated = stored < MAX_FP16
    assert (abs(np.linalg.norm(back, axis=-1) - norm) <= allowed)[unsaturated].all()


@given(keys=KEYS)
def test_without_norm_correction_the_norm_is_the_keys(keys: np.ndarray) -> None:
    _, stored = quantize_key(keys, rotation(), lloyd_max_centroids(), norm_correction=False)
    norm = np.minimum(np.linalg.norm(keys.astype(np.float64), axis=-1), MAX_FP16)
    assert (abs(stored.astype(np.float64) - norm) <= norm * (FP16 + V)).all()


def test_keys_too_long_for_fp16_saturate() -> None:
    keys = np.full((1, 128), 1e30, np.float32)
    for norm_correction in (False, True):
        _, stored = quantize_key(keys, rotation(), lloyd_max_centroids(), norm_correction=norm_correction)
        assert stored == np.float16(MAX_FP16)


# ---------------------------------------------------------------- combination


@st.composite
def partials(draw: st.DrawFn) -> Partials:
    """Of one sequence and head; sums are at least 1, as a maximum's own weight is."""
    count = draw(st.integers(1, 32))
    spread = draw(st.sampled_from([0.0, 1.0, 10.0, 100.0, 1e4]))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    logits = random.normal(0, spread, (1, 1, count, 8)).astype(np.float32)
    sums = random.uniform(1, 8192, (1, 1, count, 8)).astype(np.float32)
    largest = draw(st.sampled_from([1.0, 1e-38, 1e30]))
    out = f32_to_bf16(random.normal(0, largest, (1, 1, count, 8, 128)).astype(np.float32))
    empty = random.random(count) < 0.3
    logits[:, :, empty], sums[:, :, empty], out[:, :, empty] = -np.inf, 0, 0
    return Partials(out, sums, logits)


@given(parts=partials())
def test_weights_sum_to_one(parts: Partials) -> None:
    """Exactly: outputs of 1 are multiplied by the weights that are added, in the same order."""
    live = parts.exp_sums > 0
    ones = np.where(live[..., None], np.uint16(0x3F80), parts.out)
    combined = combine(Partials(ones, parts.exp_sums, parts.max_logits))
    assert np.array_equal(combined, np.broadcast_to(live.any(axis=2).reshape(1, 8, 1), combined.shape))


@given(parts=partials(), data=st.data())
def test_empty_partitions_change_nothing(parts: Partials, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, parts.out.shape[2]), max_size=5))
    wider = Partials(
        np.insert(parts.out, places, 0, axis=2),
        np.insert(parts.exp_sums, places, 0, axis=2),
        np.insert(parts.max_logits, places, -np.inf, axis=2),
    )
    assert np.array_equal(combine(parts).view(np.uint32), combine(wider).view(np.uint32))


@given(parts=partials())
def test_combination_is_exact_but_for_rounding(parts: Partials) -> None:
    """See `combination_error` for the bound."""
    out = bf16_to_f32(parts.out).astype(np.float64)
    largest = parts.max_logits.max(axis=2, keepdims=True).astype(np.float64)
    live = np.isfinite(parts.max_logits)
    shifted = np.where(live, parts.max_logits.astype(np.float64) - np.where(live, largest, 0), -np.inf)
    weights = np.where(live, parts.exp_sums * np.exp(shifted), 0)[..., None]
    total = weights.sum(axis=2)
    exact = np.divide((out * weights).sum(axis=2), total, where=total > 0, out=np.zeros((1, 1, 8, 128)))
    assert (abs(combine(parts) - exact.reshape(1, 8, 128)) <= combination_error(parts)).all()


# ---------------------------------------------------------------- the oracle and float64 attention


@given(problem=problems(tile_waves=96))
def test_scores_are_exact_but_for_rounding(problem: Problem) -> None:
    """See `score_error` for the bound."""
    case = problem.case()
    for sequence, head in np.ndindex(case.num_sequences, case.num_kv_heads):
        scores, _ = rounded_tokens(case, sequence, head, problem.arithmetic)
        rows = slice(head * case.query_group_size, (head + 1) * case.query_group_size)
        query = bf16_to_f32(case.query[sequence, rows]).astype(np.float64)
        exact = query @ dequantized_tokens(case, sequence, head)[0].T * case.softmax_scale
        allowed = score_error(case, sequence, head)
        assert ((abs(scores - exact) <= allowed) | np.isinf(allowed)).all()


@given(problem=problems(tile_waves=96))
def test_outputs_are_the_weighted_mean_of_values_but_for_rounding(problem: Problem) -> None:
    """Given the scores and values as rounded; see `softmax_error` for the bound."""
    case = problem.case()
    out = (
        combine(decode(case, problem.arithmetic))
        .astype(np.float64)
        .reshape(case.num_sequences, case.num_kv_heads, case.query_group_size, 128)
    )
    magnitude, lost = (part.reshape(out.shape) for part in rounded_magnitude(case, problem.arithmetic))
    allowed = softmax_error(case) * magnitude + lost
    for sequence, head in np.ndindex(case.num_sequences, case.num_kv_heads):
        if case.seq_lens[sequence]:
            scores, values = rounded_tokens(case, sequence, head, problem.arithmetic)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            exact = weights @ values / weights.sum(axis=-1, keepdims=True)
            within = abs(out[sequence, head] - exact) <= allowed[sequence, head]
            assert (within | ~np.isfinite(allowed[sequence, head])).all()


@given(problem=problems(tile_waves=96))
def test_the_oracle_is_attention_but_for_rounding(problem: Problem) -> None:
    """See `attention_error` for the bound."""
    case = problem.case()
    error = abs(combine(decode(case, problem.arithmetic)) - attention(case))
    allowed = attention_error(case)
    assert ((error <= allowed) | np.isinf(allowed)).all()


def test_the_bounds_say_something() -> None:
    """Of one ordinary problem: a part of the largest value, and 2% of the mean magnitude from softmax on."""
    case = Problem(lengths=(600,), partitions=3).case()
    largest = abs(dequantized_tokens(case, 0, 0)[1]).max()
    assert attention_error(case).max() < largest / 4
    assert softmax_error(case) < 0.02
    assert negligible(600, largest) < 1e-20
