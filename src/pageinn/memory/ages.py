"""How long blocks live, lie idle, and wait until they are used again, by whatever clock the driver tells.

Families and meanings are vLLM's kv_block_lifetime_seconds, kv_block_idle_before_evict_seconds and
kv_block_reuse_gap_seconds; every block is counted, none sampled.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class Histogram:
    """Counts over fixed upper bounds (seconds); the last one is of what lies above all of them."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> Histogram:
        """A copy that later observations do not change."""
        return Histogram(self.bounds, self.counts[:], self.total)


#: From a tenth of a second to a day.
AGE_BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)


class Ages:
    """Blocks of the device as they come, are used and are evicted. now: seconds, as the driver told them last.

    lifetime: from a block's being taken to its eviction. idle: from the end of its last use to its eviction. reuse_gap:
    from its last use, its beginning or its end, to a new sequence that finds it computed.
    """

    def __init__(self, num_blocks: int) -> None:
        self.now = 0.0
        self.lifetime = Histogram(AGE_BOUNDS)
        self.idle = Histogram(AGE_BOUNDS)
        self.reuse_gap = Histogram(AGE_BOUNDS)
        self._taken = [0.0] * num_blocks

    def take(self, blocks: list[int]) -> None:
        """These blocks begin to hold something."""
        taken, now = self._taken, self.now
        for block in blocks:
            taken[block] = now

    def evict(self, blocks: list[int], used: float) -> None:
        """These blocks give way to others. used: when they were used last."""
        self.idle.observe(self.now - used, len(blocks))
        taken, now, observe = self._taken, self.now, self.lifetime.observe
        for block in blocks:
            observe(now - taken[block])

    def find(self, blocks: int, used: float) -> None:
        """So many blocks are found by a new sequence."""
        self.reuse_gap.observe(self.now - used, blocks)
