from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tqref import Case
from tqref import attention as numpy_attention
from tqref.attention import dequantized_tokens

torch = pytest.importorskip("torch")
torch_ref = pytest.importorskip("tqref.torch_ref")

MakeCase = Callable[..., Case]


@pytest.fixture
def case(make_case: MakeCase) -> Case:
    return make_case([300, 0, 37], kv_block_size=32, num_blocks=50, unused_table_entry=-7)


def test_tensors_are_the_kernels(case: Case) -> None:
    tensors = torch_ref.to_torch(case)
    assert tensors.query.dtype == torch.bfloat16
    assert np.array_equal(tensors.query.view(torch.int16).numpy().view(np.uint16), case.query)
    assert tuple(tensors.kv_cache.shape) == (50, case.layout.block_bytes)
    assert np.array_equal(tensors.kv_cache.numpy()[case.block_ids], case.blocks)
    absent = np.setdiff1d(np.arange(50), case.block_ids)
    assert absent.size and not tensors.kv_cache.numpy()[absent].any()


def test_a_case_survives_the_round_trip(case: Case) -> None:
    back = torch_ref.from_torch(
        case.name,
        torch_ref.to_torch(case),
        num_kv_heads=case.num_kv_heads,
        kv_block_size=case.kv_block_size,
        num_partitions=case.num_partitions,
    )
    for name in ("query", "block_ids", "blocks", "centroids", "block_tables", "seq_lens"):
        assert np.array_equal(getattr(back, name), getattr(case, name)), name
    assert (back.num_blocks, back.query_group_size, back.softmax_scale) == (50, 8, case.softmax_scale)


def test_a_live_block_beyond_the_cache_is_refused(case: Case) -> None:
    tensors = torch_ref.to_torch(case)
    tensors.block_tables[2, 0] = 50
    with pytest.raises(ValueError, match="block_tables: expected 0 to 49, got .* to 50"):
        torch_ref.from_torch("x", tensors, num_kv_heads=2, kv_block_size=32, num_partitions=2)


def test_dequantised_tokens_are_numpys(case: Case) -> None:
    keys, values = torch_ref.dequantize(torch_ref.to_torch(case), case.layout, 2, torch.float64)
    for head in range(2):
        expected_keys, expected_values = dequantized_tokens(case, 2, head)
        assert np.array_equal(keys[:, head].numpy(), expected_keys)
        assert np.array_equal(values[:, head].numpy(), expected_values)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_attention_is_numpys(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    case = replace(case, softmax_scale=0.2)
    out = torch_ref.attention(torch_ref.to_torch(case), case.layout, case.softmax_scale, dtype)
    assert out.dtype == dtype
    assert np.abs(out.numpy() - numpy_attention(case)).max() < tolerance
