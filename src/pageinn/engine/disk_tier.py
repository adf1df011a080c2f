"""The disk below the prefix tree, as the step loop drives it: look up, load, write behind, and never wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pageinn.engine.disk_index import DiskIndex
from pageinn.engine.disk_worker import BlockStore, DiskWorker, Emptied, Lost, Written
from pageinn.engine.prefetch import Prefetch
from pageinn.engine.stats import DiskStats
from pageinn.engine.write_behind import WriteBehind
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import Scope
from pageinn.scheduling.backlog import Queued
from pageinn.scheduling.cost import Rates
from pageinn.scheduling.plan import Request
from pageinn.store.disk import DiskError
from pageinn.store.kv_store import Bytes, KVStore

log = logging.getLogger("pageinn")

#: How long the end of a process may wait for what is still to be written.
CLOSE_SECONDS = 10.0
_WAIT_SECONDS = 0.005


class DiskTier:
    """Belongs to the step loop; every call but `close` and `wait` returns at once. host: uint8 [slots, block bytes]."""

    def __init__(
        self,
        disk: BlockStore,
        fingerprint: str,
        memory: MemoryManager,
        store: KVStore,
        host: Bytes,
        rates: Rates,
        clock: Callable[[], float],
    ) -> None:
        keys = _keys(disk)
        self._index = DiskIndex(fingerprint, memory.tree.block_bytes, keys or ())
        self._worker = DiskWorker(disk, errors=int(keys is None))
        self._prefetch = Prefetch(self._index, self._worker, memory, host, rates, clock)
        self._writer = WriteBehind(self._index, self._worker, memory, store, host)
        self._refused = 0

    @property
    def waiting(self) -> Queued:
        """The requests that wait for the disk."""
        return self._prefetch.waiting

    @property
    def behind(self) -> bool:
        """Whether blocks are still to be copied for the writer."""
        return self._writer.behind

    def arrive(self, request: Request) -> bool:
        """Look a request up; True if it is to wait until `poll` returns it."""
        self._learn()
        return self._prefetch.arrive(request)

    def forget(self, request_id: str) -> None:
        """A request has gone."""
        self._prefetch.forget(request_id)

    def loaded(self, request_id: str) -> int:
        """Tokens that were loaded while a request waited for them; asked once, when it starts."""
        return self._prefetch.loaded.pop(request_id, 0)

    def poll(self) -> list[Request]:
        """Requests that need not wait any more. Call it before a step is planned."""
        self._learn()
        return self._prefetch.poll()

    def left(self, scope: Scope, packed: bytes) -> None:
        """A sequence with these tokens has ended: its blocks are to be written."""
        self._writer.left(scope, packed)

    def copy_out(self, most: int) -> None:
        """Hand up to `most` blocks to the writer. Call it after a step was committed."""
        self._learn()
        self._writer.copy_out(most)

    def wait(self) -> None:
        """A moment, or until the disk has done something: for a step loop that has nothing else to do."""
        self._worker.wait(_WAIT_SECONDS)

    def clear(self) -> list[Request]:
        """Drop everything; the requests that need not wait any more."""
        self._learn()
        self._index.clear()
        self._writer.clear()
        self._worker.clear()
        return self._prefetch.clear()

    def close(self) -> None:
        """Write what is still to be written, as far as the time goes, and let go of the disk. May be called again."""
        end = time.monotonic() + CLOSE_SECONDS
        while self._writer.behind and time.monotonic() < end:
            self.copy_out(1 << 30)
            self._worker.wait(_WAIT_SECONDS)
        written = self._worker.close(max(end - time.monotonic(), 0.0)) and not self._writer.behind
        self._learn()
        if not written:
            log.warning("disk cache: not all blocks were written within %g s", CLOSE_SECONDS)

    def stats(self) -> DiskStats:
        """As things are now."""
        worker, counts = self._worker, self._prefetch.counts
        return DiskStats(
            queries=counts.queries,
            hits=counts.hits,
            declined=counts.declined,
            late=counts.late,
            errors=worker.errors,
            dropped_writes=self._writer.dropped + self._refused,
            bytes_read=worker.bytes_read,
            bytes_written=worker.bytes_written,
            blocks=len(self._index),
            nbytes=worker.nbytes,
        )

    def _learn(self) -> None:
        """Take in what the thread has done."""
        for result in self._worker.results():
            match result:
                case Written(keys, stored, dropped):
                    self._index.arrive(keys, stored)
                    self._index.discard(dropped)
                    self._refused += 0 if stored else len(keys)
                case Lost(key):
                    self._index.discard([key])
                case Emptied():
                    self._index.empty()


def _keys(disk: BlockStore) -> list[bytes] | None:
    """What is on disk; None, and the disk is empty, if that cannot be read."""
    try:
        return disk.keys()
    except DiskError as error:
        log.warning("disk cache: %s: starting empty", error)
        disk.rebuild()
        return None
