"""The emulator backend runs listings as they are, and what is wrong with one shows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tqkernel.backends import POISON_BYTE, RunError, poisoned_outputs
from tqkernel.backends import emulator as emulator_backend
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cases import CASES, NamedCase
from tqkernel.compile import compile_listing
from tqkernel.gate import run_case
from tqkernel.plan import VARIANTS, Variant
from tqkernel.verdict import Verdict
from tqref import DEFAULT_PROFILE, PROFILES
from tqref.numerics import bf16_to_f32

NAMED = CASES["far_qg8_bs16_hwtr"]


@pytest.fixture(scope="module")
def listing() -> str:
    return compile_listing(NAMED.variant)


def verdict_on(listing: str, named: NamedCase = NAMED) -> Verdict:
    return run_case(named.build(), named.variant.hw_v_transpose, EmulatorBackend(lambda variant: listing))


def without(listing: str, instruction: str, occurrence: int = 0) -> str:
    """The listing without one line that starts with `instruction`."""
    lines = listing.splitlines()
    matching = [index for index, line in enumerate(lines) if line.strip().startswith(instruction)]
    del lines[matching[occurrence]]
    return "\n".join(lines)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_kernel_agrees_with_the_oracle_to_the_bit(variant: Variant, profile: str) -> None:
    case = CASES[f"ragged_{variant.name}"].build()
    verdict = run_case(case, variant.hw_v_transpose, EmulatorBackend(), PROFILES[profile])
    assert verdict.ok, verdict
    assert 0 < verdict.max_error < 0.02


def test_profiles_disagree_with_each_other() -> None:
    """So that agreement under each of them says something."""
    case = NAMED.build()
    backend = EmulatorBackend()
    first, second = (backend.run(case, True, PROFILES[name]) for name in ("cdna3", "fma-chain"))
    assert np.any(first.out != second.out)


@pytest.mark.parametrize(
    "instruction", ["v_exp_f32", "v_mfma_f32_16x16x32_bf16", "v_cvt_pk_bf16_f32", "ds_read_b64_tr_b16"]
)
def test_a_missing_instruction_is_seen(listing: str, instruction: str) -> None:
    verdict = verdict_on(without(listing, instruction))
    assert not verdict.ok
    assert verdict.first is not None or verdict.error is not None


def test_a_missing_store_leaves_poison_that_shows(listing: str) -> None:
    verdict = verdict_on(without(listing, "global_store_dwordx2"))
    assert verdict.first is not None
    assert verdict.first.output == "out"
    assert verdict.first.actual == POISON_BYTE * 0x0101


def test_a_wrong_address_is_a_fault_with_its_line(listing: str) -> None:
    broken = re.sub(
        r"global_load_dwordx4 (.*)$", r"global_load_dwordx4 \1 offset:4080", listing, count=1, flags=re.M
    )
    verdict = verdict_on(broken)
    assert not verdict.ok
    assert verdict.error is not None
    line = next(n for n, text in enumerate(broken.splitlines(), start=1) if "offset:4080" in text)
    assert f"line {line} " in verdict.error and "centroids" in verdict.error


def test_an_unknown_instruction_is_refused_by_name(listing: str) -> None:
    with pytest.raises(RunError, match="v_frobnicate_f32"):
        EmulatorBackend(lambda variant: listing.replace("v_exp_f32", "v_frobnicate_f32", 1)).run(
            NAMED.build(), True, DEFAULT_PROFILE
        )


def test_a_listing_with_other_arguments_is_refused(listing: str) -> None:
    start = listing.index("- .address_space:")
    end = listing.index("- .address_space:", start + 1)
    with pytest.raises(ValueError, match="listing: expected kernel arguments"):
        verdict_on(listing[:start] + listing[end:])


def test_a_variants_listing_is_made_once() -> None:
    made = []

    def listing_of(variant: Variant) -> str:
        made.append(variant)
        return compile_listing(variant)

    backend = EmulatorBackend(listing_of)
    for _ in range(2):
        backend.run(NAMED.build(), True, DEFAULT_PROFILE)
    assert made == [NAMED.variant]


@pytest.mark.parametrize("size", [2, 256, 4096, 123456789, 5 << 32])
def test_a_multiple_of_4_gib_lies_inside_each_array(size: int) -> None:
    """Without the carry into the upper half of an address, half of the array is missed."""
    address = emulator_backend._centred(1 << 40, size)
    assert address % 256 == 0
    assert address <= 1 << 40 < address + size


def test_a_missing_carry_is_seen(listing: str) -> None:
    """On a cache that is nowhere near 4 GiB, too."""
    small = CASES["shuffled_qg8_bs16_hwtr"]
    assert not verdict_on(listing.replace("s_addc_u32", "s_add_u32"), small).ok


def test_a_kernel_that_never_ends_is_stopped(listing: str) -> None:
    endless = listing.replace("s_cbranch_scc1 .LBB0_2", "s_branch .LBB0_2")
    assert endless != listing
    backend = EmulatorBackend(lambda variant: endless)
    with pytest.raises(RunError, match="^runaway at line "):
        backend.run(NAMED.build(), True, DEFAULT_PROFILE)


def test_the_sanitizer_sees_what_bits_do_not(listing: str) -> None:
    hasty = without(listing, "s_waitcnt vmcnt(")
    assert verdict_on(hasty).ok
    clean, watched = (
        EmulatorBackend(lambda variant, text=text: text, sanitize=True) for text in (listing, hasty)
    )
    clean.run(NAMED.build(), True, DEFAULT_PROFILE)
    with pytest.raises(RunError, match="^wait: "):
        watched.run(NAMED.build(), True, DEFAULT_PROFILE)


def test_outputs_start_poisoned() -> None:
    case = NAMED.build()
    outputs = poisoned_outputs(case)
    assert {name: array.shape for name, array in outputs.items()} == {
        "out": (1, 3, 2, 8, 128),
        "exp_sums": (1, 3, 2, 8),
        "max_logits": (1, 3, 2, 8),
    }
    assert all(np.all(array.view(np.uint8) == POISON_BYTE) for array in outputs.values())
    # A NaN could pass for one the kernel ought to have written.
    for values in (bf16_to_f32(outputs["out"]), outputs["exp_sums"], outputs["max_logits"]):
        assert np.isfinite(values).all() and (values != 0).all()
