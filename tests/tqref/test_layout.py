from __future__ import annotations

import numpy as np
import pytest

from tqref import CacheLayout, MetadataField

LAYOUTS = [CacheLayout(16, 1), CacheLayout(16, 2), CacheLayout(32, 3), CacheLayout(32, 8)]


def test_offsets_computed_by_hand() -> None:
    layout = CacheLayout(kv_block_size=16, num_kv_heads=2)
    assert layout.block_bytes == 16 * 2 * 134 == 4288
    assert layout.key_offset(3, 1) == 896
    assert layout.value_offset(3, 1) == 960
    assert layout.metadata_offset(MetadataField.KEY_NORM, 0, 0) == 4096
    assert layout.metadata_offset(MetadataField.VALUE_SCALE, 2, 0) == 4096 + 2 * 18
    assert layout.metadata_offset(MetadataField.VALUE_ZERO, 5, 1) == 4096 + 2 * 85

    layout = CacheLayout(kv_block_size=32, num_kv_heads=3)
    assert layout.block_bytes == 12864
    assert layout.key_offset(31, 2) == 95 * 128
    assert layout.metadata_offset(MetadataField.VALUE_ZERO, 31, 2) == 12864 - 2


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_byte_of_a_block_belongs_to_exactly_one_entry(layout: CacheLayout) -> None:
    owners = np.zeros(layout.block_bytes, int)
    for slot in range(layout.kv_block_size):
        for head in range(layout.num_kv_heads):
            for start in (layout.key_offset(slot, head), layout.value_offset(slot, head)):
                owners[start : start + 64] += 1
            for field in MetadataField:
                start = layout.metadata_offset(field, slot, head)
                owners[start : start + 2] += 1
    assert np.all(owners == 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_array_offsets_are_the_scalar_offsets(layout: CacheLayout) -> None:
    slot, head = np.arange(layout.kv_block_size)[:, None], np.arange(layout.num_kv_heads)[None, :]
    keys = layout.key_offset(slot, head)
    zeros = layout.metadata_offset(MetadataField.VALUE_ZERO, slot, head)
    assert keys.shape == zeros.shape == (layout.kv_block_size, layout.num_kv_heads)
    assert keys[7, -1] == layout.key_offset(7, layout.num_kv_heads - 1)
    assert zeros[7, -1] == layout.metadata_offset(MetadataField.VALUE_ZERO, 7, layout.num_kv_heads - 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("num_live", [0, 1, 5, 15, 16])
def test_live_bytes_are_those_of_the_live_slots(layout: CacheLayout, num_live: int) -> None:
    live = layout.live_bytes(num_live)
    assert live.shape == (layout.block_bytes,)
    assert np.count_nonzero(live) == num_live * layout.num_kv_heads * 134
    for slot in range(layout.kv_block_size):
        assert (
            live[layout.key_offset(slot, 0)] == live[layout.value_offset(slot, 0) + 63] == (slot < num_live)
        )
        assert live[layout.metadata_offset(MetadataField.VALUE_SCALE, slot, 0)] == (slot < num_live)


def test_a_full_block_is_all_live() -> None:
    assert CacheLayout(32, 3).live_bytes(32).all()


def test_refusals_name_the_argument() -> None:
    with pytest.raises(ValueError, match="kv_block_size: expected one of .*got 8"):
        CacheLayout(8, 1)
    with pytest.raises(ValueError, match="num_kv_heads: expected at least 1, got 0"):
        CacheLayout(16, 0)
    for count in (-1, 17):
        with pytest.raises(ValueError, match=f"num_live_slots: expected 0 to 16, got {count}"):
            CacheLayout(16, 1).live_bytes(count)
