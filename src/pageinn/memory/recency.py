"""Nodes in the order of their last use."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageinn.memory.node import Node

_SLACK = 64


class RecencyQueue:
    """Nodes that may be taken, the least recently used first, in a heap whose outdated entries are skipped.

    push and peek cost O(log n) amortised. An entry is outdated when its node may not be taken (any more), or was used
    since.
    """

    def __init__(self, may_take: Callable[[Node], bool]) -> None:
        self._may_take = may_take
        self._heap: list[tuple[int, int, Node]] = []
        self._pushes = 0
        self._limit = _SLACK

    def push(self, node: Node) -> None:
        """Enter a node that may be taken."""
        self._pushes += 1
        heapq.heappush(self._heap, (node.last_used, self._pushes, node))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if self._current(entry)]
            heapq.heapify(self._heap)
            # Twice what remains, so that as many pushes pay for the next sweep as it looks at.
            self._limit = 2 * len(self._heap) + _SLACK

    def peek(self) -> Node | None:
        """The node to take from, or None."""
        while self._heap:
            entry = self._heap[0]
            if self._current(entry):
                return entry[2]
            heapq.heappop(self._heap)
        return None

    def _current(self, entry: tuple[int, int, Node]) -> bool:
        used, _, node = entry
        return node.last_used == used and self._may_take(node)
