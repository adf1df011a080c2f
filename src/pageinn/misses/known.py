"""Token sequences in the order of their bytes: the one with the longest common beginning is a neighbour."""

from __future__ import annotations

from bisect import bisect_left, insort

from pageinn.memory.tokens import TOKEN_BYTES, common_blocks
from pageinn.misses.record import Near


class Known:
    """Sequences, each with the number of its request. A lookup compares O(log n) of them."""

    def __init__(self) -> None:
        self._sorted: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, packed: bytes, number: int) -> None:
        """Enter a sequence."""
        insort(self._sorted, (packed, number))

    def remove(self, packed: bytes, number: int) -> None:
        """Take out a sequence that was entered."""
        place = bisect_left(self._sorted, (packed, number))
        del self._sorted[place]

    def nearest(self, packed: bytes, before: int) -> Near | None:
        """The sequence with the longest common beginning, the newest of equal ones. before: above all numbers."""
        place = bisect_left(self._sorted, (packed, before))
        best: Near | None = None
        for other, number in self._sorted[max(place - 1, 0) : place + 1]:
            shared = common_blocks(other, 0, packed, 0, TOKEN_BYTES)
            if best is None or (shared, number) > (best.shared, best.number):
                best = Near(number, shared)
        return best
