"""How many blocks the running choices will hold together, at several distances into the future.

A choice holds ever more blocks until its answer ends and frees them. At a distance of t tokens it holds its size then,
if it still runs, else nothing; the probability of that comes from the lengths of past answers, given how far it has got
(`lengths`). The choices are taken to be independent, so that means and variances add up.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from pageinn.scheduling.lengths import Curve

#: Each horizon is so many times as far as the one before.
_RATIO = 1.5
#: The sums are added up anew after so many claims were taken out, because rounding errors grow.
_REFRESH = 1 << 14


class Claim(NamedTuple):
    """What one choice contributes at each horizon, in blocks.

    exclusive: the blocks that its end would free as things are. mean and variance of what it holds; most: what it holds
    if it goes on to its limit.
    """

    exclusive: int
    mean: list[float]
    variance: list[float]
    most: list[int]


class Prospect(NamedTuple):
    """A choice as it stands. tokens: known ones. generated: those of its answer. limit: how many more may come."""

    tokens: int
    generated: int
    limit: int
    exclusive: int


class Forecast:
    """The sum of all claims. longest: the most tokens that any choice may have."""

    def __init__(self, block_size: int, longest: int) -> None:
        self._block_size = block_size
        self._horizons = [block_size]
        while self._horizons[-1] < longest:
            self._horizons.append(int(self._horizons[-1] * _RATIO) + 1)
        self.exclusive = 0
        self._claims: dict[int, Claim] = {}
        self._drops = 0
        self._mean: list[float] = []
        self._variance: list[float] = []
        self._most: list[int] = []
        self._add_up()

    def claim(self, prospect: Prospect, curve: Curve) -> Claim:
        """What a choice whose answer's length follows the curve contributes. Its lists end where it has ended."""
        tokens, generated, limit, exclusive = prospect
        size, beyond = self._block_size, curve.beyond
        shared = -(-tokens // size) - exclusive
        so_far = beyond(generated)
        means, variances, mosts = [], [], []
        before = 0
        for horizon in self._horizons:
            if before >= limit:
                break
            # One that ends between two horizons counts until the second: the peak may lie between them.
            reached = min(horizon, limit)
            blocks = -(-(tokens + reached) // size) - shared
            alive = beyond(generated + reached - 1) / so_far
            means.append(blocks * alive)
            variances.append(blocks * blocks * alive * (1 - alive))
            mosts.append(blocks)
            before = horizon
        return Claim(exclusive, means, variances, mosts)

    def fits(self, claim: Claim, room: int, deviations: float) -> bool:
        """Whether all claims and this one stay within `room` blocks, up to so many standard deviations.

        Nothing holds more than what everybody holds who goes on to his limit, however wide the deviation.
        """
        ours = zip(claim.mean, claim.variance, claim.most, strict=True)
        theirs = zip(self._mean, self._variance, self._most, strict=True)
        for (mean, variance, most), (all_mean, all_variance, all_most) in zip(ours, theirs, strict=False):
            if most + all_most <= room:
                continue
            if mean + all_mean + deviations * sqrt(max(variance + all_variance, 0.0)) > room:
                return False
        return True

    def put(self, key: int, claim: Claim) -> None:
        """Enter a claim, in place of the one that the key had."""
        old = self._claims.get(key)
        if old is not None:
            self.drop(key)
        self._claims[key] = claim
        self.exclusive += claim.exclusive
        mean, variance, most = self._mean, self._variance, self._most
        for place, more in enumerate(claim.mean):
            mean[place] += more
            variance[place] += claim.variance[place]
            most[place] += claim.most[place]

    def drop(self, key: int) -> None:
        """Take a claim out."""
        claim = self._claims.pop(key)
        self.exclusive -= claim.exclusive
        mean, variance, most = self._mean, self._variance, self._most
        for place, less in enumerate(claim.mean):
            mean[place] -= less
            variance[place] -= claim.variance[place]
            most[place] -= claim.most[place]
        self._drops += 1
        if self._drops >= _REFRESH:
            self._add_up()

    def _add_up(self) -> None:
        size = len(self._horizons)
        self._mean, self._variance, self._most = [0.0] * size, [0.0] * size, [0] * size
        self.exclusive = self._drops = 0
        claims, self._claims = self._claims, {}
        for key, claim in claims.items():
            self.put(key, claim)
