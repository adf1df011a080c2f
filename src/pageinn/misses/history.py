"""The latest requests, in bounded memory, and which of them a prompt begins like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.misses.known import Known
from pageinn.misses.record import Near, Record

#: Records kept, and bytes of tokens that they hold together: four bytes a token, for prompts and answers.
MOST_RECORDS = 1024
MOST_BYTES = 16 << 20


class History:
    """Records, oldest first. The oldest lose their tokens first, and are dropped later."""

    def __init__(self, most_records: int = MOST_RECORDS, most_bytes: int = MOST_BYTES) -> None:
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._records: deque[Record] = deque()
        self._by_number: dict[int, Record] = {}
        self._whole: deque[Record] = deque()
        self._scopes: dict[Scope, Known] = {}
        self._everywhere = Known()
        self.nbytes = 0
        self.count = 0

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def newest(self, count: int) -> list[Record]:
        """The latest records, the newest first."""
        return list(islice(reversed(self._records), count))

    def find(self, number: int) -> Record | None:
        """The record of this number, or None if it is not there any more."""
        return self._by_number.get(number)

    def nearest(self, scope: Scope, packed: bytes) -> Near | None:
        """What begins most like a prompt, of what its scope may read."""
        found = [
            known.nearest(packed, self.count)
            for each in {scope: None, PUBLIC: None}
            if (known := self._scopes.get(each)) is not None
        ]
        return max((near for near in found if near is not None), key=lambda near: near.shared, default=None)

    def elsewhere(self, packed: bytes) -> Near | None:
        """What begins most like a prompt, of all scopes together."""
        return self._everywhere.nearest(packed, self.count)

    def add(self, record: Record) -> None:
        """Enter a record; it has the number `count`. One longer than all that may be kept is kept without tokens."""
        self.count += 1
        self._records.append(record)
        self._by_number[record.number] = record
        if len(record.packed) > self._most_bytes:
            record.packed = b""
        self._enter(record)
        self._whole.append(record)
        self._make_room()

    def extend(self, record: Record, answer: bytes) -> None:
        """Learn a record's answer. Without effect once its tokens are gone."""
        if not record.packed or len(record.packed) + len(answer) > self._most_bytes:
            return
        self._leave(record)
        record.packed += answer
        self._enter(record)
        self._make_room()

    def _make_room(self) -> None:
        while self.nbytes > self._most_bytes or len(self._whole) > self._most_records:
            oldest = self._whole.popleft()
            self._leave(oldest)
            oldest.packed = b""
        while len(self._records) > self._most_records:
            del self._by_number[self._records.popleft().number]

    def _enter(self, record: Record) -> None:
        self.nbytes += len(record.packed)
        if record.stores and record.packed:
            self._scopes.setdefault(record.scope, Known()).add(record.packed, record.number)
            self._everywhere.add(record.packed, record.number)

    def _leave(self, record: Record) -> None:
        self.nbytes -= len(record.packed)
        if record.stores and record.packed:
            known = self._scopes[record.scope]
            known.remove(record.packed, record.number)
            self._everywhere.remove(record.packed, record.number)
            if not len(known):
                del self._scopes[record.scope]
