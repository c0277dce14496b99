"""Faults in the kernel's source: each is noticed by the case that is there for it."""

from __future__ import annotations

import pytest

from tqkernel.compile import compile_listing

from .judge import BY_NAME, KERNEL_SOURCE, compile_kernel, killer_of, killer_on
from .kernel_faults import KERNEL_FAULTS

QUICK_STEP = 16


def test_names_are_unique() -> None:
    assert len({fault.name for fault in KERNEL_FAULTS}) == len(KERNEL_FAULTS) >= 60


@pytest.mark.parametrize("fault", KERNEL_FAULTS, ids=lambda fault: fault.name)
def test_each_fault_can_be_planted(fault) -> None:
    text = KERNEL_SOURCE.read_text(encoding="utf-8")
    assert fault.apply(text) != text
    assert bool(fault.killer) != bool(fault.reason)


@pytest.mark.parametrize("variant", BY_NAME.values(), ids=lambda variant: variant.name)
def test_the_kernel_without_a_fault_survives(variant) -> None:
    assert killer_of(compile_listing(variant), variant) is None


def judge(fault, folder, verdict) -> None:
    variant = BY_NAME[fault.where]
    listing = compile_kernel(fault, folder)
    if fault.killer:
        killer = killer_on(listing, variant, f"{fault.killer}_{variant.name}")
    else:
        killer = killer_of(listing, variant)
    problem = verdict(f"decode.py: {fault.name}", killer, fault.reason)
    assert problem is None, problem


@pytest.mark.parametrize("fault", KERNEL_FAULTS[::QUICK_STEP], ids=lambda fault: fault.name)
def test_fault_is_noticed(fault, tmp_path, verdict) -> None:
    judge(fault, tmp_path, verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [f for i, f in enumerate(KERNEL_FAULTS) if i % QUICK_STEP], ids=lambda fault: fault.name
)
def test_every_fault_is_noticed(fault, tmp_path, verdict) -> None:
    judge(fault, tmp_path, verdict)
