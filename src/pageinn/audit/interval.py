"""How well a share is known that was counted in a few trials."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

#: The two-sided 95 % point of the normal distribution.
Z = 1.959964


class Interval(NamedTuple):
    """From the low to the high end, both shares."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of what lies between the ends."""
        return (self.high - self.low) / 2

    def __contains__(self, share: object) -> bool:
        return isinstance(share, int | float) and self.low <= share <= self.high


def wilson(right: int, trials: int) -> Interval:
    """The 95 % score interval of Wilson (1927, J. Am. Stat. Assoc. 22:209) for `right` of `trials`, at least one."""
    if not 0 <= right <= trials or trials < 1:
        raise ValueError(f"{right} of {trials} is no share")
    share, square = right / trials, Z * Z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z * sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    # At the ends rounding would leave 0 and 1 by a hair.
    return Interval(0.0 if right == 0 else middle - half, 1.0 if right == trials else middle + half)
