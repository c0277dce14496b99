"""Properties of the oracle's parts: codec, layout, combination."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tqref import CacheLayout, MetadataField, Partials, combine
from tqref.codec import dequantize_value, pack_nibbles, quantize_value, unpack_nibbles
from tqref.numerics import bf16_to_f32, f32_to_bf16

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@given(nibbles=hnp.arrays(np.uint8, (3, 128), elements=st.integers(0, 15)))
def test_pack_and_unpack_are_inverse(nibbles: np.ndarray) -> None:
    assert np.array_equal(unpack_nibbles(pack_nibbles(nibbles)), nibbles)


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


@given(
    values=hnp.arrays(np.float32, (2, 128), elements=st.floats(-60000, 60000, width=32)),
)
def test_a_value_comes_back_within_half_a_step(values: np.ndarray) -> None:
    """Half a step, plus what fp16 rounds off scale (15 times) and zero, plus the bfloat16 of the result."""
    step, scale, zero = quantize_value(values)
    back = bf16_to_f32(dequantize_value(step, scale, zero)).astype(np.float64)
    exact = step * scale.astype(np.float64)[:, None] + zero.astype(np.float64)[:, None]
    assert np.allclose(back, exact, rtol=2.0**-8, atol=1e-38)
    low, high = (f(axis=-1).astype(np.float64) for f in (values.min, values.max))
    true_scale = np.maximum((high - low) / 15, 1e-8)
    # fp16: relative 2^-11, or half of the smallest subnormal.
    scale_error = np.maximum(true_scale * 2.0**-11, 2.0**-25)
    zero_error = np.maximum(abs(low) * 2.0**-11, 2.0**-25)
    allowed = true_scale / 2 * (1 + 2.0**-20) + 15 * scale_error + zero_error + (high - low + abs(low)) * 2.0**-20
    assert (abs(exact - values.astype(np.float64)) <= allowed[:, None]).all()


@st.composite
def partials(draw: st.DrawFn) -> Partials:
    count = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    logits = random.normal(0, 10, (1, 1, count, 8)).astype(np.float32)
    sums = random.uniform(1, 300, (1, 1, count, 8)).astype(np.float32)
    out = f32_to_bf16(random.normal(0, 1, (1, 1, count, 8, 128)).astype(np.float32))
    empty = random.random(count) < 0.3
    logits[:, :, empty], sums[:, :, empty], out[:, :, empty] = -np.inf, 0, 0
    return Partials(out, sums, logits)


@given(parts=partials())
def test_weights_sum_to_one(parts: Partials) -> None:
    one_where_live = np.where(parts.exp_sums[..., None] > 0, np.uint16(0x3F80), parts.out)
    ones = Partials(one_where_live, parts.exp_sums, parts.max_logits)
    combined = combine(ones).reshape(8, 128)
    some = (parts.exp_sums > 0).any(axis=2).reshape(8)
    assert np.allclose(combined[some], 1, rtol=2.0**-20, atol=0)
    assert (combined[~some] == 0).all()


@given(parts=partials(), data=st.data())
def test_empty_partitions_change_nothing(parts: Partials, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, parts.out.shape[2]))
    wider = Partials(
        np.insert(parts.out, at, 0, axis=2),
        np.insert(parts.exp_sums, at, 0, axis=2),
        np.insert(parts.max_logits, at, -np.inf, axis=2),
    )
    assert np.array_equal(combine(parts).view(np.uint32), combine(wider).view(np.uint32))


@given(parts=partials())
def test_combination_against_float64(parts: Partials) -> None:
    """P + 3 float32 roundings of each of two sums of P terms, and an exp good to 2^-23: below 2^-18 for P <= 5."""
    out = bf16_to_f32(parts.out).astype(np.float64)
    largest = parts.max_logits.max(axis=2, keepdims=True).astype(np.float64)
    live = np.isfinite(parts.max_logits)
    shifted = np.where(live, parts.max_logits.astype(np.float64) - largest, -np.inf)
    weights = np.where(live, parts.exp_sums * np.exp(shifted), 0)[..., None]
    total = weights.sum(axis=2)
    exact = np.divide((out * weights).sum(axis=2), total, where=total > 0, out=np.zeros((1, 1, 8, 128)))
    scale = np.divide((abs(out) * weights).sum(axis=2), total, where=total > 0, out=np.zeros((1, 1, 8, 128)))
    error = abs(combine(parts).reshape(1, 1, 8, 128) - exact)
    assert (error <= scale * 2.0**-18 + 1e-44).all()
