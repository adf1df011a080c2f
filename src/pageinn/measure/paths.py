"""What the analysis knows of a log: each request's path through the prefix tree, told by who used its pieces before.

Along a path, the last request that used a block is never older than that of the block behind it: whoever used the
deeper one used the upper one too. So a path falls into few segments, and everything else is computed from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Segments(NamedTuple):
    """Pieces of paths that were there before, one entry each, by request and from the head to the tail.

    request: whose path. previous: the last earlier request that used the piece. blocks: full blocks of the piece, and
    read: those of them that belong to the prompt (the first ones). tokens: prompt tokens of the piece, also where they
    fill no block. busy: when the last of all earlier requests that used the piece ends, in seconds.
    """

    request: Ints
    previous: Ints
    blocks: Ints
    read: Ints
    tokens: Ints
    busy: Floats


class Radix(NamedTuple):
    """The tree's edges, each the longest run that the same requests passed; a parent before its children.

    parent: the edge above, or -1. end: tokens from the root to the edge's end. edge: tokens of it. passed: requests
    that passed. first: the first of them.
    """

    parent: Ints
    end: Ints
    edge: Ints
    passed: Ints
    first: Ints


class Paths(NamedTuple):
    """All requests of a log, by arrival.

    tokens: of the prompt. blocks: full blocks that the request leaves in a cache. prompt_blocks: full blocks of its
    prompt. leaf: the edge where the prompt ends. arrival, end: seconds.
    """

    block_size: int
    tokens: Ints
    blocks: Ints
    prompt_blocks: Ints
    arrival: Floats
    end: Floats
    segments: Segments
    radix: Radix
    leaf: Ints

    @property
    def requests(self) -> int:
        """How many."""
        return len(self.tokens)


def per_request(paths: Paths, values: Ints) -> Ints:
    """Sum what is known by segment over each request's segments."""
    sums = np.zeros(paths.requests, dtype=np.int64)
    np.add.at(sums, paths.segments.request, values)
    return sums


def segments_of(rows: list[tuple[int, int, int, int, int, float]]) -> Segments:
    """From rows in the order of the fields."""
    if not rows:
        nothing = np.zeros(0, dtype=np.int64)
        return Segments(nothing, nothing, nothing, nothing, nothing, np.zeros(0))
    request, previous, blocks, read, tokens, busy = zip(*rows, strict=True)
    whole = [np.array(column, dtype=np.int64) for column in (request, previous, blocks, read, tokens)]
    return Segments(whole[0], whole[1], whole[2], whole[3], whole[4], np.array(busy, dtype=np.float64))
