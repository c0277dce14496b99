"""Every argument of a decode, and every way to get it wrong: refused by name, with no output byte changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tqkernel.plan import OUTPUTS, check_arguments

torch = pytest.importorskip("torch")

N, HK, QG, BS, P, G, W, NUM_BLOCKS = 3, 2, 8, 16, 2, 1, 24, 40
SLOT_BYTES = 134
ROWS = (N, HK, P, QG)
SHAPES = {
    "out": (*ROWS, 128),
    "exp_sums": ROWS,
    "max_logits": ROWS,
    "query": (N, HK * QG, 128),
    "kv_cache": (NUM_BLOCKS, BS * HK * SLOT_BYTES),
    "centroids": (16,),
    "block_tables": (N, W),
    "seq_lens": (N,),
}
DTYPES = {
    "out": torch.bfloat16,
    "exp_sums": torch.float32,
    "max_logits": torch.float32,
    "query": torch.bfloat16,
    "kv_cache": torch.uint8,
    "centroids": torch.float32,
    "block_tables": torch.int32,
    "seq_lens": torch.int32,
}
Arrays = dict[str, Any]


def good_arrays() -> Arrays:
    arrays = {name: torch.zeros(shape, dtype=DTYPES[name]) for name, shape in SHAPES.items()}
    for name in OUTPUTS:
        arrays[name].fill_(7)
    arrays["seq_lens"].copy_(torch.tensor([0, 17, W * BS]))
    return arrays


def in_numpy(arrays: Arrays) -> Arrays:
    """The same memory as NumPy arrays, bfloat16 as its bits; anything else as it is."""

    def converted(array: Any) -> Any:
        if not isinstance(array, torch.Tensor):
            return array
        return (array.view(torch.uint16) if array.dtype == torch.bfloat16 else array).numpy()

    return {name: converted(array) for name, array in arrays.items()}


def check(arrays: Arrays) -> None:
    check_arguments(
        arrays,
        num_kv_heads=HK,
        query_group_size=QG,
        kv_block_size=BS,
        num_partitions=P,
        tile_groups_per_partition=G,
    )


def check_in_numpy(arrays: Arrays) -> None:
    check(in_numpy(arrays))


def decode(arrays: Arrays) -> None:
    """What users call; nothing is compiled, as a launch never comes."""
    pytest.importorskip("flydsl")
    from tqkernel.decode import build_tq_decode_module

    module = build_tq_decode_module(
        N, HK, P, W, query_group_size=QG, kv_block_size=BS, tile_groups_per_partition=G
    )
    module(**arrays)


# ---------------------------------------------------------------- ways to get an argument wrong


def _zeros(array: Any, *shape: int) -> Any:
    return torch.zeros(shape, dtype=array.dtype)


def _padded(array: Any) -> Any:
    """The same shape, with one element more between rows."""
    return _zeros(array, *array.shape[:-1], array.shape[-1] + 1)[..., :-1]


def _sliced(array: Any) -> Any:
    """Every second column of a wider array."""
    return _zeros(array, *array.shape[:-1], 2 * array.shape[-1])[..., ::2]


def _transposed(array: Any) -> Any:
    """The same shape, stored the other way round."""
    axes = tuple(reversed(range(array.ndim)))
    return array.permute(axes).contiguous().permute(axes)


def _value(array: Any, index: Any, value: int) -> Any:
    array = array.clone()
    array[index] = value
    return array


WAYS: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "none": (TypeError, lambda array: None),
    "list": (TypeError, lambda array: array.tolist()),
    "float64": (TypeError, lambda array: array.to(torch.float64)),
    "int64": (TypeError, lambda array: array.to(torch.int64)),
    "rank more": (ValueError, lambda array: array[None]),
    "rank less": (ValueError, lambda array: array.reshape(-1) if array.ndim > 1 else array[0]),
    "last size more": (ValueError, lambda array: _zeros(array, *array.shape[:-1], array.shape[-1] + 1)),
    "last size less": (ValueError, lambda array: array[..., :-1].contiguous()),
    "padded rows": (ValueError, _padded),
    "inner stride": (ValueError, _sliced),
    "transposed": (ValueError, _transposed),
}  # fmt: skip
NO_MISTAKE = {
    ("block_tables", "last size more"): "a wider table is fine",
    ("block_tables", "last size less"): "a narrower one too, but for the lengths; see below",
    ("centroids", "padded rows"): "one row has no padding",
    ("seq_lens", "padded rows"): "one row has no padding",
    ("centroids", "transposed"): "one axis has one order",
    ("seq_lens", "transposed"): "one axis has one order",
}

MISTAKES = [
    pytest.param(name, name, way, error, id=f"{name}, {how}")
    for name in SHAPES
    for how, (error, way) in WAYS.items()
    if (name, how) not in NO_MISTAKE
] + [
    pytest.param(array, named, way, ValueError, id=f"{array}, {how}")
    for array, named, how, way in (
        ("seq_lens", "seq_lens[1]", "negative", lambda a: _value(a, 1, -1)),
        ("seq_lens", "seq_lens[1]", "beyond the table", lambda a: _value(a, 1, W * BS + 1)),
        ("seq_lens", "seq_lens", "a sequence more", lambda a: _zeros(a, N + 1)),
        ("block_tables", "seq_lens[2]", "too narrow for the lengths", lambda a: a[:, :-1].contiguous()),
        ("block_tables", "block_tables[2, 23]", "negative id", lambda a: _value(a, (2, W - 1), -1)),
        ("block_tables", "block_tables[1, 1]", "id too large", lambda a: _value(a, (1, 1), NUM_BLOCKS)),
        ("block_tables", "block_tables.shape[0]", "no sequence", lambda a: a[:0]),
        ("block_tables", "block_tables.shape[1]", "no block", lambda a: a[:, :0].contiguous()),
        ("kv_cache", "kv_cache", "slots of 136 bytes", lambda a: _zeros(a, NUM_BLOCKS, BS * HK * 136)),
        ("kv_cache", "kv_cache", "interleaved slots", lambda a: a.reshape(NUM_BLOCKS, BS, HK, SLOT_BYTES)),
        ("kv_cache", "kv_cache", "keys and values apart", lambda a: torch.stack([a, a])),
        ("kv_cache", "kv_cache", "blocks of 32", lambda a: a.reshape(NUM_BLOCKS // 2, -1)),
        ("kv_cache", "block_tables[1, 0]", "no blocks", lambda a: a[:0]),
        ("query", "query", "heads missing", lambda a: a[:, :HK].contiguous()),
        ("out", "out", "partitions missing", lambda a: a[:, :, :1].contiguous()),
    )
]  # fmt: skip


def assert_refused(
    call: Callable[[Arrays], None], arrays: Arrays, named: str, error: type[Exception]
) -> None:
    """The error is of that type and says which argument, what was expected and what came; outputs are untouched."""
    outputs = {name: arrays[name] for name in OUTPUTS if isinstance(arrays[name], torch.Tensor)}
    before = {name: output.clone() for name, output in outputs.items()}
    with pytest.raises(error) as caught:
        call(arrays)
    message = str(caught.value)
    assert message.startswith(f"{named}: expected "), message
    assert ", got " in message
    for name, output in outputs.items():
        assert torch.equal(output, before[name])


@pytest.mark.parametrize("call", [check, check_in_numpy, decode])
@pytest.mark.parametrize("array, named, way, error", MISTAKES)
def test_a_mistake_is_refused_by_name(
    call, array: str, named: str, way: Callable, error: type[Exception]
) -> None:
    arrays = good_arrays()
    arrays[array] = way(arrays[array])
    assert_refused(call, arrays, named, error)


@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_argument_is_refused_by_name(name: str) -> None:
    arrays = good_arrays()
    del arrays[name]
    with pytest.raises(ValueError, match=f"^{name}: expected an array, got none"):
        check(arrays)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "query"])
@pytest.mark.parametrize("call", [check, decode])
def test_another_device_is_refused_by_name(call, name: str) -> None:
    arrays = good_arrays()
    arrays[name] = arrays[name].to("meta")
    with pytest.raises(ValueError, match=f"^{name}: expected the query's device, cpu, got meta"):
        call(arrays)


@pytest.mark.parametrize("call", [check, check_in_numpy, decode])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("other", SHAPES)
def test_an_output_within_another_argument_is_refused(call, output: str, other: str) -> None:
    """Both start at the same byte of one pool."""
    if output == other:
        return
    arrays = good_arrays()
    sizes = {name: arrays[name].numel() * arrays[name].element_size() for name in (output, other)}
    pool = torch.full((max(sizes.values()),), 7, dtype=torch.uint8)
    if other == "seq_lens":
        pool[: sizes[other]] = 0
    for name, size in sizes.items():
        arrays[name] = pool[:size].view(DTYPES[name]).reshape(SHAPES[name])
    named = min(output, other, key=list(SHAPES).index) if other in OUTPUTS else output
    assert_refused(call, arrays, named, ValueError)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_read_only_output_is_refused(name: str) -> None:
    arrays = in_numpy(good_arrays())
    before = arrays[name].copy()
    arrays[name].flags.writeable = False
    with pytest.raises(ValueError, match=f"^{name}: expected a writable array, got a read-only one"):
        check(arrays)
    assert np.array_equal(arrays[name], before)


@pytest.mark.parametrize("call", [check, check_in_numpy])
def test_without_a_mistake_nothing_is_refused_or_written(call) -> None:
    arrays = good_arrays()
    call(arrays)
    for name in OUTPUTS:
        assert (arrays[name] == 7).all()


def test_host_memory_is_no_place_for_a_launch() -> None:
    assert_refused(decode, good_arrays(), "query", ValueError)
