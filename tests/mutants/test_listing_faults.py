"""Faults in the compiled listings, drawn at random: each is noticed, or proven to change nothing."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from tqkernel.compile import compile_builder, compile_listing, pointer
from tqkernel.gfx950 import Memory, Program, launch, parse_listing
from tqref import DEFAULT_PROFILE

from .equivalent import COMMUTE, EQUIVALENT
from .judge import BY_NAME, killer_of
from .listing_faults import COUNTS, Mutant, draw

QUICK_VARIANTS = ("qg8_bs16_hwtr", "qg16_bs32_swtr")
EVERY = list(itertools.product(BY_NAME, COUNTS))


@functools.cache
def listing_of(variant: str) -> tuple[str, Program]:
    listing = compile_listing(BY_NAME[variant])
    return listing, parse_listing(listing)


def drawn(variant: str, kind: str, count: int) -> list[Mutant]:
    return draw(*listing_of(variant), kind, count)


def judge(variant: str, mutant: Mutant, verdict) -> str | None:
    """None, or what is wrong: the mutant survives, or is killed though said to be equivalent."""
    listing, _ = listing_of(variant)
    killer = killer_of(mutant.apply(listing), BY_NAME[variant])
    reason = EQUIVALENT.get(f"{variant} {mutant.name}", "")
    if mutant.kind == "independent lines swapped" and not killer:
        reason = COMMUTE
    return verdict(f"{variant} {mutant.name}", killer, reason)


@pytest.mark.parametrize("variant, kind", [(v, k) for v, k in EVERY if v in QUICK_VARIANTS])
def test_the_first_of_each_kind_is_noticed(variant, kind, verdict) -> None:
    problems = [judge(variant, mutant, verdict) for mutant in drawn(variant, kind, 1)]
    assert not any(problems), problems


@pytest.mark.slow
@pytest.mark.parametrize("variant, kind", EVERY)
def test_every_mutant_is_noticed(variant, kind, verdict) -> None:
    mutants = drawn(variant, kind, COUNTS[kind])
    problems = [judge(variant, mutant, verdict) for mutant in mutants]
    assert not any(problems), problems


@pytest.mark.slow
def test_at_least_200_are_drawn_and_reasons_are_for_drawn_ones() -> None:
    names = [f"{v} {mutant.name}" for v, kind in EVERY for mutant in drawn(v, kind, COUNTS[kind])]
    assert len(set(names)) == len(names) >= 200
    assert set(EQUIVALENT) <= set(names)


def softmax_findings(listing: str) -> list[str]:
    """Kinds of what the sanitizer finds in the softmax of rows of 1000, four waves to a row."""
    program, memory = parse_listing(listing), Memory()
    x = np.random.default_rng(1).uniform(-9, 9, (2, 1000)).astype(np.float32)
    kernarg = bytearray(program.kernarg_bytes)
    for slot, name, array in zip(program.arguments, "xy", (x, np.zeros_like(x)), strict=True):
        kernarg[slot.offset : slot.offset + 8] = memory.map(name, array).to_bytes(8, "little")
    run = launch(
        program,
        (2, 1, 1),
        (256, 1, 1),
        bytes(kernarg),
        memory,
        DEFAULT_PROFILE,
        sanitize=True,
        row_limit=100_000,
    )
    return [finding.kind for finding in run.findings]


def test_each_barrier_between_waves_is_needed(verdict) -> None:
    """The decode kernel has one wave a workgroup and no barrier; a softmax over four waves has some."""
    fx = pytest.importorskip("flydsl.expr")
    from ..tqkernel import sample_kernels

    arguments = (pointer(fx.Float32), pointer(fx.Float32), 3)
    listing = compile_builder(sample_kernels.build_row_softmax, *arguments, columns=1000)
    assert softmax_findings(listing) == []
    mutants = draw(listing, parse_listing(listing), "barrier removed", 99)
    assert mutants
    problems = []
    for mutant in mutants:
        kinds = softmax_findings(mutant.apply(listing))
        problems.append(verdict(f"row_softmax {mutant.name}", kinds[0] if kinds else None))
    assert not any(problems), problems
