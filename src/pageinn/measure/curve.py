"""The hit rate of a least-recently-used cache of every size, in one pass (Mattson et al., 1970).

The rule: requests one at a time, full blocks only. A request reads the blocks of its prompt from the head on, and then
all its blocks are the most recently used, a head more recently than its tail. So a cache of C blocks holds the C most
recently used ones, always whole prefixes, and a block is found if at most C blocks are as recently used as it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pageinn.measure.paths import Ints, Paths


class Groups(NamedTuple):
    """A path's blocks that the same earlier request used last: request, that request, blocks, those of the prompt."""

    request: Ints
    previous: Ints
    blocks: Ints
    read: Ints


class Distances(NamedTuple):
    """Groups and, for each, how many blocks were used since its last use: the n-th block has distance above + n."""

    groups: Groups
    above: Ints

    def hits(self, size: int, since: int = 0) -> int:
        """Prompt blocks found in a cache of that many blocks, by requests from number `since` on."""
        first = np.searchsorted(self.groups.request, since)
        return int(np.clip(size - self.above[first:], 0, self.groups.read[first:]).sum())


def grouped(paths: Paths) -> Groups:
    """The segments, joined where the same request used them last."""
    request, previous, blocks, read, _, _ = paths.segments
    if len(request) == 0:
        return Groups(request, previous, blocks, read)
    begins = np.ones(len(request), dtype=bool)
    begins[1:] = (request[1:] != request[:-1]) | (previous[1:] != previous[:-1])
    at = np.flatnonzero(begins)
    blocks, read = np.add.reduceat(blocks, at), np.add.reduceat(read, at)
    some = blocks > 0
    return Groups(request[at][some], previous[at][some], blocks[some], read[some])


def stack_distances(paths: Paths, groups: Groups) -> Distances:
    """Blocks used between a group's last use and now: all uses in between, less those that used a block again."""
    before = np.concatenate([[0], np.cumsum(paths.blocks)])
    uses = before[groups.request] - before[groups.previous + 1]
    # Of one request the older group comes first, so that they do not count each other.
    order = np.lexsort((groups.previous, groups.request))
    repeats = np.empty(len(order), dtype=np.int64)
    repeats[order] = _greater_before(groups.previous[order], groups.blocks[order])
    return Distances(groups, uses - repeats)


def _greater_before(values: Ints, weights: Ints) -> Ints:
    """For each element the weights of those before it with a greater value: bit by bit, from the highest."""
    sums = np.zeros(len(values), dtype=np.int64)
    if len(values) == 0:
        return sums
    index = np.arange(len(values))
    for bit in range(int(values.max()).bit_length() - 1, -1, -1):
        one = (values >> bit) & 1 == 1
        group = values >> (bit + 1)
        begins = np.ones(len(values), dtype=bool)
        begins[1:] = group[1:] != group[:-1]
        at = np.flatnonzero(begins)
        sizes = np.diff(np.append(at, len(values)))
        heavier = np.where(one, weights, 0)
        seen = np.cumsum(heavier) - heavier
        seen -= np.repeat(seen[at], sizes)
        sums[index[~one]] += seen[~one]
        # Within each group, zeros go before ones, both in their order.
        ones = np.cumsum(one) - one
        ones -= np.repeat(ones[at], sizes)
        zeros_in_group = np.repeat(sizes - np.add.reduceat(one.astype(np.int64), at), sizes)
        start = np.repeat(at, sizes)
        zeros = np.arange(len(values)) - start - ones
        place = start + np.where(one, zeros_in_group + ones, zeros)
        moved = np.empty_like(index)
        moved[place] = index
        index = moved
        values, weights = _placed(values, place), _placed(weights, place)
    return sums


def _placed(values: Ints, place: Ints) -> Ints:
    moved = np.empty_like(values)
    moved[place] = values
    return moved
