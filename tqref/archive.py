"""A deterministic .npz: named arrays and one JSON header, the same bytes for the same content.

`numpy.load` reads the arrays too. Entries are stored uncompressed with a fixed date, so equal content gives
equal files whatever wrote them; zip's checksums catch damage.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEADER = "header.json"
_SUFFIX = ".npy"
_DATE = (1980, 1, 1, 0, 0, 0)


def save_archive(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write `header` (JSON-serialisable) and `arrays` to `path`, in the order given."""
    entries = {_HEADER: json.dumps(header, indent=1, sort_keys=True, allow_nan=False).encode()}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
        entries[name + _SUFFIX] = buffer.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data)


def load_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `save_archive` wrote: the header and the arrays.

    Raises FileNotFoundError, or ValueError naming the file and what is wrong with it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: expected an intact .npz archive, got a damaged one ({error})") from error
    if _HEADER not in entries:
        raise ValueError(f"{path}: expected an entry {_HEADER}, got {sorted(entries)}")
    try:
        header = json.loads(entries.pop(_HEADER))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON in {_HEADER}, got something else ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: expected a JSON object in {_HEADER}, got {type(header).__name__}")
    arrays: dict[str, NDArray[Any]] = {}
    for name, data in entries.items():
        try:
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{path}: expected an array in {name}, got something else ({error})") from error
        arrays[name.removesuffix(_SUFFIX)] = array
    return header, arrays
