"""Block-id traces, in columns: the same Paths as a tree gives, for logs too big for one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.measure.paths import Floats, Ints, Paths, Radix, Segments

#: In 64 bits, or in 32 where all of them fit.
_Ids = NDArray[np.signedinteger[Any]]
#: Requests that are looked at together.
_CHUNK = 1 << 16
#: Ids that are looked at, or put away, together.
_PIECE = 1 << 20


class BlockColumns:
    """Collects requests in any order. A request's blocks are the ids that follow those of the one before."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._pieces: list[_Ids] = []
        self._lengths = array("q")
        self._tokens = array("q")

    def add(self, ids: list[int], tokens: int) -> None:
        """Enter one request. Raises OverflowError for an id of more than 64 bits."""
        try:
            self._ids += array("q", ids)
        except OverflowError:
            self._ids += array("q", [each - (1 << 64) if each >= 1 << 63 else each for each in ids])
        self._lengths.append(len(ids))
        self._tokens.append(tokens)
        if len(self._ids) > _PIECE:
            self._put_away()

    def _put_away(self) -> None:
        """Keep in 32 bits what fits in them: a trace of 64 million blocks should not take half a gigabyte twice."""
        ids = np.array(self._ids, dtype=np.int64)
        small = len(ids) == 0 or (int(ids.min()) >= 0 and int(ids.max()) <= np.iinfo(np.int32).max)
        self._pieces.append(ids.astype(np.int32) if small else ids)
        self._ids = array("q")

    def _flat(self) -> _Ids:
        """All ids, in one piece from now on."""
        self._put_away()
        self._pieces = [np.concatenate(self._pieces)]
        return self._pieces[0]

    def paths(self, block_size: int, scopes: Ints, arrival: Floats, end: Floats) -> Paths:
        """The paths by arrival. scopes: a number for each request; ids mean something inside one scope only."""
        ids = self._flat()
        lengths: Ints = np.array(self._lengths, dtype=np.int64)
        tokens: Ints = np.array(self._tokens, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        order = np.argsort(arrival, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            ids = ids[_gather(starts[:-1][order], lengths[order])]
            lengths, tokens, scopes = lengths[order], tokens[order], scopes[order]
            starts = np.concatenate([[0], np.cumsum(lengths)])
            arrival, end = arrival[order], end[order]
        nodes, count = _nodes(ids, starts, scopes)
        del ids
        return _Walk(nodes, count, starts, tokens, block_size, arrival, end).paths()


def _gather(starts: Ints, lengths: Ints) -> Ints:
    """The indices of runs that begin at `starts`, one run after another."""
    offsets = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return offsets + np.arange(int(lengths.sum()))


# --- from ids to nodes of a tree ---


def _nodes(ids: _Ids, starts: Ints, scopes: Ints) -> tuple[NDArray[np.int32], int]:
    """A node for each block: equal if the scope and all ids up to there are equal. And how many there are."""
    if len(ids) == 0:
        return np.zeros(0, dtype=np.int32), 0
    numbers, count = _dense(ids)
    del ids
    if int(scopes.max()) == int(scopes.min()) and _closed(numbers, starts, count):
        return numbers, count
    return _chained(numbers, count, starts, scopes)


def _dense(ids: _Ids) -> tuple[NDArray[np.int32], int]:
    """Ids as numbers from 0 on."""
    low, high = int(ids.min()), int(ids.max())
    if high - low < 4 * len(ids) + 1024 and high - low < np.iinfo(np.int32).max:
        if low == 0 and ids.dtype == np.int32:
            return np.asarray(ids, dtype=np.int32), high + 1
        return np.concatenate([(part - low).astype(np.int32) for part in _parts(ids)]), high - low + 1
    # By buckets, so that what is sorted fits in the processor's caches.
    buckets = max(1, len(ids) >> 20)
    bucket_of = np.concatenate([_bucket(part.astype(np.int64), buckets) for part in _parts(ids)])
    numbers = np.empty(len(ids), dtype=np.int32)
    count = 0
    for each in range(buckets):
        places = np.flatnonzero(bucket_of == each)
        distinct, inverse = np.unique(ids[places], return_inverse=True)
        numbers[places] = inverse + count
        count += len(distinct)
    return numbers, count


def _parts(ids: _Ids) -> Iterator[_Ids]:
    for low in range(0, len(ids), _PIECE):
        yield ids[low : low + _PIECE]


def _bucket(ids: Ints, buckets: int) -> NDArray[np.uint16]:
    mixed = (ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(buckets)).astype(np.uint16)


def _closed(numbers: NDArray[np.int32], starts: Ints, count: int) -> bool:
    """Whether each id has always the same id before it, so that the id alone says the whole prefix."""
    heads = np.zeros(len(numbers), dtype=bool)
    heads[starts[:-1][np.diff(starts) > 0]] = True
    expected = np.full(count, -2, dtype=np.int32)

    def before(low: int) -> NDArray[np.int32]:
        high = min(low + _PIECE, len(numbers))
        found = np.empty(high - low, dtype=np.int32)
        found[1:] = numbers[low : high - 1]
        found[0] = numbers[low - 1]
        found[heads[low:high]] = -1
        return found

    for low in range(0, len(numbers), _PIECE):
        expected[numbers[low : low + _PIECE]] = before(low)
    return all(
        bool((expected[numbers[low : low + _PIECE]] == before(low)).all()) for low in range(0, len(numbers), _PIECE)
    )


def _chained(numbers: NDArray[np.int32], count: int, starts: Ints, scopes: Ints) -> tuple[NDArray[np.int32], int]:
    """Level by level: a node is the node above and the id."""
    nodes = np.empty(len(numbers), dtype=np.int32)
    lengths = np.diff(starts)
    rows = np.argsort(-lengths, kind="stable")
    above = scopes[rows].astype(np.int64)
    base = int(scopes.max()) + 1
    first = base
    deep_enough = np.searchsorted(-lengths[rows], -np.arange(1, int(lengths.max()) + 1), side="right")
    for depth, active in enumerate(deep_enough.tolist()):
        places = starts[rows[:active]] + depth
        distinct, inverse = np.unique(above[:active] * count + numbers[places], return_inverse=True)
        above[:active] = base + inverse
        nodes[places] = above[:active] - first
        base += len(distinct)
    return nodes, base - first


# --- from nodes to segments and edges ---


class _Fresh(NamedTuple):
    """Where paths leave what is known: request, how many nodes are new, and the node before them (-1 for the root)."""

    request: Ints
    length: Ints
    above: Ints


class _Walk:
    """One pass over all requests by arrival."""

    def __init__(
        self,
        nodes: NDArray[np.int32],
        count: int,
        starts: Ints,
        tokens: Ints,
        block_size: int,
        arrival: Floats,
        end: Floats,
    ) -> None:
        self.nodes, self.count, self.starts, self.tokens = nodes, count, starts, tokens
        self.size, self.arrival, self.end = block_size, arrival, end
        self.lengths = np.diff(starts)

    def paths(self) -> Paths:
        """The whole result."""
        last = np.full(self.count, -1, dtype=np.int32)
        busy = np.full(self.count, -np.inf, dtype=np.float64)
        parts: list[list[NDArray[np.generic]]] = []
        order: list[NDArray[np.int32]] = []
        fresh: list[_Fresh] = []
        for low in range(0, len(self.tokens), _CHUNK):
            high = min(low + _CHUNK, len(self.tokens))
            previous, until = self._used(low, high, last, busy)
            parts.append(self._segments(low, high, previous, until))
            order.append(self.nodes[self.starts[low] : self.starts[high]][previous < 0])
            fresh.append(self._fresh(low, high, previous))
        del last, busy
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
        blocks = self.tokens // self.size
        radix, leaf = self._radix(np.concatenate(order), fresh)
        segments = Segments(*joined)
        return Paths(self.size, self.tokens, blocks, blocks, self.arrival, self.end, segments, radix, leaf)

    def _used(self, low: int, high: int, last: NDArray[np.int32], busy: Floats) -> tuple[NDArray[np.int32], Floats]:
        """For each block of the requests low..high: who used its node last (-1), and until when it is in use."""
        first = int(self.starts[low])
        size = int(self.starts[high]) - first
        previous = np.empty(size, dtype=np.int32)
        until = np.empty(size, dtype=np.float64)
        bounds = (self.starts[low : high + 1] - first).tolist()
        ends = self.end[low:high].tolist()
        nodes = self.nodes[first : first + size]
        for number in range(high - low):
            begin, stop = bounds[number], bounds[number + 1]
            path = nodes[begin:stop]
            previous[begin:stop] = last[path]
            last[path] = low + number
            known = busy[path]
            until[begin:stop] = known
            busy[path] = np.maximum(known, ends[number])
        return previous, until

    def _segments(self, low: int, high: int, previous: NDArray[np.int32], until: Floats) -> list[NDArray[np.generic]]:
        bounds = self.starts[low : high + 1] - self.starts[low]
        if len(previous) == 0:
            return [np.zeros(0, dtype=np.int64)] * 5 + [np.zeros(0)]
        begins = np.empty(len(previous), dtype=bool)
        begins[0] = True
        begins[1:] = (previous[1:] != previous[:-1]) | (until[1:] != until[:-1])
        begins[bounds[:-1][np.diff(bounds) > 0]] = True
        at = np.flatnonzero(begins)
        length = np.diff(np.append(at, len(previous)))
        known = previous[at] >= 0
        at, length = at[known], length[known]
        row = np.searchsorted(bounds, at, side="right") - 1
        request = row + low
        # The last block may be filled partly: it counts its tokens, and no block.
        start = at - bounds[row]
        stop = start + length
        full = self.tokens[request] // self.size
        blocks = np.minimum(stop, full) - np.minimum(start, full)
        tokens = np.minimum(stop * self.size, self.tokens[request]) - start * self.size
        return [request, previous[at].astype(np.int64), blocks, blocks, tokens, until[at]]

    def _fresh(self, low: int, high: int, previous: NDArray[np.int32]) -> _Fresh:
        bounds = self.starts[low : high + 1] - self.starts[low]
        new = np.concatenate([[0], np.cumsum(previous < 0)])
        length = new[bounds[1:]] - new[bounds[:-1]]
        has = np.flatnonzero(length > 0)
        at = self.starts[low + has + 1] - length[has] - 1
        above = np.where(at >= self.starts[low + has], self.nodes[np.maximum(at, 0)].astype(np.int64), -1)
        return _Fresh(has + low, length[has], above)

    def _radix(self, order: NDArray[np.int32], fresh: list[_Fresh]) -> tuple[Radix, Ints]:
        """Edges: nodes in the order of their first use, cut where the number of requests changes."""
        request, length, above = (np.concatenate(column) for column in zip(*fresh, strict=True))
        counts = np.bincount(self.nodes, minlength=self.count).astype(np.int32)[order]
        begins = np.zeros(len(order), dtype=bool)
        first_of = np.cumsum(length) - length
        begins[first_of] = True
        begins[1:] |= counts[1:] != counts[:-1]
        edge_of = np.empty(self.count, dtype=np.int32)
        edge_of[order] = np.cumsum(begins) - 1
        at = np.flatnonzero(begins)
        run = np.searchsorted(first_of, at, side="right") - 1
        parent = np.arange(len(at)) - 1
        heads = at == first_of[run]
        parent[heads] = np.where(above[run[heads]] >= 0, edge_of[np.maximum(above[run[heads]], 0)], -1)
        stop = np.append(at[1:], len(order))
        depth = self.lengths[request[run]] - length[run] + (stop - first_of[run])
        end = np.minimum(depth * self.size, self.tokens[request[run]])
        edge = end - (depth - (stop - at)) * self.size
        radix = Radix(parent, end, edge, counts[at].astype(np.int64), request[run])
        leaf = np.full(len(self.tokens), -1, dtype=np.int64)
        filled = self.lengths > 0
        leaf[filled] = edge_of[self.nodes[self.starts[1:][filled] - 1]]
        return radix, leaf
