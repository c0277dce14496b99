"""Who notices a mutant of the compiled kernel: a named case whose bits differ, a fault, the sanitizer or the
check of wait states."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from tqkernel.backends import RunError
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.cases import CASES
from tqkernel.compile import compile_launcher
from tqkernel.fixture_cases import FIXTURE_CASES
from tqkernel.gate import compare, oracle
from tqkernel.gfx950 import ListingError, UnsupportedInstruction, parse_listing
from tqkernel.gfx950.hazards import find_hazards
from tqkernel.plan import VARIANTS, Variant
from tqref import DEFAULT_PROFILE, Case, Partials

from .fault import REPOSITORY, Fault

KERNEL_SOURCE = REPOSITORY / "tqkernel" / "decode.py"
ROW_LIMIT = 200_000
"""Some ten times what the longest workgroup of a case executes."""
BY_NAME = {variant.name: variant for variant in VARIANTS}


def case_names(variant: Variant) -> Iterator[str]:
    """Named cases for a variant, the quickest killers first, then the fixtures of its sizes."""
    yield from (name for name, case in CASES.items() if case.variant == variant)
    sizes = f"_qg{variant.query_group_size}_bs{variant.kv_block_size}"
    yield from (name for name in FIXTURE_CASES if name.endswith(sizes))


@functools.cache
def expected(name: str) -> tuple[Case, Partials]:
    """A named case or fixture, and what a decode of it must write."""
    case = CASES[name].build() if name in CASES else FIXTURE_CASES[name]()
    return case, oracle(case)


def killer_on(listing: str, variant: Variant, name: str) -> str | None:
    """What gives a listing away on one case: a finding's or fault's kind, or differing bits; None if nothing
    does."""
    case, wanted = expected(name)
    backend = EmulatorBackend(lambda _: listing, row_limit=ROW_LIMIT, sanitize=True)
    kind = name.removesuffix(f"_{variant.name}")
    try:
        actual = backend.run(case, variant.hw_v_transpose, DEFAULT_PROFILE)
    except RunError as error:
        return f"{str(error).partition(':')[0].partition(' at line')[0]}, {kind}"
    return f"bits, {kind}" if compare(wanted, actual).bits_differing else None


def killer_of(listing: str, variant: Variant) -> str | None:
    """What gives a listing away: the first of reading it, wait states and all cases; None if it survives."""
    try:
        hazards = find_hazards(parse_listing(listing))
    except (UnsupportedInstruction, ListingError):
        return "unreadable"
    if hazards:
        return f"wait state, {hazards[0].rule}"
    found = (killer_on(listing, variant, name) for name in case_names(variant))
    return next((killer for killer in found if killer), None)


def compile_kernel(fault: Fault, folder: Path) -> str:
    """The listing of the kernel with a fault in its source, which is compiled from a copy in `folder`."""
    path = folder / f"mutant_{fault.name}.py"
    path.write_text(fault.apply(KERNEL_SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        launcher = module.build_decode_launcher(BY_NAME[fault.where])
        return compile_launcher(launcher, *module.placeholder_arguments())
    finally:
        del sys.modules[path.stem]
