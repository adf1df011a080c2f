"""Whether the server thrashes: it works, but mostly on what it had done before.

The signature is active memory pinned high while the queue grows and preemptions become more frequent. Kept blocks fill
the pool in health, so they are not looked at.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Seconds that are looked at together, and how many such spans make a trend.
_SPAN = 5.0
_SPANS = 3
#: The share of the pool from which on active blocks are pinned high.
_HIGH = 0.9


class _Span(NamedTuple):
    lowest_share: float
    waiting: int
    preemptions: int


class Thrash:
    """Watches one scheduler, step by step."""

    def __init__(self) -> None:
        self.now = False
        self._spans: deque[_Span] = deque(maxlen=_SPANS)
        self._until: float | None = None
        self._lowest = 1.0
        self._preemptions = 0

    def look(self, now: float, in_use_share: float, waiting: int, preemptions: int) -> None:
        """Take in how things stand. preemptions: so far, in all."""
        self._lowest = min(self._lowest, in_use_share)
        if self._until is None:
            self._until, self._preemptions = now + _SPAN, preemptions
        if now < self._until:
            return
        self._spans.append(_Span(self._lowest, waiting, preemptions - self._preemptions))
        self._until, self._lowest, self._preemptions = now + _SPAN, 1.0, preemptions
        # Once it thrashes, it does so until the preemptions end or memory is free again: they cannot rise for ever.
        last = self._spans[-1]
        self.now = self._rises() or (self.now and last.preemptions > 0 and last.lowest_share >= _HIGH)

    def _rises(self) -> bool:
        spans = self._spans
        if len(spans) < _SPANS or any(span.lowest_share < _HIGH or not span.preemptions for span in spans):
            return False
        pairs = list(zip(spans, list(spans)[1:], strict=False))
        grows = all(before.waiting <= after.waiting for before, after in pairs)
        rises = all(before.preemptions <= after.preemptions for before, after in pairs)
        return grows and rises and spans[0].waiting < spans[-1].waiting and spans[0].preemptions < spans[-1].preemptions
