from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tqref import Case, MetadataField, codec, decode
from tqref.archive import load_archive, save_archive
from tqref.numerics import f32_to_bf16

MakeCase = Callable[..., Case]
ARRAYS = ("query", "block_ids", "blocks", "centroids", "block_tables", "seq_lens")


def gaussian_batch(rng: np.random.Generator, lengths: list[int], heads: int) -> tuple[list[Any], list[Any]]:
    keys = [rng.standard_normal((length, heads, 128)).astype(np.float32) for length in lengths]
    values = [rng.standard_normal((length, heads, 128)).astype(np.float32) for length in lengths]
    return keys, values


@pytest.mark.parametrize("kv_block_size", [16, 32])
def test_build_stores_each_token_where_the_layout_says(rng: np.random.Generator, kv_block_size: int) -> None:
    lengths = [37, 0, 64, 1]
    keys, values = gaussian_batch(rng, lengths, 3)
    query = rng.standard_normal((4, 24, 128)).astype(np.float32)
    case = Case.build("paged", query, keys, values, kv_block_size=kv_block_size, num_blocks=100)
    layout, pi_t = case.layout, codec.rotation()
    assert np.array_equal(case.query, f32_to_bf16(codec.rotate(query, pi_t)))
    for n, t, h in [(0, 0, 0), (0, 36, 2), (2, 17, 1), (2, 63, 0), (3, 0, 2)]:
        index, norm = codec.quantize_key(keys[n][t, h], pi_t, case.centroids)
        step, scale, zero = codec.quantize_value(values[n][t, h])
        block = case.blocks[list(case.block_ids).index(case.block_tables[n, t // kv_block_size])]
        slot = t % kv_block_size
        key_start, value_start = layout.key_offset(slot, h), layout.value_offset(slot, h)
        assert np.array_equal(block[key_start : key_start + 64], codec.pack_nibbles(index))
        assert np.array_equal(block[value_start : value_start + 64], codec.pack_nibbles(step))
        for field, entry in zip(MetadataField, (norm, scale, zero), strict=True):
            start = layout.metadata_offset(field, slot, h)
            assert block[start : start + 2].view(np.float16)[0] == entry


def test_build_shuffles_blocks_reproducibly(make_case: MakeCase, rng: np.random.Generator) -> None:
    keys, values = gaussian_batch(rng, [160, 160], 1)
    query = np.zeros((2, 8, 128), np.float32)
    tables = [
        Case.build("s", query, keys, values, num_blocks=50, seed=seed).block_tables for seed in (1, 1, 2)
    ]
    assert np.array_equal(tables[0], tables[1]) and not np.array_equal(tables[0], tables[2])
    assert len(np.unique(tables[0])) == 20 and np.any(np.diff(tables[0], axis=1) < 0)


def test_build_defaults_cover_the_longest_sequence(make_case: MakeCase) -> None:
    case = make_case([513, 20])
    assert (case.num_partitions, case.max_blocks_per_sequence) == (3, 33)
    assert case.softmax_scale == 1 / math.sqrt(128)
    assert np.array_equal(case.centroids, codec.lloyd_max_centroids())


def test_bytes_no_token_owns_are_zero_and_known(make_case: MakeCase) -> None:
    case = make_case([37, 16])
    live = case.live_bytes
    assert live.shape == case.blocks.shape
    assert np.count_nonzero(live) == (37 + 16) * 2 * 134
    assert np.all(case.blocks[~live] == 0) and np.mean(case.blocks[live] != 0) > 0.9
    poisoned = case.with_poisoned_dead_bytes(0xA5)
    assert np.all(poisoned.blocks[~live] == 0xA5) and np.all(poisoned.blocks[live] == case.blocks[live])


def test_a_block_shared_by_two_sequences_is_as_live_as_its_longest_use(make_case: MakeCase) -> None:
    case = make_case([16, 16])
    tables = case.block_tables.copy()
    tables[1, 0] = tables[0, 0]
    shared = replace(case, block_tables=tables, seq_lens=np.array([3, 9], np.int32))
    row = int(shared.rows_of(tables[0, :1])[0])
    assert np.array_equal(shared.live_bytes[row], case.layout.live_bytes(9))
    assert not np.delete(shared.live_bytes, row, axis=0).any()


def test_renaming_keeps_which_bytes_a_token_has(make_case: MakeCase, rng: np.random.Generator) -> None:
    case = make_case([70, 40])
    renamed = case.with_blocks_renamed(rng.permutation(1000)[: len(case.block_ids)].astype(np.int64), 1000)
    for n, entry in np.argwhere(case.live_table_entries):
        before = case.blocks[case.rows_of(case.block_tables[n, entry])]
        assert np.array_equal(renamed.blocks[renamed.rows_of(renamed.block_tables[n, entry])], before)


def test_a_case_does_not_lock_its_callers_arrays(make_case: MakeCase) -> None:
    lengths = np.array([16], np.int32)
    case = replace(make_case([16]), seq_lens=lengths)
    lengths[0] = 16
    with pytest.raises(ValueError, match="read-only"):
        case.seq_lens[0] = 3


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(query_group_size=4), ValueError, r"query_group_size: expected one of \(8, 16\), got 4"),
        (dict(kv_block_size=64), ValueError, r"kv_block_size: expected one of \(16, 32\), got 64"),
        (dict(num_kv_heads=0), ValueError, "num_kv_heads: expected at least 1, got 0"),
        (dict(num_partitions=0), ValueError, "num_partitions: expected at least 1, got 0"),
        (
            dict(tile_groups_per_partition=0),
            ValueError,
            "tile_groups_per_partition: expected at least 1, got 0",
        ),
        (dict(num_partitions=1.0), TypeError, "num_partitions: expected an int, got float"),
        (dict(num_blocks=True), TypeError, "num_blocks: expected an int, got bool"),
        (dict(softmax_scale=1), TypeError, "softmax_scale: expected a float, got int"),
        (dict(softmax_scale=float("nan")), ValueError, "softmax_scale: expected a finite float32, got nan"),
        (dict(softmax_scale=-1e39), ValueError, "softmax_scale: expected a finite float32, got -1e\\+39"),
        (dict(name=3), TypeError, "name: expected a str, got int"),
        (dict(seq_lens=[37, 16]), TypeError, "seq_lens: expected a numpy array, got list"),
        (dict(seq_lens=np.array([37, 16])), TypeError, "seq_lens: expected dtype int32, got int64"),
        (
            dict(seq_lens=np.array([[37, 16]], np.int32)),
            ValueError,
            r"seq_lens: expected shape \[any\], got \[1, 2\]",
        ),
        (dict(seq_lens=np.array([-1, 16], np.int32)), ValueError, "seq_lens: expected 0 to 48.*got -1 to 16"),
        (dict(seq_lens=np.array([49, 16], np.int32)), ValueError, "seq_lens: expected 0 to 48.*got 16 to 49"),
        (
            dict(query=np.zeros((2, 15, 128), np.uint16)),
            ValueError,
            r"query: expected shape \[2, 16, 128\], got \[2, 15, 128\]",
        ),
        (
            dict(query=np.zeros((2, 16, 128), np.float32)),
            TypeError,
            "query: expected dtype uint16, got float32",
        ),
        (
            dict(query=np.zeros((2, 16, 256), np.uint16)[..., ::2]),
            ValueError,
            "query: expected a C-contiguous array, got strides",
        ),
        (
            dict(centroids=np.zeros(15, np.float32)),
            ValueError,
            r"centroids: expected shape \[16\], got \[15\]",
        ),
        (
            dict(block_tables=np.zeros((3, 3), np.int32)),
            ValueError,
            r"block_tables: expected shape \[2, 3\], got \[3, 3\]",
        ),
        (dict(block_tables=np.full((2, 3), 77, np.int32)), ValueError, r"block_tables: .* got \[77\]"),
        (
            dict(block_ids=np.array([2, 1, 0, 3])),
            ValueError,
            "block_ids: expected strictly ascending ids, got another order",
        ),
        (dict(block_ids=np.array([-1, 0, 1, 2])), ValueError, "block_ids: expected 0 to 4, got -1 to 2"),
        (dict(num_blocks=3), ValueError, "block_ids: expected 0 to 2, got 0 to 4"),
        (
            dict(blocks=np.zeros((4, 4287), np.uint8)),
            ValueError,
            r"blocks: expected shape \[4, 4288\], got \[4, 4287\]",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_bad_arguments_are_named(
    make_case: MakeCase, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    case = make_case([37, 16]).with_blocks_renamed(np.array([0, 1, 3, 4]))
    with pytest.raises(error, match=message):
        replace(case, **changes)


def test_partitions_must_cover_the_longest_sequence(make_case: MakeCase) -> None:
    with pytest.raises(ValueError, match="seq_lens: expected 0 to 256.*got 257 to 257"):
        make_case([257], num_partitions=1)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(query=np.zeros((2, 16), np.float32)),
            r"query: expected shape \[N, heads, 128\], got \[2, 16\]",
        ),
        (dict(query=np.zeros((2, 15, 128), np.float32)), "query: expected a multiple of 2 heads, got 15"),
        (dict(query=np.zeros((3, 16, 128), np.float32)), "keys: expected 3 sequences, got 2"),
        (
            dict(values=[np.zeros((4, 2, 128))] * 2),
            r"values\[1\]: expected shape \[5, 2, 128\], got \[4, 2, 128\]",
        ),
        (
            dict(keys=[np.zeros((4, 2, 128)), np.zeros((5, 3, 128))]),
            r"keys\[1\]: expected shape \[tokens, 2, 128\]",
        ),
        (dict(max_blocks_per_sequence=0), "max_blocks_per_sequence: expected at least 1, got 0"),
        (dict(num_blocks=1), "num_blocks: expected at least 2, got 1"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_bad_keys_and_values_are_named(changes: dict[str, Any], message: str) -> None:
    good = dict(
        query=np.zeros((2, 16, 128), np.float32),
        keys=[np.zeros((4, 2, 128), np.float32), np.zeros((5, 2, 128), np.float32)],
        values=[np.zeros((4, 2, 128), np.float32), np.zeros((5, 2, 128), np.float32)],
    )
    Case.build("good", **good)
    with pytest.raises(ValueError, match=message):
        Case.build("bad", **(good | changes))


# --- files --------------------------------------------------------------------------------------------------


def test_a_saved_case_comes_back_whole(make_case: MakeCase, tmp_path: Path) -> None:
    case = replace(
        make_case([37, 300], tile_groups_per_partition=2).with_far_blocks(),
        origin="a test",
        softmax_scale=0.1,
    )
    case.save(tmp_path / "case.npz")
    loaded = Case.load(tmp_path / "case.npz")
    for name in ARRAYS:
        assert getattr(loaded, name).dtype == getattr(case, name).dtype
        assert np.array_equal(getattr(loaded, name), getattr(case, name))
    for name in (
        "name",
        "origin",
        "softmax_scale",
        "num_blocks",
        "num_partitions",
        "tile_groups_per_partition",
    ):
        assert getattr(loaded, name) == getattr(case, name)
    assert loaded.layout == case.layout and loaded.query_group_size == case.query_group_size


def test_equal_cases_give_equal_files(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case([37])
    paths = [tmp_path / f"{index}.npz" for index in range(3)]
    case.save(paths[0])
    replace(case, query=np.asfortranarray(case.query).copy(order="C")).save(paths[1])
    Case.load(paths[0]).save(paths[2])
    assert paths[0].read_bytes() == paths[1].read_bytes() == paths[2].read_bytes()
    assert zipfile.ZipFile(paths[0]).infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


def test_numpy_reads_the_arrays(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case([37])
    case.save(tmp_path / "case.npz")
    with np.load(tmp_path / "case.npz") as arrays:
        assert np.array_equal(arrays["blocks"], case.blocks)
        assert json.loads(arrays["header.json"])["name"] == "gaussian"


def damage_truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damage_one_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def damage_everything(data: bytes) -> bytes:
    return b"not a zip at all"


@pytest.mark.parametrize("damage", [damage_truncated, damage_one_bit, damage_everything, lambda data: b""])
def test_a_damaged_file_is_refused_by_name(
    make_case: MakeCase, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "damaged.npz"
    make_case([37]).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="damaged.npz: expected an intact .npz archive, got a damaged one"):
        Case.load(path)


def without(key: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        (header if key in header else arrays).pop(key)

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (without("format"), "expected tqgate-case version 1, got None 1"),
        (
            lambda header, arrays: header.update(format_version=2),
            "expected tqgate-case version 1, got tqgate-case 2",
        ),
        (without("num_blocks"), r"expected header fields \[.*'num_blocks'.*\], got \[.*\]"),
        (
            lambda header, arrays: header.update(extra=1),
            r"expected header fields \[.*\], got \['extra', .*\]",
        ),
        (without("blocks"), r"expected arrays \[.*'blocks'.*\], got \[.*\]"),
        (
            lambda header, arrays: arrays.update(query=arrays["query"].astype(np.float32)),
            "query: expected dtype uint16, got float32",
        ),
        (lambda header, arrays: header.update(num_blocks="7"), "num_blocks: expected an int, got str"),
    ],
)
def test_a_file_with_other_content_is_refused_by_name(
    make_case: MakeCase,
    tmp_path: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    message: str,
) -> None:
    path = tmp_path / "other.npz"
    make_case([37]).save(path)
    header, arrays = load_archive(path)
    change(header, arrays)
    save_archive(path, header, arrays)
    with pytest.raises(ValueError, match=f"other.npz: {message}"):
        Case.load(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("header.json", b"{", "expected JSON in header.json"),
        ("header.json", b"[]", "expected a JSON object in header.json, got list"),
        ("query.npy", b"nonsense", "expected an array in query.npy"),
        ("elsewhere", b"", "expected an entry header.json"),
    ],
)
def test_entries_of_another_kind_are_refused_by_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / "entries.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
        if name == "query.npy":
            archive.writestr("header.json", b"{}")
    with pytest.raises(ValueError, match=f"entries.npz: {message}"):
        Case.load(path)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Case.load(tmp_path / "absent.npz")


def test_arrays_of_python_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", query=np.array([{}], dtype=object))
    with zipfile.ZipFile(tmp_path / "objects.npz", "a") as archive:
        archive.writestr("header.json", b"{}")
    with pytest.raises(ValueError, match="objects.npz: expected an array in query.npy"):
        load_archive(tmp_path / "objects.npz")


def test_one_sequence_and_head_alone_keep_their_bits(make_case: MakeCase) -> None:
    case = make_case([40, 300, 17], 3)
    whole = decode(case)
    for sequence, head in [(0, 2), (1, 0), (2, 1)]:
        alone = decode(case.only(sequence, head))
        assert np.array_equal(alone.out[0, 0], whole.out[sequence, head])
        assert np.array_equal(alone.exp_sums[0, 0], whole.exp_sums[sequence, head])
        assert np.array_equal(alone.max_logits[0, 0], whole.max_logits[sequence, head])


def test_a_truncated_case_is_the_case_of_its_first_tokens(make_case: MakeCase) -> None:
    case = make_case([300, 17], 1)
    cut = case.truncated(256)
    assert cut.seq_lens.tolist() == [256, 17]
    assert np.array_equal(decode(cut).out[:, :, 0], decode(case).out[:, :, 0])
