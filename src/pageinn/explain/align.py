"""What two arrays of units have in common, in order: patience alignment, in time about linear in their length."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from pageinn.explain.units import Ids, Laid

#: Texts without a single line of their own are compared by a quadratic method, up to so many pairs of lines.
_LARGEST = 1 << 22


class Run(NamedTuple):
    """a[a : a + length] equals b[b : b + length]."""

    a: int
    b: int
    length: int


def leading(a: Ids, b: Ids) -> int:
    """How many leading units are equal."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def goes_on(earlier: Laid, later: Laid) -> bool:
    """Whether a prompt begins with all of an earlier one, but for the words with which a template ends a prompt."""
    end = len(earlier.units)
    for start, part in zip(reversed(earlier.starts), reversed(earlier.parts), strict=True):
        if part.kind != "template":
            break
        end = start
    return leading(earlier.units, later.units) >= end


def align(a: Ids, b: Ids) -> list[Run]:
    """Equal runs, in order in both. Units that occur once in both anchor them; runs grow from there both ways."""
    runs: list[Run] = []
    _align(a.tolist(), b.tolist(), 0, 0, runs)
    return _joined(runs)


def _align(a: list[int], b: list[int], a_start: int, b_start: int, runs: list[Run]) -> None:
    """Align two stretches that begin at these places, and append their runs. What lies between anchors is aligned too,
    by anchors of its own.
    """
    most = min(len(a), len(b))
    head = next((k for k in range(most) if a[k] != b[k]), most)
    most -= head
    tail = next((k for k in range(most) if a[-1 - k] != b[-1 - k]), most)
    left, right = a[head : len(a) - tail], b[head : len(b) - tail]
    if head:
        runs.append(Run(a_start, b_start, head))
    if left and right:
        i0, j0 = a_start + head, b_start + head
        i = j = 0
        anchors = _anchors(left, right)
        for next_i, next_j, length in [(x, y, 1) for x, y in anchors] if anchors else _longest(left, right):
            if anchors:
                _align(left[i:next_i], right[j:next_j], i0 + i, j0 + j, runs)
            runs.append(Run(i0 + next_i, j0 + next_j, length))
            i, j = next_i + length, next_j + length
        if anchors:
            _align(left[i:], right[j:], i0 + i, j0 + j, runs)
    if tail:
        runs.append(Run(a_start + len(a) - tail, b_start + len(b) - tail, tail))


def _anchors(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Pairs of places of units that are unique on both sides, the longest increasing sequence of them."""
    if not left or not right:
        return []
    once_left = {unit for unit, count in Counter(left).items() if count == 1}
    once = {unit for unit, count in Counter(right).items() if count == 1} & once_left
    place = {unit: j for j, unit in enumerate(right) if unit in once}
    pairs = [(i, place[unit]) for i, unit in enumerate(left) if unit in once]
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for k, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        before.append(last[at - 1] if at else -1)
        if at == len(ends):
            ends.append(j)
            last.append(k)
        else:
            ends[at], last[at] = j, k
    chosen: list[tuple[int, int]] = []
    k = last[-1] if last else -1
    while k >= 0:
        chosen.append(pairs[k])
        k = before[k]
    return chosen[::-1]


def _longest(left: list[int], right: list[int]) -> list[tuple[int, int, int]]:
    """Equal stretches, the longest taken first: for texts in which every line comes twice."""
    if len(left) * len(right) > _LARGEST:
        return []
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in blocks if block.size]


def _joined(runs: list[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].a + joined[-1].length == run.a and joined[-1].b + joined[-1].length == run.b:
            joined[-1] = joined[-1]._replace(length=joined[-1].length + run.length)
        else:
            joined.append(run)
    return joined
