"""Where tqgate keeps what it compiles."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Folder for listings and the compiled interpreter: `$TQGATE_CACHE_DIR`, or `~/.cache/tqgate`."""
    return Path(os.environ.get("TQGATE_CACHE_DIR") or Path.home() / ".cache" / "tqgate")
