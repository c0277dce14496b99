"""Properties of the compiled kernel, each on problems that Hypothesis draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.gate import compare, oracle
from tqkernel.strategies import Problem, problems
from tqref import DEFAULT_PROFILE, PROFILES, Case, Partials, attention, combine
from tqref.layout import GROUP_TOKENS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BACKEND = EmulatorBackend()
SMALL = problems(tile_waves=96)
ORDINARY = problems(hostile=False, tile_waves=96)


def run(case: Case, hw_v_transpose: bool, backend: EmulatorBackend = BACKEND) -> Partials:
    return backend.run(case, hw_v_transpose, DEFAULT_PROFILE)


def assert_same(expected: Partials, actual: Partials) -> None:
    comparison = compare(expected, actual)
    assert comparison.bits_differing == 0, comparison.first


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@given(problem=problems())
def test_the_kernel_is_the_oracle(profile, problem: Problem) -> None:
    case = problem.case()
    assert_same(oracle(case, profile), BACKEND.run(case, problem.hw_v_transpose, profile))


@given(problem=SMALL)
def test_the_sanitizer_finds_nothing(problem: Problem) -> None:
    run(problem.case(), problem.hw_v_transpose, EmulatorBackend(sanitize=True))


@given(problem=SMALL, poison=st.sampled_from([0x0000, 0xFFFF, 0x7E00, 0x7C00, 0xFC00, None]))
def test_dead_bytes_do_not_count(problem: Problem, poison: int | None) -> None:
    case = problem.case()
    if poison is None:
        dead = np.random.default_rng(problem.seed + 1).integers(0, 256, case.blocks.shape, dtype=np.uint8)
    else:
        dead = np.resize(np.array([poison], "<u2").view(np.uint8), case.blocks.shape)
    poisoned = case.with_poisoned_dead_bytes(dead)
    assert_same(run(case, problem.hw_v_transpose), run(poisoned, problem.hw_v_transpose))


@given(problem=SMALL, entry=st.integers(-(2**31), 2**31 - 1))
def test_table_entries_past_the_sequence_are_not_followed(problem: Problem, entry: int) -> None:
    case = problem.case()
    other = case.with_unused_table_entries(entry)
    assert_same(run(case, problem.hw_v_transpose), run(other, problem.hw_v_transpose))


@given(problem=SMALL, stride=st.sampled_from([1, 7, 1 << 20]), seed=st.integers(0, 99))
def test_where_blocks_live_does_not_count(problem: Problem, stride: int, seed: int) -> None:
    case = problem.case()
    ids = np.random.default_rng(seed).permutation(len(case.block_ids)).astype(np.int64) * stride
    assert_same(run(case, problem.hw_v_transpose), run(case.with_blocks_renamed(ids), problem.hw_v_transpose))


@given(problem=SMALL)
def test_sequences_that_share_blocks_read_the_same(problem: Problem) -> None:
    case = replace(problem, lengths=(problem.lengths[0],) * 2, placement="shared").case()
    query = case.query.copy()
    query[1] = query[0]
    partials = run(replace(case, query=query), problem.hw_v_transpose)
    assert_same(*(Partials(p.out[i], p.exp_sums[i], p.max_logits[i]) for p in [partials] for i in (0, 1)))


@given(problem=SMALL, poison=st.sampled_from([0, 0xFFFFFFFF, 0x7F800000, 0x3F800000]))
def test_what_registers_and_lds_start_with_does_not_count(problem: Problem, poison: int) -> None:
    case = problem.case()
    assert_same(
        run(case, problem.hw_v_transpose), run(case, problem.hw_v_transpose, EmulatorBackend(poison=poison))
    )


@given(problem=ORDINARY)
def test_a_partitions_bits_depend_on_its_own_tokens(problem: Problem) -> None:
    """Appending tokens leaves every earlier full partition alone; so does asking for more partitions."""
    case = problem.case()
    size = case.tile_groups_per_partition * GROUP_TOKENS
    full = int(case.seq_lens.min()) // size
    cut = case.truncated(full * size) if full else case.truncated(0)
    whole, part = run(case, problem.hw_v_transpose), run(cut, problem.hw_v_transpose)
    more = run(replace(case, num_partitions=case.num_partitions + 2), problem.hw_v_transpose)
    keep = case.num_partitions
    for name in ("out", "exp_sums", "max_logits"):
        assert np.array_equal(getattr(whole, name)[:, :, :full], getattr(part, name)[:, :, :full])
        assert np.array_equal(getattr(whole, name), getattr(more, name)[:, :, :keep])


@given(problem=ORDINARY, tile_groups=st.integers(1, 4))
def test_splitting_changes_the_output_only_by_rounding(problem: Problem, tile_groups: int) -> None:
    """However the tokens are split, the combined output is within the bound of `attention_bound`."""
    case = problem.case()
    longest = int(case.seq_lens.max())
    partitions = max(1, -(-longest // (tile_groups * GROUP_TOKENS)))
    again = replace(case, num_partitions=partitions, tile_groups_per_partition=tile_groups)
    outputs = [combine(run(c, problem.hw_v_transpose)).astype(np.float64) for c in (case, again)]
    assert (abs(outputs[0] - outputs[1]) <= 2 * attention_bound(case)).all()


def attention_bound(case: Case) -> np.ndarray:
    """How far a decode may be from float64 attention on the same dequantised cache, per output element.

    Per element of K and V, rounding to bfloat16 errs by 2^-9 relative. A score is a sum of 128 products, so it errs by
    at most 2^-9 times the sum of their magnitudes; the matrix core's own error, below 2^-20 of that sum, is covered by
    taking 2^-8 instead. With every score off by at most e, each weight is off by a factor within exp(+-2e); weights are
    rounded to bfloat16 (2^-9), values too (2^-9), the partial output too (2^-9), and float32 sums of at most 2^13
    terms add less than 2^-10. So with V the largest magnitude of a live value, the output, a weighted mean of
    values, is off by at most V * (exp(2e) - 1 + 2^-7) * exp(2e).
    """
    from tqref.attention import dequantized_tokens

    bound = np.zeros((case.num_sequences, case.num_query_heads))
    for sequence in range(case.num_sequences):
        for head in range(case.num_kv_heads):
            keys, values = dequantized_tokens(case, sequence, head)
            rows = slice(head * case.query_group_size, (head + 1) * case.query_group_size)
            query = (case.query[sequence, rows].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            if not len(keys):
                continue
            scores = abs(query) @ abs(keys).T * abs(case.softmax_scale)
            error = 2.0**-8 * scores.max(axis=-1)
            bound[sequence, rows] = abs(values).max() * (np.expm1(2 * error) + 2.0**-7) * np.exp(2 * error)
    return bound[..., None]


@given(problem=ORDINARY)
def test_the_oracle_is_attention_within_the_bound(problem: Problem) -> None:
    case = problem.case()
    error = abs(combine(oracle(case)).astype(np.float64) - attention(case))
    assert (error <= attention_bound(case)).all()


@given(problem=SMALL, data=st.data())
def test_heads_and_sequences_are_independent(problem: Problem, data: st.DataObject) -> None:
    case = problem.case()
    sequence = data.draw(st.integers(0, case.num_sequences - 1))
    head = data.draw(st.integers(0, case.num_kv_heads - 1))
    whole = run(case, problem.hw_v_transpose)
    alone = run(case.only(sequence, head), problem.hw_v_transpose)
    fields = (whole.out, whole.exp_sums, whole.max_logits)
    assert_same(Partials(*(field[sequence : sequence + 1, head : head + 1] for field in fields)), alone)


@given(problem=SMALL)
def test_both_transposes_give_the_same_bits(problem: Problem) -> None:
    case = problem.case()
    assert_same(run(case, True), run(case, False))


@given(problem=SMALL)
def test_blocks_of_16_and_32_give_the_same_bits(problem: Problem) -> None:
    case = replace(problem, kv_block_size=32, placement="in order").case()
    assert_same(run(case, problem.hw_v_transpose), run(halved(case), problem.hw_v_transpose))


def halved(case: Case) -> Case:
    """The case of blocks of 32 with each block split in two of 16 tokens."""
    heads, count = case.num_kv_heads, len(case.block_ids)
    data = case.blocks[:, : 32 * heads * 128].reshape(count * 2, 16 * heads * 128)
    metadata = case.blocks[:, 32 * heads * 128 :].reshape(count, heads, 3, 2, 32)
    metadata = metadata.transpose(0, 3, 1, 2, 4).reshape(count * 2, heads * 3 * 32)
    doubled = case.block_tables.astype(np.int64) * 2
    tables = np.stack([doubled, doubled + 1], axis=-1)
    live = np.repeat(case.live_table_entries, 2, axis=1)
    return replace(
        case,
        kv_block_size=16,
        blocks=np.concatenate([data, metadata], axis=1),
        block_ids=np.arange(count * 2, dtype=np.int64),
        num_blocks=max(1, count * 2),
        block_tables=np.where(live, tables.reshape(len(tables), -1), 0).astype(np.int32),
    )


@given(problem=SMALL)
def test_query_group_8_is_the_first_half_of_16(problem: Problem) -> None:
    case = replace(problem, query_group_size=16).case()
    rows = case.query.reshape(case.num_sequences, case.num_kv_heads, 16, -1)[:, :, :8]
    half = replace(
        case, query_group_size=8, query=np.ascontiguousarray(rows.reshape(case.num_sequences, -1, 128))
    )
    whole = run(case, problem.hw_v_transpose)
    first = Partials(whole.out[..., :8, :], whole.exp_sums[..., :8], whole.max_logits[..., :8])
    assert_same(first, run(half, problem.hw_v_transpose))
