"""`python -m tqkernel` is `tqgate`."""

from __future__ import annotations

import sys

from tqkernel.cli import main

sys.exit(main())
