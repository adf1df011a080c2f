"""For a prompt that parts early from all before it: the earlier prompt that it resembles most.

A nonce at the head makes all prompts part at once, so families are found by what follows the difference: long units
that earlier prompts held name candidates, and the one that shares most is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.explain.align import leading
from pageinn.explain.culprit import WORTH
from pageinn.explain.units import Laid

_CANDIDATES = 6
_VOTERS = 24


class Likeness(NamedTuple):
    """earlier: the prompt that is resembled most. share: the share of this prompt's content that it holds too.

    again: about how many tokens behind the end of the longest common prefix earlier prompts held too, in long runs.
    """

    earlier: int
    share: float
    again: float


class Similar:
    """Prompts in order, and which of them held each unit last."""

    def __init__(self, laid: Sequence[Laid], weights: NDArray[np.float32]) -> None:
        self._laid = laid
        self._weights = weights
        self._last = np.full(len(weights), -1, dtype=np.int32)
        self._mark = np.zeros(len(weights), dtype=bool)

    def next(self, number: int, longest: int | None) -> Likeness | None:
        """For prompt `number`, whose longest prefix match is with prompt `longest`. To be called in order.

        None if little of what it computes anew was ever seen before.
        """
        units = self._laid[number].units
        found = self._find(units, longest) if longest is not None else None
        self._last[units] = number
        return found

    def forget(self) -> None:
        """Go on with prompts of another scope."""
        self._last.fill(-1)

    def _find(self, units: NDArray[np.int32], longest: int | None) -> Likeness | None:
        assert longest is not None
        shared = leading(self._laid[longest].units, units)
        rest = units[shared:]
        seen = self._last[rest] >= 0
        weights = self._weights[rest]
        again = _in_long_runs(seen, weights)
        if again < WORTH:
            return None
        # The heaviest units that were seen before vote for the prompts that held them last.
        voters = rest[seen]
        heavy = voters[np.argsort(self._weights[voters], kind="stable")[::-1][:_VOTERS]]
        held, votes = np.unique(self._last[heavy], return_counts=True)
        candidates = held[np.lexsort((held, votes))[::-1][:_CANDIDATES]].tolist()
        total = float(self._weights[units].sum())
        best = max(dict.fromkeys([*candidates, longest]), key=lambda c: (self._common(c, units), c))
        return Likeness(best, self._common(best, units) / total if total else 0.0, again)

    def _common(self, other: int, units: NDArray[np.int32]) -> float:
        theirs = self._laid[other].units
        self._mark[theirs] = True
        common = float(self._weights[units[self._mark[units]]].sum())
        self._mark[theirs] = False
        return common


def _in_long_runs(seen: NDArray[np.bool_], weights: NDArray[np.float32]) -> float:
    """The weight of runs of units seen before that weigh a quarter of WORTH or more."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
    sums = np.concatenate([[0.0], np.cumsum(weights, dtype=np.float64)])
    runs = sums[edges[1::2]] - sums[edges[::2]]
    return float(runs[runs >= WORTH / 4].sum())


def common_weight(one: NDArray[np.int32], other: NDArray[np.int32], weights: NDArray[np.float32]) -> float:
    """About how many tokens of `other` are in `one` too, wherever."""
    return float(weights[other[np.isin(other, one)]].sum())
