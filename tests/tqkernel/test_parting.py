"""Faults planted in the compiled kernel: does the gate say where it parts from the oracle?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tqkernel.decode
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cases import CASES
from tqkernel.compile import compile_listing
from tqkernel.gate import compare, oracle, run_case
from tqkernel.parting import find_parting, shrink
from tqkernel.verdict import Parting
from tqref import DEFAULT_PROFILE

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
    assert "probabilities = [_exp2(" in Path(tqkernel.decode.__file__).read_text().splitlines()[parting.source[1] - 1]
    assert parting.ulps is not None and 0 < parting.ulps < 100
    assert str(parting).startswith("probability, tile at token 0, token 0, row 0: kernel 0x")


def test_a_wrong_last_step_is_no_stage() -> None:
    parting, _ = parting_of(everywhere("v_div_fixup_f32", "v_max3_f32"))
    assert parting is None


def test_a_failing_case_shrinks_to_one_sequence_one_head_few_tokens() -> None:
    named = CASES[NAME]
    listing = compile_listing(named.variant)
    case = named.build()
    changed = everywhere("0x3fb8aa3b", "0x3fb8aa3c")(listing)
    backend = EmulatorBackend(listing_of=lambda variant: changed)
    verdict = run_case(case, named.variant.hw_v_transpose, backend)
    assert verdict.first is not None
    small = shrink(case, verdict.first, named.variant.hw_v_transpose, backend, DEFAULT_PROFILE)
    assert (small.num_sequences, small.num_kv_heads) == (1, 1)
    tokens = int(small.seq_lens[0])

    def differs(tokens: int) -> bool:
        cut = small.truncated(tokens)
        actual = backend.run(cut, named.variant.hw_v_transpose, DEFAULT_PROFILE)
        return compare(oracle(cut), actual).bits_differing > 0

    assert tokens <= 4
    assert differs(tokens) and not differs(tokens - 1)
