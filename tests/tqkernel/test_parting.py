"""Faults planted in the compiled kernel: does the gate say where it parts from the oracle?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tqkernel.decode
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cases import CASES
from tqkernel.compile import compile_listing
from tqkernel.gate import run_case
from tqkernel.gfx950 import Memory, launch
from tqkernel.parting import (
    _by_dim,
    _by_row,
    _chunk_of_row,
    _Expected,
    _Matrix,
    _Recording,
    _values,
    _without_harmless,
    _wrong_lane,
    find_parting,
    shrink,
)
from tqkernel.verdict import Parting
from tqref import DEFAULT_PROFILE, Case, tiles

from .gfx950.machine import program

NAME = "ragged_qg8_bs16_hwtr"
SCORE = "v_mfma_f32_16x16x32_bf16"


def replaced(old: str, new: str, occurrence: int = 0) -> Callable[[str], str]:
    """Replace one occurrence of some text (a negative one counts from the end)."""

    def change(listing: str) -> str:
        places = [match.start() for match in re.finditer(re.escape(old), listing)]
        at = places[occurrence]
        return listing[:at] + new + listing[at + len(old) :]

    return change


def swapped_operands(listing: str) -> str:
    operands = rf"{SCORE} (\S+), (\S+), (\S+), (v\S+)"
    return re.sub(operands, rf"{SCORE} \1, \3, \2, \4", listing, count=1)


def everywhere(old: str, new: str) -> Callable[[str], str]:
    return lambda listing: listing.replace(old, new)


def rescaled_twice(listing: str) -> str:
    """Repeat the multiplication of two registers that a first output instruction accumulates onto."""
    first = re.search(r"v_mfma_f32_16x16x16_bf16 v\[(\d+):", listing)
    assert first is not None
    pair = re.escape(f"v[{first[1]}:{int(first[1]) + 1}]")
    return re.sub(rf"(\tv_pk_mul_f32 {pair}, {pair}, .*\n)", r"\1\1", listing, count=1)


FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    "log2(e) in its last bit": (everywhere("0x3fb8aa3b", "0x3fb8aa3c"), "probability"),
    "operands of the score swapped": (swapped_operands, "key"),
    "minimum for maximum": (replaced("v_maximum3_f32", "v_minimum3_f32"), "running maximum"),
    "logarithm for exponential": (replaced("v_exp_f32_e32", "v_log_f32_e32"), "probability"),
    "a sum subtracts": (replaced("v_add_f32_e32", "v_sub_f32_e32"), "running sum"),
    "values not transposed": (replaced("ds_read_b64_tr_b16", "ds_read_b64"), "value"),
    "accumulator rescaled twice": (rescaled_twice, "accumulator, rescaled"),
}


def parting_of(change: Callable[[str], str]) -> tuple[Parting | None, EmulatorBackend]:
    named = CASES[NAME]
    listing = compile_listing(named.variant, debug_locations=True)
    changed = change(listing)
    assert changed != listing
    backend = EmulatorBackend(listing_of=lambda variant: changed)
    case = named.build()
    verdict = run_case(case, named.variant.hw_v_transpose, backend)
    assert verdict.first is not None
    return (
        find_parting(case, verdict.first, named.variant.hw_v_transpose, backend, DEFAULT_PROFILE),
        backend,
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_the_stage_at_fault_is_named(fault: str) -> None:
    change, stage = FAULTS[fault]
    parting, _ = parting_of(change)
    assert parting is not None
    assert parting.stage == stage


def test_the_element_and_both_lines_are_named() -> None:
    parting, _ = parting_of(FAULTS["log2(e) in its last bit"][0])
    assert parting is not None
    assert (parting.tile, parting.token, parting.row, parting.dim) == (0, 0, 0, None)
    assert parting.text.startswith("v_exp_f32")
    assert parting.source is not None and parting.source[0] == "decode.py"
    assert (
        "probabilities = [_exp2("
        in Path(tqkernel.decode.__file__).read_text().splitlines()[parting.source[1] - 1]
    )
    assert parting.ulps is not None and 0 < parting.ulps < 100
    assert str(parting).startswith("probability, tile at token 0, token 0, row 0: kernel 0x")


def test_a_wrong_last_step_is_no_stage() -> None:
    parting, _ = parting_of(everywhere("v_div_fixup_f32", "v_max3_f32"))
    assert parting is None


def recording_of(body: str) -> _Recording:
    kernel = program(body)
    run = launch(kernel, (1, 1, 1), (64, 1, 1), b"", Memory(), DEFAULT_PROFILE, trace=(0, 0, 0))
    assert run.trace is not None
    return _Recording(kernel, run.trace)


def test_a_matrix_instruction_may_accumulate_onto_a_constant() -> None:
    one, half = "v_mov_b32_e32 v{0}, 0x3f803f80\n", "v_mov_b32_e32 v{0}, 0x3f003f00\n"
    inputs = "".join([one.format(0), one.format(1), half.format(2), half.format(3)])
    (matrix,) = recording_of(f"{inputs}s_nop 1\nv_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], 0\n").outputs
    assert matrix.a.shape == matrix.b.shape == (2, 64) and matrix.c.shape == matrix.d.shape == (4, 64)
    assert not matrix.c.any() and (matrix.d == np.float32(8).view(np.uint32)).all()


def test_two_halves_are_no_float() -> None:
    """Two bfloat16 NaNs in a register have the bits of a float32 NaN."""
    (nan,) = _by_row("running maximum", np.full(16, np.nan, np.float32), np.ones(64, bool))
    moved = recording_of("v_mov_b32_e32 v0, 0x7fc00000\n")
    packed = recording_of("v_mov_b32_e32 v0, 0x7f800001\nv_cvt_pk_bf16_f32 v1, v0, v0\n")
    assert moved.find(nan, 0)
    assert not packed.find(nan, 1)
    assert packed.trace.values[1, 0] == 0x7FC07FC0


def test_a_value_is_looked_for_from_its_tile_on() -> None:
    one, two = (
        _by_row("running maximum", np.full(16, value, np.float32), np.ones(64, bool))[0] for value in (1, 2)
    )
    moved = recording_of("v_mov_b32_e32 v0, 1.0\nv_mov_b32_e32 v0, 2.0\n")
    assert moved.find(one, 0) and moved.find(two, 0) and moved.find(two, 1) and not moved.find(one, 1)


@pytest.mark.parametrize("bits, is_wrong", [(0x3F80, False), (0x8000, False), (0x7F80, True), (0x7FC1, True)])
def test_what_a_dead_token_has_for_a_value_matters_if_it_is_not_finite(bits: int, is_wrong: bool) -> None:
    case = CASES[NAME].build()
    longest = int(case.seq_lens.argmax())
    tile = next(iter(tiles(case.only(longest, 0).truncated(15), 0, 0, 0)))
    assert tile.live.tolist() == [True] * 15 + [False]
    expected: list[_Expected] = _values(tile, 0)
    operand = np.stack([word.bits for word in expected])
    operand[1, 48:] |= np.uint32(bits << 16)
    wrong = [
        _wrong_lane(want, got) for want, got in zip(expected, _without_harmless(tile, operand), strict=True)
    ]
    assert wrong == [None, (48, 1) if is_wrong else None]


def test_the_dims_of_an_instruction_are_known_by_its_accumulators_where_all_tokens_are_dead() -> None:
    """In straight-line code an instruction sees one tile only; what it is given for dead tokens may be anything."""
    case = CASES[NAME].build()
    longest = int(case.seq_lens.argmax())
    first, dead, *_ = tiles(case.only(longest, 0).truncated(15), 0, 0, 0)
    assert first.live.any() and not dead.live.any()
    rows = np.arange(64) % 16 < case.query_group_size
    order = np.random.default_rng(1).permutation(8).tolist()
    noise = np.full((2, 64), 0x3F803F80, np.uint32)
    outputs = [
        _Matrix(
            at,
            row,
            noise,
            noise,
            np.stack([want.bits for want in _by_dim("", tile.rescaled, chunk, rows)]),
            noise,
        )
        for tile, start in ((first, 0), (dead, 8))
        for at, (row, chunk) in enumerate(enumerate(order, start))
    ]
    found = _chunk_of_row([first, dead], outputs, rows)
    assert [found[8 + place] for place in range(8)] == order


def test_a_failing_case_shrinks_to_one_sequence_one_head_few_tokens() -> None:
    case = CASES[NAME].build()
    tried = []

    def fails(candidate: Case) -> bool:
        tried.append(candidate)
        return int(candidate.seq_lens.max(initial=0)) >= 13

    lengths = case.seq_lens.tolist()
    short, long = lengths.index(1), lengths.index(17)
    small = shrink(case, [(short, 1), (long, 1), (long, 0)], fails)
    assert (small.num_sequences, small.num_kv_heads, small.seq_lens.tolist()) == (1, 1, [13])
    assert [candidate.seq_lens.tolist() for candidate in tried[:3]] == [[1], [17], [8]]


def test_a_case_that_fails_as_a_whole_only_keeps_its_sequences() -> None:
    case = CASES[NAME].build()
    small = shrink(case, [(0, 0)], lambda candidate: candidate.num_sequences > 1 and candidate.seq_lens.max() >= 20)
    assert small.num_sequences == case.num_sequences and small.seq_lens.max() == 20
