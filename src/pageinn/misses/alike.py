"""Which earlier prompts a prompt resembles, wherever the common text stands.

A nonce at the head makes prompts part at once, so likeness is judged by runs of four tokens anywhere in them: each
sequence by those of its runs that hash lowest (a bottom-k sketch; Broder, 1997), which need no look at the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pageinn.misses.record import Record

_RUN = 4
_KEPT = 64
#: Of the latest records, so many are compared, and so many returned.
_COMPARED = 256
_FOUND = 2
#: Odd numbers with well mixed bits, to hash runs with (those of SplitMix64 and of FNV).
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x100000001B3], dtype=np.uint64)
_MIX = np.uint64(0xFF51AFD7ED558CCD)


def alike(record: Record, others: Sequence[Record]) -> list[Record]:
    """The earlier records that have most in common with this one, the best first; none that has next to nothing."""
    mine = sketch(record)
    recent = others[-_COMPARED:]
    if not len(mine) or not recent:
        return []
    theirs = [sketch(other) for other in recent]
    owners = np.repeat(np.arange(len(recent)), [len(each) for each in theirs])
    common = np.bincount(owners, weights=np.isin(np.concatenate(theirs), mine), minlength=len(recent))
    # Of equal ones the newest, which stands last.
    best = np.argsort(common, kind="stable")[::-1][:_FOUND]
    return [recent[place] for place in best.tolist() if common[place] * 8 >= len(mine)]


def sketch(record: Record) -> NDArray[np.uint64]:
    """A record's prompt in at most 64 numbers, computed once."""
    if record.sketch is None:
        record.sketch = _sketch(record.prompt)
    return record.sketch


def _sketch(packed: bytes) -> NDArray[np.uint64]:
    ids = np.frombuffer(packed, dtype="<u4").astype(np.uint64)
    if len(ids) < _RUN:
        return np.zeros(0, dtype=np.uint64)
    count = len(ids) - _RUN + 1
    runs = np.zeros(count, dtype=np.uint64)
    for place, factor in enumerate(_FACTORS):
        runs = (runs ^ ids[place : place + count]) * factor
        runs ^= runs >> np.uint64(29)
    return np.unique(runs * _MIX)[:_KEPT]
