"""The other side of the mutants: over 10,000 problems the kernel as it is raises nothing and differs nowhere."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.gate import compare, oracle
from tqkernel.strategies import problems
from tqref import DEFAULT_PROFILE

EXAMPLES = 10_000
SHARDS = 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_clean_kernel_raises_nothing(shard: int) -> None:
    watched = EmulatorBackend(sanitize=True)

    @seed(shard)
    @settings(
        max_examples=EXAMPLES // SHARDS, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(problem=problems())
    def check(problem) -> None:
        case = problem.case()
        actual = watched.run(case, problem.hw_v_transpose, DEFAULT_PROFILE)
        comparison = compare(oracle(case), actual)
        assert comparison.bits_differing == 0, comparison.first

    check()
