"""Every instruction has a test, the document says which, and both keep up with the instruction set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tqkernel.gfx950.audit import audit, supported
from tqkernel.gfx950.document import covering_module, manual_names, render
from tqkernel.gfx950.isa import instruction_set
from tqkernel.gfx950.isa.vector16 import PACKED

from . import (
    test_compare,
    test_control,
    test_division,
    test_float64,
    test_lane,
    test_lds,
    test_matrix,
    test_memory,
    test_scalar,
    test_transcendental,
    test_vector,
)
from .machine import FIRST_LINE, listing

MODULES = {
    module.__name__.rpartition(".")[2]: module.COVERED
    for module in (
        test_compare, test_control, test_division, test_float64, test_lane, test_lds, test_matrix,
        test_memory, test_scalar, test_transcendental,
        test_vector,
    )
}  # fmt: skip
MODULES["test_vector"] |= test_vector.PACKED_COVERED
DOCUMENT = Path(__file__).parents[3] / "docs" / "instructions.md"


def test_every_instruction_has_a_test() -> None:
    everything = set(instruction_set()) | set(PACKED)
    covered = set().union(*MODULES.values())
    assert covered == everything, (
        f"without a test: {sorted(everything - covered)}; tested only: {sorted(covered - everything)}"
    )


@pytest.mark.parametrize("module", MODULES)
def test_document_names_the_test_that_covers_it(module: str) -> None:
    documented = {name for name, instruction in supported().items() if covering_module(instruction) == module}
    assert documented == MODULES[module]


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(manual_names()), (
        "run python -m tqkernel.gfx950.document > docs/instructions.md"
    )


def test_document_lists_what_is_unsupported() -> None:
    unsupported = render(["v_add_f32", "v_smfmac_f32_16x16x32_bf16"]).split("## Unsupported")[1]
    assert "`v_smfmac_f32_16x16x32_bf16`" in unsupported and "v_add_f32" not in unsupported


LISTING = listing(
    """\tv_add_f32_e32 v0, v1, v2
\tv_add_f32_e64 v0, -v1, v2 ; a comment
\tv_exp_f32_e32 v0, v1
\tv_add_f32_e64 v0, v1, v2 mul:2
\tv_pk_fma_f16 v0, v1, v2, v3
\ts_setpc_b64 s[4:5]
.LBB0_1:
\tv_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]
\ts_cbranch_scc0 .LBB0_1
\tbuffer_load_dword v0, v1, s[4:7], 0 offen"""
)


def test_audit_judges_every_line() -> None:
    rows = {(row.name, row.accuracy): (row.count, row.line) for row in audit(LISTING)}
    assert rows == {
        ("buffer_load_dword", "exact"): (1, FIRST_LINE + 9),
        ("s_cbranch_scc0", "exact"): (1, FIRST_LINE + 8),
        ("s_endpgm", "exact"): (1, FIRST_LINE + 10),
        ("s_setpc_b64", "unsupported"): (1, FIRST_LINE + 5),
        ("v_add_f32", "exact"): (2, FIRST_LINE),
        ("v_add_f32", "unsupported"): (1, FIRST_LINE + 3),
        ("v_exp_f32", "modelled"): (1, FIRST_LINE + 2),
        ("v_mfma_f32_16x16x16_bf16", "modelled"): (1, FIRST_LINE + 7),
        ("v_pk_fma_f16", "exact"): (1, FIRST_LINE + 4),
    }
    reasons = {row.name: row.reason for row in audit(LISTING) if row.accuracy == "unsupported"}
    assert reasons == {
        "s_setpc_b64": "not in the instruction set",
        "v_add_f32": "output scaling (mul, div) is not modelled",
    }


def test_audit_reads_only_instructions() -> None:
    assert (
        audit("\t.amdhsa_kernel k\nkernel:\n; s_nop 0\n\t.set amdgpu.max, 0\namdhsa.kernels:\n  - .args:\n")
        == []
    )


def test_no_test_module_is_forgotten() -> None:
    """A module that says what it covers counts."""
    here = Path(__file__).parent
    declares = re.compile("^COVERED = ", re.M)
    named = {path.stem for path in here.glob("test_*.py") if declares.search(path.read_text())}
    assert named == set(MODULES)
