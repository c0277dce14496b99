"""The reference for TurboQuant 4-bit paged attention decode: what a decode must be, to the bit.

NumPy and the standard library only; torch users find conversions in `tqref.torch_ref`.
"""

from __future__ import annotations

from tqref.attention import attention
from tqref.case import Case
from tqref.combine import combine
from tqref.decode import Partials, Tile, decode, tiles
from tqref.layout import CacheLayout, MetadataField
from tqref.numerics import DEFAULT_PROFILE, PROFILES, Exp2, FmaChainDot, GroupedDot, Profile

__all__ = [
    "DEFAULT_PROFILE",
    "PROFILES",
    "CacheLayout",
    "Case",
    "Exp2",
    "FmaChainDot",
    "GroupedDot",
    "MetadataField",
    "Partials",
    "Profile",
    "Tile",
    "attention",
    "combine",
    "decode",
    "tiles",
]
