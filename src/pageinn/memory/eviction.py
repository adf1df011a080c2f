"""Which leaf of the prefix tree loses its tail next: a queue of leaves, ranked by a policy."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pageinn.memory.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from pageinn.memory.node import Node

_SLACK = 64
#: Over about how many evictions the mean age at which blocks go is taken.
_MEMORY = 50


class EvictionPolicy(StrEnum):
    """lru: the least recently used goes first. reuse: what has been reused stays longer, and tails are bounded."""

    LRU = "lru"
    REUSE = "reuse"


class Ranking(Protocol):
    """A policy: what ranks lowest goes first. A leaf's rank is asked for once, when it becomes evictable."""

    #: How many tails a queue may hold before the oldest of them goes whatever its rank; None for no bound.
    most_tails: int | None

    def rank(self, leaf: Node) -> float:
        """Where the leaf stands, in ticks of the tree."""
        ...

    def evicted(self, leaf: Node, tick: int) -> None:
        """Learn that a leaf lost blocks at this tick."""
        ...


class LeastRecentlyUsed:
    """By the tick of the last use."""

    most_tails: int | None = None

    def rank(self, leaf: Node) -> float:
        """The tick of the last use."""
        return leaf.last_used

    def evicted(self, leaf: Node, tick: int) -> None:
        """Nothing to learn."""


class ReuseWeighted:
    """Least recently used, with a second lifetime for what is likely to come again.

    Likely to come again is a node that was matched since it was computed, and one that continues such a node as its
    only line (the newest turn of a conversation whose earlier turns were matched), but not one of the many children of
    a much used head. A lifetime is the age at which the other leaves are given up, measured as they go, so it follows
    the pool's size and the load. The idea of two classes with ageing is that of 2Q (Johnson and Shasha, 1994) and of
    LFU with dynamic ageing; the class is a node's and not a block's.

    A tail costs less to compute again than a whole block, and only a copy can reuse it: tails beyond an eighth of the
    pool go before everything else.
    """

    def __init__(self, num_blocks: int) -> None:
        self.most_tails: int | None = max(num_blocks // 8, 1)
        self._lifetime = 0.0
        self._seen = 0

    def rank(self, leaf: Node) -> float:
        """The tick of the last use, or that plus one lifetime."""
        return leaf.last_used + self._lifetime if _likely(leaf) else leaf.last_used

    def evicted(self, leaf: Node, tick: int) -> None:
        """Learn how old a leaf is that goes at its first lifetime's end."""
        if not _likely(leaf):
            self._seen = min(self._seen + 1, _MEMORY)
            self._lifetime += (tick - leaf.last_used - self._lifetime) / self._seen


def _likely(node: Node) -> bool:
    parent = node.parent
    if node.hits or parent is None:
        return node.hits > 0
    return parent.hits > 0 and parent.hits >= len(parent.children)


def ranking_of(policy: EvictionPolicy, num_blocks: int) -> Ranking:
    """A policy's ranking for a pool of that many blocks."""
    return LeastRecentlyUsed() if policy is EvictionPolicy.LRU else ReuseWeighted(num_blocks)


class Head(NamedTuple):
    """What a queue gives up next."""

    rank: float
    last_used: int
    leaf: Node


class EvictionQueue:
    """Evictable leaves by rank, in a heap whose outdated entries are skipped when they surface; tails also by recency.

    push, discard and head cost O(log n) amortised. An entry is outdated when its node is gone, pinned, grown into an
    inner node, or was pushed again.
    """

    def __init__(self, ranking: Ranking, block_size: int) -> None:
        self.ranking = ranking
        self._block_bytes = block_size * TOKEN_BYTES
        self._heap: list[tuple[float, int, int, Node]] = []
        self._newest: dict[Node, int] = {}
        self._tails: OrderedDict[Node, None] = OrderedDict()
        self._pushes = 0
        self._limit = _SLACK

    def push(self, leaf: Node) -> None:
        """Enter a leaf that is evictable now, or was used since it was entered."""
        if len(leaf.tokens) < self._block_bytes:
            self._tails[leaf] = None
            self._tails.move_to_end(leaf)
        self._pushes += 1
        self._newest[leaf] = self._pushes
        heapq.heappush(self._heap, (self.ranking.rank(leaf), leaf.last_used, self._pushes, leaf))
        if len(self._heap) > self._limit:
            self._sweep()

    def discard(self, leaf: Node) -> None:
        """Forget a leaf that leaves the tree."""
        self._tails.pop(leaf, None)
        self._newest.pop(leaf, None)

    def head(self) -> Head | None:
        """The leaf to take from, or None."""
        if self.ranking.most_tails is not None and len(self._tails) > self.ranking.most_tails:
            tail = next(iter(self._tails))
            return Head(float("-inf"), tail.last_used, tail)
        while self._heap:
            rank, last_used, number, node = self._heap[0]
            if self._current(self._heap[0]):
                return Head(rank, last_used, node)
            heapq.heappop(self._heap)
            if self._newest.get(node) == number:
                del self._newest[node]
        return None

    def leaves(self) -> list[Node]:
        """All that is queued, for checks and for queueing anew."""
        return [entry[3] for entry in self._heap if self._current(entry)]

    def tails(self) -> list[Node]:
        """The tails that are queued, the least recently used first; for checks."""
        return list(self._tails)

    def _current(self, entry: tuple[float, int, int, Node]) -> bool:
        _, _, number, node = entry
        return self._newest.get(node) == number and node.evictable_leaf

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if self._current(entry)]
        heapq.heapify(self._heap)
        self._newest = {entry[3]: entry[2] for entry in self._heap}
        # Twice what remains, so that as many pushes pay for the next sweep as it looks at.
        self._limit = 2 * len(self._heap) + _SLACK
