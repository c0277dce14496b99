"""What a right kernel keeps to on every problem, by name.

A property takes a problem and the backend to run the kernel on, and raises Disagreement when it does not hold; RunError
when the kernel does not finish. What it varies besides the problem it draws from the problem's seed, so that the
problem alone shows a failure again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.gate import compare, oracle
from tqkernel.strategies import MAX_TILE_GROUPS, Problem
from tqref import PROFILES, Case, MetadataField, Partials, combine
from tqref.error_bounds import rounded_magnitude, softmax_error
from tqref.layout import GROUP_TOKENS, HEAD_SIZE, METADATA_BYTES, CacheLayout

Property = Callable[[Problem, EmulatorBackend], None]

DEAD_PATTERNS = (0x0000, 0xFFFF, 0x7E00, 0x7C00, 0xFC00)
"""As 16 bits: zeros, ones, fp16's NaN, infinity and minus infinity."""
START_PATTERNS = (0x00000000, 0xFFFFFFFF, 0x7F800000, 0x3F800000)
"""What registers and LDS, and by their lowest byte the outputs, may hold before a run."""
I32 = np.iinfo(np.int32)


class Disagreement(AssertionError):
    """Two decodes that must have the same bits have not."""


def require_same_bits(expected: Partials, actual: Partials, what: str) -> None:
    """Raise Disagreement, with `what` was varied and the first element, unless both have the same bits."""
    first = compare(expected, actual).first
    if first is not None:
        raise Disagreement(
            f"{what}: {first.output} differs at sequence {first.sequence}, head {first.head}, partition "
            f"{first.partition}, row {first.row}: {first.expected:#x}, then {first.actual:#x}"
        )


def kernel_is_the_oracle(problem: Problem, backend: EmulatorBackend) -> None:
    """All bits of all three outputs are the oracle's, under every profile."""
    case = problem.case()
    for profile in PROFILES.values():
        first = compare(oracle(case, profile), backend.run(case, problem.hw_v_transpose, profile)).first
        if first is not None:
            raise Disagreement(f"{profile.key}: {first}")


def dead_bytes_do_not_count(problem: Problem, backend: EmulatorBackend) -> None:
    """A byte that no live token owns may hold anything."""
    case = problem.case()
    expected = _run(problem, backend, case)
    for pattern in DEAD_PATTERNS:
        poison = np.resize(np.array([pattern], "<u2").view(np.uint8), case.blocks.shape)
        poisoned = case.with_poisoned_dead_bytes(poison)
        require_same_bits(expected, _run(problem, backend, poisoned), f"dead bytes {pattern:#06x}")


def table_entries_past_the_sequence_do_not_count(problem: Problem, backend: EmulatorBackend) -> None:
    """They may name no block, or a block with other bytes; one that is followed to where no block is faults."""
    case = problem.case()
    expected = _run(problem, backend, case)
    for entry in (I32.min, -1, I32.max, *case.block_ids[:1].tolist()):
        other = case.with_unused_table_entries(entry)
        require_same_bits(expected, _run(problem, backend, other), f"unused table entries {entry}")


def where_blocks_lie_does_not_count(problem: Problem, backend: EmulatorBackend) -> None:
    """Blocks may have any names, in any order, close together or beyond 4 GiB."""
    case = problem.case()
    expected = _run(problem, backend, case)
    order = _random(problem).permutation(len(case.block_ids)).astype(np.int64)
    for stride in (1, 1 + (8 << 32) // case.layout.block_bytes // max(1, len(order))):
        renamed = case.with_blocks_renamed(order * stride)
        require_same_bits(expected, _run(problem, backend, renamed), f"blocks renamed, {stride} apart")


def sequences_that_share_blocks_read_the_same(problem: Problem, backend: EmulatorBackend) -> None:
    """The same query over the same blocks gives the same bits, whatever else is in the batch."""
    lengths = (*problem.lengths, problem.lengths[0])
    case = replace(problem, lengths=lengths, sharing="prefix").case()
    query = case.query.copy()
    query[-1] = query[0]
    partials = _run(problem, backend, replace(case, query=query))
    require_same_bits(
        _part(partials, np.s_[:1]), _part(partials, np.s_[-1:]), "sequences that share their blocks"
    )


def what_was_there_before_does_not_count(problem: Problem, backend: EmulatorBackend) -> None:
    """Registers, LDS and output buffers may start with anything."""
    case = problem.case()
    expected = _run(problem, backend, case)
    for pattern in START_PATTERNS:
        other = backend.starting_from(pattern, pattern & 0xFF)
        require_same_bits(expected, _run(problem, other, case), f"registers, LDS and outputs {pattern:#010x}")


def a_partition_depends_on_its_own_tokens(problem: Problem, backend: EmulatorBackend) -> None:
    """Each partition's bits are those of a sequence of its tokens alone."""
    case = problem.case()
    whole = _run(problem, backend, case)
    for partition in range(-(-int(case.seq_lens.max()) // _partition_tokens(case))):
        alone = _run(problem, backend, _partition_alone(case, partition))
        require_same_bits(
            _part(whole, np.s_[:, :, partition : partition + 1]), alone, f"partition {partition} alone"
        )


def an_appended_token_leaves_full_partitions_alone(problem: Problem, backend: EmulatorBackend) -> None:
    """A sequence one token shorter has the same bits in the partitions that it fills."""
    case = problem.case()
    shorter = replace(case, seq_lens=np.maximum(case.seq_lens - 1, 0).astype(np.int32))
    before, after = _run(problem, backend, shorter), _run(problem, backend, case)
    for sequence, length in enumerate(shorter.seq_lens.tolist()):
        full = np.s_[sequence : sequence + 1, :, : length // _partition_tokens(case)]
        require_same_bits(_part(before, full), _part(after, full), f"token {length} appended")


def more_partitions_leave_the_others_alone(problem: Problem, backend: EmulatorBackend) -> None:
    """Partitions beyond the sequence are empty, and change none of the others."""
    case = problem.case()
    wider = _run(problem, backend, replace(case, num_partitions=case.num_partitions + 2))
    kept, added = np.s_[:, :, : case.num_partitions], np.s_[:, :, case.num_partitions :]
    require_same_bits(_run(problem, backend, case), _part(wider, kept), "two more partitions")
    empty = _part(wider, added)
    if empty.out.any() or empty.exp_sums.any() or not np.isneginf(empty.max_logits).all():
        raise Disagreement("two more partitions: expected them empty")


def splitting_changes_no_more_than_rounding(problem: Problem, backend: EmulatorBackend) -> None:
    """However the tokens are split, the combined output is nearly the same.

    Scores and values have the same bits in every split. So both outputs are within `softmax_error`, each its own, of
    the same weighted mean, in units of the mean of magnitudes.
    """
    case = problem.case()
    tile_groups = int(_random(problem).integers(1, MAX_TILE_GROUPS + 1))
    partitions = max(1, -(-int(case.seq_lens.max()) // (tile_groups * GROUP_TOKENS)))
    other = replace(case, num_partitions=partitions, tile_groups_per_partition=tile_groups)
    with np.errstate(all="ignore"):
        difference = np.subtract(
            *(combine(_run(problem, backend, c)).astype(np.float64) for c in (case, other))
        )
        magnitude, lost = rounded_magnitude(case, problem.arithmetic)
        allowed = (softmax_error(case) + softmax_error(other)) * magnitude + 2 * lost
    outside = np.isfinite(allowed) & ~(np.abs(difference) <= allowed)
    if outside.any():
        at = tuple(np.argwhere(outside)[0].tolist())
        raise Disagreement(
            f"split in {partitions} of {tile_groups} tile groups: output{list(at)} changes by {difference[at]:.3g}, "
            f"expected at most {allowed[at]:.3g}"
        )


def heads_and_sequences_are_independent(problem: Problem, backend: EmulatorBackend) -> None:
    """One sequence and KV head alone gives its bits from the batch."""
    case = problem.case()
    random = _random(problem)
    sequence, head = int(random.integers(case.num_sequences)), int(random.integers(case.num_kv_heads))
    part = _part(_run(problem, backend, case), np.s_[sequence : sequence + 1, head : head + 1])
    alone = _run(problem, backend, case.only(sequence, head))
    require_same_bits(part, alone, f"sequence {sequence}, head {head} alone")


def both_transposes_agree(problem: Problem, backend: EmulatorBackend) -> None:
    """Both ways to transpose values give the same bits."""
    case = problem.case()
    software, hardware = (backend.run(case, path, problem.arithmetic) for path in (False, True))
    require_same_bits(software, hardware, "the other V transpose")


def both_block_sizes_agree(problem: Problem, backend: EmulatorBackend) -> None:
    """The same tokens in blocks of 16 and of 32 give the same bits."""
    case = replace(problem, kv_block_size=32, placement="in order").case()
    require_same_bits(
        _run(problem, backend, case), _run(problem, backend, _in_blocks_of_16(case)), "blocks of 16, not 32"
    )


def query_group_8_is_half_of_16(problem: Problem, backend: EmulatorBackend) -> None:
    """With the same rows the smaller query group has the bits of the larger one's first half."""
    case = replace(problem, query_group_size=16).case()
    rows = case.query.reshape(case.num_sequences, case.num_kv_heads, 16, HEAD_SIZE)[:, :, :8]
    query = np.ascontiguousarray(rows.reshape(case.num_sequences, -1, HEAD_SIZE))
    first_half = _part(_run(problem, backend, case), np.s_[:, :, :, :8])
    half = _run(problem, backend, replace(case, query_group_size=8, query=query))
    require_same_bits(first_half, half, "query group 8, not 16")


PROPERTIES: dict[str, Property] = {
    check.__name__: check
    for check in (
        kernel_is_the_oracle,
        dead_bytes_do_not_count,
        table_entries_past_the_sequence_do_not_count,
        where_blocks_lie_does_not_count,
        sequences_that_share_blocks_read_the_same,
        what_was_there_before_does_not_count,
        a_partition_depends_on_its_own_tokens,
        an_appended_token_leaves_full_partitions_alone,
        more_partitions_leave_the_others_alone,
        splitting_changes_no_more_than_rounding,
        heads_and_sequences_are_independent,
        both_transposes_agree,
        both_block_sizes_agree,
        query_group_8_is_half_of_16,
    )
}
"""Every property, the first the one that matters most."""


# ---------------------------------------------------------------- what they share


def _random(problem: Problem) -> np.random.Generator:
    """For what a property varies: not the numbers that the problem's arrays are drawn from."""
    return np.random.default_rng([problem.seed, 1])


def _run(problem: Problem, backend: EmulatorBackend, case: Case) -> Partials:
    return backend.run(case, problem.hw_v_transpose, problem.arithmetic)


def _part(partials: Partials, index: tuple[slice, ...] | slice) -> Partials:
    return Partials(partials.out[index], partials.exp_sums[index], partials.max_logits[index])


def _partition_tokens(case: Case) -> int:
    return case.tile_groups_per_partition * GROUP_TOKENS


def _partition_alone(case: Case, partition: int) -> Case:
    """Each sequence cut to the tokens of one partition, which some sequence reaches."""
    size = _partition_tokens(case)
    first = partition * size // case.kv_block_size
    tables = case.block_tables[:, first : first + size // case.kv_block_size]
    lengths = np.clip(case.seq_lens - partition * size, 0, size)
    return replace(
        case,
        block_tables=np.ascontiguousarray(tables),
        seq_lens=lengths.astype(np.int32),
        num_partitions=1,
    )


def _in_blocks_of_16(case: Case) -> Case:
    """A case of blocks of 32, numbered from 0, with each split in two."""
    small, heads = CacheLayout(16, case.num_kv_heads), case.num_kv_heads
    count = len(case.block_ids)
    data = case.blocks[:, : case.layout.metadata_start].reshape(2 * count, small.metadata_start)
    rows = (count, heads, len(MetadataField), 2, 16 * METADATA_BYTES)
    halves = case.blocks[:, case.layout.metadata_start :].reshape(rows).transpose(0, 3, 1, 2, 4)
    metadata = halves.reshape(2 * count, small.block_bytes - small.metadata_start)
    return replace(
        case,
        kv_block_size=16,
        blocks=np.concatenate([data, metadata], axis=1),
        block_ids=np.arange(2 * count, dtype=np.int64),
        num_blocks=2 * case.num_blocks,
        block_tables=_split_entries(case),
    )


def _split_entries(case: Case) -> NDArray[np.int32]:
    """Each live entry's two halves; -1 for others."""
    named = 2 * np.where(case.live_table_entries, case.block_tables, 0).astype(np.int64)
    halves = np.stack([named, named + 1], axis=-1).reshape(case.num_sequences, -1)
    return np.where(np.repeat(case.live_table_entries, 2, axis=1), halves, -1).astype(np.int32)
