"""How many blocks the running choices will hold together, at several distances into the future.

A choice holds ever more blocks until its answer ends and frees them. At a distance of t tokens it holds its size then,
if it still runs, else nothing; the probability of that comes from the lengths of past answers, given how far it has got
(`lengths`). The choices are taken to be independent, so that means and variances add up.
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt
from operator import add, mul, sub
from typing import NamedTuple, TypeVar

from pageinn.scheduling.lengths import Curve

#: Each horizon is so many times as far as the one before.
_RATIO = 1.5
#: The sums are added up anew after so many claims were entered, because rounding errors grow.
_REFRESH = 1 << 14
N = TypeVar("N", int, float)


class Prospect(NamedTuple):
    """A choice as it stands. tokens: known ones. generated: those of its answer. limit: how many more may come."""

    tokens: int
    generated: int
    limit: int
    exclusive: int


class Claim(NamedTuple):
    """What one choice contributes at each horizon, in blocks.

    exclusive: the blocks that its end would free as things are. mean and variance of what it holds; most: what it holds
    if it goes on to its limit.
    """

    exclusive: int
    mean: list[float]
    variance: list[float]
    most: list[int]


class Asked(NamedTuple):
    """What a choice that waits would contribute, and of what that was made."""

    prospect: Prospect
    curve: Curve
    claim: Claim


class Forecast:
    """The sum of all claims. longest: the most tokens that any choice may have."""

    def __init__(self, block_size: int, longest: int) -> None:
        self._block_size = block_size
        self._horizons = [block_size]
        while self._horizons[-1] < longest:
            self._horizons.append(int(self._horizons[-1] * _RATIO) + 1)
        self.exclusive = 0
        self._claims: dict[int, Claim] = {}
        self._changes = 0
        self._nothing = Claim(0, [], [], [])
        #: The horizon at which a claim was last refused: what refused one likely refuses the next.
        self._narrowest = 0
        self._mean: list[float] = []
        self._variance: list[float] = []
        self._most: list[int] = []
        self._add_up()

    def claim(self, prospect: Prospect, curve: Curve) -> Claim:
        """What a choice whose answer's length follows the curve contributes. Its lists end where it has ended."""
        tokens, generated, limit, exclusive = prospect
        size = self._block_size
        shared = -(-tokens // size) - exclusive
        # One that ends between two horizons counts until the second: the peak may lie between them.
        further = self._horizons[: bisect_left(self._horizons, limit) + 1]
        further[-1] = min(further[-1], limit)
        most = [-(-(tokens + each) // size) - shared for each in further]
        mean = list(map(mul, most, curve.survival(generated, further)))
        variance = list(map(mul, mean, map(sub, most, mean)))
        return Claim(exclusive, mean, variance, most)

    def fits(self, claim: Claim, room: int, deviations: float) -> bool:
        """Whether all claims and this one stay within `room` blocks, up to so many standard deviations.

        Nothing holds more than what everybody holds who goes on to his limit, however wide the deviation.
        """
        if self._narrowest < len(claim.most) and not self._fits_at(self._narrowest, claim, room, deviations):
            return False
        for place in range(min(len(claim.most), len(self._most))):
            if not self._fits_at(place, claim, room, deviations):
                self._narrowest = place
                return False
        return True

    def _fits_at(self, place: int, claim: Claim, room: int, deviations: float) -> bool:
        if claim.most[place] + self._most[place] <= room:
            return True
        variance = claim.variance[place] + self._variance[place]
        return claim.mean[place] + self._mean[place] + deviations * sqrt(max(variance, 0.0)) <= room

    def put(self, key: int, claim: Claim) -> None:
        """Enter a claim, in place of the one that the key had."""
        self._replace(self._claims.get(key, self._nothing), claim)
        self._claims[key] = claim
        self._changes += 1
        if self._changes >= _REFRESH:
            self._add_up()

    def drop(self, key: int) -> None:
        """Take a claim out, if there is one."""
        self._replace(self._claims.pop(key, self._nothing), self._nothing)

    def _replace(self, old: Claim, new: Claim) -> None:
        self.exclusive += new.exclusive - old.exclusive
        _add(self._mean, new.mean, old.mean)
        _add(self._variance, new.variance, old.variance)
        _add(self._most, new.most, old.most)

    def _add_up(self) -> None:
        size = len(self._horizons)
        self._mean, self._variance, self._most = [0.0] * size, [0.0] * size, [0] * size
        self.exclusive = self._changes = 0
        for claim in self._claims.values():
            self._replace(self._nothing, claim)


def _add(sums: list[N], more: list[N], less: list[N]) -> None:
    """Add the one to the sums and take the other off; both may be shorter."""
    both = min(len(more), len(less))
    sums[:both] = map(sub, map(add, sums, more), less)
    if len(more) > both:
        sums[both : len(more)] = map(add, sums[both:], more[both:])
    elif len(less) > both:
        sums[both : len(less)] = map(sub, sums[both:], less[both:])
