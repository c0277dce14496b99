"""Vector compares (AMD's VOPC): a lane mask, one bit per lane, into a scalar register pair."""

from __future__ import annotations

from . import Instruction, parse_table

_ORDERED = (
    ("f", "False"), ("lt", "a < b"), ("eq", "a == b"), ("le", "a <= b"), ("gt", "a > b"), ("lg", "a < b or a > b"),
    ("ge", "a >= b"), ("o", "a == a and b == b"), ("u", "a != a or b != b"), ("nge", "not (a >= b)"),
    ("nlg", "not (a < b or a > b)"), ("ngt", "not (a > b)"), ("nle", "not (a <= b)"), ("neq", "a != b"),
    ("nlt", "not (a < b)"), ("tru", "True"),
)  # fmt: skip
_INTEGER = (
    ("f", "False"), ("lt", "a < b"), ("eq", "a == b"), ("le", "a <= b"), ("gt", "a > b"), ("ne", "a != b"),
    ("ge", "a >= b"), ("t", "True"),
)  # fmt: skip


def _table() -> list[Instruction]:
    rows = []
    for prefix, result in (("v_cmp", "mask"), ("v_cmpx", "mask exec")):
        for t in ("f16", "f32", "f64"):
            rows += [f"{prefix}_{name}_{t} {result} = {t} {t} : {meaning}" for name, meaning in _ORDERED]
            rows.append(f"{prefix}_class_{t} {result} = {t} u32 : is_class_{t}(a, b)")
        for t in ("i16", "u16", "i32", "u32", "i64", "u64"):
            order = (lambda m: m.replace("a", "order(a)").replace("b", "order(b)")) if t == "u64" else str
            rows += [
                f"{prefix}_{name}_{t} {result} = {t} {t} : {meaning if meaning[0] in 'FT' else order(meaning)}"
                for name, meaning in _INTEGER
            ]
    return parse_table("vector", "\n".join(rows))


INSTRUCTIONS = _table()
