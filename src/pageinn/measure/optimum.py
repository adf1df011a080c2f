"""What no policy can beat: Belady's choice (1966), which evicts what is needed furthest in the future.

The same rule as the curve's: one request at a time, and while it runs all its blocks are held. Of blocks that are
needed again by the same request, the deepest goes first, so that whole prefixes stay.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from pageinn.measure.curve import Groups
from pageinn.measure.paths import Ints


class Future:
    """For each request, who needs its blocks next."""

    def __init__(self, groups: Groups, blocks: Ints) -> None:
        """Blocks: how many each request holds."""
        requests = len(blocks)
        order = np.argsort(groups.previous, kind="stable")
        self._next: list[int] = groups.request[order].tolist()
        self._count: list[int] = groups.blocks[order].tolist()
        self._bounds: list[int] = np.searchsorted(groups.previous[order], np.arange(requests + 1)).tolist()
        self._blocks: list[int] = blocks.tolist()
        self._read: list[int] = np.bincount(groups.request, groups.read, requests).astype(np.int64).tolist()

    def hits(self, size: int, since: int = 0) -> tuple[int, int]:
        """Prompt blocks that the best policy finds in a cache of that many blocks, at least the largest request's.

        And those of them that requests from number `since` on find.
        """
        kept = [0] * len(self._blocks)
        furthest: list[int] = []
        used = hits = before = 0
        for request, held in enumerate(self._blocks):
            if request == since:
                before = hits
            found = kept[request]
            hits += min(found, self._read[request])
            used -= found
            kept[request] = 0
            while used > size - held:
                needed = -furthest[0]
                evicted = min(kept[needed], used - size + held)
                kept[needed] -= evicted
                used -= evicted
                if kept[needed] == 0:
                    heappop(furthest)
            for place in range(self._bounds[request], self._bounds[request + 1]):
                later = self._next[place]
                if kept[later] == 0:
                    heappush(furthest, -later)
                kept[later] += self._count[place]
                used += self._count[place]
        return hits, hits - before
