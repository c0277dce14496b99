"""Run pytest with one module's source replaced: `python planted.py MODULE FILE ARGUMENT...`."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder

import pytest


class Planted(MetaPathFinder):
    """Finds one module in another file."""

    def __init__(self, module: str, path: str) -> None:
        self._module, self._path = module, path

    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_file_location(name, self._path) if name == self._module else None


if __name__ == "__main__":
    module, path, *arguments = sys.argv[1:]
    sys.meta_path.insert(0, Planted(module, path))
    sys.exit(pytest.main(arguments))
