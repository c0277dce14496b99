from __future__ import annotations

import numpy as np
import pytest

from tqkernel.plan import OUTPUTS, Variant, check_arguments, plan_partitions

N, HK, QG, BS, P, G, W, NUM_BLOCKS = 3, 2, 8, 16, 2, 1, 24, 40
BLOCK_BYTES = BS * HK * 134
SIZES = dict(
    num_kv_heads=HK,
    query_group_size=QG,
    kv_block_size=BS,
    num_partitions=P,
    tile_groups_per_partition=G,
)


def numpy_arrays() -> dict[str, np.ndarray]:
    return {
        "out": np.full((N, HK, P, QG, 128), 7, np.uint16),
        "exp_sums": np.full((N, HK, P, QG), 7, np.float32),
        "max_logits": np.full((N, HK, P, QG), 7, np.float32),
        "query": np.zeros((N, HK * QG, 128), np.uint16),
        "kv_cache": np.zeros((NUM_BLOCKS, BLOCK_BYTES), np.uint8),
        "centroids": np.zeros(16, np.float32),
        "block_tables": np.zeros((N, W), np.int32),
        "seq_lens": np.array([0, 17, W * BS], np.int32),
    }


def torch_arrays():
    torch = pytest.importorskip("torch")
    arrays = {name: torch.from_numpy(array) for name, array in numpy_arrays().items()}
    return arrays | {name: arrays[name].view(torch.bfloat16) for name in ("out", "query")}


@pytest.fixture(params=[numpy_arrays, torch_arrays], ids=["numpy", "torch"])
def arrays(request):
    return request.param()


def padded(array, rows: int, columns: int):
    """The same values, in rows one column longer than they seem."""
    if isinstance(array, np.ndarray):
        return np.zeros((rows, columns + 1), array.dtype)[:, :columns]
    return array.new_zeros((rows, columns + 1))[:, :columns]


def reshaped(array, *shape):
    return np.zeros(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_zeros(shape)


@pytest.mark.parametrize(
    "max_blocks_per_seq, kv_block_size, requested_splits, expected",
    [
        # 16 tokens: one group, but never fewer than two partitions.
        (1, 16, 1, (2, 1)),
        (16, 16, 1, (2, 1)),
        # 272 tokens: two groups.
        (17, 16, 1, (2, 1)),
        # 544 tokens: three groups in four partitions.
        (17, 32, 1, (4, 1)),
        (512, 16, 1, (32, 1)),
        # 8208 tokens: 33 groups, two to a partition.
        (513, 16, 1, (32, 2)),
        # 40960 tokens: 160 groups, five to a partition, rounded up to eight.
        (1280, 32, 1, (32, 8)),
        # 131072 tokens: 512 groups.
        (4096, 32, 1, (32, 16)),
        # Splits asked for count only when they are more than needed, up to 32.
        (1, 16, 5, (8, 1)),
        (1, 16, 8, (8, 1)),
        (1, 16, 1000, (32, 1)),
        (128, 16, 2, (8, 1)),
        (513, 16, 64, (32, 2)),
    ],
)
def test_plan_partitions(max_blocks_per_seq, kv_block_size, requested_splits, expected):
    assert plan_partitions(max_blocks_per_seq, kv_block_size, requested_splits) == expected


@pytest.mark.parametrize("kv_block_size", [16, 32])
def test_plan_covers_every_table(kv_block_size):
    for width in range(1, 3000):
        partitions, groups = plan_partitions(width, kv_block_size)
        assert partitions * groups * 256 >= width * kv_block_size
        assert partitions.bit_count() == groups.bit_count() == 1
        assert 2 <= partitions <= 32


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((0, 16), ValueError, "max_blocks_per_seq: expected 1 to 2147483647, got 0"),
        ((1, 24), ValueError, "kv_block_size: expected one of 16, 32, got 24"),
        ((1, 16, 0), ValueError, "requested_splits: expected 1 to 2147483647, got 0"),
        ((1.0, 16), TypeError, "max_blocks_per_seq: expected an integer, got float"),
        ((1, True), TypeError, "kv_block_size: expected an integer, got bool"),
    ],
)
def test_plan_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        plan_partitions(*arguments)


def test_variant_names_and_refusals():
    assert Variant(8, 32, False).name == "qg8_bs32_swtr"
    assert Variant(16, 16, True).name == "qg16_bs16_hwtr"
    with pytest.raises(ValueError, match="query_group_size: expected one of 8, 16, got 4"):
        Variant(4, 16, True)
    with pytest.raises(ValueError, match="kv_block_size: expected one of 16, 32, got 64"):
        Variant(8, 64, True)


def test_good_arguments_pass(arrays):
    check_arguments(arrays, **SIZES)


def test_entries_past_the_sequence_may_hold_anything(arrays):
    arrays["block_tables"][0, :] = -1
    arrays["block_tables"][1, 2:] = 2**31 - 1
    check_arguments(arrays, **SIZES)


def test_strides_of_single_rows_do_not_matter():
    arrays = {
        name: array[:1] for name, array in numpy_arrays().items() if name not in ("kv_cache", "centroids")
    }
    arrays |= {"kv_cache": np.zeros((1, BLOCK_BYTES + 8), np.uint8)[:, :BLOCK_BYTES]}
    arrays |= {"centroids": np.zeros(16, np.float32), "block_tables": np.zeros((1, W + 1), np.int32)[:, :W]}
    check_arguments(arrays, **SIZES)


def test_byte_order():
    arrays = numpy_arrays()
    arrays["seq_lens"] = arrays["seq_lens"].astype(">i4")
    with pytest.raises(TypeError, match="^seq_lens: expected dtype int32, got >i4"):
        check_arguments(arrays, **SIZES)


def test_stride_of_a_fraction_of_an_element():
    arrays = numpy_arrays()
    records = np.zeros(N, [("length", np.int32), ("flag", np.uint8)])
    arrays["seq_lens"] = records["length"]
    with pytest.raises(ValueError, match=r"^seq_lens: expected strides of \(4,\) bytes, got \(5,\)"):
        check_arguments(arrays, **SIZES)


def test_bits_of_bf16_are_for_numpy_only():
    arrays = torch_arrays()
    arrays["query"] = arrays["query"].view(arrays["query"].dtype).view(__import__("torch").uint16)
    with pytest.raises(TypeError, match="query: expected dtype bfloat16, got uint16"):
        check_arguments(arrays, **SIZES)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("out", (N, HK, P, QG, 64)),
        ("out", (N, HK, P + 1, QG, 128)),
        ("exp_sums", (N, HK, P, 16)),
        ("max_logits", (N, HK + 1, P, QG)),
        ("query", (N, HK * QG + 1, 128)),
        ("query", (N + 1, HK * QG, 128)),
        ("kv_cache", (NUM_BLOCKS, BLOCK_BYTES + 4)),
        ("centroids", (15,)),
        ("seq_lens", (N + 1,)),
    ],
)
def test_shape(arrays, name, shape):
    arrays[name] = reshaped(arrays[name], *shape)
    with pytest.raises(ValueError, match=rf"^{name}: expected shape \(.*\), got \({shape[0]},"):
        check_arguments(arrays, **SIZES)


def test_padded_block_table_row(arrays):
    arrays["block_tables"] = padded(arrays["block_tables"], N, W)
    with pytest.raises(
        ValueError, match=rf"^block_tables: expected strides of \({4 * W}, 4\) bytes, got \({4 * W + 4}, 4\)"
    ):
        check_arguments(arrays, **SIZES)


def test_strided_block_table_row(arrays):
    arrays["block_tables"] = reshaped(arrays["block_tables"], N, 2 * W)[:, ::2]
    with pytest.raises(ValueError, match=rf"^block_tables: expected strides of \({4 * W}, 4\) bytes"):
        check_arguments(arrays, **SIZES)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("other", list(numpy_arrays()))
def test_overlapping_output(name, other):
    """The last byte of one array is the first of the other."""
    if name == other:
        return
    arrays = numpy_arrays()
    first, second = arrays[name], arrays[other]
    pool = np.zeros(first.nbytes + second.nbytes, np.uint8)
    step = max(first.itemsize, second.itemsize)
    arrays[name] = pool[: first.nbytes].view(first.dtype).reshape(first.shape)
    start = first.nbytes - step
    arrays[other] = pool[start : start + second.nbytes].view(second.dtype).reshape(second.shape)
    with pytest.raises(ValueError, match=r"expected memory of its own, got memory shared with"):
        check_arguments(arrays, **SIZES)


def test_neighbouring_outputs_do_not_overlap():
    arrays = numpy_arrays()
    pool = np.zeros((2, *arrays["exp_sums"].shape), np.float32)
    arrays["exp_sums"], arrays["max_logits"] = pool
    check_arguments(arrays, **SIZES)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"query_group_size": 4}, "query_group_size: expected one of 8, 16, got 4"),
        ({"kv_block_size": 64}, "kv_block_size: expected one of 16, 32, got 64"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected 1 to"),
        ({"num_partitions": 0}, "num_partitions: expected 1 to"),
        ({"tile_groups_per_partition": 0}, "tile_groups_per_partition: expected 1 to"),
        (
            {"tile_groups_per_partition": 2**22},
            r"num_partitions: expected P \* G \* 256 tokens to fit in an i32",
        ),
        ({"softmax_scale": float("nan")}, "softmax_scale: expected a finite float32, got nan"),
        ({"softmax_scale": float("inf")}, "softmax_scale: expected a finite float32, got inf"),
        ({"softmax_scale": 1e39}, r"softmax_scale: expected a finite float32, got 1e\+39"),
    ],
)
def test_scalar_values(arrays, change, message):
    with pytest.raises(ValueError, match=message):
        check_arguments(arrays, **(SIZES | change))


@pytest.mark.parametrize("name", list(SIZES))
def test_scalar_types(arrays, name):
    with pytest.raises(TypeError, match=f"^{name}: expected an integer, got float"):
        check_arguments(arrays, **(SIZES | {name: float(SIZES[name])}))


@pytest.mark.parametrize("scale", ["0.1", None, True, 1j, np.ones(1, np.float32)])
def test_softmax_scale_type(arrays, scale):
    with pytest.raises(TypeError, match=f"softmax_scale: expected a number, got {type(scale).__name__}"):
        check_arguments(arrays, **SIZES, softmax_scale=scale)


@pytest.mark.parametrize(
    "length, message",
    [
        (-1, r"seq_lens\[1\]: expected at least 0 tokens, got -1"),
        (W * BS + 1, rf"seq_lens\[1\]: expected at most the {W * BS} tokens .*, got {W * BS + 1}"),
        (2**31 - 1, r"seq_lens\[1\]: expected at most"),
        (-(2**31), r"seq_lens\[1\]: expected at least 0 tokens"),
    ],
)
def test_seq_lens(arrays, length, message):
    arrays["seq_lens"][1] = length
    with pytest.raises(ValueError, match=message):
        check_arguments(arrays, **SIZES)


def test_partitions_must_cover_the_longest_sequence(arrays):
    for name in ("out", "exp_sums", "max_logits"):
        shape = list(arrays[name].shape)
        shape[2] = 1
        arrays[name] = reshaped(arrays[name], *shape)
    message = r"num_partitions: expected P \* G \* 256 tokens to cover the longest sequence, 384, got 256"
    with pytest.raises(ValueError, match=message):
        check_arguments(arrays, **(SIZES | {"num_partitions": 1}))
    check_arguments(arrays, **(SIZES | {"num_partitions": 1, "tile_groups_per_partition": 2}))


@pytest.mark.parametrize("block_id", [-1, NUM_BLOCKS, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("sequence, entry", [(1, 1), (2, W - 1)])
def test_block_ids(arrays, block_id, sequence, entry):
    arrays["block_tables"][sequence, entry] = block_id
    message = rf"block_tables\[{sequence}, {entry}\]: expected 0 to {NUM_BLOCKS - 1}, got {block_id}"
    with pytest.raises(ValueError, match=message):
        check_arguments(arrays, **SIZES)
    check_arguments(arrays, **SIZES, values=False)


def test_unknown_array(arrays):
    with pytest.raises(ValueError, match="arrays: expected only out, .*, got extra"):
        check_arguments(arrays | {"extra": arrays["query"]}, **SIZES)
