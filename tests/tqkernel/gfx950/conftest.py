"""Edge values overflow and turn into NaN on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def quiet_arithmetic() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
