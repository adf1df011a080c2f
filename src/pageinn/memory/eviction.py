"""Which leaf of the prefix tree loses its tail next."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageinn.memory.node import Node

_SLACK = 64


class LeastRecentlyUsed:
    """Unpinned leaves by the tick of their last use, in a heap whose outdated entries are skipped when they surface.

    push and peek cost O(log n) amortised. An entry is outdated when its node is gone, pinned, grown into an inner
    node, or used since.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._pushes = 0
        self._limit = _SLACK

    def push(self, leaf: Node) -> None:
        """Enter an unpinned leaf."""
        self._pushes += 1
        heapq.heappush(self._heap, (leaf.last_used, self._pushes, leaf))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _current(entry)]
            heapq.heapify(self._heap)
            # Twice what remains, so that as many pushes pay for the next sweep as it looks at.
            self._limit = 2 * len(self._heap) + _SLACK

    def peek(self) -> Node | None:
        """The leaf to take from, or None."""
        while self._heap:
            entry = self._heap[0]
            if _current(entry):
                return entry[2]
            heapq.heappop(self._heap)
        return None


def _current(entry: tuple[int, int, Node]) -> bool:
    used, _, node = entry
    return node.evictable_leaf and node.last_used == used
