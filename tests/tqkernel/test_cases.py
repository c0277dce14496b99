"""Each named case is the problem its name promises, for every variant of the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tqkernel.cases
from tqkernel.cases import CASES, UNUSED_TABLE_ENTRY, fixtures_directory
from tqkernel.plan import VARIANTS
from tqref import Case, attention, decode
from tqref.cache import read_tokens
from tqref.decode import tiles
from tqref.numerics import bf16_to_f32

FOUR_GIB = 1 << 32


def cases_of(kind: str) -> list[Case]:
    built = [case.build() for name, case in CASES.items() if name.startswith(kind)]
    assert built
    return built


def test_every_kind_has_every_variant() -> None:
    kinds = {name.removesuffix(f"_{case.variant.name}") for name, case in CASES.items()}
    assert kinds == {
        "minilm_tg1",
        "minilm_tg2",
        "ragged",
        "shuffled",
        "dead_bytes",
        "negative_scale",
        "far",
        "nan_query",
        "hostile",
        "ties",
    }
    assert set(CASES) == {f"{kind}_{variant.name}" for kind in kinds for variant in VARIANTS}


def test_a_case_has_its_variants_sizes_and_its_own_name() -> None:
    for name, named in CASES.items():
        case = named.build()
        assert case.name == named.name == name
        assert case.query_group_size == named.variant.query_group_size
        assert case.kv_block_size == named.variant.kv_block_size


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    named = CASES["shuffled_qg8_bs16_hwtr"]
    for copy in "ab":
        named.build().save(tmp_path / copy)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_minilm_is_512_real_tokens_of_3_heads() -> None:
    for groups in (1, 2):
        for case in cases_of(f"minilm_tg{groups}"):
            assert case.seq_lens.tolist() == [512]
            assert case.num_kv_heads == 3
            assert case.tile_groups_per_partition == groups


def test_minilm_queries_are_the_recorded_ones() -> None:
    """Row 16 * h + g is KV head h's query number g; a query group of 8 takes the first 8 of each head."""
    with np.load(fixtures_directory() / "minilm_layer3_kv.npz") as arrays:
        recorded = bf16_to_f32(arrays["query_bf16"]).reshape(3, 16, 128)
    rows = {8: recorded[:, :8], 16: recorded}
    for case in cases_of("minilm_tg1"):
        query = bf16_to_f32(case.query)[0].reshape(3, case.query_group_size, 128)
        # Rotated since, and rounded again: lengths and angles remain.
        expected = rows[case.query_group_size]
        np.testing.assert_allclose(
            query @ query.swapaxes(1, 2), expected @ expected.swapaxes(1, 2), rtol=0.02, atol=0.1
        )


def test_sequences_of_a_batch_differ() -> None:
    for case in cases_of("ragged"):
        out = attention(case)
        assert len(np.unique(out.reshape(len(out), -1)[1:], axis=0)) == len(out) - 1
        assert len(np.unique(case.query.reshape(len(out), -1), axis=0)) == len(out)
        first_tokens = read_tokens(case, np.arange(1, len(out)), np.array(0), np.array(0))
        assert len(np.unique(first_tokens.key_index, axis=0)) == len(out) - 1


def test_ragged_lengths_surround_every_edge_and_tables_are_hostile_past_them() -> None:
    for case in cases_of("ragged"):
        assert case.seq_lens.tolist() == [0, 1, 15, 16, 17, 255, 256, 257, 300]
        unused = case.block_tables[~case.live_table_entries]
        assert unused.size >= 9
        assert np.all(unused == UNUSED_TABLE_ENTRY)


def test_shuffled_blocks_are_out_of_order_with_holes_between() -> None:
    for case in cases_of("shuffled"):
        for table, live in zip(case.block_tables, case.live_table_entries, strict=True):
            steps = np.diff(table[live])
            assert (steps > 0).any() and (steps < 0).any()
        assert case.num_blocks > 10 * len(case.block_ids)


def test_dead_bytes_are_all_0xff_and_there_are_some_in_the_middle_of_a_tile() -> None:
    for case in cases_of("dead_bytes"):
        assert np.all(case.blocks[~case.live_bytes] == 0xFF)
        assert not case.live_bytes.all()
        assert np.all(case.seq_lens % 16 != 0)
        assert np.isfinite(attention(case)).all()


def test_a_negative_scale_meets_partly_dead_tiles() -> None:
    for case in cases_of("negative_scale"):
        assert case.softmax_scale < 0
        assert np.all(case.seq_lens % 16 != 0)
        # An infinite score, the mask times a negative number, would make the outputs NaN.
        assert np.isfinite(attention(case)).all()


def test_far_blocks_lie_on_both_sides_of_four_gib() -> None:
    for case in cases_of("far"):
        offset = case.block_ids * case.layout.block_bytes
        assert (offset + case.layout.block_bytes <= FOUR_GIB).any()
        assert (offset >= FOUR_GIB).any()
        assert (offset >= 2 * FOUR_GIB).any()
        assert len(np.unique(offset % FOUR_GIB)) == len(offset)


def test_nan_query_poisons_two_rows_only() -> None:
    for case in cases_of("nan_query"):
        out = attention(case).reshape(2, 3, case.query_group_size, 128)
        poisoned = np.argwhere(np.isnan(out).any(axis=-1)).tolist()
        assert poisoned == [[0, 0, 3], [1, 1, 7]]


def test_fixtures_are_found_beside_the_package_and_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tqkernel"
    package.mkdir()
    monkeypatch.setattr(tqkernel.cases, "__file__", str(package / "cases.py"))
    assert fixtures_directory() == tmp_path / "fixtures"
    (package / "fixtures").mkdir()
    assert fixtures_directory() == package / "fixtures"


def test_hostile_data_reaches_every_special_state() -> None:
    for case in cases_of("hostile"):
        partials = decode(case)
        rows = case.query_group_size
        assert partials.max_logits.shape == (2, 3, 2, rows)
        # Scores of -inf in the first tile, finite within the second: the row recovers.
        first_tile = decode(replace(case, seq_lens=np.array([24, 40], np.int32)))
        assert np.isneginf(first_tile.max_logits[0, 1, 0, 0])
        assert np.isfinite(partials.max_logits[0, 1, 0, 0])
        assert np.isneginf(partials.max_logits[1, 0, 0, 1]) and partials.exp_sums[1, 0, 0, 1] == 0
        assert np.all(partials.exp_sums[0, 2, 0] == 256) and np.all(partials.exp_sums[0, 2, 1] == 300 - 256)
        out = bf16_to_f32(partials.out)
        # Infinity times a step of 0 is NaN, other steps are infinite.
        assert np.all(np.isnan(out[1, 1, 0]) | np.isinf(out[1, 1, 0])) and np.isinf(out[1, 1, 0]).any()
        assert np.isnan(partials.max_logits[1, 2, 0]).all() and np.isnan(out[1, 2, 0]).all()
        assert np.isfinite(out[0]).all()
        assert np.abs(out[0, 0]).max() > 1e5


def test_ties_are_halfway_between_two_bfloat16s() -> None:
    for case in cases_of("ties"):
        are_ties = []
        for sequence in range(case.num_sequences):
            for head in range(3):
                *_, last = tiles(case, sequence, head, 0)
                mean = last.accumulator.astype(np.float64) / last.total.astype(np.float64)[:, None]
                if head < 2:
                    low_half = np.frexp(mean)[0] * 2**24 % 2**16
                    assert np.all(low_half == 2**15)
                else:
                    assert np.all(last.total == 1)
                    multiple = mean / 2.0**-134  # the smallest bfloat16 is twice that
                    assert np.all(multiple % 1 == 0) and multiple.max() < 2**12
                    are_ties.append(multiple % 2 == 1)
        assert np.mean(are_ties) > 0.15
