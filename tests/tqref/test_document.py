"""The drawing of the cache layout is the layout's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tqref import CacheLayout, MetadataField
from tqref.document import FORMULAS, render

DOCUMENT = Path(__file__).parents[2] / "docs" / "cache_layout.md"


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(), "run python -m tqref.document > docs/cache_layout.md"


@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("size", [16, 32])
def test_formulas_are_the_layouts(size: int, heads: int) -> None:
    layout = CacheLayout(size, heads)
    for slot in range(size):
        for head in range(heads):
            names = {"BS": size, "Hk": heads, "slot": slot, "head": head}
            assert {part: eval(formula, names) for part, (_, formula) in FORMULAS.items()} == {
                "key nibbles": layout.key_offset(slot, head),
                "value nibbles": layout.value_offset(slot, head),
                "key norm": layout.metadata_offset(MetadataField.KEY_NORM, slot, head),
                "value scale": layout.metadata_offset(MetadataField.VALUE_SCALE, slot, head),
                "value zero": layout.metadata_offset(MetadataField.VALUE_ZERO, slot, head),
                "next block": layout.block_bytes,
            }


def test_every_line_fits_a_screen() -> None:
    drawings = [part.partition("```")[0] for part in render().split("```text")[1:]]
    assert len(drawings) == 3
    assert all(len(line) <= 90 for drawing in drawings for line in drawing.splitlines())
