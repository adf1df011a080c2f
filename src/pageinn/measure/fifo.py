"""The hit rate of a first-in, first-out cache of several sizes at once: what recency is worth beside it.

The curve's rule otherwise: requests one at a time, full blocks only, a request finds its prompt's blocks from the head
on as far as none is missing. Then those that are missing come in, the head first, and each drives out what came in
first, whoever used it since. So a cache of C blocks holds the last C that came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pageinn.measure.curve import Groups
from pageinn.measure.paths import Ints, Paths

#: Below the number of any block that came in, less any size.
_NEVER = -(1 << 60)


class Hits(NamedTuple):
    """Prompt blocks found, and those of them that requests from a given number on found; one entry a size."""

    all: list[int]
    since: list[int]


def fifo_hits(paths: Paths, groups: Groups, sizes: Sequence[int], since: int) -> Hits:
    """For caches of these many blocks, each at least the largest request's."""
    limits = np.array(sizes, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(paths.blocks)])
    blocks, distinct = _blocks(groups, starts)
    repeats = np.bincount(groups.request, minlength=paths.requests).tolist()
    came = np.full((distinct, len(limits)), _NEVER, dtype=np.int64)
    count = np.zeros(len(limits), dtype=np.int64)
    found, late = np.zeros_like(count), np.zeros_like(count)
    for request, read in enumerate(paths.prompt_blocks.tolist()):
        path = blocks[starts[request] : starts[request + 1]]
        if not repeats[request]:
            came[path] = count + np.arange(len(path))[:, None]
            count += len(path)
            continue
        entered = came[path]
        age = count - entered
        missing = age > limits
        hits = np.minimum(np.where(missing.any(axis=0), missing.argmax(axis=0), len(path)), read)
        found += hits
        if request >= since:
            late += hits
        # What comes in for the head may drive out what the same request has further on.
        while True:
            earlier: Ints = np.cumsum(missing, axis=0) - missing
            driven = age + earlier > limits
            if np.array_equal(driven, missing):
                break
            missing = driven
        came[path] = np.where(missing, count + earlier, entered)
        count += missing.sum(axis=0)
    return Hits(found.tolist(), late.tolist())


def _blocks(groups: Groups, starts: Ints) -> tuple[Ints, int]:
    """The number of each request's blocks, one after another: equal blocks have one number. And how many there are."""
    known = np.bincount(groups.request, groups.blocks, len(starts) - 1).astype(np.int64)
    new = np.ones(int(starts[-1]), dtype=bool)
    new[_ranges(starts[:-1], known)] = False
    # A number for each new block; the others have that of the block at the same depth of who used it last.
    blocks = np.cumsum(new) - 1
    begins = starts.tolist()
    place, last = 0, -1
    for request, previous, count in zip(*(column.tolist() for column in groups[:3]), strict=True):
        if request != last:
            place, last = begins[request], request
        source = begins[previous] + place - begins[request]
        blocks[place : place + count] = blocks[source : source + count]
        place += count
    return blocks, int(np.count_nonzero(new))


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """All numbers from each start on, as many as its length."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
