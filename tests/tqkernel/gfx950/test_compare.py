"""Every vector compare against AMD's pseudocode, under a partial EXEC."""

from __future__ import annotations

import numpy as np
import pytest

from tqkernel.gfx950.isa import instruction_set

from .machine import Step, run
from .pseudocode import Value, evaluate
from .values import inputs

U32, U64 = np.uint32, np.uint64
COVERED = frozenset(name for name in instruction_set() if name.startswith("v_cmp"))
TYPES = ("f16", "f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64")


def operands(kind: str, is_class: bool) -> tuple[list[np.ndarray], list[str]]:
    columns = inputs((kind, "u32" if is_class else kind), 4096)
    if (
        is_class and kind == "f16"
    ):  # a signalling half is widened, and so quieted, before anything looks at it
        half = columns[0] & U32(0xFFFF)
        columns[0] = np.where((half & U32(0x7E00)) == 0x7C00, columns[0] & U32(0xFFFFFC00), columns[0])
    wide = "64" in kind
    return columns, ["v[2:3]" if wide else "v2", "v[4:5]" if wide and not is_class else "v4"]


@pytest.mark.parametrize("is_class", (False, True), ids=("order", "class"))
@pytest.mark.parametrize("kind", TYPES)
def test_compare_sets_the_lanes_the_manual_says(kind: str, is_class: bool) -> None:
    names = sorted(name for name in COVERED if name.endswith("_" + kind) and ("_class_" in name) == is_class)
    if is_class and kind[0] != "f":
        assert not names
        return
    columns, registers = operands(kind, is_class)
    lanes = len(columns[0])
    exec_mask = np.random.default_rng(3).integers(0, 2**64, lanes // 64, dtype=U64)
    steps = []
    for name in names:
        text = f"s_mov_b64 s[10:11], -1\ns_mov_b64 exec, s[8:9]\n{name}_e64 s[10:11], {', '.join(registers)}"
        steps.append(Step(text, ("s[10:11]", "exec")))
    results = run(steps, dict(zip(registers, columns, strict=True)), {"s[8:9]": exec_mask})
    values = {f"S{i}": Value(column.astype(U64), "b", 64) for i, column in enumerate(columns)}
    for name, (mask, after) in zip(names, results, strict=True):
        bits = evaluate(name, dict(values), lanes)["MASK"].truth()
        expected = np.packbits(bits, bitorder="little").view(U64) & exec_mask
        wrong = np.flatnonzero(mask != expected)
        assert not wrong.size, (
            f"{name}: wave {wrong[0]}: {mask[wrong[0]]:#x}, expected {expected[wrong[0]]:#x}"
        )
        assert (after == (expected if name.startswith("v_cmpx") else exec_mask)).all(), f"{name}: exec"


def test_compare_writes_vcc_and_reads_modified_constants() -> None:
    (x,) = inputs(("f32",))
    steps = [
        Step("v_cmp_gt_f32_e32 vcc, 2.5, v2", ("vcc",)),
        Step("v_cmp_lt_f32_e64 vcc, |v2|, -v2", ("vcc",)),
    ]
    (below,), (negative,) = run(steps, {"v2": x})
    real = x.view(np.float32)
    assert (below == np.packbits(real < 2.5, bitorder="little").view(U64)).all()
    assert (negative == np.packbits(np.abs(real) < -real, bitorder="little").view(U64)).all()
