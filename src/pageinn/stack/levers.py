"""The rows of the stack: how the engine is set up for each."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.questions import PrefixCache


class Lever(NamedTuple):
    """One row. whole: a sequence is one block as long as the limit, which is reserving its whole length.

    over: the row whose figures its gain is measured against.
    """

    key: str
    label: str
    whole: bool
    prefix_cache: PrefixCache
    dtype: str
    over: str


#: Each row adds a lever to the one before it; the last is fp8 alone, to see whether the gains multiply.
LEVERS = (
    Lever("whole", "whole length reserved", True, PrefixCache.OFF, "bfloat16", "whole"),
    Lever("paged", "paged", False, PrefixCache.OFF, "bfloat16", "whole"),
    Lever("shared", "shared while in use", False, PrefixCache.LIVE, "bfloat16", "paged"),
    Lever("kept", "kept after use", False, PrefixCache.KEEP, "bfloat16", "shared"),
    Lever("fp8", "fp8", False, PrefixCache.KEEP, "fp8", "kept"),
    Lever("fp8_alone", "(paged and fp8 only)", False, PrefixCache.OFF, "fp8", "paged"),
)
