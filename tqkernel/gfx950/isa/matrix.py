"""Matrix core (AMD's MFMA): D = A B + C over a whole wave. The shape says everything; `..matrix` does the sum."""

from __future__ import annotations

from dataclasses import dataclass

from . import Instruction


@dataclass(frozen=True)
class Shape:
    """One matrix instruction: rows x columns x depth, independent blocks, element type, and how it adds up."""

    rows: int
    columns: int
    depth: int
    blocks: int
    element: str
    """bf16, f16, f32, f64 or i8."""

    @property
    def element_bytes(self) -> int:
        return {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i8": 1}[self.element]

    @property
    def operand_registers(self) -> int:
        """32-bit registers that hold one lane's part of A (or of B)."""
        return max(1, self.rows * self.depth * self.blocks // 64 * self.element_bytes // 4)

    @property
    def result_registers(self) -> int:
        return self.rows * self.columns * self.blocks // 64 * (2 if self.element == "f64" else 1)


def _name(shape: Shape) -> str:
    result = {"f64": "f64", "i8": "i32"}.get(shape.element, "f32")
    blocks = f"_{shape.blocks}b" if shape.blocks > 1 else ""
    return f"v_mfma_{result}_{shape.rows}x{shape.columns}x{shape.depth}{blocks}_{shape.element}"


_SHAPES = [
    Shape(rows, rows, depth, blocks, element)
    for element, sizes in {
        "bf16": ((16, 16, 1), (16, 32, 1), (32, 8, 1), (32, 16, 1), (32, 4, 2), (16, 4, 4), (4, 4, 16)),
        "f16": ((16, 16, 1), (16, 32, 1), (32, 8, 1), (32, 16, 1), (32, 4, 2), (16, 4, 4), (4, 4, 16)),
        "f32": ((16, 4, 1), (32, 2, 1), (32, 1, 2), (16, 1, 4), (4, 1, 16)),
        "i8": ((16, 32, 1), (32, 16, 1), (16, 64, 1), (32, 32, 1), (32, 4, 2), (16, 4, 4), (4, 4, 16)),
        "f64": ((16, 4, 1),),
    }.items()
    for rows, depth, blocks in sizes
]

SHAPES: dict[str, Shape] = {_name(shape): shape for shape in _SHAPES}

INSTRUCTIONS = [
    Instruction(
        name,
        "matrix",
        (f"r{shape.result_registers}",),
        (f"r{shape.operand_registers}",) * 2 + (f"r{shape.result_registers}",),
        f"{shape.rows}x{shape.columns} sums of {shape.depth} products, {shape.blocks} block(s)",
        "exact" if shape.element in ("i8", "f64", "f32") else "modelled",
    )
    for name, shape in SHAPES.items()
]

# Older assemblers print the gfx90a names.
ALIASES = {
    "v_mfma_f32_16x16x16bf16_1k": "v_mfma_f32_16x16x16_bf16",
    "v_mfma_f32_32x32x8bf16_1k": "v_mfma_f32_32x32x8_bf16",
    "v_mfma_f32_16x16x16f16": "v_mfma_f32_16x16x16_f16",
    "v_mfma_f32_32x32x8f16": "v_mfma_f32_32x32x8_f16",
    "v_mfma_f32_16x16x4f32": "v_mfma_f32_16x16x4_f32",
    "v_mfma_f32_32x32x2f32": "v_mfma_f32_32x32x2_f32",
}
