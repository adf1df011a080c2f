"""How much repeats, how it splits, and how long ago it was used."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pageinn.measure.curve import Distances
from pageinn.measure.paths import Floats, Ints, Paths


class Share(NamedTuple):
    """Prompt tokens that repeat an earlier prefix. live: those that a request still running at the time has; None
    where the log has no clock.
    """

    tokens: int
    repeated: int
    live: int | None

    @property
    def share(self) -> float | None:
        """Of all prompt tokens; None of no tokens."""
        return self.repeated / self.tokens if self.tokens else None


class Peak(NamedTuple):
    """The most blocks that running requests hold at one time, each its own or sharing what is equal."""

    alone: int
    shared: int


class Bin(NamedTuple):
    """Tokens whose reuse distance is at least `least`, and less than the next bin's."""

    least: float
    tokens: int


def shares(paths: Paths, clock: bool) -> tuple[Share, Share]:
    """Token by token, and in full blocks of the prompt."""
    running = _running(paths)
    total = int(paths.tokens.sum())
    segments = paths.segments
    found = []
    for values in (segments.tokens, segments.read * paths.block_size):
        found.append(Share(total, int(values.sum()), int(values[running].sum()) if clock else None))
    return found[0], found[1]


def peak(paths: Paths) -> Peak:
    """Full blocks only. A block is held from the first arrival to the last end of requests that overlap in time."""
    segments = paths.segments
    blocks, arrival, end = paths.blocks, paths.arrival, paths.end
    alone = _highest(np.concatenate([arrival, end]), np.concatenate([blocks, -blocks]))
    running = _running(paths)
    # A piece that is in use already is not taken again, but perhaps given back later.
    longer = running & (end[segments.request] > segments.busy)
    known = np.bincount(segments.request[running], segments.blocks[running], len(blocks)).astype(np.int64)
    times = np.concatenate([arrival, end, segments.busy[longer], end[segments.request[longer]]])
    changes = [blocks - known, known - blocks, segments.blocks[longer], -segments.blocks[longer]]
    return Peak(alone, _highest(times, np.concatenate(changes)))


def _highest(times: Floats, changes: Ints) -> int:
    """The highest sum; at one time, what is given back goes first."""
    order = np.lexsort((changes, times))
    return int(np.cumsum(changes[order]).max(initial=0))


def _running(paths: Paths) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(paths.segments.busy > paths.arrival[paths.segments.request])


def ages(paths: Paths) -> list[Bin]:
    """Seconds since a repeated token was used last, in bins whose bounds double."""
    segments = paths.segments
    seconds = paths.arrival[segments.request] - paths.arrival[segments.previous]
    return _doubling(seconds, segments.tokens)


def stack_bins(distances: Distances, block_size: int) -> list[Bin]:
    """How many blocks were used since a repeated block was used last, in bins whose bounds double."""
    above, read = distances.above, distances.groups.read
    longest = int((above + read).max(initial=0))
    bins = []
    bound = 1
    while bound <= longest:
        inside = np.clip(above + read, bound - 1, 2 * bound - 1) - np.clip(above, bound - 1, 2 * bound - 1)
        bins.append(Bin(bound, int(inside.sum()) * block_size))
        bound *= 2
    return bins


def _doubling(values: Floats, weights: Ints) -> list[Bin]:
    if len(values) == 0:
        return []
    power = np.where(values < 1, -1, np.floor(np.log2(np.maximum(values, 1)))).astype(np.int64)
    sums = np.bincount(power + 1, weights)
    return [Bin(0.0 if place == 0 else 2.0 ** (place - 1), int(tokens)) for place, tokens in enumerate(sums.tolist())]
