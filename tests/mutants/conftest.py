"""The kill table: one line per mutant judged, then the totals as the last line of the run."""

from __future__ import annotations

from collections import Counter

import pytest

_VERDICTS: dict[str, tuple[str, str]] = {}
"""Mutant -> (killed, equivalent or survived; by whom or why)."""


@pytest.fixture
def verdict(request, record_property):
    """Records what became of a mutant; returns None, or what is wrong with that."""

    def record(mutant: str, killer: str | None, reason: str = "") -> str | None:
        outcome = "killed" if killer else "equivalent" if reason else "survived"
        record_property("mutant", (mutant, outcome, killer or reason))
        if outcome == "survived":
            return f"{mutant} survives: write the case that tells it, or prove it equivalent"
        if killer and reason:
            return f"{mutant} is said to be equivalent, but is killed: {killer}"
        return None

    return record


def pytest_runtest_logreport(report):
    """Also sees the reports of other processes, when there are several."""
    if report.when == "call":
        for name, value in report.user_properties:
            if name == "mutant":
                mutant, outcome, detail = value
                _VERDICTS[mutant] = outcome, detail


def pytest_unconfigure(config):
    if not _VERDICTS or hasattr(config, "workerinput"):
        return
    print()
    for mutant, (outcome, detail) in sorted(_VERDICTS.items()):
        print(f"{outcome:10}  {mutant}  [{detail}]")
    count = Counter(outcome for outcome, _ in _VERDICTS.values())
    print(
        f"mutants: {count['killed']} killed, {count['equivalent']} equivalent, {count['survived']} survived"
    )
