"""What the host code of a compiled launcher launches: on which grid, in which workgroups, with which arguments.

FlyDSL lowers a launcher to one function of MLIR's LLVM dialect that ends in one `gpu.launch_func`. Sizes are integers
computed from its parameters, so a few operations are all there is to evaluate.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tqkernel.backends import KernelError

Size3 = tuple[int, int, int]

_VALUE = r"%\w+"
_FUNCTION = re.compile(r"llvm\.func @\w+\((%arg0: .*)\) attributes")
_OPERATION = re.compile(rf"^ *({_VALUE}) = (.*)$", re.MULTILINE)
_THREE = rf"\(({_VALUE}), ({_VALUE}), ({_VALUE})\)"
_LAUNCH = re.compile(rf"gpu\.launch_func .* blocks in {_THREE} threads in {_THREE} (.*)")


def _truncated(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "llvm.add": operator.add,
    "llvm.sub": operator.sub,
    "llvm.mul": operator.mul,
    "llvm.sdiv": _truncated,
    "llvm.udiv": operator.floordiv,
    "llvm.srem": lambda a, b: a - b * _truncated(a, b),
    "llvm.urem": operator.mod,
    "llvm.and": operator.and_,
    "llvm.or": operator.or_,
    "llvm.xor": operator.xor,
    "llvm.shl": operator.lshift,
    "llvm.ashr": operator.rshift,
    "llvm.lshr": operator.rshift,
    "llvm.sext": int,
    "llvm.zext": int,
    "llvm.trunc": int,
    "llvm.select": lambda condition, a, b: a if condition else b,
    "llvm.intr.smax": max,
    "llvm.intr.umax": max,
    "llvm.intr.smin": min,
    "llvm.intr.umin": min,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne,
    "slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge,
    "ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class HostFunction:
    """The host code of one launcher. Values are named as in the text: `%arg0`, `%3`.

    parameters  what the function is given
    operations  value -> the operation that computes it, as text
    grid, block values that hold the sizes
    arguments   what the kernel is given, in its order
    """

    parameters: tuple[str, ...]
    operations: Mapping[str, str]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    arguments: tuple[str, ...]

    @staticmethod
    def parse(module: str) -> HostFunction:
        """From the text of a compiled module. Raises KernelError unless it launches one kernel, once."""
        functions, launches = _FUNCTION.findall(module), _LAUNCH.findall(module)
        if (len(functions), len(launches)) != (1, 1):
            raise KernelError(f"kernel: expected a launcher of one kernel, got {len(launches)} launches")
        *sizes, rest = launches[0]
        return HostFunction(
            parameters=tuple(re.findall(rf"({_VALUE}):", functions[0])),
            operations=dict(_OPERATION.findall(module)),
            grid=tuple(sizes[:3]),
            block=tuple(sizes[3:]),
            arguments=tuple(re.findall(_VALUE, rest.partition("args(")[2])),
        )

    def launch_sizes(self, given: Sequence[Any]) -> tuple[Size3, Size3]:
        """Grid and workgroup, where the parameters are given integers, or a tensor's (shape, strides) for its record.

        Raises KernelError where a size depends on anything else.
        """
        values = dict(zip(self.parameters, given, strict=False))
        x, y, z, *block = (self._integer(name, values) for name in (*self.grid, *self.block))
        return (x, y, z), (block[0], block[1], block[2])

    def _integer(self, name: str, values: dict[str, Any]) -> int:
        if name not in values:
            values[name] = self._evaluate(self.operations[name], values)
        if not isinstance(values[name], int):
            raise KernelError(f"kernel: expected a grid computed from sizes, got one from {values[name]!r}")
        return int(values[name])

    def _evaluate(self, text: str, values: dict[str, Any]) -> int:
        operation, predicate = text.split("(")[0].split(" ")[0], re.search(r'"(\w+)"', text)
        operands = re.findall(_VALUE, text)
        if operation == "llvm.mlir.constant":
            literal = text.partition("(")[2].split(" ")[0].rstrip(")")
            return int(_LITERALS.get(literal, literal))
        if operation == "llvm.extractvalue":
            element: Any = values.get(operands[0])
            for index in re.findall(r"\d+", text.partition("[")[2].partition("]")[0]):
                element = element[int(index)]
            return cast(int, element)
        function = _COMPARISONS[predicate[1]] if predicate else _ARITHMETIC.get(operation)
        if function is None:
            raise KernelError(
                f"kernel: expected a grid computed by integer arithmetic, got one by {operation}"
            )
        return int(function(*(self._integer(operand, values) for operand in operands)))


_LITERALS = {"false": 0, "true": 1}
