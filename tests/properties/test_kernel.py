"""Properties of the compiled kernel, each on problems that Hypothesis draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from tqkernel import properties
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.strategies import Problem, problems

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KERNEL = EmulatorBackend()
SMALL = problems(tile_waves=96)
"""For properties that decode a problem many times."""
ORDINARY = problems(hostile=False, tile_waves=96)


@given(problem=problems())
def test_the_kernel_is_the_oracle_under_every_profile(problem: Problem) -> None:
    properties.kernel_is_the_oracle(problem, KERNEL)


@given(problem=problems())
def test_the_sanitizer_finds_nothing(problem: Problem) -> None:
    EmulatorBackend(sanitize=True).run(problem.case(), problem.hw_v_transpose, problem.arithmetic)


@given(problem=SMALL)
def test_dead_bytes_do_not_count(problem: Problem) -> None:
    properties.dead_bytes_do_not_count(problem, KERNEL)


@given(problem=SMALL)
def test_table_entries_past_the_sequence_do_not_count(problem: Problem) -> None:
    properties.table_entries_past_the_sequence_do_not_count(problem, KERNEL)


@given(problem=SMALL)
def test_where_blocks_lie_does_not_count(problem: Problem) -> None:
    properties.where_blocks_lie_does_not_count(problem, KERNEL)


@given(problem=SMALL)
def test_sequences_that_share_blocks_read_the_same(problem: Problem) -> None:
    properties.sequences_that_share_blocks_read_the_same(problem, KERNEL)


@given(problem=SMALL)
def test_what_was_there_before_does_not_count(problem: Problem) -> None:
    properties.what_was_there_before_does_not_count(problem, KERNEL)


@given(problem=problems())
def test_a_partition_depends_on_its_own_tokens(problem: Problem) -> None:
    properties.a_partition_depends_on_its_own_tokens(problem, KERNEL)


@given(problem=problems())
def test_an_appended_token_leaves_full_partitions_alone(problem: Problem) -> None:
    properties.an_appended_token_leaves_full_partitions_alone(problem, KERNEL)


@given(problem=SMALL)
def test_more_partitions_leave_the_others_alone(problem: Problem) -> None:
    properties.more_partitions_leave_the_others_alone(problem, KERNEL)


@given(problem=ORDINARY)
def test_splitting_changes_no_more_than_rounding(problem: Problem) -> None:
    properties.splitting_changes_no_more_than_rounding(problem, KERNEL)


@given(problem=SMALL)
def test_splitting_hostile_numbers_changes_no_more_than_rounding(problem: Problem) -> None:
    properties.splitting_changes_no_more_than_rounding(problem, KERNEL)


@given(problem=problems())
def test_heads_and_sequences_are_independent(problem: Problem) -> None:
    properties.heads_and_sequences_are_independent(problem, KERNEL)


@given(problem=SMALL)
def test_both_transposes_agree(problem: Problem) -> None:
    properties.both_transposes_agree(problem, KERNEL)


@given(problem=SMALL)
def test_both_block_sizes_agree(problem: Problem) -> None:
    properties.both_block_sizes_agree(problem, KERNEL)


@given(problem=SMALL)
def test_query_group_8_is_half_of_16(problem: Problem) -> None:
    properties.query_group_8_is_half_of_16(problem, KERNEL)


def test_every_property_has_a_test() -> None:
    source = Path(__file__).read_text()
    untested = [name for name in properties.PROPERTIES if f"properties.{name}(problem, KERNEL)" not in source]
    assert untested == []
