"""What is to be said of a kernel that is wrong: where it parts from the oracle, and a smaller case to look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tqkernel.backends import Backend, FindingsError, RunError
from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.bits import are_nan
from tqkernel.gate import compare, oracle
from tqkernel.parting import Wave, shrink
from tqkernel.verdict import Difference, Verdict
from tqref import Case, Partials, Profile


@dataclass(frozen=True, eq=False)
class Failure:
    """A case on which a kernel differs or stops or is found wrong, and what was learnt of it.

    verdict: with its parting and notes. expected, actual: what oracle and kernel write, None where no bit differs.
    strict: see `compare`. wave: recorded on the emulator, None on other backends. saved: the file of the smaller case,
    if one was written. commands: what shows the failure again.
    """

    verdict: Verdict
    case: Case
    hw_v_transpose: bool
    profile: Profile
    expected: Partials
    actual: Partials | None
    strict: bool
    wave: Wave | None = None
    saved: Path | None = None
    commands: tuple[str, ...] = ()


def explain(
    verdict: Verdict,
    case: Case,
    hw_v_transpose: bool,
    backend: Backend,
    profile: Profile,
    save: Path | None = None,
    expected: Partials | None = None,
    strict: bool = False,
) -> Failure:
    """Look into a verdict that is not ok; `save` is the folder for the smaller case, if there is one.

    expected: bits known already, instead of the oracle's. What cannot be found out or written is a note of the
    verdict, never an error.
    """
    derived = oracle(case, profile)
    failure = Failure(
        verdict, case, hw_v_transpose, profile, derived if expected is None else expected, None, strict
    )
    try:
        if verdict.first is not None:
            failure = replace(failure, actual=_run(failure, backend, case))
        if isinstance(backend, EmulatorBackend):
            return _explained(failure, derived, backend, save)
    except Exception as error:  # of whatever kind: the verdict stands, and the next case is due
        return _noted(failure, f"could not be looked into: {type(error).__name__}: {error}")
    return failure


def _explained(failure: Failure, derived: Partials, backend: EmulatorBackend, save: Path | None) -> Failure:
    """The parting of a kernel that differs from what the oracle derives, and a smaller case."""
    first, profile = failure.verdict.first, failure.profile
    if failure.actual is None or first is None:
        waves = [(sequence, 0) for sequence in np.argsort(failure.case.seq_lens, kind="stable").tolist()]
    elif not compare(derived, failure.actual).bits_differing:
        only_nan = are_nan(first.expected, first.actual, width=first.width)
        return _noted(failure, _NAN_BITS if only_nan else _STORED_BITS)
    else:
        waves = [(first.sequence, first.head)]
        failure = _with_parting(failure, first, backend)

    def fails(case: Case) -> bool:
        if first is None:
            return _stops(failure, backend, case)
        return compare(oracle(case, profile), _run(failure, backend, case)).bits_differing > 0

    return failure if save is None else _with_smaller_case(failure, shrink(failure.case, waves, fails), save)


def _run(failure: Failure, backend: Backend, case: Case) -> Partials:
    """What the kernel writes, whatever the sanitizer finds."""
    try:
        return backend.run(case, failure.hw_v_transpose, failure.profile)
    except FindingsError as found:
        return found.partials


def _stops(failure: Failure, backend: Backend, case: Case) -> bool:
    """Whether the kernel stops, or the sanitizer finds something."""
    try:
        backend.run(case, failure.hw_v_transpose, failure.profile)
    except RunError:
        return True
    return False


_NAN_BITS = "only bits of NaNs differ, which count because of --strict"
_STORED_BITS = "the oracle agrees with the kernel, not with the stored bits: see tqgate fixtures verify"
_UNRECOGNISED = "where they part is unknown: the kernel's matrix instructions are not those of the decode"
_LAST_STEP = "parts: in the last step, from accumulator and sum to output; every stage before it agrees"


def _with_parting(failure: Failure, first: Difference, backend: EmulatorBackend) -> Failure:
    where = first.sequence, first.head, first.partition
    wave = Wave(failure.case, where, failure.hw_v_transpose, backend, failure.profile)
    parting = wave.parting()
    found = replace(failure, wave=wave, verdict=replace(failure.verdict, parting=parting))
    if parting is not None:
        return found
    return _noted(found, _LAST_STEP if wave.recognised else _UNRECOGNISED)


def _with_smaller_case(failure: Failure, small: Case, folder: Path) -> Failure:
    if _size(small) == _size(failure.case):
        return failure
    path = folder / f"{failure.verdict.name}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        small.save(path)
    except OSError as error:
        return _noted(failure, f"a smaller case could not be saved: {error}")
    size = f"{_count(int(small.seq_lens.sum()), 'token')}, {_count(small.num_kv_heads, 'head')}"
    return _noted(replace(failure, saved=path), f"shrunk to {size}, saved as {path}")


def _size(case: Case) -> tuple[int, int, int]:
    return case.num_sequences, case.num_kv_heads, int(case.seq_lens.sum())


def _noted(failure: Failure, note: str) -> Failure:
    verdict = failure.verdict
    return replace(failure, verdict=replace(verdict, notes=(*verdict.notes, note)))


def with_commands(failure: Failure, again: str, replay: str) -> Failure:
    """The failure with what shows it again: all of the case, and the smaller one if it was saved."""
    if failure.saved is None:
        return replace(failure, commands=(again,))
    return _noted(replace(failure, commands=(again, replay)), f"replay it: {replay}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
