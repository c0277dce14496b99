from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_reference_needs_only_numpy() -> None:
    root = Path(__file__).parents[2]
    program = (
        "import sys, tqref; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert not {"torch", "flydsl", "numba", "tqkernel"} & set(eval(loaded))
    assert {"numpy", "tqref"} <= set(eval(loaded))
