"""The exact prefix tree over tokens: an edge ends wherever a prompt left it, not at block boundaries.

pageinn.memory's tree answers what one cache holds, by whole blocks; this one also says who used each token last.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from pageinn.measure.paths import Paths, Radix, segments_of
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks


class _Edge:
    """tokens: packed. last: the last request that passed. busy: when the last of all that passed ends."""

    __slots__ = ("busy", "children", "count", "first", "last", "number", "tokens")

    def __init__(self, tokens: bytes, request: int, busy: float) -> None:
        self.tokens = tokens
        self.children: dict[bytes, _Edge] = {}
        self.first = request
        self.last = request
        self.busy = busy
        self.count = 1
        self.number = -1

    def split(self, length: int) -> _Edge:
        """Cut off the first `length` bytes as an edge of its own above this one, and return it."""
        upper = _Edge(self.tokens[:length], self.first, self.busy)
        upper.last, upper.count = self.last, self.count
        self.tokens = self.tokens[length:]
        upper.children[self.tokens[:TOKEN_BYTES]] = self
        return upper


class TokenTree:
    """Takes requests by arrival, and gives their Paths. block_size: of the blocks that a cache would hold."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._roots: dict[Hashable, _Edge] = {}
        self._rows: list[tuple[int, int, int, int, int, float]] = []
        self._tokens: list[int] = []
        self._kept: list[int] = []
        self._arrival: list[float] = []
        self._end: list[float] = []
        self._leaves: list[_Edge] = []

    def add(self, scope: Hashable, prompt: bytes, answer: bytes, arrival: float, end: float) -> int:
        """Enter a prompt and the answer that is kept with it (b"" if none is); how many prompt tokens were known."""
        request = len(self._tokens)
        packed = prompt + answer
        length = len(prompt) // TOKEN_BYTES
        self._tokens.append(length)
        self._kept.append(len(packed) // TOKEN_BYTES)
        self._arrival.append(arrival)
        self._end.append(end)
        node = self._roots.get(scope)
        if node is None:
            node = self._roots[scope] = _Edge(b"", request, end)
        leaf, offset = node, 0
        while offset < len(packed):
            first = packed[offset : offset + TOKEN_BYTES]
            child = node.children.get(first)
            if child is None:
                child = node.children[first] = _Edge(packed[offset:], request, end)
                if offset < len(prompt):
                    leaf = child
                break
            taken = len(child.tokens)
            if not packed.startswith(child.tokens, offset):
                taken = TOKEN_BYTES * common_blocks(packed, offset, child.tokens, 0, TOKEN_BYTES)
                child = node.children[first] = child.split(taken)
            self._passed(child, request, offset // TOKEN_BYTES, taken // TOKEN_BYTES, length)
            child.last = request
            child.busy = max(child.busy, end)
            child.count += 1
            if offset < len(prompt):
                leaf = child
            offset += taken
            node = child
        self._leaves.append(leaf)
        return min(offset // TOKEN_BYTES, length)

    def _passed(self, edge: _Edge, request: int, start: int, taken: int, length: int) -> None:
        size, end = self._size, start + taken
        blocks = end // size - start // size
        read = min(end, length) // size - min(start, length) // size
        tokens = min(end, length) - min(start, length)
        if blocks or tokens:
            self._rows.append((request, edge.last, blocks, read, tokens, edge.busy))

    def paths(self) -> Paths:
        """Everything so far."""
        tokens = np.array(self._tokens, dtype=np.int64)
        return Paths(
            block_size=self._size,
            tokens=tokens,
            blocks=np.array(self._kept, dtype=np.int64) // self._size,
            prompt_blocks=tokens // self._size,
            arrival=np.array(self._arrival, dtype=np.float64),
            end=np.array(self._end, dtype=np.float64),
            segments=segments_of(self._rows),
            radix=self._radix(),
            leaf=np.array([leaf.number for leaf in self._leaves], dtype=np.int64),
        )

    def _radix(self) -> Radix:
        rows: list[tuple[int, int, int, int, int]] = []
        stack = [(root, -1, 0) for root in self._roots.values()]
        while stack:
            edge, parent, start = stack.pop()
            length = len(edge.tokens) // TOKEN_BYTES
            if length:
                edge.number = len(rows)
                rows.append((parent, start + length, length, edge.count, edge.first))
            stack += [(child, edge.number, start + length) for child in edge.children.values()]
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return Radix(*(np.ascontiguousarray(table[:, column]) for column in range(5)))
