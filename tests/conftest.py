"""Hypothesis profiles by name: `pytest --hypothesis-profile nightly`, or HYPOTHESIS_PROFILE=nightly.

They are here, not beside the property tests, so that they exist by the time pytest looks for the one it is told.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Examples cost what they cost: a deadline would measure the machine.
_COMMON = {
    "parent": settings.get_profile(
        "default"
    ),  # not Hypothesis's own for CI, which draws the same every night
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=20, **_COMMON)
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
