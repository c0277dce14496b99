"""The decode, against a scalar transcription of its definition and against what it must never depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tqref import PROFILES, Case, Exp2, Partials, Profile, attention, combine, decode, tiles
from tqref.attention import dequantized_tokens
from tqref.numerics import bf16_to_f32, f32_to_bf16

mpmath = pytest.importorskip("mpmath")
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow"),
]
MakeCase = Callable[..., Case]
SameBits = Callable[[np.ndarray, np.ndarray], None]
F32 = np.float32
RECORDED = Path(__file__).parents[2] / "fixtures" / "minilm_layer3_kv.npz"


def assert_same_partials(actual: Partials, expected: Partials, same_bits: SameBits) -> None:
    same_bits(bf16_to_f32(actual.out), bf16_to_f32(expected.out))
    same_bits(actual.exp_sums, expected.exp_sums)
    same_bits(actual.max_logits, expected.max_logits)


# --- a scalar transcription: Python numbers and np.float32, one element at a time -----------------------


def bf16(value: F32) -> float:
    """Round to bfloat16 with exact arithmetic; the result as a Python float."""
    x = float(value)
    if not math.isfinite(x) or x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, -126)
    unit = Fraction(2) ** (exponent - 7)
    rounded = float(round(Fraction(abs(x)) / unit) * unit)
    return math.copysign(math.inf if rounded >= 2.0**128 else rounded, x)


def to_f32(value: Fraction) -> F32:
    if value == 0:
        return F32(0)
    exponent = max(math.frexp(float(abs(value)))[1] - 1, -126)
    unit = Fraction(2) ** (exponent - 23)
    return F32(float(round(value / unit) * unit))


def exponent_of(x: float) -> int:
    return max(math.frexp(x)[1] - 1, -126) if x else -126


def grouped(a: list[float], b: list[float], c: F32) -> F32:
    """Sums of eight: products truncated to 24 bits below the largest, then two sums floored."""
    for start in range(0, len(a), 8):
        pairs = list(zip(a[start : start + 8], b[start : start + 8], strict=True))
        products = [x * y if abs(x * y) < 2.0**128 else math.inf * (x * y) for x, y in pairs]
        if not np.isfinite([*products, c]).all():
            c = (
                F32(math.fsum(products) + float(c))
                if not {math.inf, -math.inf} <= set(products)
                else F32(math.nan)
            )
            continue
        exponents = [exponent_of(x) + exponent_of(y) for x, y in pairs if x * y != 0]
        top = max(exponents, default=-10000)
        unit = Fraction(2) ** (top - 24)
        total = sum((math.trunc(Fraction(product) / unit) for product in products), 0) * unit
        top = max(top, exponent_of(float(c)))
        total = math.floor(total / Fraction(2) ** (top - 32)) * Fraction(2) ** (top - 32)
        total += math.floor(Fraction(float(c)) / Fraction(2) ** (top - 24)) * Fraction(2) ** (top - 24)
        if total:
            unit = Fraction(2) ** (exponent_of(float(total)) - 31)
            total = math.floor(total / unit) * unit
        c = to_f32(total)
    return c


def chained(a: list[float], b: list[float], c: F32) -> F32:
    for x, y in zip(a, b, strict=True):
        if np.isfinite([x * y, float(c)]).all() and (x * y or c):
            c = to_f32(Fraction(x) * Fraction(y) + Fraction(float(c)))
        else:
            c = F32(x * y + float(c))
    return c


DOTS = {"cdna3": grouped, "fma-chain": chained}


def exp2(x: F32) -> F32:
    if math.isnan(x):
        return F32(math.nan)
    if x < -126:
        return F32(0)
    if x >= 128:
        return F32(math.inf)
    with mpmath.workprec(120):
        return F32(mpmath.mpf(2) ** mpmath.mpf(float(x))) if x != int(x) else F32(2.0 ** int(x))


def maximum(x: F32, y: F32) -> F32:
    if x == 0 and y == 0:
        return F32(0) if math.copysign(1, x) > 0 or math.copysign(1, y) > 0 else x
    return F32(math.nan) if math.isnan(x) or math.isnan(y) else max(x, y)


def scalar_row(
    case: Case, n: int, h: int, p: int, r: int, dims: range, name: str
) -> tuple[list[float], F32, F32]:
    """Query row r of one (sequence, head, partition): some dims of out, exp_sum and max_logit."""
    dot = DOTS[name]
    block_size, heads = case.kv_block_size, case.num_kv_heads
    query = bf16_to_f32(case.query[n, h * case.query_group_size + r]).tolist()
    seq_len, group_tokens = int(case.seq_lens[n]), case.tile_groups_per_partition * 256
    trips = min(max(-(-(seq_len - p * group_tokens) // 256), 0), case.tile_groups_per_partition)
    largest, total, acc = F32(-math.inf), F32(0), {d: F32(0) for d in dims}
    log2e = F32(1.4426950408889634)

    def token_bytes(t: int) -> tuple[list[int], float, list[int], float, float]:
        block = case.blocks[case.block_ids.tolist().index(int(case.block_tables[n, t // block_size]))]
        slot = t % block_size
        data = block[(slot * heads + h) * 128 :][:128]
        entries = block[block_size * heads * 128 :].view(np.float16)
        norm, scale, zero = (F32(entries[h * 3 * block_size + f * block_size + slot]) for f in range(3))
        nibbles = [int(byte) >> shift & 15 for byte in data for shift in (0, 4)]
        return nibbles[:128], norm, nibbles[128:], scale, zero

    for tile in range(trips * 16):
        first = p * group_tokens + tile * 16
        scores, values = [], []
        for t in range(first, first + 16):
            if t >= seq_len:
                scores.append(F32(-math.inf))
                values.append({d: 0.0 for d in dims})
                continue
            key, norm, value, scale, zero = token_bytes(t)
            keys = [bf16(case.centroids[nibble] * norm) for nibble in key]
            acc_qk = F32(0)
            for chunk in range(0, 128, 32):
                acc_qk = dot(keys[chunk : chunk + 32], query[chunk : chunk + 32], acc_qk)
            scores.append(acc_qk * F32(case.softmax_scale))
            values.append({d: bf16(F32(value[d]) * scale + zero) for d in dims})
        tile_max = F32(-math.inf)
        for score in scores:
            tile_max = maximum(tile_max, score)
        new = maximum(largest, tile_max)
        rescale = exp2((F32(0) if largest == -math.inf else largest - new) * log2e)
        probabilities = [exp2((F32(-math.inf) if new == -math.inf else s - new) * log2e) for s in scores]
        t0, t1, t2, t3 = (
            (((F32(0) + q[0]) + q[1]) + q[2]) + q[3]
            for q in (probabilities[4 * g : 4 * g + 4] for g in range(4))
        )
        total = total * rescale + ((t0 + t1) + (t2 + t3))
        largest = new
        weights = [bf16(probability) for probability in probabilities]
        for d in dims:
            acc[d] = dot([value[d] for value in values], weights, acc[d] * rescale)
    inverse = F32(1) / (total if total > 0 else F32(1))
    return [bf16(acc[d] * inverse) for d in dims], total, largest


def assert_is_the_transcription(
    case: Case, name: str, waves: list[tuple[int, int, int]], same: SameBits
) -> None:
    """Compare rows 0 and last, and a few head dims, of some waves."""
    partials = decode(case, PROFILES[name])
    dims = range(0, 128, 41)
    for n, h, p in waves:
        for r in (0, case.query_group_size - 1):
            out, total, largest = scalar_row(case, n, h, p, r, dims, name)
            same(bf16_to_f32(partials.out[n, h, p, r, list(dims)]), np.array(out, F32))
            same(partials.exp_sums[n, h, p, r], np.asarray(total))
            same(partials.max_logits[n, h, p, r], np.asarray(largest))


@pytest.mark.parametrize("name", DOTS)
@pytest.mark.parametrize("query_group_size, kv_block_size", [(8, 16), (16, 32)])
def test_decode_is_the_transcription(
    make_case: MakeCase, assert_same_bits: SameBits, name: str, query_group_size: int, kv_block_size: int
) -> None:
    case = make_case([37, 3], 2, query_group_size, kv_block_size=kv_block_size)
    assert_is_the_transcription(case, name, [(0, 1, 0), (1, 0, 0)], assert_same_bits)


def test_decode_of_a_second_partition_and_tile_group_is_the_transcription(
    make_case: MakeCase, assert_same_bits: SameBits
) -> None:
    case = make_case([530], 1, num_partitions=3, softmax_scale=0.3)
    assert_is_the_transcription(case, "cdna3", [(0, 0, 2)], assert_same_bits)
    case = make_case([259], 1, num_partitions=2, tile_groups_per_partition=2)
    assert_is_the_transcription(case, "cdna3", [(0, 0, 0), (0, 0, 1)], assert_same_bits)


HOSTILE = {
    "subnormal norms": dict(norm=lambda n: np.full(n, 6e-8, np.float16)),
    "maximal norms": dict(norm=lambda n: np.full(n, 65504, np.float16)),
    "growing norms": dict(norm=lambda n: np.linspace(0, 900, n).astype(np.float16)),
    "one infinite norm": dict(norm=lambda n: np.where(np.arange(n) == 9, np.inf, 1).astype(np.float16)),
    "one nan norm": dict(norm=lambda n: np.where(np.arange(n) == 9, np.nan, 1).astype(np.float16)),
    "zero norms": dict(norm=lambda n: np.zeros(n, np.float16)),
    "huge centroids": dict(centroids=lambda c: (c * F32(1e37)).astype(F32)),
    "infinite centroids": dict(centroids=lambda c: np.full(16, -np.inf, F32)),
    "subnormal centroids": dict(centroids=lambda c: (c * F32(1e-38)).astype(F32)),
    "extreme scales": dict(scale=lambda n: np.full(n, 65504, np.float16)),
    "infinite scale": dict(scale=lambda n: np.where(np.arange(n) == 3, np.inf, 1).astype(np.float16)),
    "cancelling zeros": dict(zero=lambda n: np.where(np.arange(n) % 2, 65504, -65504).astype(np.float16)),
    "nan zero": dict(zero=lambda n: np.where(np.arange(n) == 20, np.nan, 0).astype(np.float16)),
    "negative values only": dict(zero=lambda n: np.full(n, -100, np.float16)),
}


def hostile_case(make_case: MakeCase, name: str) -> Case:
    """23 tokens, one head, with some metadata or the centroids replaced; query 0 is all ones."""
    case = make_case([23], 1)
    blocks, centroids = case.blocks.copy(), case.centroids
    order = case.rows_of(case.block_tables[0])
    for field, change in HOSTILE[name].items():
        if field == "centroids":
            centroids = change(centroids)
            continue
        entries = blocks[:, case.layout.metadata_start :].view(np.float16)
        index = {"norm": 0, "scale": 1, "zero": 2}[field]
        rows = np.zeros((len(blocks), 16), np.float16)
        rows[order] = change(len(blocks) * 16).reshape(-1, 16)
        entries[:, index * 16 : index * 16 + 16] = rows
    query = case.query.copy()
    query[0, 0] = 0x3F80
    return replace(case, blocks=blocks, centroids=centroids, query=query)


@pytest.mark.parametrize("profile", DOTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_decode_of_hostile_numbers_is_the_transcription(
    make_case: MakeCase, assert_same_bits: SameBits, name: str, profile: str
) -> None:
    assert_is_the_transcription(hostile_case(make_case, name), profile, [(0, 0, 0)], assert_same_bits)


@pytest.mark.parametrize("signs", ["both", "negative"])
def test_positive_zero_is_the_larger_zero(make_case: MakeCase, signs: str) -> None:
    case = make_case([40], 1)
    if signs == "negative":
        case = replace(case, centroids=-np.abs(case.centroids), query=np.full_like(case.query, 0x3F80))
    zeros = decode(replace(case, softmax_scale=0.0)).max_logits[0, 0, 0]
    assert (zeros == 0).all()
    assert (np.signbit(zeros) == (signs == "negative")).all()


# --- how far from attention ---------------------------------------------------------------------------------


def error_bound(case: Case) -> np.ndarray:
    """float64[N, heads, 128]: how far the combined decode may lie from float64 attention.

    Rounding a key to bfloat16 moves each of its elements by at most 2**-9 of it, so a score by d = scale *
    2**-9 * sum |k q| (and a little for the float32 sums), so a normalised weight by a factor within exp(2 d).
    Weights, values and outputs are rounded to bfloat16 too, each by at most 2**-9 of the largest value.
    """
    bound = np.zeros((case.num_sequences, case.num_query_heads, 128))
    query = np.abs(bf16_to_f32(case.query).astype(np.float64))
    for n in range(case.num_sequences):
        for h in range(case.num_kv_heads):
            keys, values = dequantized_tokens(case, n, h)
            if not len(keys):
                continue
            rows = slice(h * case.query_group_size, (h + 1) * case.query_group_size)
            moved = (query[n, rows] @ np.abs(keys).T).max(axis=-1) * case.softmax_scale * (2.0**-9 + 2.0**-16)
            weights = np.expm1(2 * moved) + 4 * 2.0**-9
            bound[n, rows] = weights[:, None] * np.abs(values).max(axis=0) * 1.01
    return bound


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.key)
@pytest.mark.parametrize("partitions, groups", [(3, 1), (1, 3), (8, 2)])
def test_decode_is_close_to_attention(
    make_case: MakeCase, profile: Profile, partitions: int, groups: int
) -> None:
    case = make_case([300, 0, 700, 1], num_partitions=partitions, tile_groups_per_partition=groups)
    error = np.abs(combine(decode(case, profile)) - attention(case))
    assert np.all(error <= error_bound(case))
    assert error.max() < 0.01


@pytest.mark.parametrize("kv_block_size", [16, 32])
def test_decode_of_recorded_keys_is_close_to_attention(kv_block_size: int) -> None:
    with np.load(RECORDED) as recorded:
        key, value, query = (bf16_to_f32(recorded[f"{name}_bf16"]) for name in ("key", "value", "query"))
    case = Case.build("minilm", query[None], [key], [value], kv_block_size=kv_block_size)
    error = np.abs(combine(decode(case)) - attention(case))
    assert np.all(error <= error_bound(case))
    # And quantising itself keeps attention: compare with the keys and values as they were.
    scores = query.reshape(3, 16, 128).astype(np.float64) @ key.transpose(1, 2, 0) / math.sqrt(128)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    true = (weights @ value.transpose(1, 0, 2)) / weights.sum(axis=-1, keepdims=True)
    true = true.reshape(48, 128)
    assert np.linalg.norm(attention(case)[0] - true) < 0.15 * np.linalg.norm(true)


# --- what may not change a bit ------------------------------------------------------------------------------

POISONS = [0xFF, 0x7C, 0x7E, 0x01]


@pytest.mark.parametrize("poison", POISONS, ids=hex)
def test_dead_bytes_do_not_count(make_case: MakeCase, assert_same_bits: SameBits, poison: int) -> None:
    case = make_case([37, 256, 5, 16], kv_block_size=32, num_partitions=2, num_blocks=40)
    poisoned = case.with_poisoned_dead_bytes(poison)
    assert np.count_nonzero(poisoned.blocks != case.blocks) > 1000
    assert_same_partials(decode(poisoned), decode(case), assert_same_bits)


@pytest.mark.parametrize("entry", [-1, 2**31 - 1, -(2**31)])
def test_table_entries_past_the_sequence_are_not_followed(
    make_case: MakeCase, assert_same_bits: SameBits, entry: int
) -> None:
    case = make_case([37, 300, 0], max_blocks_per_sequence=40, num_partitions=3)
    changed = case.with_unused_table_entries(entry)
    assert np.count_nonzero(changed.block_tables == entry) == 40 * 3 - 3 - 19
    assert_same_partials(decode(changed), decode(case), assert_same_bits)


def test_where_blocks_live_does_not_count(
    make_case: MakeCase, assert_same_bits: SameBits, rng: np.random.Generator
) -> None:
    case = make_case([100, 70])
    expected = decode(case)
    far = case.with_far_blocks()
    assert far.block_ids[0] * far.layout.block_bytes >= 2**32
    shuffled = case.with_blocks_renamed(rng.permutation(100)[: len(case.block_ids)], 100)
    for other in (far, shuffled):
        assert not np.array_equal(other.block_tables, case.block_tables)
        assert_same_partials(decode(other), expected, assert_same_bits)


def test_waves_do_not_meet(make_case: MakeCase, assert_same_bits: SameBits) -> None:
    case = make_case([300, 20, 513, 40, 7], 4, num_partitions=4)  # 80 waves: more than are computed at a time
    whole = decode(case)
    for n in range(case.num_sequences):
        alone = decode(
            replace(
                case,
                query=case.query[n : n + 1],
                block_tables=case.block_tables[n : n + 1],
                seq_lens=case.seq_lens[n : n + 1],
            )
        )
        one = Partials(whole.out[n : n + 1], whole.exp_sums[n : n + 1], whole.max_logits[n : n + 1])
        assert_same_partials(alone, one, assert_same_bits)


# --- edges --------------------------------------------------------------------------------------------------


def test_partitions_past_the_end_are_empty(make_case: MakeCase) -> None:
    partials = decode(make_case([256, 257, 0], num_partitions=3))
    used = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    for n, p in np.ndindex(3, 3):
        empty = not used[n, p]
        assert np.all((partials.max_logits[n, :, p] == -np.inf) == empty)
        assert np.all((partials.exp_sums[n, :, p] == 0) == empty)
        assert np.all(partials.out[n, :, p] == 0) == empty


def test_a_nan_query_makes_its_own_row_nan(make_case: MakeCase) -> None:
    case = make_case([40])
    query = case.query.copy()
    query[0, 3, 100] = 0x7FC0
    partials = decode(replace(case, query=query))
    isnan = np.isnan(bf16_to_f32(partials.out)).reshape(16, 128)
    assert isnan[3].all() and not np.delete(isnan, 3, axis=0).any()
    assert np.isnan(partials.exp_sums).reshape(-1).nonzero()[0].tolist() == [3]
    assert np.isnan(partials.max_logits).reshape(-1).nonzero()[0].tolist() == [3]
    assert np.isnan(combine(partials)[0, 3]).all()


def test_a_nan_in_a_live_value_reaches_the_output(make_case: MakeCase) -> None:
    partials = decode(hostile_case(make_case, "nan zero"))
    assert np.isnan(bf16_to_f32(partials.out)).all()
    assert not np.isnan(partials.exp_sums).any()


def test_rows_without_any_finite_score_are_zero_not_nan(make_case: MakeCase) -> None:
    # Centroids of -inf times a query of ones: every live score is -inf, which is no NaN.
    partials = decode(hostile_case(make_case, "infinite centroids"))
    assert partials.max_logits[0, 0, 0, 0] == -np.inf
    assert partials.exp_sums[0, 0, 0, 0] == 0
    assert np.all(partials.out[0, 0, 0, 0] == 0)


def test_the_profile_counts(make_case: MakeCase) -> None:
    case = make_case([200])
    assert not np.array_equal(
        decode(case, PROFILES["cdna3"]).exp_sums, decode(case, PROFILES["fma-chain"]).exp_sums
    )


def test_the_profiles_exp2_is_used_for_weights_and_for_rescaling(make_case: MakeCase) -> None:
    # Say exp2(0) is 2: one token then weighs 2, and each of the 15 dead tiles after its own doubles the sum.
    two = np.array([2], F32).view(np.uint32)
    profile = Profile("doubling", 1, "", PROFILES["cdna3"].dot, Exp2(np.zeros(1, np.uint32), two))
    assert np.all(decode(make_case([1]), profile).exp_sums == 2 * 2**15)


def test_the_sum_is_inverted_before_it_multiplies() -> None:
    # 14 tokens of equal weight whose mean, 509/256, lies between two bfloat16 numbers. Division would round
    # it to the even one below; float32(1/14) is a little more than 1/14, enough to round it up.
    values = np.where(np.arange(14) % 2, 255 / 128, 254 / 128).astype(F32)[:, None, None]
    tokens = np.broadcast_to(values, (14, 1, 128))
    query = np.ones((1, 8, 128), F32)
    partials = decode(Case.build("tie", query, [np.zeros((14, 1, 128), F32)], [tokens]))
    assert np.all(partials.exp_sums == 14)
    assert np.all(bf16_to_f32(partials.out) == F32(255 / 128))


def test_no_sequences_or_no_tokens_at_all(make_case: MakeCase) -> None:
    case = make_case([0, 0], num_partitions=2)
    assert np.all(decode(case).max_logits == -np.inf)
    assert np.all(combine(decode(case)) == 0) and np.all(attention(case) == 0)
    none = replace(case, query=case.query[:0], block_tables=case.block_tables[:0], seq_lens=case.seq_lens[:0])
    assert decode(none).out.shape == (0, 2, 2, 8, 128)


@pytest.mark.filterwarnings("ignore")
def test_tiles_are_the_stages_of_decode(make_case: MakeCase, assert_same_bits: SameBits) -> None:
    case = make_case([300, 40], 2)
    expected = decode(case)
    for sequence, head, partition in np.ndindex(expected.max_logits.shape[:3]):
        stages = list(tiles(case, sequence, head, partition))
        covered = case.num_partitions and partition * case.tile_groups_per_partition * 256
        if covered >= case.seq_lens[sequence]:
            assert stages == []
            continue
        assert [tile.start for tile in stages] == list(range(covered, covered + 16 * len(stages), 16))
        assert_same_bits(stages[-1].maximum, expected.max_logits[sequence, head, partition])
        assert_same_bits(stages[-1].total, expected.exp_sums[sequence, head, partition])
        inverse = (F32(1) / stages[-1].total)[:, None]
        assert_same_bits(
            bf16_to_f32(f32_to_bf16(stages[-1].accumulator * inverse)),
            bf16_to_f32(expected.out[sequence, head, partition]),
        )
        for before, after in zip(stages, stages[1:], strict=False):
            assert_same_bits(after.rescaled, before.accumulator * after.rescale[:, None])
