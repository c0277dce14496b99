"""The emulated machine's global memory: named allocations at 64-bit addresses, sparse, with exact bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALIGNMENT = 4096
FIRST_ADDRESS = 0x10_0000_0000
GAP = 1 << 20
"""Unmapped bytes between allocations, so that running off one is a fault and not its neighbour."""


@dataclass(frozen=True)
class Region:
    """Consecutive mapped bytes: [address, address + size) in the machine, at `offset` in the arena."""

    name: str
    address: int
    size: int
    offset: int
    is_output: bool = False


class Memory:
    """Allocations of one launch. Regions never overlap; bytes between them fault."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._contents: list[np.ndarray] = []
        self._next = FIRST_ADDRESS
        self._arena: np.ndarray | None = None
        self._used = 0

    def reserve(self, name: str, size: int) -> int:
        """Address of `size` bytes that nothing else will be given; none of them is mapped yet."""
        if size < 0:
            raise ValueError(f"size: expected at least 0 for {name}, got {size}")
        address = self._next
        self._next += -(-(size + GAP) // ALIGNMENT) * ALIGNMENT
        return address

    def map(
        self, name: str, array: np.ndarray, address: int | None = None, *, is_output: bool = False
    ) -> int:
        """Map a copy of an array's bytes, at an address of the machine's choice or a given one; return the address.

        The sanitizer takes an output's bytes as undefined until the kernel writes them, which it must do exactly once.

        Raises
        ------
        ValueError
            If the bytes would overlap a region already mapped, or memory has already been used by a launch.
        """
        if self._arena is not None:
            raise ValueError(f"{name}: memory was already launched on; map everything first")
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if address is None:
            address = self.reserve(name, content.size)
        for region in self._regions:
            if address < region.address + region.size and region.address < address + content.size:
                raise ValueError(f"{name}: [{address:#x}, +{content.size}) overlaps {region.name}")
        self._regions.append(Region(name, address, content.size, self._used, is_output))
        self._contents.append(content)
        self._used += -(-content.size // 64) * 64
        return address

    def arena(self) -> np.ndarray:
        """All mapped bytes, uint8, each region at its offset; made once, then shared with the machine."""
        if self._arena is None:
            self._arena = np.zeros(self._used + 64, dtype=np.uint8)
            for region, content in zip(self._regions, self._contents, strict=True):
                self._arena[region.offset : region.offset + region.size] = content
            self._contents.clear()
        return self._arena

    def regions(self) -> list[Region]:
        """Mapped regions in the order of their addresses."""
        return sorted(self._regions, key=lambda region: region.address)

    def read(self, name: str) -> np.ndarray:
        """Bytes of a region (uint8, a copy).

        Raises
        ------
        KeyError
            If no region has that name.
        """
        for region in self._regions:
            if region.name == name:
                return self.arena()[region.offset : region.offset + region.size].copy()
        raise KeyError(f"name: {name!r} is not mapped; there are {', '.join(r.name for r in self._regions)}")

    def describe(self, address: int) -> str:
        """Where an address lies, in words: in an allocation, or so far from the nearest."""
        distances = [
            (max(region.address - address, address - region.address - region.size + 1, 0), region)
            for region in self._regions
        ]
        if not distances:
            return "there is no allocation"
        distance, region = min(distances, key=lambda pair: pair[0])
        if distance == 0:
            return f"byte {address - region.address} of {region.name}"
        if address < region.address:
            return f"{distance} bytes before {region.name}"
        return f"{distance - 1} bytes past the end of {region.name}"
