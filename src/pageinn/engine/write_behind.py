"""Blocks to disk: the paths of sequences that have ended, copied out a few blocks a step and written beside it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from pageinn.engine.disk_index import DiskIndex
from pageinn.engine.disk_worker import DiskWorker
from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import Located
from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.store.disk import Address, Entry
from pageinn.store.kv_store import Bytes, KVStore

#: Paths that may wait to be copied; beyond that the oldest is given up.
_MOST_PATHS = 1024


class _Path(NamedTuple):
    """The tokens that a sequence left with keys and values in place."""

    scope: Scope
    packed: bytes


class WriteBehind:
    """Belongs to the step loop. host: the host pool's bytes, uint8 [slots, block bytes]."""

    def __init__(
        self, index: DiskIndex, worker: DiskWorker, memory: MemoryManager, store: KVStore, host: Bytes
    ) -> None:
        self._index = index
        self._worker = worker
        self._memory = memory
        self._store = store
        self._host = host
        self._paths: deque[_Path] = deque()
        self.dropped = 0

    @property
    def behind(self) -> bool:
        """Whether something is still to be copied."""
        return bool(self._paths)

    def left(self, scope: Scope, packed: bytes) -> None:
        """A sequence has ended, or is about to."""
        self._paths.append(_Path(scope, packed))
        if len(self._paths) > _MOST_PATHS:
            old = self._paths.popleft()
            keys = [address.key for address in self._index.addresses(old.scope, old.packed)]
            self.dropped += sum(not self._index.expected(key) for key in keys)

    def clear(self) -> None:
        """Nothing of what was left is to be written."""
        self._paths.clear()

    def copy_out(self, most: int) -> None:
        """Hand over up to `most` blocks, as far as the writer has room. Call it between steps."""
        most = min(most, self._worker.room // self._store.block_bytes)
        while self._paths and most > 0:
            most -= self._copy(self._paths[0], most)

    def _copy(self, path: _Path, most: int) -> int:
        """Hand over up to `most` of a path's blocks, and the path if that was all; says how many."""
        located = self._memory.locate(path.scope, path.packed)
        own = self._index.addresses(path.scope, path.packed)
        public = self._index.addresses(PUBLIC, path.packed) if any(each.scope == PUBLIC for each in located) else own
        addresses = [(public if each.scope == PUBLIC else own)[place] for place, each in enumerate(located)]
        missing = [place for place, address in enumerate(addresses) if not self._index.expected(address.key)]
        chosen = missing[:most]
        touched: list[bytes] = []
        if len(chosen) == len(missing):
            self._paths.popleft()
            # The head last, so that a path is evicted from its tail.
            touched = [address.key for address in reversed(addresses)]
        entries = self._entries([located[place] for place in chosen], [addresses[place] for place in chosen])
        self._index.send(entry.address.key for entry in entries)
        self._worker.write(entries, touched)
        return len(chosen)

    def _entries(self, located: list[Located], addresses: list[Address]) -> list[Entry]:
        payload = np.empty((len(located), self._store.block_bytes), np.uint8)
        for each, row in zip(located, payload, strict=True):
            if each.block is not None:
                self._store.read_blocks([each.block], row[None])
            else:
                row[:] = self._host[each.slot]
        return [Entry(address, row.data) for address, row in zip(addresses, payload, strict=True)]
