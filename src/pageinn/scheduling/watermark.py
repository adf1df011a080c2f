"""The number of running sequences below which preemption does not start: the advice for --max-num-seqs."""

from __future__ import annotations

from collections import deque
from math import sqrt

#: Finished choices whose sizes are remembered, and with how few of them nothing is said.
_WINDOW = 256
_ENOUGH = 16
#: Standard deviations of their joint size that are left room for.
_DEVIATIONS = 2.0


class Watermark:
    """From the blocks that choices held alone when they ended.

    So many of them fit at their full size at once; since not all are at their full size together, preemption starts
    above that, not below. Choices preempted below it lower it to where that happened.
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=_WINDOW)
        self._preempted: deque[int] = deque(maxlen=_WINDOW)
        self._known: int | None = None
        self._stale = False

    def ended(self, blocks: int) -> None:
        """A choice ended that held so many blocks which nobody shared."""
        self._sizes.append(blocks)
        self._stale = True

    def preempted(self, running: int) -> None:
        """With so many running, one was preempted."""
        self._preempted.append(running)
        self._stale = True

    def of(self, num_blocks: int) -> int | None:
        """The number for a pool of so many blocks; None while too little was seen."""
        if self._stale and len(self._sizes) >= _ENOUGH:
            self._known, self._stale = self._estimate(num_blocks), False
        return self._known

    def _estimate(self, num_blocks: int) -> int:
        mean = sum(self._sizes) / len(self._sizes)
        deviation = sqrt(sum((size - mean) ** 2 for size in self._sizes) / len(self._sizes))
        # n * mean + deviations * deviation * sqrt(n) = num_blocks, for sqrt(n).
        spread = _DEVIATIONS * deviation
        root = (sqrt(spread * spread + 4 * max(mean, 1.0) * num_blocks) - spread) / (2 * max(mean, 1.0))
        return max(min([int(root * root + 1e-6), *(running - 1 for running in self._preempted)]), 1)
