"""Every scalar arithmetic instruction against AMD's pseudocode: register, SCC and EXEC."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tqkernel.gfx950.isa import instruction_set

from .machine import Step, run
from .pseudocode import Value, evaluate
from .values import inputs

U32, U64 = np.uint32, np.uint64
WAVES = 512
COVERED = frozenset(name for name, instruction in instruction_set().items() if instruction.unit == "scalar")
IMMEDIATES = (0, 1, 0x1234, 0x7FFF, 0x8000, 0xFFFF)


def run_scalar(
    name: str, explicit: list[str], wide_result: bool | None, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """(result, scc, exec) after one instruction; before, they are s[14:15], s12 and s[16:17]."""
    destination = [] if wide_result is None else ["s[20:21]" if wide_result else "s20"]
    text = (
        "s_mov_b64 s[20:21], s[14:15]\ns_mov_b64 exec, s[16:17]\ns_cmp_lg_u32 s12, 0\n"
        f"{name} {', '.join(destination + explicit)}"
    )
    return run([Step(text, ("s[20:21]", "scc", "exec"))], {}, columns)[0]


@pytest.mark.parametrize("name", sorted(COVERED))
def test_scalar_result_is_what_the_manual_says(name: str) -> None:
    instruction = instruction_set()[name]
    kinds = [k for k in instruction.sources if k not in ("scc", "exec") and k[0] != "+"]
    register = [k for k in instruction.results if k in ("u32", "u64")]
    wide_result = register[0] == "u64" if register else None
    columns = inputs((*(k for k in kinds if k not in ("i16", "u16")), "u64", "u64"), WAVES)
    random = np.random.default_rng(11)
    scalars = {
        "s12": random.integers(0, 2, WAVES, dtype=U32),
        "s[14:15]": columns[-2],
        "s[16:17]": columns[-1],
    }
    explicit: list[str] = []
    values: list[np.ndarray | None] = []
    remaining = list(columns[:-2])
    for position, kind in enumerate(kinds):
        if kind in ("i16", "u16"):
            explicit.append("IMMEDIATE")
            values.append(None)
            continue
        first = 8 + 2 * position
        target = f"s[{first}:{first + 1}]" if "64" in kind else f"s{first}"
        scalars[target] = remaining.pop(0)
        explicit.append(target)
        values.append(scalars[target])
    for immediate in IMMEDIATES if "IMMEDIATE" in explicit else (0,):
        texts = [hex(immediate) if text == "IMMEDIATE" else text for text in explicit]
        got, scc, exec_after = run_scalar(name, texts, wide_result, scalars)
        registers = {
            f"S{i}": Value((np.full(WAVES, immediate, U64) if v is None else v.astype(U64)), "b", 64)
            for i, v in enumerate(values)
        }
        registers |= {
            "SCC": Value(scalars["s12"].astype(U64), "u", 1), "EXEC": Value(scalars["s[16:17]"], "u", 64),
            "D0": Value(scalars["s[14:15]"] & U64(2 ** (64 if wide_result else 32) - 1), "u", 64),
        }  # fmt: skip
        after = evaluate(name, registers, WAVES)
        shown = [hex(immediate) if v is None else v for v in values]

        def check(got: np.ndarray, want: np.ndarray, what: str, shown: list[Any] = shown) -> None:
            wrong = np.flatnonzero(got != want)
            if wrong.size:
                i = wrong[0]
                operands = ", ".join(v if isinstance(v, str) else hex(int(v[i])) for v in shown)
                raise AssertionError(
                    f"{name} {what}: {wrong.size} differ: ({operands}) -> {got[i]:#x}, expected {want[i]:#x}"
                )

        if wide_result is not None:
            full = U64(0xFFFFFFFFFFFFFFFF if wide_result else 0xFFFFFFFF)
            check(got & full, after["D0"].bits & full, "result")
            if not wide_result:
                check(got >> U64(32), scalars["s[14:15]"] >> U64(32), "register above the result")
        check(scc, (after["SCC"].bits & U64(1)).astype(U32), "scc")
        check(exec_after, after["EXEC"].bits, "exec")


def test_scalar_literals_and_registers_by_name() -> None:
    steps = [
        Step("s_mov_b32 s20, 0xdeadbeef", ("s20",)), Step("s_mov_b32 s20, -16", ("s20",)),
        Step("s_mov_b32 s20, 1.0", ("s20",)), Step("s_mov_b64 s[20:21], -2", ("s[20:21]",)),
        Step("s_mov_b32 m0, 0x123\ns_mov_b32 s20, m0", ("s20",)),
        Step("s_mov_b32 vcc_hi, 7\ns_mov_b32 vcc_lo, 9", ("vcc",)),
        Step("s_mov_b64 vcc, s[8:9]\ns_and_b64 s[20:21], vcc, exec", ("s[20:21]",)),
        Step("s_mov_b32 s20, -0.5", ("s20",)),
        Step("s_mov_b32 exec_lo, 5\ns_mov_b32 exec_hi, 6", ("exec",)),
    ]  # fmt: skip
    results = run(steps, {}, {"s[8:9]": np.array([0x0123456789ABCDEF], U64)})
    expected = [
        0xDEADBEEF, 0xFFFFFFF0, 0x3F800000, 0xFFFFFFFFFFFFFFFE, 0x123, 7 << 32 | 9, 0x0123456789ABCDEF,
        0xBF000000, 6 << 32 | 5,
    ]  # fmt: skip
    assert [int(row[0][0]) for row in results] == expected
