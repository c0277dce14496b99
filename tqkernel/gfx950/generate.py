"""Turn the instruction tables into the source of a numba module, and import it.

The tables are text, so that they read like the manual and so that one text serves the interpreter and the
documentation. The generated module lives in the cache folder under the hash of everything it depends on, where
numba keeps its machine code beside it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import llvmlite
import numba

from ..cache import cache_directory
from .isa import Instruction, instruction_set
from .listing import atomic_meanings

CHUNK = 40
"""Vector instructions per compiled function: compile time grows faster than a function does."""

COMPILED = (
    "scalar.py", "encoding.py", "state.py", "operands.py", "lanes.py", "transfer.py", "matrix.py", "flow.py",
    "sanitize.py", "wave.py",
)  # fmt: skip
"""The modules that numba compiles into the interpreter."""

_LANE_SOURCE = {
    "u32": "int64(R[{r} + l])",
    "i32": "int64(int32(R[{r} + l]))",
    "u16": "int64(R[{r} + l])",
    "i16": "int64(int32(R[{r} + l]))",
    "f32": "F[{r} + l]",
    "f16": "F[{r} + l]",
    "bf16": "F[{r} + l]",
    "mix": "F[{r} + l]",
    "u64": "(int64(R[{r} + l]) | int64(R[{r} + 64 + l]) << 32)",
    "i64": "(int64(R[{r} + l]) | int64(R[{r} + 64 + l]) << 32)",
    "f64": "float64_of(int64(R[{r} + l]) | int64(R[{r} + 64 + l]) << 32)",
    "mask": "(m >> int64(l) & 1)",
    "vcc": "(m >> int64(l) & 1)",
    "table": "m",
}
_COMPILED = "@njit(_nrt=False, error_model='numpy', cache=True)"
_NO_CASE = ("    if op < 0:", "        pass")
_STORE_PAIR = ("            R[D + l] = v", "            R[D + 64 + l] = v >> 32")
_FLOAT_RESULTS = ("f32", "f16", "h16", "lo16", "hi16")


def _substitute(meaning: str, sources: dict[str, str]) -> str:
    return re.sub(r"\b([a-d])\b", lambda match: sources.get(match[1], match[1]), meaning)


def _vector_case(opcode: int, instruction: Instruction) -> list[str]:
    sources = {
        letter: _LANE_SOURCE[kind.lstrip("+")].format(r=letter.upper())
        for letter, kind in zip("abcd", instruction.sources, strict=False)
    }
    sources["lane"] = "l"
    meanings = [_substitute(part.strip(), sources) for part in instruction.meaning.split(" ; ")]
    meanings = [re.sub(r"\blane\b", "int64(l)", meaning) for meaning in meanings]
    lines = [f"    elif op == {opcode}:  # {instruction.name}", "        for l in range(N):"]
    for result, meaning in zip((r for r in instruction.results if r != "exec"), meanings, strict=True):
        if result in _FLOAT_RESULTS:
            lines.append(f"            F[D + l] = {meaning}")
        elif result == "f64":
            lines += [f"            v = bits64({meaning})", *_STORE_PAIR]
        elif result in ("u64", "i64"):
            lines += [f"            v = int64({meaning})", *_STORE_PAIR]
        elif result == "mask":
            lines.append(f"            result |= int64({meaning}) << int64(l)")
        else:
            lines.append(f"            R[D + l] = {meaning}")
    return lines


_SCALAR_ARGUMENTS = "abcd"


def _scalar_case(opcode: int, instruction: Instruction) -> list[str]:
    values = {"register": "0", "exec": "0", "scc": "0"}
    meanings = [part.strip() for part in instruction.meaning.split(" ; ")]
    for result, meaning in zip(instruction.results, meanings, strict=True):
        values["register" if result in ("u32", "u64") else result] = meaning
    scc = f"int64(({values['scc']}) != 0)" if "!=" not in values["scc"] else f"int64({values['scc']})"
    if any(operator in values["scc"] for operator in ("==", " < ", " > ", "<=", ">=")):
        scc = f"int64({values['scc']})"
    return [
        f"    elif op == {opcode}:  # {instruction.name}",
        f"        return int64({values['register']}), int64({values['exec']}), {scc}",
    ]


def _source() -> str:
    by_unit: dict[str, list[Instruction]] = {}
    for instruction in instruction_set().values():
        by_unit.setdefault(instruction.unit, []).append(instruction)
    lines = [
        '"""Generated from tqkernel.gfx950.isa; do not edit."""',
        "from numpy import int32, int64, uint64",
        "from numba import njit",
        "from tqkernel.gfx950.scalar import *",
        "N = uint64(64)",
        "",
    ]
    vector = by_unit["vector"]
    chunks = [vector[i : i + CHUNK] for i in range(0, len(vector), CHUNK)]
    arguments = "op, R, F, D, A, B, C, m, exp2_inputs, exp2_outputs"
    for number, chunk in enumerate(chunks):
        lines += [_COMPILED, f"def _vector_{number}({arguments}):", "    result = int64(0)", *_NO_CASE]
        for offset, instruction in enumerate(chunk):
            lines += _vector_case(number * CHUNK + offset, instruction)
        lines += ["    return result", ""]
    lines += [_COMPILED, f"def vector({arguments}):", f"    chunk = op // {CHUNK}"]
    for number in range(len(chunks)):
        lines += [f"    if chunk == {number}:", f"        return _vector_{number}({arguments})"]
    lines += ["    return int64(0)", ""]

    lines += [_COMPILED, "def scalar(op, a, b, c):", *_NO_CASE]
    for opcode, instruction in enumerate(by_unit["scalar"]):
        lines += _scalar_case(opcode, instruction)
    lines += ["    return int64(0), int64(0), int64(0)", ""]

    lines += [_COMPILED, "def branches(op, scc, vcc, exec):", *_NO_CASE]
    for opcode, instruction in enumerate(by_unit["control"]):
        if instruction.sources == ("label",):
            lines += [f"    elif op == {opcode}:  # {instruction.name}", f"        return {instruction.meaning}"]
    lines += ["    return False", ""]

    lines += [_COMPILED, "def atomic(op, m, a, b):", *_NO_CASE]
    for which, meaning in enumerate(atomic_meanings()):
        lines += [f"    elif op == {which}:", f"        return int64({meaning})"]
    lines += ["    return int64(0)", ""]
    return "\n".join(lines)


def _digest(*parts: str) -> str:
    versions = f"{numba.__version__} {llvmlite.__version__} {sys.version}"
    return hashlib.sha256("\0".join((*parts, versions)).encode()).hexdigest()[:16]


def _text(*names: str) -> list[str]:
    return [(Path(__file__).parent / name).read_text() for name in names]


@cache
def fingerprint() -> str:
    """Hash of everything the compiled interpreter is made of."""
    return _digest(_source(), *_text(*COMPILED))


@cache
def module() -> ModuleType:
    """The generated module, compiled lazily by numba; nothing is compiled here."""
    source = _source()
    name = f"tqgate_gfx950_{_digest(source, *_text('scalar.py'))}"
    path = cache_directory() / "interpreter" / f"{name}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{id(path)}.tmp")
        temporary.write_text(source)
        temporary.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
